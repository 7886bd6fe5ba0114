"""Edits of an operation that `autotune new-op` wrote, and the commands' answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.long_run import every, long_run
from tests.unit.tiny import Command, changed

pytestmark = pytest.mark.cxx

CHECK = ("check", "mine/mine.cu.j2", "--device", "host", "--seconds", "250", "--configs", "1")
"""With a time limit that is enough on a busy machine."""


def edit(name: str, *changes: tuple[str, str]) -> None:
    path = Path("mine") / name
    path.write_text(changed(path.read_text(), *changes))


def of_one_config() -> None:
    """Each parameter has one value, so that a check runs once for each problem."""
    edit("mine.cu.j2", ("[256, 64, 128, 512, 1024]", "[256]"), ("[1, 2, 4, 8]", "[1]"))


def without_columns() -> None:
    """Rows are the only size; there are four values of bias."""
    Path("mine/operation.toml").write_text(
        Path("mine/operation.toml")
        .read_text()
        .replace('columns = { doc = "elements of a row" }\n', "")
        .replace('["rows", "columns"]', '["rows"]')
        .replace('["columns"]', '["4"]')
        .replace("rows * columns", "rows")
        .replace("columns = 1.0, ", "")
        .replace('runtime = "rows"', 'independent = false\nruntime = "rows"')
    )
    edit("reference.py", ("    return", "    bias = bias[[row % 4 for row in range(p.rows)]]\n    return"))
    Path("mine/mine.cu.j2").write_text(
        Path("mine/mine.cu.j2")
        .read_text()
        .replace("${columns}", "4")
        .replace("rows * columns", "rows")
        .replace("static_cast<long long>(rows) * COLUMNS", "rows")
    )


@pytest.mark.parametrize("feature", every(2, ["", "feature = []\n"]))
def test_an_operation_of_the_runtime_size_alone_has_a_check_file(autotune: Command, feature: str) -> None:
    autotune("new-op", "mine")
    without_columns()
    edit("mine.cu.j2", ("[supports]\n", ""), ('"the grid has fewer than 2^31 blocks" = "rows < 4398046511104"\n', ""))
    Path("mine/check.toml").write_text(f"runtime = [7]\n{feature}")
    checked = autotune(*CHECK, "--json")
    assert checked.code == 0, checked.err
    assert "rows 7 f32" in checked.out


def test_rows_that_depend_on_their_number_are_said_to(autotune: Command) -> None:
    autotune("new-op", "mine")
    without_columns()
    edit("operation.toml", ("independent = false\n", ""))
    Path("mine/check.toml").write_text('runtime = [7]\nwords = ["dtype"]\n')
    wrong = autotune(*CHECK[:-1], "2")
    assert re.search(r"wrong for rows = \d+, right for 7, 1(, \d+)* with the same binary", wrong.out)
    assert "all before rows = 61, where the test data repeat, are right" in wrong.out


@pytest.mark.parametrize("feature", every(2, ["", "feature = []\n"]))
def test_a_size_without_a_feature_is_named(autotune: Command, feature: str) -> None:
    autotune("new-op", "mine")
    Path("mine/check.toml").write_text(f'runtime = [7]\nwords = ["dtype"]\n{feature}')
    assert autotune(*CHECK).complaint == "mine/check.toml: feature: no feature sets the size 'columns'"


def add_integers() -> None:
    """y = x + bias in 32 bits, which wraps around."""
    path = Path("mine/operation.toml")
    text = path.read_text().replace("integers = [-8, 8]", "integers = [-2147483648, 2147483647]")
    text = text.replace('columns"]\n', 'columns"]\ndtype = "i32"\n').replace('"multilinear"', '"exact"')
    path.write_text(text)
    edit("reference.py", ("x + bias, abs(x) + abs(bias)", "(x + bias + 2**31) % 2**32 - 2**31"))
    edit(
        "mine.cu.j2",
        ("const T* __restrict__ x, const T* __restrict__ bias, T*", "const int* x, const int* bias, int*"),
        (
            "from_float<T>(to_float(x[at]) + to_float(bias[at % COLUMNS]))",
            "static_cast<int>(static_cast<unsigned>(x[at]) + static_cast<unsigned>(bias[at % COLUMNS]))",
        ),
    )


def test_whole_numbers_have_all_bits_of_their_type(autotune: Command) -> None:
    autotune("new-op", "mine")
    add_integers()
    checked = autotune(*CHECK)
    assert checked.code == 0, checked.err
    edit("mine.cu.j2", ("y[at] = ", "y[at] = 0x7FFFFFFF & "))
    assert "wrong_result/inexact" in autotune(*CHECK).out, "a lost sign"
    edit("reference.py", ("(x + bias + 2**31) % 2**32 - 2**31", "x + bias"))
    told = autotune(*CHECK).err
    assert "for y: expected -2147483648 to 2147483647, the range of i32; make the inputs' `integers` smaller" in told


def test_test_data_that_a_type_does_not_hold_are_named(autotune: Command) -> None:
    autotune("new-op", "mine")
    path = Path("mine/operation.toml")
    path.write_text(path.read_text().replace("integers = [-8, 8]", "integers = [-1073741824, 1073741824]"))
    checked = autotune(*CHECK)
    assert checked.code == 0, checked.err
    told = "dtype f16: no config is feasible: x: test data from -1073741824 to 1073741824; expected whole numbers"
    assert told in checked.out


@pytest.mark.parametrize(
    ("table", "shape"),
    long_run(
        (
            """[derived]\nvector = "4 if dtype == 'f32' else 8"\n[rules]\n"vectors" = "columns % vector == 0"\n""",
            "columns 8",
        ),
        ("""[rules]\n"half in pairs" = "dtype == 'f32' or columns % 2 == 0"\n""", "columns 2"),
        ("""[derived]\ncells = "rows * columns"\n[rules]\n"fours" = "cells % 4 == 0"\n""", "columns 8"),
    ),
)
def test_rules_see_words_and_derived_names(autotune: Command, table: str, shape: str) -> None:
    autotune("new-op", "mine")
    path = Path("mine/operation.toml")
    path.write_text(f"{path.read_text()}\n{table}")
    of_one_config()
    checked = autotune(*CHECK[:-1], "3", "--json")
    assert checked.code == 0, checked.err
    assert shape in checked.out
    assert all(row["outcome"] == "correct" for row in json.loads(checked.out))


def test_rules_of_the_operation_and_of_the_check_file_see_words_and_derived_names(autotune: Command) -> None:
    autotune("new-op", "mine")
    path = Path("mine/operation.toml")
    path.write_text(
        f"""{path.read_text()}
