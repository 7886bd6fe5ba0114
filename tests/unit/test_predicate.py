"""A config's predicate agrees with the family's own search space for every problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.devices.device import DeviceInfo
from autotune.dispatch.predicate import Predicate, predicate
from autotune.expressions.expression import Expression
from autotune.family.codegen_cpp import fold
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.long_run import every
from tests.problems import problems

H200 = DeviceInfo("cuda", "H200", arch=90, sm_count=132, memory_bytes=150_000_000_000)
FAMILIES = {name: file for name, file in template_files().items() if file.operation.name == CONV2D}
"""Dispatchers are for conv2d only."""


def accepts(bound: BoundTemplate, config: Config) -> bool:
    """The tuner's answer."""
    return bound.supported and bound.allows(config)


@pytest.mark.parametrize("name", every(5, FAMILIES))
def test_a_predicate_agrees_with_the_search_space(name: str) -> None:
    template = load_template(FAMILIES[name])
    drawn = list(problems(600))
    supported = [problem for problem in drawn if BoundTemplate(template, problem, H200).supported]
    bounds = [BoundTemplate(template, problem, H200) for problem in (*supported[:20], *drawn[:20])]
    admitted = 0
    for bound in bounds[:6:2]:
        for config in configs_of(SearchSpace(bound, most_rows=0, sampled_rows=1)):
            made = predicate(bound, config)
            for other in bounds:
                expected = accepts(other, config)
                admitted += expected
                assert made.holds(other.problem) == expected, f"{config} on {other.problem}"
                if expected:
                    outputs = other.bind(template.padded_work).integer(other.check(config))
                    assert made.padded_outputs_for(other.problem) == outputs, f"{config} on {other.problem}"
                    assert outputs >= other.problem.array("y").elements, (
                        f"{config} on {other.problem}: fewer than the outputs"
                    )
    assert admitted, "no config serves any problem"


@pytest.mark.parametrize(("classes", "held"), [(("fp16",), True), (("fp32", "tf32"), False)])
def test_a_predicate_knows_the_accuracy_classes_of_every_storage_type(classes: tuple[str, ...], held: bool) -> None:
    problem = Conv2dProblem(2, 8, 9, 9, 8, 3, 3)
    half = replace(problem, dtype="f16")
    admission = Admission(("fp32",), by_dtype={"f16": classes})
    bound = BoundTemplate(load_template(FAMILIES["direct"]), problem, H200, admission)
    (config,) = configs_of(SearchSpace(bound, most_rows=0, sampled_rows=1))
    made = predicate(bound, config)
    assert made.holds(problem)
    assert made.holds(half) == held
    assert made.refusal(half) == (None if held else "accuracy class is one that the study admits")


def configs_of(space: SearchSpace) -> Iterator[Config]:
    yield from (space.config(row) for row in range(len(space.rows)))


@pytest.mark.parametrize(
    ("text", "left", "cpp"),
    [
        ("k % thread_k == 0", "k % 4 == 0", "layer.k % 4 == 0"),
        ("ceil_div(p, unroll) * c", "p * c", "layer.p() * layer.c"),
        ("store == 'bulk' and k > 3", "false", "false"),
        ("store == 'bulk' or k > 3", "k > 3", "layer.k > 3"),
        ("(c - k) % 32", "(c - k) % 32", "floor_mod(layer.c - layer.k, 32)"),
        ("(c + k) // 2 * r", "(c + k) // 2 * r", "(layer.c + layer.k) / 2 * layer.r"),
        ("c - (k - r)", "c - (k - r)", "layer.c - (layer.k - layer.r)"),
        ("dtype == 'f16'", "dtype == 'f16'", "layer.dtype == Dtype::f16"),
        ("k in [1, 4]", "k in [1, 4]", "(layer.k == 1 || layer.k == 4)"),
        ("1 < c <= 4", "1 < c and c <= 4", "1 < layer.c && layer.c <= 4"),
        (
            "r if c > 1 and k > 1 or r > 2 else s",
            "r if c > 1 and k > 1 or r > 2 else s",
            "((layer.c > 1 && layer.k > 1) || layer.r > 2) ? layer.r : layer.s",
        ),
        ("not (c > 1 and k > 1)", "not (c > 1 and k > 1)", "!(layer.c > 1 && layer.k > 1)"),
        ("max(c, k, 3) - min(c, 1)", "max(c, k, 3) - min(c, 1)", "max(layer.c, max(layer.k, 3)) - min(layer.c, 1)"),
        ("1 // (thread_k - 4)", "1 // 0", "Whole(1) / 0"),
    ],
)
def test_what_is_known_is_folded_away(text: str, left: str, cpp: str) -> None:
    found = fold(Expression(text, "here"), {"thread_k": 4, "unroll": 1, "store": "direct"}, operation(CONV2D))
    assert (found.text, found.cpp) == (left, cpp)


def test_a_predicate_without_steps_admits_everything() -> None:
    assert Predicate(()).holds(next(problems(1)))
