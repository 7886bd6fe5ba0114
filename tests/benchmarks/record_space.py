"""Record whole search spaces of this project's own families, as files for `tests.benchmarks.replay`. Run on a GPU:

    python tests/benchmarks/record_space.py --device cuda:0 --db spaces.db --seconds 240
    python -m tests.benchmarks.replay spaces.db
    python -m tests.benchmarks.t4_files spaces.db FOLDER

Each space is one family on one layer, narrowed until it has at most `--configs` feasible configs by keeping every other
value of the parameter that has the most. All configs of a space except one are evaluated in random order. If the
time is too short, a random part of the space is recorded, which is a space as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.api.device_names import evaluator_of
from autotune.devices.host_machine import usable_cores
from autotune.evaluation.evaluator import Evaluator
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.problem import Conv2dProblem, Layer
from autotune.store import Store
from autotune.study import Study
from autotune.trial import Value
from autotune.tuning.tune import tune

N = 1000  # images: enough to fill an H200; the studies of the reports have ten times as many
LAYERS = {
    "k5-conv1": Conv2dProblem(N, 1, 70, 70, 12, 5, 5),
    "k5-conv2": Conv2dProblem(N, 12, 33, 33, 24, 5, 5),
    "k7-conv1": Conv2dProblem(N, 1, 86, 86, 4, 7, 7),
    "k7-conv2": Conv2dProblem(N, 4, 40, 40, 16, 7, 7),
    "resnet-3x3": Conv2dProblem(64, 64, 28, 28, 64, 3, 3),
    "resnet-1x1": Conv2dProblem(64, 128, 28, 28, 128, 1, 1),
    "resnet-56": Conv2dProblem(64, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, dtype="f16", layout="nhwc"),
    "resnet-7": Conv2dProblem(8, 512, 7, 7, 512, 3, 3, 1, 1, 1, 1, dtype="f16", layout="nhwc"),
    "first": Conv2dProblem(64, 3, 224, 224, 64, 7, 7, 2, 2, 3, 3, dtype="f16", layout="nhwc"),
    "depthwise": Conv2dProblem(64, 384, 14, 14, 384, 7, 7, 1, 1, 3, 3, groups=384, dtype="f16", layout="nhwc"),
}
SPACES = (
    ("direct", "k5-conv2"),
    ("image_direct", "k5-conv1"),
    ("windowed", "k7-conv2"),
    ("tiled", "k7-conv1"),
    ("implicit_gemm", "resnet-3x3"),
    ("register_gemm", "resnet-1x1"),
    ("implicit_gemm_sm90", "resnet-56"),
    ("split_k_sm90", "resnet-7"),
    ("few_channels_sm90", "first"),
    ("depthwise_toeplitz_sm90", "depthwise"),
)
"""Family and layer: direct and implicit ones, few and many channels, large and small filters, and Hopper's MMAs.
Rules that only prune do not apply. Each layer has one family, because `tests.benchmarks.replay` reads all trials of a
layer as one space."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a family's space that is recorded."""

    values: Mapping[str, tuple[Value, ...]]
    """parameter to the values that are kept"""
    configs: int


def part_of(template: KernelTemplate, problem: Conv2dProblem, evaluator: Evaluator, most: int) -> Part:
    """A family's space on a problem, reduced to at most this many configs."""
    bound = BoundTemplate(template, problem, evaluator.info)
    values: dict[str, tuple[Value, ...]] = {param.name: param.values for param in template.params}
    while True:
        space = SearchSpace(bound, values, most_rows=most, sampled_rows=1)
        if space.complete:
            return Part(values, len(space.rows))
        longest = max(values, key=lambda name: len(values[name]))
        values[longest] = values[longest][::2]


def record(family: str, layer: str, part: Part, evaluator: Evaluator, store: Store, seconds: float) -> str:
    """Evaluate part of one space for at most this many seconds, and print the result."""
    study = Study(
        name=f"space-{family}",
        layers=(Layer(layer, LAYERS[layer]),),
        trials=part.configs - 1,  # with a budget for the whole space, the search would evaluate it in order
        time_budget_s=seconds,
        sampler="random",
        warm_start=False,
        templates=(family,),
        prune=False,
        space={family: part.values},
    )
    started = time.perf_counter()
    (result,) = tune(study, load_templates(), evaluator, store, finals=None)
    spent_s = time.perf_counter() - started
    varied = sum(len(kept) > 1 for kept in part.values.values())
    best = f"best {result.best.median_us:.1f} us" if result.best and result.best.median_us else "nothing correct"
    return (
        f"{study.name}.{layer}: {part.configs} configs of {varied} parameters, {result.evaluated} distinct kernels "
        f"evaluated in {spent_s:.0f} s, {best}"
    )


def main() -> None:
    """Record every space, or those of the families named, within the seconds given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="*", help="default: all of them")
    parser.add_argument("--device")
    parser.add_argument("--db", type=Path, default=Path("spaces.db"))
    parser.add_argument("--configs", type=int, default=1000, help="of one space, at most")
    parser.add_argument("--seconds", type=float, default=240.0, help="for all spaces together")
    arguments = parser.parse_args()
    chosen: Sequence[tuple[str, str]] = [pair for pair in SPACES if pair[0] in (arguments.family or pair[:1])]
    templates = load_templates()
    evaluator = evaluator_of(arguments.device, usable_cores())
    try:
        parts = {
            family: part_of(templates[family], LAYERS[layer], evaluator, arguments.configs) for family, layer in chosen
        }
        started = time.perf_counter()
        with Store(arguments.db) as store:
            for place, (family, layer) in enumerate(chosen):
                left_s = arguments.seconds - (time.perf_counter() - started)
                share_s = max(1.0, left_s / (len(chosen) - place))
                print(record(family, layer, parts[family], evaluator, store, share_s), flush=True)
    finally:
        evaluator.close()


if __name__ == "__main__":
    main()
