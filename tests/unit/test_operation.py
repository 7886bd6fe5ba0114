"""Declarations in `operation.toml`: conv2d's, which agrees with the typed record, and mistakes in such a file."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from autotune.errors import TemplateError
from autotune.operation.registry import CONV2D, operation, read_operation
from autotune.problem import Conv2dProblem
from tests.problems import AWKWARD
from tests.unit.tiny import changed

TEXT = (operation(CONV2D).folder / "operation.toml").read_text()


def test_the_record_has_the_declared_sizes_words_and_defaults() -> None:
    declared: list[tuple[str, int | str | None]] = [(size.name, size.default) for size in operation(CONV2D).sizes]
    declared += [(name, words[0]) for name, words in operation(CONV2D).words.items()]
    found = [
        (field.name, None if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(Conv2dProblem)
    ]
    assert found == declared


@pytest.mark.parametrize("name", AWKWARD)
def test_arrays_have_the_documented_shapes(name: str) -> None:
    p = AWKWARD[name]
    channels, nhwc = p.c // p.groups, p.layout == "nhwc"
    shapes = {
        "x": (p.n, p.h, p.w, p.c) if nhwc else (p.n, p.c, p.h, p.w),
        "w": (p.k, p.r, p.s, channels) if nhwc else (p.k, channels, p.r, p.s),
        "bias": (p.k,),
        "y": (p.n, p.p, p.q, p.k) if nhwc else (p.n, p.k, p.p, p.q),
    }
    if p.epilogue == "none":
        del shapes["bias"]
    assert {array.name: array.shape for array in p.arrays} == shapes
    assert p.tensor_bytes == p.element_bytes * sum(map(math.prod, shapes.values()))
    assert [array.name for array in p.arrays if array.per_item] == ["x", "y"]


def test_a_kernel_reads_all_but_the_output() -> None:
    problem = Conv2dProblem(2, 3, 5, 5, 7, 1, 1, epilogue="bias")
    assert [array.name for array in problem.inputs] == ["x", "w", "bias"]
    assert problem.output.name == "y"
    assert operation(CONV2D).names_of("weights") == ("w", "bias")


def test_a_further_array_is_a_further_table(tmp_path: Path) -> None:
    residual = '[[array]]\nname = "v"\nrole = "in"\nintegers = [-2, 2]\nwhen = "epilogue == \'bias\'"\n'
    shape = 'shape = { nchw = ["n", "k", "p", "q"], nhwc = ["n", "p", "q", "k"] }\n'
    (tmp_path / "operation.toml").write_text(TEXT + residual + shape)
    declared = read_operation(tmp_path)
    names = Conv2dProblem(2, 3, 5, 6, 7, 3, 3, epilogue="bias").names()
    assert [array.name for array in declared.arrays_of(names)] == ["x", "w", "bias", "y", "v"]
    assert declared.arrays_of(names)[-1].shape == (2, 7, 3, 4)
    without = Conv2dProblem(2, 3, 5, 6, 7, 3, 3).names()
    assert [array.name for array in declared.arrays_of(without)] == ["x", "w", "y"]


def test_an_epilogue_says_what_is_added_and_what_is_applied() -> None:
    words = operation(CONV2D).words["epilogue"]
    assert words[:5] == ("none", "bias", "bias_relu", "bias_add", "bias_add_relu"), "their numbers in the C interface"
    found = {word: operation(CONV2D).names_from({"epilogue": word}) for word in words}
    assert {word: (names["terms"], names["activation"], names["residual"]) for word, names in found.items()} == {
        "none": ("none", "identity", 0),
        "bias": ("bias", "identity", 0),
        "bias_add": ("bias_add", "identity", 1),
        **{f"bias_{each}": ("bias", each, 0) for each in operation(CONV2D).enumerations["activation"][1:]},
        **{f"bias_add_{each}": ("bias_add", each, 1) for each in operation(CONV2D).enumerations["activation"][1:]},
    }


def test_a_further_activation_is_a_further_word(tmp_path: Path) -> None:
    (tmp_path / "operation.toml").write_text(
        changed(TEXT, ('activation = "all"', 'activation = ["identity", "relu", "softplus"]'))
    )
    declared = read_operation(tmp_path)
    assert set(declared.words["epilogue"]) - set(operation(CONV2D).words["epilogue"]) == {
        "bias_softplus",
        "bias_add_softplus",
    }
    assert declared.names_from({"epilogue": "bias_add_softplus"})["activation"] == "softplus"


MISTAKES = {
    "an unknown key": ('runtime = "n"', 'run_time = "n"', "run_time: unknown key (did you mean 'runtime'?)"),
    "no such size": ('runtime = "n"', 'runtime = "m"', "runtime: 'm' is not a size"),
    "a name of nothing": ('"2 * n * k', '"2 * m * k', "cost.flops: undeclared name 'm'"),
    "an unknown role": (
        'role = "in"',
        'role = "input"',
        "array[0] (x).role: 'input': expected one of in, weights, out",
    ),
    "a layout without a shape": ('{ nchw = ["k"], nhwc', "{ nhwc", "array[2] (bias).shape.nchw: missing"),
    "a window of no axis": (
        "windows.h = ",
        "windows.k = ",
        "array[0] (x).windows.k: unknown key; known keys are c, h, n, w",
    ),
    "a window of an output": (
        'role = "out"\n',
        'role = "out"\nwindows.n = {}\n',
        "(y).windows: leave it out: only arrays of the roles in, weights, inout are read",
    ),
    "a window without taps": ('taps = "r", ', "", "array[0] (x).windows.h.taps: missing"),
    "no expression": ('"k % groups == 0"', '"k % groups =="', "does not parse"),
    "an input without data": (
        "integers = [-1, 1]",
        "",
        "array[1] (w).integers: missing; expected the minimum and the maximum",
    ),
    "two outputs": (
        'role = "in"\n',
        'role = "out"\n',
        "array[0] (x).integers: leave it out: only arrays of the roles in, weights, inout",
    ),
    "no TOML": ("[sizes]", "[sizes", "is not TOML"),
    "a weight of nothing": ("k = 1.0", "k = 0.0", "similarity.factors.k: expected a weight above 0"),
    "a word of other parts": ('"bias_add_relu"]', '"bias_add_rely"]', "words.epilogue: 'bias_add_rely' is not made of"),
    "three parts": ('terms = ["none"', 'more = ["a"]\nterms = ["none"', "parts.epilogue: expected two lists of words"),
    "an unknown storage type": (
        '["f32", "f16"',
        '["f32", "f63"',
        "words.dtype: 'f63': expected some of f32, f16, bf16, i32, f64",
    ),
    "a size that is nearly one": (
        'runtime = "n"',
        'runtime = "grups"',
        "'grups' is not a size (did you mean 'groups'?)",
    ),
    "a word twice": ('dtype = ["f32", ', 'dtype = ["f32", "f32", ', "words.dtype: 'f32' occurs twice"),
    "no storage types": ('dtype = ["f32", ', 'types = ["f32", ', "words.dtype: missing"),
    "a number as an extent": ('nchw = ["k"]', "nchw = [4]", 'shape.nchw: expected a list of strings, such as ["4"]'),
    "a rule that speaks of nothing": ("${r}", "${rr}", "undeclared name 'rr'"),
    "a word of C++": ("stride_h = {", "int = {", "sizes.int: 'int' is a word of C++ or Python; choose another name"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, mistake: str) -> None:
    old, new, words = MISTAKES[mistake]
    (tmp_path / "operation.toml").write_text(changed(TEXT, (old, new)))
    with pytest.raises(TemplateError) as error:
        read_operation(tmp_path)
    assert str(tmp_path / "operation.toml") in str(error.value)
    assert words in str(error.value)


def test_a_folder_without_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"operation\.toml: cannot be read"):
        read_operation(tmp_path)
