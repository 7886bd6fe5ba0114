"""Expressions have Jinja's values, whether parts are folded or not; unsupported syntax is rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from autotune.autotune_runtime.planned_launches import ceil_div, is_pow2, max_registers, round_up
from autotune.errors import TemplateError
from autotune.expressions.expression import Expression
from autotune.expressions.functions import FUNCTIONS
from autotune.expressions.vectorized import Columns, column_of
from autotune.trial import Value

NAMES = ("a", "b", "c", "device.arch")
WORDS = ("word", "other")


def jinja(text: str, names: Mapping[str, Value]) -> object:
    """Jinja's own value of an expression, or the type of the exception."""
    environment = Environment(autoescape=False)
    environment.globals = dict(FUNCTIONS)
    device = {name.removeprefix("device."): value for name, value in names.items() if name.startswith("device.")}
    plain = {name: value for name, value in names.items() if "." not in name}
    try:
        return environment.compile_expression(text, undefined_to_none=False)({**plain, "device": device})
    except (ArithmeticError, TypeError, ValueError) as error:
        return type(error)


def ours(text: str, names: Mapping[str, Value], known: frozenset[str]) -> object:
    """The value of an expression with some of the names folded beforehand, or TemplateError."""
    bound = Expression(text, "here").bind({name: value for name, value in names.items() if name in known})
    rest = {name: value for name, value in names.items() if name not in known}
    for read in (bound.value, bound.word):
        try:
            return read(rest)
        except TemplateError as error:
            complaint = str(error)
    return TemplateError(complaint)


