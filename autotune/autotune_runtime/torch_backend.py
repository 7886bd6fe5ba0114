"""`torch.compile(model, backend="autotune")`: convolutions with an exported library's kernels, the rest with Inductor.

PyTorch finds the backend through its entry point if autotune is installed; with only an exported folder use
`torch.compile(model, backend=autotune_runtime.torch_backend.autotune)`.
"""

from __future__ import annotations

import logging
import operator
import os
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, fx, nn
from torch._dynamo import lookup_backend

from .interface import Library
from .torch_capture import Lifted, lifted
from .torch_convert import MARGIN, libraries_of, swap_or_build
from .torch_layers import ConvGraph, Inference
from .torch_runtime import TrainingMode
from .untuned_build import can_build

LIBRARY = "AUTOTUNE_LIBRARY"
"""environment variable: the path of a library, or of an exported folder"""
_LOG = logging.getLogger(__name__)


def autotune(
    graph: fx.GraphModule,
    inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Compile a graph that Dynamo captured. For inference: parameters are taken as they are now.

    Batch norms are folded and kernels raced and swapped in as by `convert`, whose table is logged at level INFO.
    `options`: `library` as for `convert`, else the environment variable AUTOTUNE_LIBRARY, a path, else the libraries
    in the folder of this package, else kernels that autotune chooses without tuning, which the first call waits for;
    `margin` as for `convert`; `mode`, one of Inductor's;
    `rest`, a backend for the rest instead of Inductor, such as aot_eager; all others are that backend's own. Once a
    parameter is another or was changed, PyTorch runs the graph uncompiled, with one warning.

    Raises TrainingMode where gradients are wanted, BuildFailed if kernels cannot be built, FileNotFoundError if there
    is no library and autotune is not installed.
    """
    settings = dict(options or {})
    libraries = _libraries(settings.pop("library", None))
    margin = float(str(settings.pop("margin", MARGIN)))
    mode = str(settings.pop("mode", mode or "default"))
    compiler = str(settings.pop("rest", "inductor"))
    if torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in inputs):
        raise TrainingMode(
            "a tensor requires gradients, but the kernels have no backward pass; run under torch.no_grad() or "
            "torch.inference_mode()"
        )
    made = lifted(graph, inputs)
    rest = [inputs[at] for at in made.rest]
    with torch.inference_mode(mode=False), torch.no_grad():
        part = ConvGraph(made.part)
        network: nn.Module = made.part.graph
        if part.layers:
            network, report = swap_or_build(Inference(network, made.part.arguments, (part,)), libraries, margin)
            paths = (str(library.path) for library in (libraries or {}).values())
            _LOG.info("%s\n%s", ", ".join(paths) or "untuned", report)
    if compiler == "inductor":
        patches = {**torch._inductor.list_mode_options(mode), **settings}
        compiled = torch._inductor.compile(network, rest, options=patches)
    else:
        compiled = lookup_backend(compiler)(network, rest, **settings)
    return _guarded(compiled, made, part.baked, graph, [inputs[at] for at in made.taken])


def _libraries(given: object) -> dict[str, Library] | None:
    """The libraries by operation; None if none is named or found, and autotune can build some. Raises FileNotFoundError
    with instructions.
    """
    named = given or os.environ.get(LIBRARY)
    try:
        return libraries_of(named if named is None or isinstance(named, (list, tuple)) else str(named))
    except FileNotFoundError as error:
        if named is None and can_build():
            return None
        raise FileNotFoundError(
            f"torch.compile(backend='autotune'): give options={{'library': PATH}} or set {LIBRARY}: {error}"
        ) from None


def _guarded(
    compiled: Callable[..., object], made: Lifted, baked: list[Tensor], graph: fx.GraphModule, taken: list[object]
) -> Callable[..., object]:
    """Run the compiled graph as long as the properties of the inputs that it used are the same."""

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
                "autotune_runtime: parameters changed since the network was compiled, which runs uncompiled now; call "
                "torch.compiler.reset() to compile it again",
                RuntimeWarning,
                stacklevel=2,
            )
        return graph(*inputs)

    return run
