"""Compare ResNet-50's kernels with PyTorch's alternatives shape by shape on a GPU, and check whether verdicts agree.

    python tests/benchmarks/resnet50.py FOLDER [--n 64] [--trials 30] [--inductor] [--steps tune,build,time]

Batch norm is folded, FP16, channels-last. The 23 shapes are tuned into FOLDER/resnet50.db as 27 layers, because four of
them occur both with and without a residual. Then each layer is timed in three ways that share no timing code: the
finals of `autotune tune` with every baseline, `convert` with the exported library, and this script's CUDA graphs of
rotated inputs through PyTorch. Every contender does all of the work: bias, residual and ReLU. Prints a table, and
writes it with all figures to FOLDER.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from autotune.autotune_runtime.convolution import Problem
from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_convolution import activated, convolution, convolved
from autotune.autotune_runtime.torch_layers import Layer, read_network
from autotune.autotune_runtime.torch_swap import Report
from autotune.devices.device import BASELINES
from autotune.operation.registry import operation
from autotune.problem import Problem as StudyProblem
from autotune.problem import make_problem
from autotune.store import FinalsRow, Store

NAME = "resnet50"
DATABASE = ("--db", f"{NAME}.db")
NOISE = 0.02  # fraction below which two times are called a tie
ROUNDS = 25
L2_SIZES = 2.0  # bytes that the rotated inputs of a graph exceed
FEWEST, MOST = 4, 24  # rotated inputs

Pass: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Convolutions of one shape and epilogue: microseconds of each contender, and the three verdicts.

    Every contender does all of the work: bias, residual and activation are part of it.
    """

    name: str
    count: int
    epilogue: str
    compared: dict[str, float]
    """by the finals; `ours` is the winner's"""
    own: dict[str, float]
    """by this script's graphs; `plain` is the convolution alone"""
    converted: tuple[float, float] | None
    """ours and the fastest rival by `convert`"""

    def fastest(self, *words: str) -> float | None:
        """The fastest contender of the finals with these words in its name; None if there is none."""
        return min((us for name, us in self.compared.items() if all(word in name for word in words)), default=None)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict win, tie or loss of each method."""
        pairs = {
            "finals": (self.compared["ours"], self.fastest("cudnn")),
            "script": (self.own["ours"], min(self.own["separate"], self.own["fused"])),
            "convert": self.converted or (0.0, None),
        }
        return {who: sign(ours_us, us) for who, (ours_us, us) in pairs.items() if us is not None}

    @property
    def equal(self) -> bool:
        """Whether all verdicts are the same."""
        return len(set(self.verdicts.values())) == 1

    @property
    def opposed(self) -> bool:
        """Whether one verdict is a win and another a loss."""
        return {"win", "loss"} <= set(self.verdicts.values())


def main() -> None:
    """Tune if needed, time in three ways, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=64, help="images")
    parser.add_argument("--trials", type=int, default=30, help="evaluations a shape")
    parser.add_argument("--inductor", action="store_true", help="torch.compile(max-autotune) of each shape, too")
    parser.add_argument("--steps", default="tune,build,time", help="those of tune, build and time that are to be done")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    network, example = resnet50(), (arguments.n, 3, 224, 224)
    if not (folder / f"{NAME}.toml").exists():
        words = ("--dtype", "f16", "--layout", "nhwc", "--accuracy", "fp16", "--out", f"{NAME}.toml")
        sizes = "x".join(map(str, example))
        autotune(folder, "import-model", "torchvision.models:resnet50", "--input", sizes, *words)
    steps = arguments.steps.split(",")
    if "tune" in steps:  # existing trials are not evaluated again, except in finals with all baselines
        baselines = ["--baseline", "cudnn", *(["--baseline", "inductor"] if arguments.inductor else [])]
        limits = ("--trials", str(arguments.trials), "--finals-seconds", "1.5")
        autotune(folder, "tune", f"{NAME}.toml", *DATABASE, *baselines, *limits)
    if "build" in steps:
        build(folder)
    if "time" not in steps:
        return
    library = (folder / "kernels" / "build" / "libconv2d.so").resolve()
    _, report = convert(network, example, library=library)
    (folder / "convert.txt").write_text(f"{report}\n")
    with Store(folder / f"{NAME}.db", create=False) as store:
        rows = store.finals.list(NAME)
        finals = {row.winner.layer.problem: row for row in rows}
    shapes = list(measured(read_network(network, example).layers, finals, report, str(library)))
    (folder / "shapes.json").write_text(json.dumps([asdict(shape) for shape in shapes], indent=1))
    table = "\n".join(lines(shapes))
    (folder / "table.md").write_text(f"{table}\n")
    print(table)


