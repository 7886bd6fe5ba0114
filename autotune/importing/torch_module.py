"""Read a PyTorch model from Python code or a `torch.export` archive as a `Graph`, captured as in `convert`."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
import logging
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from autotune.autotune_runtime.fusion import Graph
from autotune.errors import ModelError
from autotune.importing.network import Request, plain
from autotune.toml_table import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

    from autotune.autotune_runtime.torch_capture import Part

_WITHOUT = ("weights", "weights_backbone")
"""The arguments of torchvision's builders for weights to download. Passing None downloads nothing."""


def read_code(request: Request, stage: Callable[[str], None]) -> Graph:
    """Read the model built by PACKAGE.MODULE:NAME or FILE.py:NAME.

    NAME is a model, a function or class that is called without arguments, or a name that the module's `create_model`
    accepts, as in timm. The code runs on the meta device, without weights, or on the CPU if the model reads values.
    Since steps take seconds, `stage` is called with a message before each of them. Raises ModelError if PyTorch, the
    module or the name is missing, or if the model can't be built or captured.
    """
    source = request.source
    with _pytorch(source, stage):
        import torch

        if not request.inputs:
            raise ModelError(f"{source}: the sizes of its input are needed, such as --input 1x3x224x224")
        sizes = request.sizes({str(at): () for at, _ in enumerate(request.inputs)})
        build = _builder(source)
        failed = ""
        for device in ("meta", "cpu"):
            try:
                with torch.device(device), torch.no_grad():
                    stage(f"{source}: building the model")
                    module = build().eval().to(device)
                    stage(f"{source}: exporting it by torch.export")
                    return graph_of_module(module, sizes, request.dtype, request.layout)
            except Exception as error:  # noqa: BLE001 - the model's own code runs, which may raise anything
                failed = _line(error)
    raise ModelError(f"{source}: cannot be built and exported: {failed}")


def read_archive(request: Request, stage: Callable[[str], None]) -> Graph:
    """Read an archive written by `torch.export.save`.

    Raises ModelError if PyTorch is missing, or if the archive is damaged or was exported for other sizes.
    """
    source = request.source
    with _pytorch(source, stage):
        import torch

        try:
            program = torch.export.load(source)
            values = {
                node.name: node.meta["val"]
                for node in program.graph.find_nodes(op="placeholder")
                if node.name in program.graph_signature.user_inputs
            }
        except Exception as error:  # noqa: BLE001 - PyTorch's errors for a damaged file have no common class
            raise ModelError(f"{source}: is not a torch.export archive: {_line(error)}") from None
        own = {
            name: tuple(size if isinstance(size, int) else None for size in each.shape) for name, each in values.items()
        }
        arguments = tuple(_like(each, size) for each, size in zip(values.values(), request.sizes(own), strict=True))
        try:
            return _graph(program.module(), arguments, request.dtype, request.layout)
        except Exception as error:  # noqa: BLE001 - the model's own code runs, which may raise anything
            raise ModelError(f"{source}: cannot be read for these sizes: {_line(error)}") from None


def graph_of_module(
    module: nn.Module, sizes: Iterable[Sequence[int]], dtype: str | None = None, layout: str | None = None
) -> Graph:
    """Return a model's graph, or a single graph with all parts of the model that `convert` would capture.

    The model must be in evaluation mode, and is changed. `sizes` are the inputs' sizes. `dtype` and `layout` override
    the model's own.
    """
    from autotune.autotune_runtime.torch_example import example_arguments

    noise = tuple(each for size in sizes for each in example_arguments(module, tuple(size)))
    return _graph(module, noise, dtype, layout)


def _like(value: Tensor, size: Sequence[int]) -> Tensor:
    """Return a tensor of ones with the dtype and memory format of an archive's input."""
    import torch

    from autotune.autotune_runtime.torch_call import LAST
    from autotune.autotune_runtime.torch_example import is_channels_last

    memory_format = LAST[value.dim()] if is_channels_last(value) else torch.contiguous_format
    return torch.ones(tuple(size), dtype=value.dtype).contiguous(memory_format=memory_format)


def _graph(module: nn.Module, arguments: tuple[object, ...], dtype: str | None, layout: str | None) -> Graph:
    from autotune.autotune_runtime.torch_attention import fast_attention
    from autotune.autotune_runtime.torch_capture import capture

    with fast_attention(module):
        _, parts = capture(module, arguments, most_unrolled=sys.maxsize)
    if not parts:
        raise ModelError(
            "torch.export accepts neither the network nor one of its parts with a convolution; their control flow may "
            "depend on computed values, such as a detector's boxes"
        )
    named = [_named(_part_graph(part, dtype, layout), part) for part in parts]
    return replace(
        named[0],
        operators=tuple(each for graph in named for each in graph.operators),
        outputs=frozenset(name for graph in named for name in graph.outputs),
        dtypes={name: dtype for graph in named for name, dtype in graph.dtypes.items()},
    )


