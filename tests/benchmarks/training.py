"""Time training steps of a network by kernels and by PyTorch, each captured in a CUDA graph, and compare losses.

    python tests/benchmarks/training.py FOLDER NETWORK [--n 128] [--size 224] [--autocast] [--losses 300] [--profile]

NETWORK is one of torchvision's (resnet50, convnext_tiny), channels-last, in BF16 or, with --autocast, in float32 under
autocast. A step is forward, cross entropy, backward and a fused SGD with momentum. Contenders: eager PyTorch,
`torch.compile`, the converted network, whose kernels are chosen without tuning from an empty cache in FOLDER, and the
network compiled by the backend "autotune", which chooses kernels in the same way. Times are medians of interleaved
rounds. With --losses STEPS, all but `torch.compile` train on synthetic images of 10 classes, from the weights of five
seeds. With --profile, the kernels of a step go to FOLDER. `--without CONTENDER` leaves one out. `--device cpu` tests
the script: nothing is captured, and PyTorch computes everything.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from autotune.autotune_runtime.torch_backend import autotune
from autotune.autotune_runtime.torch_convert import convert

ROUNDS, STEPS = 9, 4  # of a contender: rounds, and steps in each
WARM = 4  # steps before a capture
SEEDS, CLASSES, LAST = 5, 10, 50  # of --losses: its seeds, classes of images, and the steps whose losses are averaged
RATE = 0.02  # of the SGD
PATTERN, SIGNAL = 4, 1.0  # of a class's pattern: its squares along an axis, its size in units of an image's noise


class Training:
    """A network's training: steps on the same tensors, whose values may be changed between steps."""

    def __init__(self, network: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor, *, autocast: bool) -> None:
        self.network, self.run, self.x = network, run, x
        self.classes = torch.randint(CLASSES, (len(x),), device=x.device)
        self.context = torch.autocast(x.device.type, torch.bfloat16) if autocast else nullcontext()
        self.optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9, fused=True)
        self.loss = torch.zeros((), device=x.device)

    def step(self) -> None:
        """One step, whose loss is kept."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.context:
            loss = cross_entropy(self.run(self.x).float(), self.classes)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def captured(self) -> Callable[[], None]:
        """The step as a CUDA graph; on a CPU, as it is. The graph's memory is that of this training: keep it."""
        if not self.x.is_cuda:
            return self.step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        replay: Callable[[], None] = graph.replay
        return replay


def main() -> None:
    """Train, time and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("network")
    parser.add_argument("--n", type=int, default=128, help="images")
    parser.add_argument("--size", type=int, default=224, help="height and width of an image")
    parser.add_argument("--autocast", action="store_true", help="float32 parameters under autocast, not BF16 ones")
    parser.add_argument("--losses", type=int, default=0, metavar="STEPS", help="compare the losses of so many steps")
    parser.add_argument("--profile", action="store_true", help="list the kernels of a step")
    parser.add_argument("--without", action="append", default=[], metavar="CONTENDER", help="such as eager")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str((arguments.folder / "cache").resolve())
    torch.backends.cudnn.benchmark = True
    trainings = contenders(arguments)
    steps, ready_s = {}, {}
    for name, training in trainings.items():
        began = time.monotonic()
        steps[name] = training.captured()
        ready_s[name] = time.monotonic() - began
        print(f"{name}: captured after {ready_s[name]:.1f} s", file=sys.stderr, flush=True)
    times_ms = timed(steps)
    found: dict[str, object] = {
        "network": arguments.network,
        "n": arguments.n,
        "autocast": arguments.autocast,
        "ms": {name: statistics.median(each) for name, each in times_ms.items()},
        "spread": {name: (max(each) - min(each)) / statistics.median(each) for name, each in times_ms.items()},
        "ready_s": ready_s,
    }
    for key in ("ms", "spread", "ready_s"):
        print(key, found[key], flush=True)
    keep(arguments, found)
    if arguments.profile:
        for name in steps:
            text = profiled(steps[name])
            (arguments.folder / f"{arguments.network}-{name.replace(' ', '-')}-profile.txt").write_text(text)
    if arguments.losses:
        compared = [name for name in trainings if name != "torch.compile"]
        of_seeds: dict[str, list[list[float]]] = {name: [] for name in compared}
        found["losses"] = of_seeds
        for seed in range(SEEDS):
            for name in compared:
                of_seeds[name].append(losses(trainings[name], steps[name], arguments.losses, seed))
                first, last = of_seeds[name][-1][0], statistics.mean(of_seeds[name][-1][-LAST:])
                print(f"seed {seed}, {name}: loss {first:.3f}, mean of the last {LAST} {last:.4f}", flush=True)
            keep(arguments, found)


def contenders(arguments: argparse.Namespace) -> dict[str, Training]:
    """The trainings of the same network, by name."""
    torch.manual_seed(0)
    network = torchvision.models.get_model(arguments.network, num_classes=1000).to(arguments.device)
    network = network.to(memory_format=torch.channels_last)
    dtype = torch.float32 if arguments.autocast else torch.bfloat16
    network = network.to(dtype)
    x = torch.randn(arguments.n, 3, arguments.size, arguments.size, device=arguments.device, dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    own_copies = ("eager", "torch.compile", "backend")
    trained = {name: copy.deepcopy(network) for name in own_copies if name not in arguments.without}
    if "converted" not in arguments.without:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=arguments.autocast):
            trained["converted"], report = convert(network, x, training=True)
        (arguments.folder / f"{arguments.network}-report.txt").write_text(f"{report}\n")
    rest = "aot_eager" if arguments.device == "cpu" else "inductor"
    compilers = {
        "torch.compile": functools.partial(torch.compile, backend=rest),
        "backend": functools.partial(torch.compile, backend=autotune, options={"training": True, "rest": rest}),
    }
    return {
        name: Training(own, compilers.get(name, nn.Identity())(own), x.clone(), autocast=arguments.autocast)
        for name, own in trained.items()
    }


def timed(steps: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Milliseconds of a step in each round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 1):
        for name, step in steps.items():
            synchronize()
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            synchronize()
            times[name].append((time.perf_counter() - began) * 1000 / STEPS)
    return {name: each[1:] for name, each in times.items()}


def synchronize() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def profiled(step: Callable[[], None]) -> str:
    """The kernels of a step by name, with their number and their time."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        synchronize()
    return str(profile.key_averages().table(sort_by="cuda_time_total", row_limit=60, max_name_column_width=90))


def losses(training: Training, step: Callable[[], None], count: int, seed: int) -> list[float]:
    """The losses of so many steps from the weights of a seed, on images that differ in each step."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for part in training.network.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        for state in training.optimizer.state.values():
            state["momentum_buffer"].zero_()
    coarse = torch.randn(CLASSES, training.x.shape[1], PATTERN, PATTERN, device=training.x.device)
    patterns = interpolate(coarse, training.x.shape[2:])
    found = []
    for _ in range(count):
        training.classes.random_(CLASSES)
        noise = torch.randn(training.x.shape, device=training.x.device)
        training.x.copy_(noise + SIGNAL * patterns[training.classes])
        step()
        found.append(training.loss.clone())
    return [float(loss) for loss in found]


def keep(arguments: argparse.Namespace, found: dict[str, object]) -> None:
    """Write all figures."""
    (arguments.folder / f"{arguments.network}-training.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