def resnet50() -> nn.Module:
    """torchvision's ResNet-50 with random weights and folded batch norms."""
    import torchvision
    from torch.fx.experimental.optimization import fuse

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    folded: nn.Module = fuse(torchvision.models.resnet50().eval()).eval()
    return folded.half().cuda().to(memory_format=torch.channels_last)


def autotune(folder: Path, *words: str) -> None:
    """Print a command and run it in the folder."""
    subprocess.run([sys.executable, "-m", "autotune", *words], cwd=folder, check=True)


def build(folder: Path) -> None:
    """The library of the best kernels."""
    autotune(folder, "export", NAME, *DATABASE, "--out", "kernels", "--no-proof")
    configure = ["cmake", "-S", "kernels", "-B", "kernels/build", "-DCMAKE_BUILD_TYPE=Release"]
    for command in (configure, ["cmake", "--build", "kernels/build", "-j"]):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def measured(
    layers: tuple[Layer, ...], finals: dict[StudyProblem, FinalsRow], report: Report, library: str
) -> Iterator[Shape]:
    """Each shape with each of its epilogues once, in the network's order."""
    problems = {layer.name: layer.problems[0] for layer in layers}
    rows = {row.layer: row for row in report.rows}
    for problem, count in Counter(problems.values()).items():
        first = next(layer for layer in layers if problems[layer.name] == problem)
        held = finals.get(make_problem(operation(problem.operation), problem.values))
        if held is None or held.time_us is None:
            print(f"{first.name}: left out, no finals were held on it", file=sys.stderr)
            continue
        rivals = {each.against: each.against_us for each in held.verdicts if each.against.startswith(tuple(BASELINES))}
        row = rows[first.name]
        times = None if row.tuned_us is None or row.torch_us is None else (row.tuned_us, row.torch_us)
        compared = {"ours": held.time_us, **rivals}
        yield Shape(first.name, count, problem.epilogue, compared, timed(first, problem, library), times)


@torch.inference_mode()
def timed(layer: Layer, problem: Problem, library: str) -> dict[str, float]:
    """Median microseconds per pass of each contender, interleaved, each a graph of rotated inputs."""
    conv, activation, of = layer.module, problem.activation, problem.geometry
    assert conv is not None
    options = (of.stride, of.before, of.dilation, of.groups)
    x = torch.randn(of.x, dtype=torch.half, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last)
    z = torch.randn_like(conv(x)) if problem.has_residual else None
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(MOST, max(FEWEST, int(L2_SIZES * l2_bytes / x.nbytes) + 1))
    inputs = [(x.clone(), None if z is None else z.clone()) for _ in range(count)]

    def ours(x: Tensor, z: Tensor | None) -> Tensor:
        return convolution(
            *(x, conv.weight, conv.bias, z),
            stride=of.stride,
            padding=of.before,
            activation=activation,
            channels_last=True,
            library=library,
        )

    def separate(x: Tensor, z: Tensor | None) -> Tensor:
        y = conv(x)
        return activated(y if z is None else y.add_(z), activation)

    def fused(x: Tensor, z: Tensor | None) -> Tensor:
        """The operator's convolution; its ReLU is extra work if the layer has none."""
        if z is None:
            return torch.cudnn_convolution_relu(x, conv.weight, conv.bias, *options)
        return torch.cudnn_convolution_add_relu(x, conv.weight, z, 1.0, conv.bias, *options)

    contenders: dict[str, Pass] = {
        "ours": ours,
        "plain": lambda x, z: convolved(x, conv.weight, None, problem.operation, problem.arguments),
        "separate": separate,
        "fused": fused,
    }
    replays = {name: graph_of(run, inputs) for name, run in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in replays}
    order = list(replays)
    for _ in range(ROUNDS):
        random.shuffle(order)
        for name in order:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(200_000)
            start.record()
            replays[name]()
            end.record()
            end.synchronize()
            times[name].append(1000 * start.elapsed_time(end) / count)
    return {name: statistics.median(each) for name, each in times.items()}