[derived]
vector = "4 if dtype == 'f32' else 8"
[rules]
"whole vectors" = "columns % vector == 0"
"""
    )
    Path("mine/check.toml").write_text(
        """runtime = [3]
words = ["dtype"]
rules = { "no small f16" = "dtype == 'f32' or columns > vector" }
[[feature]]
name = "columns"
sizes = ["columns"]
values = { 4 = [4], 5 = [5], 8 = [8], 16 = [16] }
"""
    )
    of_one_config()
    checked = autotune(*CHECK[:-1], "50", "--json")
    assert checked.code == 0, checked.err
    assert {row["problem"] for row in json.loads(checked.out)} == {
        *("mine rows 3 columns 4 f32", "mine rows 3 columns 8 f32"),
        *("mine rows 3 columns 16 f32", "mine rows 3 columns 16 f16"),
    }


@pytest.mark.parametrize("text", ["threads", "columns % work", "elements and threads <= 1024"])
def test_a_constraint_that_is_a_number_is_named(autotune: Command, text: str) -> None:
    autotune("new-op", "mine")
    edit("mine.cu.j2", ('"threads <= 1024"', f'"{text}"'))
    wrong = autotune(*CHECK).complaint
    assert f"constraints.\"a block has at most 1024 threads\": '{text}' is a number" in wrong
    assert wrong.endswith(f"compare it, such as ({text}) == 0")


def test_a_rule_that_is_a_number_is_named(autotune: Command) -> None:
    autotune("new-op", "mine")
    path = Path("mine/operation.toml")
    path.write_text(f'{path.read_text()}\n[rules]\n"whole vectors" = "columns % 4"\n')
    told = "mine/operation.toml: rules.whole vectors: 'columns % 4' is a number, and any number except 0 "
    told += "would count as true"
    assert autotune(*CHECK).complaint.startswith(told)


@pytest.mark.parametrize("device", every(2, ["host:check", "host"]))
def test_standard_headers_compile_on_the_host(autotune: Command, device: str) -> None:
    autotune("new-op", "mine")
    headers = ("algorithm", "cstdio", "cstdlib", "ctime", "functional", "limits", "type_traits", "vector")
    lines = "".join(f"#include <{header}>\n" for header in headers)
    edit("mine.cu.j2", ('#include "_dtype', f'{lines}#include "_dtype'))
    checked = autotune("check", "mine/mine.cu.j2", "--device", device, "--configs", "1")
    assert checked.code == 0, checked


@pytest.mark.parametrize(
    ("name", "change", "warning"),
    [
        ("reference.py", ("x + bias, abs(x) + abs(bias)", "x + 0 * bias, abs(x)"), "no output depends on bias"),
        *long_run(
            (
                "reference.py",
                ("x + bias, abs(x) + abs(bias)", "0 * x + bias, abs(x) + abs(bias)"),
                "no output depends on x",
            )
        ),
        *long_run(
            ("reference.py", ("x + bias, abs(x) + abs(bias)", "0 * x + 3, 0 * x + 3"), "y is the same for all inputs")
        ),
        ("operation.toml", ('flops = "rows * columns"', 'flops = "columns"'), "cost.flops does not grow with rows"),
        ("operation.toml", ('reduction = "2"', 'reduction = "3"'), ""),
    ],
)
def test_declarations_that_no_kernel_contradicts_are_warned_of(
    autotune: Command, name: str, change: tuple[str, str], warning: str
) -> None:
    autotune("new-op", "mine")
    edit(name, change)
    checked = autotune("check", "mine/mine.cu.j2", "--device", "host", "--configs", "1")
    warnings = [line for line in checked.out.splitlines() if line.startswith("warning: ")]
    if warning:
        assert f"warning: mine/{name}: {warning}" in warnings
    else:
        assert warnings == []


@pytest.mark.parametrize(("factor", "limited"), [("10000000", True), *long_run(("1000", False))])
def test_an_error_factor_that_lets_wrong_kernels_pass_is_refused(autotune: Command, factor: str, limited: bool) -> None:
    autotune("new-op", "mine")
    edit("mine.cu.j2", ("[supports]", f'error_factor = "{factor}"\n\n[supports]'))
    edit("operation.toml", ('["f32", "f16"]', '["f32"]'))
    checked = autotune("check", "mine/mine.cu.j2", "--device", "host", "--configs", "1")
    assert ("wrong_result/too_loose: 1 of 1 configs\n  error_factor = 10000000 allows" in checked.out) == limited
    assert checked.code == (1 if limited else 0)
