"""Convert networks without a library: choose kernels without tuning, and verify them on the network's tensors."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from .convolution import FilterGradient, Shape
from .fusion import LayerProblem
from .interface import Library
from .layer_names import plain_name, unused_name
from .torch_benchmark import BRIEF, Times, Work, choose_algorithms
from .torch_call import NEW_SIZES
from .torch_convolution import CONVOLUTION, Convolution
from .torch_example import run
from .torch_layers import Inference
from .torch_new_sizes import NewProblem, NewSizes
from .torch_runtime import TrainingMode
from .torch_swap import Report, Row, Tuned, cudnn_benchmark, libraries_of, swap, tf32_is_allowed
from .untuned_build import BuildFailed, BuildProblem, UntunedBuild, can_build

DB = "autotune.db"
"""Default path of the user's results database, in the current folder."""
RACES = "races.json"
"""The file in a build's folder with the times of the kernels and of PyTorch's alternatives."""


def libraries_if_any(given: str | Path | Sequence[str | Path] | None) -> dict[str, Library] | None:
    """Call `libraries_of`, or return None if autotune has to build libraries.

    That is the case if no path is given, this package's folder contains no library, and autotune is installed.
    Otherwise, raises FileNotFoundError if a library is missing.
    """
    try:
        return libraries_of(given)
    except FileNotFoundError:
        if given is None and can_build():
            return None
        raise


def started_build(tensors: Iterable[Tensor], db: str) -> UntunedBuild | None:
    """Start a build for the device of a network's tensors, or return None if kernels don't support any of the devices.

    `db` is the path of the user's results database.
    """
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        if (runtime := CONVOLUTION.runtime_of(device)) is not None:
            return UntunedBuild(runtime.name(device), runtime.model(device), db)
    return None


def begun_build(build: UntunedBuild | None, network: Inference) -> UntunedBuild | None:
    """Begin to build libraries for a network. Returns None if there is no build or no layer can run a kernel."""
    return begin(build, _problems(network))


def expect(build: UntunedBuild, sketch: Inference) -> None:
    """Start building libraries for a sketch of a network."""
    if problems := _problems(sketch):
        build.expect(problems, _accuracy(problems))


def _problems(network: Inference) -> Mapping[LayerProblem | FilterGradient, str]:
    problems: dict[LayerProblem | FilterGradient, str] = {}
    taken: set[str] = set()
    only_convolutions = tf32_is_allowed() and not tf32_is_allowed(linear=True)  # TF32 only for convolutions
    for layer in (each for first in network.layers for each in first.ways):
        if layer.module is None or not layer.problems:
            continue
        if only_convolutions and layer.is_linear and layer.problems[0].dtype == "f32":
            continue
        for problem in (layer.problems[0], *layer.elsewhere_of(layer.problems[0])):
            if problem not in problems:
                problems[problem] = unused_name(plain_name(layer.name) or "layer", taken)
    return problems


def begin(build: UntunedBuild | None, problems: Mapping[LayerProblem | FilterGradient, str]) -> UntunedBuild | None:
    """Begin to build libraries for problems, given with names. If there are none, cancel the build and return None."""
    if build is None or not problems:
        if build is not None:
            build.cancel()
        return None
    build.begin(problems, _accuracy(problems))
    return build


def _begin_again(build: UntunedBuild, problems: Sequence[NewProblem]) -> UntunedBuild:
    """Begin to build libraries for images of a new size, as an earlier build did for the example's size."""
    again = build.another()
    again.begin({problem: f"layer{at}" for at, problem in enumerate(problems)}, _accuracy(problems))
    return again


def _accuracy(problems: Iterable[BuildProblem]) -> str | None:
    """Return the accuracy for a study of these problems, or None for the default accuracy of their dtypes."""
    if all(problem.values["dtype"] == "f32" for problem in problems):
        return "tf32" if tf32_is_allowed() else "fp32-class"
    return None


def swap_untuned(
    network: Inference, build: UntunedBuild | None, margin: float, *, compiled: bool = False
) -> tuple[nn.Module, Report]:
    """Wait for a build, convert a network with its kernels, and print a summary to standard error.

    Kernels that disagree with PyTorch on the network's own tensors are left out. Each kernel is compared in the first
    layer that it computes.
    """
    if build is None:
        none = swap(network, {}, margin)
        return none.network, none.report
    with torch.no_grad(), cudnn_benchmark():
        built = build.wait(_algorithms(network))
    NEW_SIZES.setdefault(build.folder, NewSizes(partial(_begin_again, build)))
    races = Races(build.folder / RACES)
    made = swap(network, libraries_of(build.folder), margin, BRIEF, races.times, compiled=compiled)
    races.keep()
    rows = [replace(row, origin=built[row.kernel].origin if row.kernel in built else "") for row in made.report.rows]
    first: dict[str, tuple[Tuned, LayerProblem]] = {}
    for at, tuned in made.tuned.items():
        if isinstance(problem := rows[at].problem, LayerProblem):
            first.setdefault(rows[at].kernel, (tuned, problem))
    runs = {(tuned, problem.inputs[0][1:]): kernel for kernel, (tuned, problem) in first.items()}
    bounds = {run: (built[kernel].error_bound, built[kernel].most_error) for run, kernel in runs.items()}
    for wrong, times in disagreements(made.network, (network.arguments, *network.others), bounds).items():
        why = f"differs from PyTorch on the example by {times:.3g} times its error bound"
        users = {tuned for at, tuned in made.tuned.items() if rows[at].kernel == runs[wrong]}
        for at, tuned in made.tuned.items():
            if tuned in users:
                tuned.leave_to_pytorch()
                rows[at] = replace(rows[at], swapped=False, why=why)
    report = replace(made.report, rows=tuple(rows))
    print(f"autotune: {report.summary}", file=sys.stderr)
    return made.network, report


