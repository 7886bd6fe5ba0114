"""Time ResNet-50's convolutions in a chain on a GPU, with and without programmatic dependent launch.

    python tests/benchmarks/dependent_launch.py FOLDER [--db studies/recorded/networks.db] [--n 64]

The recorded winners of `resnet50-fp16` (other n: `resnet50-fp16-nN`), rendered from the current families, are exported
to FOLDER and built. The 53 convolutions run on each other's outputs, with residuals and without pooling. Each library
runs from a CUDA graph, and one is loaded with AUTOTUNE_DEPENDENT_LAUNCH=1. Prints the median times of a pass,
interleaved, the number of kernels that wait by themselves, and whether both gave the same bits. Takes less than a
minute on 16 cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from autotune.autotune_runtime.torch_convolution import convolution
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.exporting import SelectedKernel, export_library
from autotune.exporting.build import build_for_cuda
from autotune.exporting.template_context import waits_itself
from autotune.family.template_files import load_templates
from autotune.problem import Conv2dProblem, as_conv2d
from autotune.store import Store
from autotune.study_reader import find_study, load_study
from tests.exports import chosen

BLOCKS = (3, 4, 6, 3)  # of the four stages
ROUNDS, PASSES = 25, 10


def main() -> None:
    """Export, build, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--db", type=Path, default=Path("studies/recorded/networks.db"))
    parser.add_argument("--n", type=int, default=64, help="images")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()  # compilers run in it
    study = "resnet50-fp16" if arguments.n == 64 else f"resnet50-fp16-n{arguments.n}"
    kernels = dict(winners(arguments.db, study))
    folder.mkdir(parents=True, exist_ok=True)
    exported = export_library(list(kernels.values()), folder / "kernels", (90,))
    (folder / "built").mkdir(exist_ok=True)
    plain = build_for_cuda(exported, folder / "built", nvcc=find_nvcc(), cxx=find_cxx()).library.resolve()
    early = plain.with_name("libearly.so")
    shutil.copyfile(plain, early)  # loaded next to the other library; it reads the variable on its own
    problems = {name: as_conv2d(each.problem, study) for name, each in kernels.items()}
    steps = list(network(problems))
    waiting = sum(waits_itself(kernels[name].source) for name, _ in steps)
    replays = {}
    for name, library, value in (("one after the other", plain, "0"), ("before the last has ended", early, "1")):
        os.environ["AUTOTUNE_DEPENDENT_LAUNCH"] = value
        replays[name] = recorded(problems, steps, str(library))
    times: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(ROUNDS):
        for name, (replay, _) in replays.items():
            times[name].append(timed(replay))
    first, second = (statistics.median(each) for each in times.values())
    for name, each in times.items():
        print(f"{name}: {statistics.median(each):.1f} us a pass of {len(steps)} convolutions")
    same = len({output.cpu().numpy().tobytes() for _, output in replays.values()}) == 1
    print(f"{first / second:.3f} times as fast; {waiting} of {len(steps)} kernels wait themselves")
    print(f"outputs are {'the same bits' if same else 'DIFFERENT'}")
    if not same:
        raise SystemExit(1)


def winners(database: Path, study: str) -> Iterator[tuple[str, SelectedKernel]]:
    """The recorded winner of each layer, as the current families render it."""
    templates = load_templates()
    with Store(database, create=False) as store:
        held = {row.winner.layer.problem: row.winner for row in store.finals.list(study)}  # oldest first
    for layer in load_study(find_study(study)).layers:
        config = held[layer.problem].trial.config
        template = templates[config.template]
        if (now := template.current_config(config)) is None:
            raise SystemExit(f"{study}.{layer.name}: today's {template.name} has no such config")
        yield layer.name, chosen(template, layer.problem, now, layer.name)


def network(problems: Mapping[str, Conv2dProblem]) -> Iterator[tuple[str, bool]]:
    """Names of layers in the order of ResNet-50, and whether a layer's output is not the next one's input."""
    yield "conv1", False
    for stage, blocks in enumerate(BLOCKS, 1):
        for block in range(blocks):
            if block == 0:
                yield f"layer{stage}-downsample", True
            for conv in ("conv1", "conv2", "conv3"):
                first = f"layer{stage}-0-{conv}"
                yield first if block == 0 and first in problems else f"layer{stage}-{conv}", False


@torch.inference_mode()
def recorded(
    problems: Mapping[str, Conv2dProblem], steps: list[tuple[str, bool]], library: str
) -> tuple[Callable[[], None], Tensor]:
    """A pass as a CUDA graph, and its output."""
    torch.manual_seed(0)
    weights = {}
    for name, problem in problems.items():
        fan_in = problem.c // problem.groups * problem.r * problem.s
        shape = (problem.k, problem.c // problem.groups, problem.r, problem.s)
        w = torch.randn(shape, dtype=torch.half, device="cuda") / fan_in**0.5
        bias = torch.randn(problem.k, dtype=torch.half, device="cuda") / 8
        weights[name] = (w.contiguous(memory_format=torch.channels_last), bias)
    first = problems[steps[0][0]]
    image = torch.randn((first.n, first.c, first.h, first.w), dtype=torch.half, device="cuda")
    image = image.contiguous(memory_format=torch.channels_last)

    def run() -> Tensor:
        x, shortcut = image, image
        for name, beside in steps:
            problem = problems[name]
            if x.shape[2] != problem.h:  # in place of the pooling, which this chain leaves out
                x = x[:, :, : problem.h, : problem.w].contiguous(memory_format=torch.channels_last)
            w, bias = weights[name]
            y = convolution(
                *(x, w, bias, shortcut if problem.has("z") else None),
                stride=(problem.stride_h, problem.stride_w),
                padding=(problem.pad_h, problem.pad_w),
                activation=problem.activation,
                channels_last=True,
                library=library,
            )
            if beside:
                shortcut = y
                continue
            x = y
            if problem.has("z"):
                shortcut = y
        return x

    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay, output


def timed(replay: Callable[[], None]) -> float:
    """Microseconds of a pass."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(200_000)
    start.record()
    for _ in range(PASSES):
        replay()
    end.record()
    end.synchronize()
    return 1000 * float(start.elapsed_time(end)) / PASSES


if __name__ == "__main__":
    main()
