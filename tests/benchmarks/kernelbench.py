"""Time KernelBench's convolutions against eager and compiled PyTorch on a GPU. Run from the root of a checkout:

    python -m tests.benchmarks.kernelbench FOLDER                 # the 34 of level 1 and the 62 chains of level 2
    python -m tests.benchmarks.kernelbench FOLDER kb50 kb2-1 --seconds 60

Inputs, outputs and weights are float32, and convolutions may round to TF32, which is PyTorch's default. PyTorch runs in
NCHW and channels-last, and `convert`'s kernels run channels-last. `convert` takes configs from FOLDER/figures.db if a
layer was tuned, else from its cost model. All contenders of a problem are timed interleaved, from CUDA graphs, with a
cold L2 and new random inputs in each round. Before and after the timing, outputs are filled with NaN, each contender
computes new inputs, and every output is compared with float64. In these checks some random images repeat in random
order, so float64 computes only those. An output may be off by SLACK times what truncation to TF32 does to the result.
In one of the checks the inputs exceed the range of float16. A contender that is wrong has no time.

A problem proves nothing if the output for another input would pass, or if bfloat16 would. It is marked, and the mean
leaves it out. Several processes compile at once, then one after another has the GPU for itself; several GPUs share the
problems. The cheapest come first. The table and all figures go to FOLDER/kernelbench.md and .json; problems that are
there already are not run again. `--device cpu` tests the script: sizes are small, and nothing is swapped.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_swap import Report
from autotune.autotune_runtime.torch_verify import calibrated
from tests.benchmarks.kernelbench_chains import built, chains, problem_of
from tests.benchmarks.networks import FLUSH_BYTES, channels_last

ROUNDS = 15
SLACK = 3.0
"""times the error of TF32 that an output may have; bfloat16's is eight times as large"""
NOISE = 2.0**-16
"""relative error that float32 may add after the convolution"""
TF32_BITS, BF16_BITS = 10, 7
LARGE = 2.0**17  # beyond float16
IMAGES = 3  # that repeat in a check
OURS = ("converted", "converted, compiled")
TOGETHER = 12
"""problems that compile at once, for each GPU"""
TOGETHER_BYTES = 10 << 30  # of their tensors; each contender keeps its own outputs
PREPARATION_S = 180.0

Network: TypeAlias = Callable[[Tensor], Tensor]


class Contender:
    """A network that reads its input from one tensor, on a GPU from a CUDA graph."""

    def __init__(self, network: Network, x: Tensor, pool: tuple[int, int] | None = None) -> None:
        self.x = x
        self.network = network  # whose weights the graph reads
        self.y = network(x)
        self._run: Callable[[], Tensor] = lambda: network(x)
        if x.is_cuda:
            for _ in range(2):
                network(x)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                y = network(x)
            self.y = y

            def replay() -> Tensor:
                graph.replay()
                return y

            self._run = replay

    def __call__(self) -> Tensor:
        """The output for the current content of the input."""
        self.y = self._run()
        return self.y


@dataclass(frozen=True, slots=True)
class Bound:
    """The reference's output and error bounds of a problem for one input."""

    error: float
    """largest error that an output may have, as a fraction of the outputs' root mean square"""
    proves_inputs: bool
    """whether the output for another input has a larger error"""
    proves_precision: bool
    """whether bfloat16 has a larger error"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A problem's run."""

    name: str
    times_us: Mapping[str, float]
    """medians of the contenders that are right"""
    errors: Mapping[str, float]
    """the largest of each contender, as a fraction of the bound"""
    proves: str
    """empty, or what a right output does not prove"""
    swapped: str
    """what convert replaced"""

    @property
    def speedup(self) -> float | None:
        """The fastest rival's time divided by ours; None if one of them is missing."""
        ours = [us for name, us in self.times_us.items() if name in OURS]
        rivals = [us for name, us in self.times_us.items() if name not in OURS]
        return min(rivals) / min(ours) if ours and rivals else None


def cut(x: Tensor, bits: int, *, to_nearest: bool) -> Tensor:
    """Float32 values with fewer bits of mantissa."""
    dropped = 23 - bits
    pattern = x.float().contiguous().view(torch.int32)
    if to_nearest:
        pattern = pattern + (1 << (dropped - 1))
    return (pattern & -(1 << dropped)).view(torch.float32)


