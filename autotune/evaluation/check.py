"""Does a family keep its promises? Sampled configs of it, verified on problems that nothing divides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.errors import DeviceError, Rejected, TemplateError
from autotune.evaluation.evaluate import Checker, Evaluator
from autotune.family.origins import pointed
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.problem import Conv2dProblem
from autotune.trial import Config, ErrorStats, Outcome

AWKWARD: Mapping[str, Conv2dProblem] = {
    "small": Conv2dProblem(2, 3, 9, 11, 5, 3, 3),
    "stride": Conv2dProblem(3, 6, 23, 21, 7, 3, 5, stride_h=2, stride_w=2, pad_h=1, pad_w=2, epilogue="bias_relu"),
    "half_nhwc": Conv2dProblem(2, 8, 11, 13, 24, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc"),
    "groups": Conv2dProblem(2, 6, 13, 11, 9, 3, 3, groups=3, pad_h=1, pad_w=1),
    "dilation": Conv2dProblem(
        2, 3, 19, 23, 4, 3, 3, stride_h=1, stride_w=3, pad_h=2, pad_w=1, dilation_h=2, dilation_w=3
    ),
    "bfloat": Conv2dProblem(2, 4, 12, 9, 6, 3, 3, dtype="bf16"),
    "lenet2": Conv2dProblem(3, 12, 17, 17, 24, 5, 5),
    "half": Conv2dProblem(3, 3, 13, 15, 8, 3, 3, dtype="f16", epilogue="bias_relu"),
    "nhwc": Conv2dProblem(2, 5, 13, 11, 6, 3, 3, pad_h=1, pad_w=1, layout="nhwc", epilogue="bias"),
    "tall": Conv2dProblem(2, 5, 41, 5, 6, 7, 1, pad_h=3),
    "depthwise": Conv2dProblem(2, 8, 15, 15, 8, 3, 3, groups=8, pad_h=1, pad_w=1, stride_h=2, stride_w=2),
    "wide": Conv2dProblem(2, 2, 6, 75, 8, 2, 7, epilogue="bias"),
    "pointwise": Conv2dProblem(3, 17, 9, 7, 33, 1, 1),
    "plain": Conv2dProblem(5, 4, 17, 19, 12, 5, 5),
    "one": Conv2dProblem(1, 1, 7, 7, 1, 7, 7),
    "lenet1": Conv2dProblem(3, 1, 30, 30, 12, 5, 5),
    "half_nhwc_odd": Conv2dProblem(
        3, 3, 23, 21, 7, 3, 5, 2, 2, pad_h=1, pad_w=2, dtype="f16", layout="nhwc", epilogue="bias_relu"
    ),
    "bfloat_nhwc": Conv2dProblem(2, 12, 11, 10, 12, 3, 3, dtype="bf16", layout="nhwc", epilogue="bias"),
    "half_single": Conv2dProblem(3, 1, 16, 22, 6, 3, 5, pad_h=1, pad_w=2, dtype="f16", epilogue="bias_relu"),
    "bfloat_nhwc_single": Conv2dProblem(2, 1, 15, 18, 10, 7, 7, dtype="bf16", layout="nhwc", epilogue="bias"),
    "half_depthwise": Conv2dProblem(
        2, 6, 17, 28, 12, 5, 5, pad_h=2, pad_w=2, groups=6, dtype="f16", epilogue="bias_relu"
    ),
    "depthwise_nhwc": Conv2dProblem(2, 24, 11, 14, 24, 3, 3, pad_h=1, pad_w=1, groups=24, layout="nhwc"),
    "bfloat_depthwise_nhwc": Conv2dProblem(
        3, 12, 9, 13, 12, 1, 7, 1, 2, pad_w=3, groups=12, dtype="bf16", layout="nhwc", epilogue="bias"
    ),
    "deep": Conv2dProblem(4, 30, 9, 19, 42, 3, 3, stride_w=2, pad_h=1, pad_w=1, epilogue="bias_relu"),
    "wide_depthwise": Conv2dProblem(3, 5, 18, 21, 5, 7, 7, pad_h=3, pad_w=3, groups=5, epilogue="bias"),
}
"""Problems that no tile divides, with every feature a family may claim to support; the most different ones first."""


_MOST_ROWS = 1000  # configs of a space that is enumerated for a check; of a larger one, random configs are drawn


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One config of a family on one awkward problem."""

    problem: str
    source: KernelSource
    outcome: str
    reason: str
    message: str
    error: ErrorStats | None


