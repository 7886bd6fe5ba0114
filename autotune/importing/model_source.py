"""A model that the user names -> `Graph`, one for each batch size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.autotune_runtime.fusion import Graph
from autotune.errors import ModelError
from autotune.importing.onnx_file import read_onnx
from autotune.importing.torch_archive import NO_PICKLES, read_archive
from autotune.importing.torch_module import archives_of_source

_ZIP, _PICKLE = b"PK", b"\x80"  # the first bytes of files
_KINDS = "a .onnx file, a torch.export archive (.pt2), PACKAGE.MODULE:NAME or FILE.py:NAME"


@dataclass(frozen=True, slots=True)
class Request:
    """A network and how it is to be read."""

    source: str
    """a file, or PACKAGE.MODULE:NAME or FILE.py:NAME, which is Python code that is run"""
    inputs: tuple[tuple[int, ...], ...] = ()
    """sizes of the network's inputs in order; missing ones are taken from the file"""
    batches: tuple[int, ...] = ()
    """batch sizes; (): that of the inputs"""
    dtype: str | None = None
    """None: the network's own type"""
    layout: str | None = None
    """None: how the network stores its filters"""


def read_source(request: Request, stage: Callable[[str], None] = lambda _: None) -> tuple[Graph, ...]:
    """A network for each of the batch sizes; `stage` is called when a stage that takes seconds begins.

    Raises ModelError with one line that says what is wrong or missing.
    """
    return tuple(_networks(request, stage))


def _networks(request: Request, stage: Callable[[str], None]) -> Iterator[Graph]:
    source, dtype, layout = request.source, request.dtype, request.layout
    path = Path(source)
    is_file = _is_file(path)
    archived = is_file and (path.suffix == ".pt2" or _begins(path) == _ZIP)
    for batch in request.batches or (None,):
        if archived:
            yield read_archive(path, source, request.inputs, batch, dtype, layout)
        elif is_file:
            yield read_onnx(path, request.inputs, batch, dtype, layout)
        else:
            inputs = tuple(each if batch is None else (batch, *each[1:]) for each in request.inputs)
            archives = archives_of_source(source, inputs, stage)
            yield joined({path: read_archive(file, source, (), None, dtype, layout) for path, file in archives.items()})


def _is_file(path: Path) -> bool:
    """Whether a source is a file with a model. Raises ModelError if it is neither a file nor code."""
    where, colon, name = str(path).rpartition(":")
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; expected {_KINDS}")
    if not os.path.isfile(path):
        if colon and where and name:
            return False
        raise ModelError(f"{path}: no such file; expected {_KINDS}")
    if path.suffix == ".py":
        raise ModelError(f"{path}: name the function in it that builds the model, as {path}:build")
    if _begins(path)[:1] == _PICKLE:
        raise ModelError(f"{path}: {NO_PICKLES}")
    return True


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def joined(parts: Mapping[str, Graph]) -> Graph:
    """The graphs of a network's parts, by their paths, as one graph of the inputs of the first part."""
    prefixes = {path: f"{path}." if path else "" for path in parts}
    named = [_named(graph, prefixes[path]) for path, graph in parts.items()]
    return replace(
        named[0],
        operators=tuple(each for graph in named for each in graph.operators),
        outputs=frozenset(name for graph in named for name in graph.outputs),
        dtypes={name: dtype for graph in named for name, dtype in graph.dtypes.items()},
    )


def _named(graph: Graph, prefix: str) -> Graph:
    """A graph with a prefix before all names."""

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
            layer=each.layer and replace(each.layer, label=f"{prefix}{each.layer.label}"),
            product=each.product and replace(each.product, label=f"{prefix}{each.product.label}"),
        )
        for each in graph.operators
    )
    dtypes = dict(zip(renamed(graph.dtypes), graph.dtypes.values(), strict=True))
    return replace(graph, operators=operators, outputs=frozenset(renamed(graph.outputs)), dtypes=dtypes)