def rounded(network: nn.Module, bits: int, *, to_nearest: bool = False) -> nn.Module:
    """The network in float64, except that its convolutions round inputs and weights."""
    wide = copy.deepcopy(network).double()
    for part in wide.modules():
        if isinstance(part, nn.modules.conv._ConvNd):
            part.weight.data = cut(part.weight.data, bits, to_nearest=to_nearest).double()
            part.register_forward_pre_hook(lambda _, given: cut(given[0], bits, to_nearest=to_nearest).double())
    return wide


def renew(xs: Sequence[Tensor]) -> None:
    """Write the same new random numbers into the inputs of all layouts."""
    first, *others = xs
    first.uniform_()
    for x in others:
        x.copy_(first)


def check(
    network: nn.Module, contenders: Mapping[str, Contender], xs: Sequence[Tensor], scale: float = 1.0
) -> tuple[dict[str, float], Bound]:
    """The largest error of each contender on new inputs, infinite if it wrote to its input, and the bound."""
    images = scale * torch.rand_like(xs[0][:IMAGES])
    which = (torch.arange(len(xs[0])) % IMAGES)[torch.randperm(len(xs[0]))].to(images.device)
    kept = images[which]
    for x in xs:
        x.copy_(kept)
    lost: set[str] = set()
    outputs: dict[str, Tensor] = {}
    for name, contender in contenders.items():
        contender.y.fill_(torch.nan)
        outputs[name] = contender()
        if not torch.equal(contender.x, kept):
            lost.add(name)
            contender.x.copy_(kept)
    with torch.backends.cudnn.flags(benchmark=False):  # which would try all of float64's algorithms
        found, bound = compared(network, outputs, images, which)
    return {name: torch.inf if name in lost else error for name, error in found.items()}, bound


def compared(
    network: nn.Module, outputs: Mapping[str, Tensor], images: Tensor, which: Tensor
) -> tuple[dict[str, float], Bound]:
    """Every output against float64; `which` image each input repeats."""
    exact = copy.deepcopy(network).double()
    narrow = {
        "tf32": rounded(network, TF32_BITS),
        "bf16": rounded(network, BF16_BITS, to_nearest=True),
        "other": exact,
    }
    scale = float(images.abs().max())
    worst = dict.fromkeys([*outputs, *narrow], 0.0)
    square, count = 0.0, 0
    for place, image in enumerate(images.split(1)):
        expected = exact(image.double())
        square, count = square + float(expected.square().sum()), count + expected.numel()
        elsewhere = torch.rand_like(image) * scale
        for name, one in narrow.items():
            worst[name] = max(worst[name], off(one((elsewhere if name == "other" else image).double()), expected))
        for name, y in outputs.items():
            right = y.shape[1:] == expected.shape[1:] and len(y) == len(which)
            worst[name] = max(worst[name], off(y[which == place], expected) if right else torch.inf)
    level = (square / count) ** 0.5
    relative = {name: error / level if level else torch.inf for name, error in worst.items()}
    most = SLACK * relative["tf32"] + NOISE
    bound = Bound(most, relative["other"] > most, relative["bf16"] > most)
    return {name: relative[name] / most for name in outputs}, bound


def off(y: Tensor, expected: Tensor) -> float:
    """The largest difference; infinite if any is not a number."""
    largest = float((y - expected).abs().max())
    return largest if largest == largest else torch.inf