numbers = st.one_of(st.integers(-3, 9).map(lambda value: str(value) if value >= 0 else f"({value})"))
atoms = st.one_of(numbers, st.sampled_from([*NAMES, *NAMES, *WORDS, "'word'", "true", "false"]))


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions made of smaller ones."""
    pairs = st.tuples(inner, inner)
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "and", "or"]), inner).map(" ".join)
    compared = st.tuples(inner, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), inner).map(" ".join)
    chained = st.tuples(inner, inner, inner).map(lambda parts: f"{parts[0]} < {parts[1]} <= {parts[2]}")
    contained = st.tuples(inner, st.sampled_from(["in", "not in"]), st.lists(inner, min_size=1, max_size=3)).map(
        lambda parts: f"{parts[0]} {parts[1]} [{', '.join(parts[2])}]"
    )
    called = st.tuples(st.sampled_from(["ceil_div", "round_up", "min", "max"]), pairs).map(
        lambda parts: f"{parts[0]}({parts[1][0]}, {parts[1][1]})"
    )
    return st.one_of(
        binary,
        binary.map(lambda text: f"({text})"),
        compared.map(lambda text: f"({text})"),
        chained.map(lambda text: f"({text})"),
        contained.map(lambda text: f"({text})"),
        called,
        inner.map(lambda text: f"(not {text})"),
        inner.map(lambda text: f"(-{text})"),
        inner.map(lambda text: f"is_pow2({text})"),
        st.tuples(inner, st.integers(0, 3)).map(lambda parts: f"({parts[0]}) ** {parts[1]}"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
    )


expressions = st.recursive(atoms, larger, max_leaves=12)
values = st.fixed_dictionaries(
    {
        **{name: st.integers(-4, 12) for name in NAMES},
        "word": st.sampled_from(["word", "half"]),
        "other": st.sampled_from(["", "word"]),
    }
)


@settings(max_examples=100)
@given(text=expressions, names=values, known=st.frozensets(st.sampled_from([*NAMES, *WORDS])))
@example(text="5 or a", names={"a": 2}, known=frozenset())
@example(text="a or b", names={"a": 5, "b": 3}, known=frozenset("a"))
@example(text="a and b", names={"a": 0, "b": 3}, known=frozenset("a"))
@example(text="word or a", names={"word": "half", "a": 3}, known=frozenset({"word"}))
@example(text="b != 0 and a // b == 1", names={"a": 3, "b": 0}, known=frozenset("ab"))
@example(text="a // b if b else 0", names={"a": 3, "b": 0}, known=frozenset("b"))
@example(text="1 < a < 3", names={"a": 2}, known=frozenset())
@example(text="-a ** 2", names={"a": 3}, known=frozenset())
@example(text="a in (1, 2)", names={"a": 2}, known=frozenset("a"))
@example(text="0 * word", names={"word": "half"}, known=frozenset())
def test_agrees_with_jinja(text: str, names: Mapping[str, Value], known: frozenset[str]) -> None:
    expected = jinja(text, names)
    found = ours(text, names, known)
    if isinstance(found, TemplateError):
        repeated = "* is for whole numbers" in str(found)  # a word that Jinja repeats without end
        assert repeated or not isinstance(expected, (int, str)), f"{text}: Jinja yields {expected!r}, we say {found}"
    else:
        assert (found, type(found)) == (expected, type(expected))


@given(text=expressions, names=values)
def test_names_are_all_that_an_expression_needs(text: str, names: Mapping[str, Value]) -> None:
    needed = Expression(text, "here").names
    assert needed <= names.keys()
    everything = frozenset(names)
    assert str(ours(text, {name: names[name] for name in needed}, frozenset())) == str(ours(text, names, everything))


@given(a=st.integers(-1000, 1000), b=st.integers(1, 50))
def test_the_functions(a: int, b: int) -> None:
    assert (ceil_div(a, b) - 1) * b < a <= ceil_div(a, b) * b
    assert round_up(a, b) % b == 0
    assert 0 <= round_up(a, b) - a < b
    if a > 0:
        allocated = 32 * round_up(a, 4)  # for a register of each thread
        assert max_registers(a) == max(r for r in (*range(0, 256, 8), 255) if r * allocated <= 65536)
    assert is_pow2(a) == (a in {2**power for power in range(12)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a / b", "has /, which yields a fraction; use // or ceil_div"),
        ("a ~ b", "Concat is not part of expressions"),
        ("a|abs", "Filter is not part of expressions"),
        ("a is even", "Test is not part of expressions"),
        ("a[0]", "Getitem is not part of expressions"),
        ("a[1:2]", "is not part of expressions"),
        ("device.arch.real", "only device.NAME has a dot"),
        ("(a + b).real", "only device.NAME has a dot"),
        ("f(a)", "has f(), which does not exist; there are bank_conflicts, ceil_div, is_pow2, max, max_registers, min"),
        ("range(3)", "range(), which does not exist"),
        ("device.arch()", "is not part of expressions"),
        ("min(a, key=b)", "is not part of expressions"),
        ("min(*a)", "is not part of expressions"),
        ("min(**a)", "is not part of expressions"),
        ("{'a': 1}", "Dict is not part of expressions"),
        ("a if b", "is not part of expressions"),
        ("+a", "Pos is not part of expressions"),
        ("a b", "has unexpected text at 'b'"),
        ("a }} b", "has unexpected text at"),
        ("", "is empty"),
        ("a +", "does not parse"),
        ("(a", "does not parse"),
        ("a && b", "does not parse"),
        ("a = 1", "unexpected text"),
    ],
)
def test_what_expressions_do_not_have_is_refused_when_loaded(text: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        Expression(text, "folder/tiny.cu.j2: derived.x")
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"folder/tiny.cu.j2: derived.x: expression {text!r} ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a // b", "raises ZeroDivisionError"),
        ("a % b", "raises ZeroDivisionError"),
        ("7 // 0", "raises ZeroDivisionError"),
        ("ceil_div(a, b)", "raises ZeroDivisionError"),
        ("is_pow2('x')", "raises TypeError"),
        ("is_pow2()", "raises TypeError"),
        ("a < 'x'", "raises TypeError"),
        ("a in 5", "raises TypeError"),
        ("bank_conflicts(3, 32, [4, 32])", "raises ValueError: bank_conflicts begins with 1, 2, 4, 8 or 16 bytes"),
        ("bank_conflicts(4, 0, [4, 32])", "raises ValueError: bank_conflicts begins with"),
        ("bank_conflicts(4, 32)", "raises ValueError: bank_conflicts ends with [distance, extent]"),
        ("bank_conflicts(4, 32, [4])", "raises ValueError: bank_conflicts ends with"),
        ("bank_conflicts(4, 32, [4, 0 - a])", "raises ValueError: bank_conflicts ends with"),
        ("bank_conflicts(4, 32, 4, 32)", "raises TypeError"),
        ("min()", "raises TypeError"),
        ("'x' * 'y'", "raises TypeError"),
        ("missing + 1", "uses 'missing', which is not known here"),
        ("c.real", "uses 'c.real', which is not known here"),
        ("'word'", "yields 'word', expected a whole number or true/false"),
        ("1.5", "yields 1.5, expected a whole number"),
        ("2 ** -1", "yields 0.5, expected a whole number"),
        ("none", "yields None, expected a whole number"),
        ("(1, 2)", "yields (1, 2), expected a whole number"),
    ],
)
@pytest.mark.parametrize("known", [{}, {"a": 3, "b": 0}], ids=["late", "folded"])
def test_an_expression_that_raises_or_yields_something_else_is_an_error(
    text: str, words: str, known: dict[str, Value]
) -> None:
    bound = Expression(text, "here").bind(known)
    for read in (bound.integer, bound.value):
        with pytest.raises(TemplateError) as caught:
            read({"a": 3, "b": 0})
        assert words in str(caught.value)
        assert str(caught.value).startswith("here: expression ")


def test_a_branch_never_taken_never_raises() -> None:
    bound = Expression("7 // b if b else 1", "here").bind({"b": 0})
    assert bound.integer({}) == 1


def test_a_word_must_be_a_word() -> None:
    assert Expression("'fp16' if half else 'fp32'", "here").bind({}).word({"half": True}) == "fp16"
    with pytest.raises(TemplateError, match="yields 3, expected a string"):
        Expression("3", "here").bind({}).word({})


def test_a_truth_value_keeps_its_kind() -> None:
    bound = Expression("a > 1", "here").bind({})
    assert bound.value({"a": 2}) is True
    assert bound.integer({"a": 2}) == 1


def bulk(text: str, rows: Sequence[Mapping[str, Value]], known: Mapping[str, Value]) -> object:
    """The values of an expression for many configs at once, or TemplateError."""
    columns = Columns({name: column_of([row[name] for row in rows]) for name in rows[0]}, len(rows))
    try:
        return Expression(text, "here").bind(known).column(columns).tolist()
    except TemplateError as error:
        return str(error)


@settings(max_examples=100)
@given(text=expressions, rows=st.lists(values, min_size=1, max_size=5), known=st.frozensets(st.sampled_from(NAMES)))
@example(text="a // b if b else 0", rows=[{"a": 3, "b": 0}, {"a": 3, "b": 2}], known=frozenset())
@example(text="b and a // b", rows=[{"a": 3, "b": 0}, {"a": 3, "b": 2}], known=frozenset())
@example(text="a // b", rows=[{"a": 3, "b": 2}, {"a": 3, "b": 0}], known=frozenset())
@example(text="a * a * a", rows=[{"a": 2**40}, {"a": 3}], known=frozenset())
@example(text="a == 'x' or a > 2", rows=[{"a": "x"}, {"a": 1}, {"a": 3}], known=frozenset())
def test_many_configs_at_once_are_each_as_one(
    text: str, rows: Sequence[Mapping[str, Value]], known: frozenset[str]
) -> None:
    same = {name: rows[0][name] for name in known & rows[0].keys()}
    rest = [{name: value for name, value in row.items() if name not in same} for row in rows]
    bound = Expression(text, "here").bind(same)
    try:
        expected: object = [bound.value(row) for row in rest]
    except TemplateError as error:
        expected = str(error)
    assert bulk(text, rest, same) == expected