def graph_of(run: Pass, inputs: list[tuple[Tensor, Tensor | None]]) -> Callable[[], None]:
    """Capture a pass on each input; every pass has its own output."""
    for _ in range(3):
        run(*inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [run(*each) for each in inputs]
    del kept
    return graph.replay


def sign(ours_us: float, theirs_us: float) -> str:
    """win, tie or loss."""
    return "win" if ours_us < (1 - NOISE) * theirs_us else "loss" if ours_us > (1 + NOISE) * theirs_us else "tie"


def lines(shapes: Sequence[Shape]) -> Iterator[str]:
    """The table in Markdown, the sums, and how many verdicts agree."""
    finals = _names(shape.compared for shape in shapes)
    own = _names(shape.own for shape in shapes)
    head = ["layer", "epilogue", "count", *finals, *(f"script: {name}" for name in own), "convert: ours", "rival"]
    yield f"| {' | '.join([*head, 'verdicts'])} |"
    yield f"|{'---|' * (len(head) + 1)}"
    for shape in shapes:
        times = [*(shape.compared.get(name) for name in finals), *(shape.own.get(name) for name in own)]
        said = ", ".join(f"{who} {word}" for who, word in shape.verdicts.items())
        cells = [shape.name, shape.epilogue, str(shape.count), *map(_us, (*times, *(shape.converted or (None, None))))]
        yield f"| {' | '.join([*cells, said])} |"
    sums = [summed(shapes, [shape.compared.get(name) for shape in shapes]) for name in finals]
    sums += [summed(shapes, [shape.own.get(name) for shape in shapes]) for name in own]
    sums += [summed(shapes, [shape.converted and shape.converted[side] for shape in shapes]) for side in (0, 1)]
    yield f"| sum |  | {sum(shape.count for shape in shapes)} | {' | '.join(map(_us, sums))} |  |"
    yield f"\n{totals(shapes)}"
    equal, opposed = sum(shape.equal for shape in shapes), sum(shape.opposed for shape in shapes)
    yield f"verdicts of finals, script and convert: equal on {equal} of {len(shapes)}, opposed on {opposed}"


def totals(shapes: Sequence[Shape]) -> str:
    """The time of all convolutions with their epilogues, from the finals."""
    contenders = {"ours": ["ours"], "cuDNN fused": ["cudnn", "fused"], "cuDNN": ["cudnn"], "Inductor": ["inductor"]}
    sums = {name: summed(shapes, [shape.fastest(*words) for shape in shapes]) for name, words in contenders.items()}
    times = ", ".join(f"{name} {'-' if us is None else f'{us / 1000:.3f} ms'}" for name, us in sums.items())
    additions = sum(shape.count for shape in shapes if "add" in shape.epilogue)
    return f"{sum(shape.count for shape in shapes)} convolutions, {additions} with a residual: {times}"


def summed(shapes: Sequence[Shape], times: Sequence[float | None]) -> float | None:
    """The sum over all layers in microseconds; None if a time is missing."""
    weighed = [shape.count * time for shape, time in zip(shapes, times, strict=True) if time is not None]
    return sum(weighed) if len(weighed) == len(shapes) else None


def _names(times: Iterable[dict[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for each in times for name in each))


def _us(time_us: float | None) -> str:
    """A time as a cell of the table."""
    return "-" if time_us is None else f"{time_us:.1f}"


if __name__ == "__main__":
    main()
