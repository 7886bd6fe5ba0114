"""A model that the user names -> `Graph`, one for each batch size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.autotune_runtime.fusion import Graph
from autotune.errors import ModelError
from autotune.importing.onnx_file import read_onnx
from autotune.importing.torch_module import read_archive, read_code

_PICKLES = (b"PK", b"\x80")  # the first bytes of files that torch.save writes
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
    for batch in request.batches or (None,):
        if not is_file:
            yield read_code(source, request.inputs, batch, dtype, layout, stage)
        elif path.suffix == ".pt2":
            yield read_archive(path, request.inputs, batch, dtype, layout, stage)
        else:
            yield read_onnx(path, request.inputs, batch, dtype, layout)


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
    if path.suffix != ".pt2" and _begins(path).startswith(_PICKLES):
        raise ModelError(
            f"{path}: holds pickled Python objects, which could run any code and are not loaded; give an ONNX file, or "
            "the function that builds the model as my_module.py:build"
        )
    return True


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
