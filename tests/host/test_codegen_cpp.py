"""Expressions that were folded and written as C++ (with an exported library's Int) have the values of Python."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.errors import TemplateError
from autotune.expressions.expression import Expression
from autotune.family.codegen_cpp import fold
from autotune.operation.registry import CONV2D, operation
from autotune.resources import shipped

pytestmark = pytest.mark.cxx

VALUES = tuple({"n": n, "a": a, "b": b} for n, a, b in ((1, 2, 3), (5, -4, 12), (9, 0, -1), (3, 7, 7)))
KNOWN = {"device.arch": 90}
PROGRAM = """
#include <cstdio>
#include "expression.h"
using namespace autotune_runtime;

template <class Value>
void show(Value value) {
    try {
        std::printf("%lld\\n", static_cast<long long>(Int(value()).value()));
    } catch (const Unevaluable &) {
        std::printf("error\\n");
    }
}

struct Layer {
    Int n;
};

void all(Layer layer, Int a, Int b) {
    static_cast<void>(layer), static_cast<void>(a), static_cast<void>(b);
    SHOWN
}

int main() {
    CALLS
}
"""


def computed(texts: list[str], cxx: str, folder: Path) -> list[str]:
    """The values of these C++ expressions for every one of VALUES, as a program prints them."""
    shown = "\n    ".join(f"show([&] {{ return {text}; }});" for text in texts)
    calls = "\n    ".join(f"all({{{values['n']}}}, {values['a']}, {values['b']});" for values in VALUES)
    (folder / "show.cpp").write_text(PROGRAM.replace("SHOWN", shown).replace("CALLS", calls))
    command = [cxx, "-std=c++17", "-Wall", "-Wextra", "-Wno-bool-operation", f"-I{shipped('templates') / 'export'}"]
    done = subprocess.run([*command, "-o", "show", "show.cpp"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([str(folder / "show")], capture_output=True, text=True, check=True).stdout.split()


def printed(text: str) -> str:
    """An expression as C++."""
    return fold(Expression(text, "here"), KNOWN, operation(CONV2D)).cpp


def value(text: str, names: Mapping[str, int]) -> str:
    """Its value in Python."""
    try:
        found = Expression(text, "here").bind(KNOWN).value(names)
    except TemplateError:
        return "error"
    return str(int(found))


def number(rng: random.Random, depth: int) -> str:
    """A random expression with a number for its value."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(["n", "a", "b", "n", "a", "b", "device.arch", "0", "1", "2", "3", "4", "5"])
    one, two, three = (number(rng, depth - 1) for _ in range(3))
    sign = rng.choice(["+", "-", "*", "+", "-", "*", "//", "%"])
    return rng.choice(
        [
            *[f"({one}) {sign} ({two})"] * 6,
            *(f"-({one})", f"({one}) if {condition(rng, depth - 1)} else ({two})"),
            *(f"{word}({one}, {two})" for word in ("ceil_div", "round_up", "min", "max")),
            f"max({one}, {two}, {three})",
            f"max_registers(max({one}, 1))",
        ]
    )


def condition(rng: random.Random, depth: int) -> str:
    """A random expression that is true or false."""
    one, two = (number(rng, max(0, depth - 1)) for _ in range(2))
    plain = rng.choice(
        [
            *(f"({one}) {sign} ({two})" for sign in ("==", "!=", "<", "<=", ">", ">=")),
            *(
                f"is_pow2({one})",
                f"({one}) in [1, 2, 5]",
                f"({one}) not in [0, 3]",
                f"0 < ({one}) <= ({two})",
            ),
        ]
    )
    if depth < 2:
        return f"({plain})"
    other = condition(rng, depth - 1)
    return rng.choice([f"({plain})", f"(not {other})", f"(({plain}) and {other})", f"(({plain}) or {other})"])


def test_any_expression_has_its_value_in_cpp(cxx: str, tmp_path: Path) -> None:
    rng = random.Random(20)
    written = {text: printed(text) for make in (number, condition) for text in [make(rng, 4) for _ in range(90)]}
    found = computed(list(written.values()), cxx, tmp_path)
    expected = [(text, cpp, value(text, names)) for names in VALUES for text, cpp in written.items()]
    for (text, cpp, here), there in zip(expected, found, strict=True):
        if here != "error":  # an expression that raises here may have been left out there
            assert there == here, f"{text} as {cpp}"
    assert [here for _, _, here in expected].count("error") < len(expected) / 3


LARGE = {
    "(100000 if a > 0 else 5) * 100000 * 100000": ("1000000000000000", "50000000000"),
    "9223372036854775807 + a": ("error", "9223372036854775803"),
    "-9223372036854775807 + a": ("-9223372036854775805", "error"),
    "a * 4611686018427387904": ("error", "error"),
    "n * n * 4611686018427387903": ("4611686018427387903", "error"),
    "7 // a + 7 % a": ("4", "-3"),
    "b > 4 or 7 // (a - 2) > 0": ("error", "1"),
}
"""Expressions, and their values for the first two of VALUES."""


def test_numbers_of_64_bits_and_nothing_beyond(cxx: str, tmp_path: Path) -> None:
    found = computed([printed(text) for text in LARGE], cxx, tmp_path)
    for at, (text, values) in enumerate(LARGE.items()):
        assert (found[at], found[len(LARGE) + at]) == values, text


@pytest.mark.parametrize("text", ["2 ** n", "bank_conflicts(4, n, [4, n])", "n in [a, b]"])
def test_what_cpp_cannot_say_is_refused(text: str) -> None:
    with pytest.raises(TemplateError, match=r"C\+\+ cannot express|indexes something that is not a list"):
        printed(text)
