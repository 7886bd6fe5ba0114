"""ResNet-50 shape by shape on a GPU: ours beside everything that PyTorch can run instead, and whether verdicts agree.

    python tests/benchmarks/resnet50.py FOLDER [--n 64] [--trials 30] [--inductor] [--steps tune,build,time]

Batch norm is folded, FP16, channels-last. The 23 shapes are tuned into FOLDER/resnet50.db.
Then each shape is timed in three ways that share no timing code: the finals of `autotune tune`, with every baseline,
`convert` of the exported library, and this script's own CUDA graphs of rotated inputs through PyTorch alone. Prints a
table, and writes it with all figures to FOLDER.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn import functional

from autotune.autotune_conv2d import Problem
from autotune.autotune_conv2d.torch_convert import Report, convert
from autotune.autotune_conv2d.torch_layers import ConvLayer, read_network, study, with_relu
from autotune.autotune_conv2d.torch_operator import conv2d
from autotune.devices.device import BASELINES
from autotune.store import FinalsRow, Store

NAME = "resnet50"
NOISE = 0.02  # fraction below which two times are called a tie
ROUNDS = 25
L2_SIZES = 2.0  # that the rotated inputs of a graph exceed together
FEWEST, MOST = 4, 24  # rotated inputs


@dataclass(frozen=True, slots=True)
class Shape:
    """One of the network's shapes, microseconds of each contender, and the three verdicts."""

    name: str
    count: int
    residuals: int
    """convolutions of the shape behind which a residual is added"""
    compared: dict[str, float]
    """by the finals; `ours` is the winner's"""
    own: dict[str, float]
    """by this script's graphs"""
    converted: tuple[float, float] | None
    """ours and the fastest rival by `convert`"""
    verdicts: dict[str, str]
    with_residual: dict[str, str]
    """verdicts on the work with the residual's addition and ReLU, for a shape that has no other"""

    @property
    def equal(self) -> bool:
        """Whether all who judged the same work said the same."""
        return len(set(self.verdicts.values())) == 1 and len(set(self.with_residual.values())) <= 1

    @property
    def opposed(self) -> bool:
        """Whether one said win where another said loss."""
        return any({"win", "loss"} <= set(said.values()) for said in (self.verdicts, self.with_residual))


def main() -> None:
    """Tune where needed, time in three ways, print."""
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
    text = study(network, example, name=NAME, accuracy="fp16", trials=arguments.trials)
    (folder / f"{NAME}.toml").write_text(text)
    steps = arguments.steps.split(",")
    if "tune" in steps:  # what is there already is not evaluated again, but in finals with all baselines
        baselines = ["--baseline", "cudnn", *(["--baseline", "inductor"] if arguments.inductor else [])]
        autotune(folder, "tune", f"{NAME}.toml", *baselines, "--finals-seconds", "1.5")
    if "build" in steps:
        build(folder)
    if "time" not in steps:
        return
    library = (folder / "kernels" / "build" / "libconv2d.so").resolve()
    _, report = convert(network, example, library=library)
    (folder / "convert.txt").write_text(f"{report}\n")
    with Store(folder / f"{NAME}.db", create=False) as store:
        finals = {row.winner.layer.name: row for row in store.finals.list(NAME)}
    shapes = list(measured(read_network(network, example).layers, finals, report, str(library)))
    (folder / "shapes.json").write_text(json.dumps([asdict(shape) for shape in shapes], indent=1))
    table = "\n".join(lines(shapes))
    (folder / "table.md").write_text(f"{table}\n")
    print(table)


def resnet50() -> nn.Module:
    """torchvision's, random weights, batch norm folded."""
    import torchvision

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    folded: nn.Module = fuse(torchvision.models.resnet50().eval()).eval()
    return folded.half().cuda().to(memory_format=torch.channels_last)


def autotune(folder: Path, *words: str) -> None:
    """Run a command on the folder's database, its words shown."""
    subprocess.run([sys.executable, "-m", "autotune", *words, "--db", f"{NAME}.db"], cwd=folder, check=True)


