"""`check.toml`: the small problems that it creates, and mistakes in such a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.checking.pairwise import Covering
from autotune.checking.problem_features import FILE, problem_features
from autotune.checking.problems import derive
from autotune.devices.device import DeviceInfo
from autotune.errors import TemplateError
from autotune.operation.registry import CONV2D, operation, read_operation
from autotune.problem import Conv2dProblem
from tests import weight_gradient
from tests.operations import declare
from tests.unit.tiny import changed, tiny

TEXT = (operation(CONV2D).folder / FILE).read_text()
DEVICE = DeviceInfo("cuda", "any", arch=90, sm_count=132, memory_bytes=1 << 34)


def test_every_shape_is_a_small_problem() -> None:
    shapes = problem_features(operation(CONV2D)).shapes()
    for place in np.random.default_rng(0).permutation(len(shapes.rows))[:500]:
        sizes = {name: int(column[place]) for name, column in shapes.sizes.items()}
        problem = Conv2dProblem(n=1, **sizes)  # type: ignore[arg-type]  # fields by name
        assert problem.flops <= 2_000_000


def test_every_value_occurs_and_what_another_decides_says_nothing() -> None:
    features, shapes = problem_features(operation(CONV2D)), problem_features(operation(CONV2D)).shapes()
    codes = {feature.name: column for feature, column in zip(features.features, shapes.rows.T, strict=True)}
    for feature in features.features:
        assert set(codes[feature.name]) - {-1} == set(range(len(feature.values)))
    depthwise = shapes.sizes["groups"] == shapes.sizes["c"]
    assert ((codes["k"] == -1) == (depthwise & (codes["groups"] > 1))).all()
    pairs = np.stack([shapes.sizes[name] for name in ("pad_h", "pad_w")], axis=1)[codes["pad"] == 1]
    assert (pairs.sum(axis=1) > 0).all(), "`same` for a filter of one tap is `0`"


def test_shapes_occur_once() -> None:
    shapes = problem_features(operation(CONV2D)).shapes()
    assert len(np.unique(shapes.rows, axis=0)) == len(shapes.rows)


def test_supports_may_name_whatever_is_derived(tmp_path: Path) -> None:
    family = tiny(tmp_path, ("epilogue == 'none'", "residual == 0"))
    covering = Covering([len(values) for _, values in problem_features(operation(CONV2D)).values])
    found = [derived.bound.problem for derived in derive(family, DEVICE, covering, 0, most=9).problems]
    assert len({problem.values["epilogue"] for problem in found}) > 1
    assert not any(str(problem.values["epilogue"]).startswith("bias_add") for problem in found)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("runtime = [3, 2, 9]", "runtime = [true]", "runtime: expected numbers above 0, got [True]"),
        ("runtime = [3, 2, 9]", "runtime = [3000000000]", "runtime: expected numbers above 0, got [3000000000]"),
        ('"dtype", ', '"dtype", "dtype", ', "words: expected each of dtype, layout, epilogue once"),
        (
            "3x3 = [3, 3], 1x1",
            "3x3 = [3, 1.5], 1x1",
            "values.3x3: expected 2 numbers or expressions, one for each size",
        ),
        ('name = "filter"', 'name = "dtype"', "feature: two features, or a feature and a word, have the same name"),
        ("runtime = [3, 2, 9]", "runtime = [3, 3]", "runtime: a number occurs twice in [3, 3]"),
        ("3x3 = [3, 3], 1x1", "3x3 = [3, 0], 1x1", "(filter).values.3x3: s = 0: expected 1 to 2147483647"),
        ("3x3 = [3, 3], 1x1", "3x3 = [3, -3], 1x1", "(filter).values.3x3: s = -3: expected 1 to 2147483647"),
        ('name = "filter"', 'name = ""', ".name: is empty; it describes the feature"),
        ("runtime = [3, 2, 9]", "runtime = [0]", "runtime: expected numbers above 0, got [0]"),
        ('"layout", "dtype", ', '"dtype", ', "words: expected each of dtype, layout, epilogue once"),
        ('sizes = ["r", "s"]', 'sizes = ["r", "t"]', "feature[0] (filter).sizes: no size 't'"),
        ("3x3 = [3, 3], 1x1", "3x3 = [3], 1x1", "values.3x3: expected 2 numbers or expressions, one for each size"),
        ("when.same =", "when.sane =", "when.sane: unknown key (did you mean 'same'?); known keys are"),
        ('"c", "2 * c"', '"c", "2 * cc"', "values.multiplier: undeclared name 'cc' in '2 * cc' (did you mean 'c'?)"),
        ('multiplier = ["k"]', 'multiplier = ["kk"]', "decides: no feature 'kk' (did you mean 'k'?)"),
        ('sizes = ["h", "w"]', 'sizes = ["h", "h"]', "feature: no feature sets the size 'w'"),
        ("<= 2000000", "<", "check.toml: rules.takes long: expression '2 * max(k"),
        ("[rules]", "[rule]", "rule: unknown key (did you mean 'rules'?); known keys are"),
    ],
)
def test_mistakes_are_told_by_key(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    (tmp_path / FILE).write_text(changed(TEXT, (old, new)))
    with pytest.raises(TemplateError) as raised:
        problem_features(operation(CONV2D), tmp_path)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_rules_that_leave_no_problem_are_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(changed(TEXT, ("[rules]", '[rules]\n"too small" = "c > 5000"')))
    with pytest.raises(TemplateError, match=r"its rules and those of operation\.toml refuse each of the \d+ problems"):
        problem_features(operation(CONV2D), tmp_path).shapes()


def test_problems_of_many_sizes_are_small_without_a_file_too(tmp_path: Path) -> None:
    """4224 channels of 128 x 128 pixels, crossed with 33 x 33 taps, would take a CPU hours."""
    declared = read_operation(declare(tmp_path, "gradient", weight_gradient.DECLARATION))
    sizes = {name: column.astype(np.int64) for name, column in problem_features(declared).shapes().sizes.items()}
    p, q = sizes["h"] - sizes["r"] + 1, sizes["w"] - sizes["s"] + 1
    flops = 2 * sizes["c"] * sizes["k"] * sizes["r"] * sizes["s"] * p * q
    assert 100_000 < flops.max() <= 200_000
    assert {name: sorted(set(column.tolist())) for name, column in sizes.items()}["c"] == [
        1,
        2,
        5,
        8,
        33,
        128,
        1024,
        4224,
    ]