def check_family(
    template: KernelTemplate,
    evaluator: Evaluator,
    *,
    most: int,
    seed: int = 0,
    problems: Mapping[str, Conv2dProblem] = AWKWARD,
) -> Iterator[CheckRow]:
    """Verify up to `most` sampled configs on the awkward problems that the family supports.

    The first problem gets the family's default config; random configs then go round over the problems. Raises
    DeviceError on a device that runs nothing and would call everything correct, TemplateError when there is no config.
    """
    if not isinstance(evaluator, Checker):
        raise DeviceError(
            f"{evaluator.info.kind}: runs nothing, so it cannot verify a kernel; "
            f"give --device host, host:check or cuda:N"
        )
    chosen = sample_sources(template, evaluator, most=most, seed=seed, problems=problems)
    for name in dict.fromkeys(name for name, _ in chosen):
        begun = False
        sources = [source for of, source in chosen if of == name]
        binaries = [evaluator.compile(source) for source in sources]
        for source, binary in zip(sources, binaries, strict=True):
            try:
                if not begun:
                    evaluator.begin_layer(source.problem)
                    begun = True
                error = evaluator.verify(source, binary.result())
            except Rejected as rejected:
                message = pointed(rejected.message, template, source, evaluator.info)
                yield CheckRow(name, source, rejected.outcome, rejected.reason, message, None)
            else:
                yield CheckRow(name, source, Outcome.CORRECT, "", "", error)


def sample_sources(
    template: KernelTemplate, evaluator: Evaluator, *, most: int, seed: int, problems: Mapping[str, Conv2dProblem]
) -> list[tuple[str, KernelSource]]:
    """Pairs of a problem's name and a rendered config, distinct, `most` at the most. Raises TemplateError for none."""
    rng = np.random.default_rng(seed)
    names = [name for name, problem in problems.items() if BoundTemplate(template, problem, evaluator.info).supported]
    if not names:
        raise TemplateError(f"{template.path}: supports: none of the awkward problems is supported")
    spaces: dict[str, SearchSpace] = {}
    chosen: list[tuple[str, KernelSource]] = []
    seen: set[str] = set()
    for turn in range(4 * most * len(names)):
        if len(chosen) == most:
            break
        name = names[turn % len(names)]
        if name not in spaces:
            bound = BoundTemplate(template, problems[name], evaluator.info)
            spaces[name] = SearchSpace(bound, seed=seed, most_rows=_MOST_ROWS, sampled_rows=4 * most)
        space = spaces[name]
        if space.default is None:
            continue
        config = space.config(int(rng.integers(len(space.rows)))) if chosen else space.default
        source = render(space.bound, config)
        if source.hash not in seen:
            seen.add(source.hash)
            chosen.append((name, source))
    if not chosen:
        raise TemplateError(
            f"{template.path}: no config is feasible on any awkward problem; the first values of all parameters are "
            f"refused on {names[0]}: {_refusal(spaces[names[0]].bound)}"
        )
    return sorted(chosen, key=lambda pair: names.index(pair[0]))


def _refusal(bound: BoundTemplate) -> str:
    """Why no kernel may have the first value of every parameter."""
    try:
        bound.check(Config.of(bound.template.name, {param.name: param.values[0] for param in bound.template.params}))
    except Rejected as rejected:
        return rejected.message
    return ""