def build(folder: Path) -> None:
    """The library of the best kernels."""
    autotune(folder, "export", NAME, "--out", "kernels", "--no-proof")
    configure = ["cmake", "-S", "kernels", "-B", "kernels/build", "-DCMAKE_BUILD_TYPE=Release"]
    for command in (configure, ["cmake", "--build", "kernels/build", "-j"]):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def measured(
    layers: tuple[ConvLayer, ...], finals: dict[str, FinalsRow], report: Report, library: str
) -> Iterator[Shape]:
    """Each shape once, in the network's order."""
    problems = {layer.name: _served(layer) for layer in layers}
    counts = Counter(problems.values())
    rows = {row.layer: row for row in report.rows}
    for problem in counts:
        first, *_ = same = [layer for layer in layers if problems[layer.name] == problem]
        held = finals.get(first.name.replace(".", "_"))
        if held is None:
            print(f"{first.name}: left out, no finals were held on it", file=sys.stderr)
            continue
        compared = {"ours": held.time_us or 0.0}
        rivals = [each for each in held.verdicts if each.against.startswith(BASELINES)]
        compared |= {each.against: each.against_us for each in rivals}
        plain = next((layer for layer in same if not layer.residual), None)
        row = rows[(plain or first).name]
        times = None if row.tuned_us is None or row.torch_us is None else (row.tuned_us, row.torch_us)
        residuals = sum(layer.residual for layer in same)
        own = timed(first, library, residual=residuals > 0)
        cudnn = min(us for name, us in compared.items() if name.startswith("cudnn"))
        ways = [us for name, us in own.items() if name in ("separate", "fused")]
        verdicts = {"finals": sign(compared["ours"], cudnn), "script": sign(own["ours"], min(ways))}
        with_residual = {}
        if times and plain:
            verdicts["convert"] = sign(*times)
        elif times:
            with_residual = {
                "script": sign(own["ours + residual"], own["fused + residual"]),
                "convert": sign(*times),
            }
        yield Shape(first.name, counts[problem], residuals, compared, own, times, verdicts, with_residual)


def _served(layer: ConvLayer) -> Problem | None:
    """What the library's kernel computes: the convolution, its bias, and a ReLU that follows."""
    return with_relu(layer.problem) if layer.problem is not None and layer.relu is not None else layer.problem


def sign(ours_us: float, theirs_us: float) -> str:
    """win, tie or loss."""
    return "win" if ours_us < (1 - NOISE) * theirs_us else "loss" if ours_us > (1 + NOISE) * theirs_us else "tie"


@torch.inference_mode()
def timed(layer: ConvLayer, library: str, *, residual: bool) -> dict[str, float]:
    """Median microseconds of a pass of each contender, in turns, each a graph of rotated inputs."""
    conv, problem = layer.conv, layer.problem
    assert problem is not None
    options = (conv.stride, conv.padding, conv.dilation, conv.groups)
    x = torch.randn((problem.n, problem.c, problem.h, problem.w), dtype=torch.half, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last)
    relu = layer.relu is not None
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(MOST, max(FEWEST, int(L2_SIZES * l2_bytes / x.nbytes) + 1))
    inputs = [x.clone() for _ in range(count)]
    outputs = torch.randn_like(conv(x))

    def ours(x: Tensor) -> Tensor:
        return conv2d(
            x,
            conv.weight,
            conv.bias,
            stride=conv.stride,
            padding=conv.padding,
            relu=relu,
            channels_last=True,
            library=library,
        )

    contenders: dict[str, Callable[[Tensor], Tensor]] = {
        "ours": ours,
        "plain": lambda x: functional.conv2d(x, conv.weight, None, *options),
        "separate": lambda x: torch.relu_(conv(x)) if relu else conv(x),
    }
    if conv.bias is not None:  # the operator's ReLU comes on top where the layer has none
        contenders["fused"] = lambda x: torch.cudnn_convolution_relu(x, conv.weight, conv.bias, *options)
    if residual:
        contenders["ours + residual"] = lambda x: torch.relu_(ours(x).add_(outputs))
        contenders["fused + residual"] = lambda x: torch.cudnn_convolution_add_relu(
            x, conv.weight, outputs, 1.0, conv.bias, *options
        )
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


def graph_of(run: Callable[[Tensor], Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    """A pass on each input, recorded; every pass has an output of its own."""
    for _ in range(3):
        run(inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [run(x) for x in inputs]
    del kept
    return graph.replay


def lines(shapes: list[Shape]) -> Iterator[str]:
    """The table in Markdown, sums, and how far the verdicts agree."""
    finals = list(dict.fromkeys(name for shape in shapes for name in shape.compared))
    own = list(dict.fromkeys(name for shape in shapes for name in shape.own))
    head = ["layer", "count", *finals, *(f"script: {name}" for name in own), "convert: ours", "rival", "verdicts"]
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for shape in shapes:
        words = [shape.name, str(shape.count), *(us(shape.compared.get(name)) for name in finals)]
        words += [us(shape.own.get(name)) for name in own]
        words += [us(time) for time in shape.converted or (None, None)]
        said = [f"{who} {word}" for who, word in shape.verdicts.items()]
        said += [f"with residual: {who} {word}" for who, word in shape.with_residual.items()]
        yield f"| {' | '.join([*words, ', '.join(said)])} |"
    sums = [sum(shape.count * shape.compared[name] for shape in shapes if name in shape.compared) for name in finals]
    yield f"| sum | {sum(shape.count for shape in shapes)} | {' | '.join(map(us, sums))} |"
    equal, opposed = sum(shape.equal for shape in shapes), sum(shape.opposed for shape in shapes)
    yield f"\nverdicts of finals, script and convert: equal on {equal} of {len(shapes)}, opposed on {opposed}"


def us(time_us: float | None) -> str:
    """A cell."""
    return "-" if time_us is None else f"{time_us:.1f}"


if __name__ == "__main__":
    main()
