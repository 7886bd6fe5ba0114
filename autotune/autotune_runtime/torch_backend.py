"""The backend `torch.compile(model, backend="autotune")`: an exported library computes convolutions, Inductor the rest.

If autotune is installed, PyTorch finds the backend through an entry point. If you only have an exported folder, call
`torch.compile(model, backend=autotune_runtime.torch_backend.autotune)`.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn
from torch._dynamo import lookup_backend
from torch._guards import TracingContext
from torch._inductor.compile_fx import compile_fx

from .interface import Library
from .torch_dynamo import Lifted, lifted
from .torch_layers import Inference, LayerGraph
from .torch_runtime import TrainingMode
from .torch_swap import MARGIN, Report, swap
from .torch_training_graph import train_graph
from .torch_untuned import DB, begun_build, libraries_if_any, started_build, swap_untuned
from .untuned_build import BuildFailed, UntunedBuild

LIBRARY = "AUTOTUNE_LIBRARY"
"""environment variable with the path of a library or of an exported folder"""
_LOG = logging.getLogger(__name__)


def autotune(
    graph: fx.GraphModule,
    inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Compile a graph that Dynamo captured, for inference unless the option `training` is set.

    As in `convert`, batch norms are folded, and kernels replace operators that they beat in a race. The table of
    results is logged at level INFO. `options` may contain:

    - `library`: as for `convert`. Default: the path in the environment variable AUTOTUNE_LIBRARY, or else the libraries
      in the folder of this package, or else kernels that autotune chooses without tuning.
    - `wait`: let the first call wait for kernels that autotune chooses. Without it, PyTorch runs the graph uncompiled
      until the kernels are compiled.
    - `margin` and `db`: as for `convert`.
    - `mode`: one of Inductor's modes.
    - `rest`: a backend such as aot_eager that compiles the rest of the graph instead of Inductor.
    - `training`: kernels compute convolutions and their gradients, as in `convert`, with the parameters of each call.
    - All other options are passed to Inductor or to the backend `rest`.

    For inference, the parameters' values at the time of compilation are used. Once a parameter is replaced or changed,
    PyTorch runs the graph uncompiled and issues one warning.

    Raises TrainingMode if gradients are required without `training`, BuildFailed if kernels that the call waits for
    cannot be built, FileNotFoundError if there is no library and autotune is not installed.
    """
    settings = dict(options or {})
    libraries = _libraries(settings.pop("library", None))
    margin = float(str(settings.pop("margin", MARGIN)))
    wait, db = bool(settings.pop("wait", False)), str(settings.pop("db", DB))
    mode = str(settings.pop("mode", mode or "default"))
    compiler, training = str(settings.pop("rest", "inductor")), bool(settings.pop("training", False))
    tensors = [each for each in inputs if isinstance(each, Tensor)]
    if training:
        started = started_build(tensors, db) if libraries is None else None
        report = train_graph(graph, libraries, started, margin)
        _LOG.info("%s\n%s", _words(libraries), report)
        if compiler == "inductor":
            return compile_fx(graph, inputs, config_patches={**torch._inductor.list_mode_options(mode), **settings})
        return lookup_backend(compiler)(graph, inputs, **settings)
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        raise TrainingMode(
            "a tensor requires gradients, but the kernels have no backward pass; run under torch.no_grad() or "
            "torch.inference_mode(), or give options={'training': True}"
        )
    started = started_build(tensors, db) if libraries is None else None
    made = lifted(graph, inputs)
    rest = [inputs[at] for at in made.rest]
    with _without_grad():
        part = LayerGraph(made.part)
    found = Inference(made.part.graph, made.part.arguments, (part,))

    def compiled(network: nn.Module, report: Report | None = None) -> Callable[..., object]:
        if report is not None:
            _LOG.info("%s\n%s", _words(libraries), report)
        if compiler == "inductor":
            patches = {**torch._inductor.list_mode_options(mode), **settings}
            return torch._inductor.compile(network, rest, options=patches)
        return lookup_backend(compiler)(network, rest, **settings)

    if not part.layers:
        begun_build(started, found)  # without layers, this cancels the build
        run = compiled(found.network)
    elif libraries is not None:
        with _without_grad():
            swapped = swap(found, libraries, margin, compiled=compiler == "inductor")
        run = compiled(swapped.network, swapped.report)
    else:
        build = begun_build(started, found)

        def convert() -> Callable[..., object]:
            with _without_grad():
                converted = swap_untuned(found, build, margin, compiled=compiler == "inductor")
            return compiled(*converted)

        run = convert() if build is None or wait or build.done() else _pending(found.network, build, convert, compiled)
    return _guarded(run, made, part.baked, graph, [inputs[at] for at in made.taken])


@contextmanager
def _without_grad() -> Iterator[None]:
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def _pending(
    network: nn.Module,
    build: UntunedBuild,
    convert: Callable[[], Callable[..., object]],
    compiled: Callable[[nn.Module], Callable[..., object]],
) -> Callable[..., object]:
    """Return a function that runs the original network until its kernels have been built, then converts and compiles
    it. While a thread does so, others run the original network.
    """
    tracing, unconverted = TracingContext.try_get(), threading.Lock()
    run: Callable[..., object] = network

    def called(*inputs: object) -> object:
        nonlocal run
        if not unconverted.locked() and build.done() and unconverted.acquire(blocking=False):
            with torch._guards.tracing(tracing):  # Dynamo's context from compilation, which knows the symbolic sizes
                try:
                    run = convert()
                except BuildFailed as error:
                    warnings.warn(f"{error}; PyTorch runs the network", RuntimeWarning, stacklevel=2)
                    run = compiled(network)
        return run(*inputs)

    return called


def _words(libraries: Mapping[str, Library] | None) -> str:
    """Return the libraries' paths, for the log."""
    return ", ".join(str(library.path) for library in (libraries or {}).values()) or "untuned"


def _libraries(given: object) -> dict[str, Library] | None:
    """Call `libraries_if_any` with the option or the environment variable.

    Raises FileNotFoundError with a message that explains how to specify a library.
    """
    named = given or os.environ.get(LIBRARY)
    try:
        return libraries_if_any(named if named is None or isinstance(named, (list, tuple)) else str(named))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"torch.compile(backend='autotune'): give options={{'library': PATH}} or set {LIBRARY}: {error}"
        ) from None


def _guarded(
    compiled: Callable[..., object], made: Lifted, baked: list[Tensor], graph: fx.GraphModule, taken: list[object]
) -> Callable[..., object]:
    """Return a function that runs the compiled graph as long as the tensors compiled into it don't change.

    After a change, it issues one warning and runs the original graph.
    """

    def versions() -> list[int]:
        return [0 if tensor.is_inference() else tensor._version for tensor in baked]

    before, told = versions(), False

    def run(*inputs: object) -> object:
        nonlocal told
        if all(map(operator.is_, (inputs[at] for at in made.taken), taken)) and versions() == before:
            return compiled(*[inputs[at] for at in made.rest])
        if not told:
            told = True
            warnings.warn(
                "autotune_runtime: parameters have changed since the network was compiled, so it now runs uncompiled; "
                "call torch.compiler.reset() to compile it again",
                RuntimeWarning,
                stacklevel=2,
            )
        return graph(*inputs)

    return run