def timed(contenders: Mapping[str, Contender], xs: Sequence[Tensor]) -> dict[str, float]:
    """Median microseconds of each contender."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(ROUNDS):
        renew(xs)
        random.shuffle(order)
        for name in order:
            times[name].append(sample(contenders[name]))
    return {name: statistics.median(each) for name, each in times.items()}


def sample(contender: Contender) -> float:
    """Microseconds of one pass from a cold L2."""
    if not contender.x.is_cuda:
        started = time.perf_counter()
        contender()
        return 1e6 * (time.perf_counter() - started)
    torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=contender.x.device).zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    contender()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


def compete(name: str, network: nn.Module, contenders: Mapping[str, Contender], swapped: str = "") -> Measured:
    """Check all contenders, time those that are right, and check these again."""
    xs = list({id(one.x): one.x for one in contenders.values()}.values())
    errors, bound = check(network, contenders, xs)
    large, _ = check(network, contenders, xs, LARGE)
    errors = {each: max(error, large[each]) for each, error in errors.items()}
    times = timed({each: one for each, one in contenders.items() if errors[each] <= 1}, xs)
    after, _ = check(network, contenders, xs)
    errors = {each: max(error, after[each]) for each, error in errors.items()}
    doubts = [("inputs", bound.proves_inputs), ("precision", bound.proves_precision)]
    return Measured(
        name,
        {each: us for each, us in times.items() if errors[each] <= 1},
        errors,
        ", ".join(what for what, proven in doubts if not proven),
        swapped,
    )


def competitors(name: str, network: nn.Module, x: Tensor, db: Path) -> tuple[dict[str, Contender], str]:
    """Eager and compiled PyTorch in both layouts, and the converted network."""
    last = copy.deepcopy(network)
    for parameter in last.parameters():
        parameter.data = channels_last(parameter.data)
    x_last = channels_last(x.clone())
    layouts = {"": (network, x)} if x_last.is_contiguous() else {"": (network, x), " channels-last": (last, x_last)}
    converted, report = convert(last, x_last, wait=True, db=db) if x.is_cuda else (last, Report(()))
    rivals = {f"eager{layout}": pair for layout, pair in layouts.items()}
    compiled = {f"compiled{layout}": (torch.compile(one), given) for layout, (one, given) in layouts.items()}
    ours = {OURS[0]: (converted, x_last), OURS[1]: (torch.compile(converted), x_last)}
    print(f"{name}\n{report}", file=sys.stderr, flush=True)
    swapped = f"{sum(row.swapped for row in report.rows)} of {len(report.rows)}"
    networks = {**rivals, **compiled, **ours}
    if not x.is_cuda:  # compiling would need a C++ compiler
        networks = {**rivals, OURS[0]: (converted, x_last)}
    pool = torch.cuda.graph_pool_handle() if x.is_cuda else None  # whose steps the graphs share, outputs they keep
    return {each: Contender(one, given, pool) for each, (one, given) in networks.items()}, swapped


def lines(rows: Sequence[Measured]) -> Iterator[str]:
    """The table in Markdown, the mean, and the errors."""
    names = list(dict.fromkeys(name for row in rows for name in row.errors))
    yield f"| problem | {', us | '.join(names)}, us | times as fast | swapped | proves nothing of |"
    yield f"|{'---|' * (len(names) + 4)}"
    for row in rows:
        times = [f"{row.times_us[name]:.1f}" if name in row.times_us else "-" for name in names]
        speedup = f"{row.speedup:.2f}" if row.speedup else "-"
        yield f"| {' | '.join([row.name, *times, speedup, row.swapped, row.proves])} |"
    proven = [row for row in rows if row.speedup and not row.proves]
    if proven:
        mean = statistics.geometric_mean(row.speedup or 1.0 for row in proven)
        slower = ", ".join(row.name for row in proven if (row.speedup or 1.0) < 1) or "none"
        yield f"\n{mean:.2f} times as fast on the geometric mean of {len(proven)} problems, slower: {slower}"
    for row in rows:
        for name, error in row.errors.items():
            if error > 1:
                yield f"{row.name}: {name} is wrong, {error:.3g} times the bound"


def prepared(name: str, device: str, folder: Path) -> Callable[[], Measured]:
    """A problem with everything compiled, ready to be measured."""
    torch.manual_seed(0)
    network, sizes = built(name) if device == "cuda" else built(name, n=2, most=32)
    network = network.to(device).eval()
    x = torch.rand(sizes, device=device)
    torch.backends.cudnn.benchmark = True
    network = calibrated(network, x[: min(len(x), 16)])
    contenders, swapped = competitors(name, network, x, folder / "figures.db")
    return lambda: compete(name, network, contenders, swapped)


@torch.no_grad()
def work(pipe: Connection, device: str, folder: Path) -> None:
    """Prepare the problems that arrive through the pipe, and measure each on request."""
    device, _, os.environ["CUDA_VISIBLE_DEVICES"] = device.partition(":")
    for name in iter(pipe.recv, ""):
        measure = prepared(name, device, folder)
        pipe.send("prepared")
        pipe.recv()
        pipe.send(measure())
        del measure
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


class Worker:
    """A process that handles one problem at a time."""

    def __init__(self, device: str, folder: Path) -> None:
        processes = multiprocessing.get_context("spawn")
        self.pipe, theirs = processes.Pipe()
        self.process = processes.Process(target=work, args=(theirs, device, folder), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self) -> object:
        """The next message of the process; None if it died or takes too long."""
        try:
            return self.pipe.recv() if self.pipe.poll(PREPARATION_S) else None
        except EOFError:
            return None


def batches(names: Sequence[str]) -> Iterator[list[str]]:
    """The problems, the cheapest first, in groups that fit in memory together."""
    problems = {name: problem_of(name) for name in names}
    batch: list[str] = []
    for name in sorted(problems, key=lambda name: problems[name].flops + 50 * problems[name].tensor_bytes):
        held = sum(problems[each].tensor_bytes for each in [*batch, name])
        if batch and (len(batch) == TOGETHER or held > TOGETHER_BYTES):
            yield batch
            batch = []
        batch.append(name)
    if batch:
        yield batch


def measured(batch: Sequence[str], workers: list[Worker], device: str, folder: Path) -> Iterator[Measured]:
    """Prepare problems together and measure one after another. A process that fails is replaced."""
    workers += [Worker(device, folder) for _ in batch[len(workers) :]]
    given = list(zip(batch, workers, strict=False))
    for name, worker in given:
        worker.pipe.send(name)
    ready = [worker.answer() for _, worker in given]
    for (name, worker), prepared in zip(given, ready, strict=True):
        if prepared:
            worker.pipe.send("measure")
        row = worker.answer() if prepared else None
        if isinstance(row, Measured):
            yield row
        else:
            print(f"{name} failed", file=sys.stderr, flush=True)
            worker.process.kill()
            workers.remove(worker)


def run(device: str, folder: Path, waiting: Iterator[list[str]], until: float, rows: list[Measured]) -> None:
    """Measure the groups of problems that wait on one device, and keep each result."""
    workers: list[Worker] = []
    while time.monotonic() < until and (batch := next(waiting, None)):
        for row in measured(batch, workers, device, folder):
            rows.append(row)
            print(f"{row.name}: {row.times_us}, {until - time.monotonic():.0f} s left", file=sys.stderr, flush=True)
            (folder / "kernelbench.json").write_text(json.dumps([asdict(each) for each in rows], indent=1))
    for worker in workers:
        worker.pipe.send("")


def main() -> None:
    """Run the problems, and print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("problems", nargs="*", help="default: all", metavar="PROBLEM")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no problems after this time")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    unknown = set(arguments.problems) - chains().keys()
    if unknown:
        parser.error(f"no problem {', '.join(sorted(unknown))}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str((arguments.folder / "kernelbench-cache").resolve())
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # each worker would start a process for each core
    results = arguments.folder / "kernelbench.json"
    rows = [Measured(**row) for row in json.loads(results.read_text())] if results.exists() else []
    left = [name for name in arguments.problems or chains() if name not in {row.name for row in rows}]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    devices = ["cpu:"] if arguments.device == "cpu" else [f"cuda:{gpu}" for gpu in gpus.split(",")]
    waiting, until = iter([*batches(left)]), time.monotonic() + arguments.seconds
    with ThreadPoolExecutor(len(devices)) as pool:
        running = [pool.submit(run, device, arguments.folder, waiting, until, rows) for device in devices]
    for each in running:
        each.result()
    print(f"not begun: {' '.join(name for batch in waiting for name in batch) or 'none'}", file=sys.stderr)
    rows.sort(key=lambda row: [*chains()].index(row.name))
    (arguments.folder / "kernelbench.md").write_text("\n".join(lines(rows)) + "\n")
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