def _part_graph(part: Part, dtype: str | None, layout: str | None) -> Graph:
    from autotune.autotune_runtime.torch_graph import calls_of

    found, _ = calls_of(part)
    if any(call.trains for call in found.calls):
        raise ModelError("it is in training mode; call eval() before torch.export: kernels only infer")
    paths = {node.name: str(node.meta.get("path", "")) for node in part.graph.graph.nodes}
    return replace(
        found,
        calls=tuple(replace(call, path=call.path or paths.get("".join(call.writes[:1]), "")) for call in found.calls),
        tensors={name: replace(each, dtype=dtype or each.dtype) for name, each in found.tensors.items()},
        layout=layout,
    ).graph()


def _named(graph: Graph, part: Part) -> Graph:
    """Return a part's graph with names that are unique in the network."""
    prefix = f"{part.path}." if part.path else ""

    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{prefix}{name}" for name in names)

    operators = tuple(
        replace(
            each,
            reads=renamed(each.reads),
            writes=renamed(each.writes),
            constants=renamed(each.constants),
            inside=renamed(each.inside),
            source=each.source and f"{prefix}{each.source}",
            layer=each.layer and replace(each.layer, label=part.layer_name(each.layer.label)),
            product=each.product and replace(each.product, label=part.layer_name(each.product.label)),
        )
        for each in graph.operators
    )
    dtypes = dict(zip(renamed(graph.dtypes), graph.dtypes.values(), strict=True))
    return replace(graph, operators=operators, outputs=frozenset(renamed(graph.outputs)), dtypes=dtypes)


def _line(error: Exception) -> str:
    """Return an error's message as one line of bounded length."""
    text = str(error).strip() if isinstance(error, ModelError) else f"{type(error).__name__}: {str(error).strip()}"
    return plain(text.partition("\n")[0], 300)


def _builder(source: str) -> Callable[[], nn.Module]:
    """Return a function without arguments that builds the model."""
    from torch import nn

    where, _, name = source.rpartition(":")
    module = _module(source, where)
    try:
        found = operator.attrgetter(name)(module)
    except AttributeError:
        create = getattr(module, "create_model", None)
        if create is None:
            raise ModelError(f"{source}: {where} has no {name}{did_you_mean(name, dir(module))}") from None
        return lambda: create(name)
    if isinstance(found, nn.Module):
        model = found
        return lambda: copy.deepcopy(model)
    if not callable(found):
        raise ModelError(f"{source}: is a {type(found).__name__}, not a model nor a function that builds one")
    keywords = {each: None for each in _WITHOUT if each in _parameters(found)}

    def build() -> nn.Module:
        made = found(**keywords)
        if not isinstance(made, nn.Module):
            raise TypeError(f"it gives a {type(made).__name__}, not a torch.nn.Module")
        return made

    return build


def _parameters(function: Callable[..., object]) -> Sequence[str]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # for functions written in C
        return ()


def _module(source: str, where: str) -> ModuleType:
    """Import a source's module from its file or import path. The current folder is searched last."""
    try:
        if where.endswith(".py"):
            return _file_module(source, Path(where))
        sys.path.append(str(Path.cwd()))
        return importlib.import_module(where)
    except ModelError:
        raise
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{source}: no module named {error.name}; install it, or give a file as my_module.py:build"
        ) from None
    except Exception as error:  # noqa: BLE001 - the module's own code runs, which may raise anything
        message = plain(f"{type(error).__name__}: {error}", 300)
        raise ModelError(f"{source}: {where} cannot be imported: {message}") from None


def _file_module(source: str, path: Path) -> ModuleType:
    """Run a file as a module, which may import others from its folder. Its name may contain dots."""
    if not path.is_file():
        raise ModelError(f"{source}: there is no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # noqa: S101 - the file's name ends in .py
    assert spec.loader is not None  # noqa: S101
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _pytorch(source: str, stage: Callable[[str], None]) -> Iterator[None]:
    """Import PyTorch for the block, suppress its warnings and logs, and restore the import paths afterwards.

    Inside the block, standard output goes to standard error, because the study may be written to standard output.
    Raises ModelError if PyTorch isn't installed.
    """
    paths, disabled = sys.path[:], logging.root.manager.disable
    stage(f"{source}: importing PyTorch and the code")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ModelError(f"{source}: needs PyTorch; install it (pip install torch), or give an ONNX file") from None
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable()
            yield
    finally:
        logging.disable(disabled)
        sys.path[:] = paths
