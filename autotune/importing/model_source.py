"""Read the model that the user asked for as a `Graph`, one for each batch size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from autotune.autotune_runtime.fusion import Graph
from autotune.errors import ModelError
from autotune.importing.network import Request
from autotune.importing.onnx_file import read_onnx
from autotune.importing.torch_module import read_archive, read_code

_PICKLES = (b"PK", b"\x80")  # the first bytes of files that torch.save writes
_KINDS = "a .onnx file, a torch.export archive (.pt2), PACKAGE.MODULE:NAME or FILE.py:NAME"


def read_source(
    request: Request, batches: Iterable[int] = (), stage: Callable[[str], None] = lambda _: None
) -> tuple[Graph, ...]:
    """Read the network once for each batch size, or just once if there are no `batches`.

    Before each step that takes seconds, `stage` is called with a message. Raises ModelError with one line that says
    what is wrong or missing.
    """
    path = Path(request.source)
    is_file = _is_file(path)

    def read(one: Request) -> Graph:
        if not is_file:
            return read_code(one, stage)
        return read_archive(one, stage) if path.suffix == ".pt2" else read_onnx(one)

    return tuple(read(replace(request, batch=batch)) for batch in (*batches,) or (None,))


def _is_file(path: Path) -> bool:
    """Return whether a source is a model file rather than the name of Python code. Raises ModelError if it is
    neither.
    """
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
            f"{path}: contains pickled Python objects, which could run any code and are not loaded; give an ONNX file, "
            "or the function that builds the model as my_module.py:build"
        )
    return True


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