def _algorithms(network: Inference) -> Iterator[None]:
    """Make cuDNN choose the algorithms against which the kernels will race, one layer per step of the iterator."""
    works = {
        Work(layer.problems[0], layer.residual, layer.activation): layer.module
        for layer in network.layers
        if isinstance(layer.module, Convolution) and layer.problems and not layer.is_linear
    }
    for work, conv in works.items():
        choose_algorithms(work, conv)
        yield


class Races:
    """The results of races, stored in a file that is valid for one version of PyTorch and cuDNN."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._versions = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if found.get("versions") != self._versions:
            found = {"races": {}}
        self.times: dict[str, Times | None] = {
            work: None if times is None else Times(times[0], tuple(map(tuple, times[1])))
            for work, times in found["races"].items()
        }
        self._before = len(self.times)

    def keep(self) -> None:
        """Write the file atomically if there are new results."""
        if len(self.times) == self._before:
            return
        races = {work: times and (times.tuned_us, times.rivals) for work, times in self.times.items()}
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        new.write_text(json.dumps({"versions": self._versions, "races": races}, indent=1), encoding="utf-8")
        new.replace(self._path)


class UntunedNetwork(nn.Module):
    """A network that PyTorch runs until its kernels are compiled. The next call converts it, within seconds.

    Wait for the kernels (`ready`) before you pass the network to `torch.compile` or capture it in a CUDA graph.
    """

    def __init__(self, module: nn.Module, network: Inference, build: UntunedBuild, margin: float) -> None:
        super().__init__()
        self.network = module
        """the original network, and later the converted copy"""
        why = "its kernel is being compiled; the network's `report` will say more"
        self.report = Report(
            tuple(
                Row(
                    *(layer.name, layer.problem, "", None, None),
                    swapped=False,
                    why=layer.why_not or why,
                    kind=layer.kind,
                )
                for layer in network.layers
            ),
            len(network.folded),
        )
        convert = partial(swap_untuned, network, build, margin)
        self._pending: tuple[UntunedBuild, Callable[[], tuple[nn.Module, Report]]] | None = (build, convert)
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether the kernels have been compiled, so that the next call runs them."""
        pending = self._pending  # another thread may set it to None
        return pending is None or pending[0].done()

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the network. While a thread converts it, others run the original one."""
        pending = self._pending is not None and not torch.compiler.is_compiling()
        if pending and self.ready and self._lock.acquire(blocking=False):
            try:
                self._convert()
            finally:
                self._lock.release()
        return self.network(*args, **kwargs)

    def _convert(self) -> None:
        """Convert the network if no other thread has, after waiting for its kernels. The lock must be held."""
        if self._pending is None:
            return
        _, convert_now = self._pending
        self._pending = None
        try:
            with torch.inference_mode(mode=False):
                self.network, self.report = convert_now()
        except BuildFailed as error:
            warnings.warn(f"{error}; PyTorch runs the network", RuntimeWarning, stacklevel=3)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a copy or a pickle: that of the converted network, so this waits for its kernels."""
        with self._lock:
            self._convert()
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the network."""
        super().__setstate__(state)
        self._lock = threading.Lock()

    def train(self, mode: bool = True) -> UntunedNetwork:  # noqa: FBT001, FBT002 - as nn.Module has it
        """Raise TrainingMode unless `mode` is False."""
        if mode:
            raise TrainingMode("a converted network is for inference only: train the network it was converted from")
        return super().train(mode)


def disagreements(
    network: nn.Module,
    examples: Iterable[tuple[object, ...]],
    bounds: Mapping[tuple[Tuned, Shape], tuple[float, float]],
) -> dict[tuple[Tuned, Shape], float]:
    """Run the network on examples, and return the modules whose results differ too much from float64.

    The keys are pairs of a module and the sizes of its first input without the first axis, such as [C, H, W]. The
    values are the largest errors divided by the allowed ones. `bounds` contains two bounds for each pair. The first is
    the kernel's largest error: for convolutions relative to the sum of the terms' magnitudes, for other layers relative
    to the operation's tolerance. The second is the largest error of a sum with a single term.
    """
    wrong: dict[tuple[Tuned, Shape], float] = {}

    def compare(module: nn.Module, inputs: tuple[Tensor | None, ...], y: Tensor) -> None:
        assert isinstance(module, Tuned)  # noqa: S101 - that is what the hook is registered for
        assert inputs[0] is not None  # noqa: S101 - the images
        which = module, tuple(inputs[0].shape[1:])
        if which in bounds and not (error := module.error(*inputs, y=y, bounds=bounds[which])) <= 1:
            wrong[which] = error

    hooks = [module.register_forward_hook(compare) for module in dict.fromkeys(module for module, _ in bounds)]
    try:
        for arguments in examples:
            run(network, arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return wrong
