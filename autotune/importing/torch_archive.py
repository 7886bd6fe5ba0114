"""An archive of `torch.export.save` -> `Graph`. PyTorch is not needed: the graph is read as the JSON that it is.

`torch.export.load` would run code of a hostile archive, from pickles and from the expressions of sizes.
"""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from autotune.autotune_runtime.aten import Calls
from autotune.autotune_runtime.aten_calls import Call, Ref, TensorType
from autotune.autotune_runtime.fusion import Graph
from autotune.autotune_runtime.plain_problems import MOST_TENSORS
from autotune.errors import ModelError
from autotune.importing.network import asked, plain
from autotune.importing.torch_calls import Exported, Json
from autotune.importing.torch_sizes import UnsupportedSize, bind_symbols

LARGEST_GRAPH_BYTES = 16 << 20
"""Largest graph as JSON, which has some 9 KB for a convolution and its tensors."""
_GRAPHS = ("models/model.json", "serialized_exported_program.json")  # the second up to PyTorch 2.7
_NO_ARCHIVE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    ValueError,
    NotImplementedError,
    RuntimeError,
    EOFError,
)
"""The errors of zipfile and its decompressors for a file that is damaged or no archive."""
NO_PICKLES = (
    "holds pickled Python objects, which could run any code and are not loaded; give a torch.export archive (.pt2), an "
    "ONNX file, or the function that builds the model as my_module.py:build"
)


def read_archive(
    file: Path | IO[bytes],
    name: str,
    inputs: Sequence[tuple[int, ...]],
    batch: int | None,
    dtype: str | None,
    layout: str | None,
) -> Graph:
    """Read an archive for inputs of these sizes, its own where none are given, with `batch` images where it is.

    Raises ModelError: it is no archive, is in training mode, or was exported for other sizes.
    """
    document = _document(file, name)
    try:
        found = Exported.of(document)
        if any(call.trains for call in found.calls):
            raise ModelError(f"{name}: is in training mode; call eval() before torch.export: kernels only infer")
        exported = {each: found.sizes[each] for each in found.images}
        fixed = {each: tuple(size if isinstance(size, int) else None for size in exported[each]) for each in exported}
        symbols = bind_symbols(exported, asked(name, fixed, inputs, batch))
        return split_concatenations(found.for_sizes(symbols, dtype, layout)).graph()
    except UnsupportedSize as error:
        raise ModelError(f"{name}: {plain(str(error))}; export the model for these sizes") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        what = plain(f"{type(error).__name__}: {error}")
        raise ModelError(f"{name}: is not a torch.export archive that this version can read ({what})") from None


def _document(file: Path | IO[bytes], name: str) -> Json:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            found = next((each for each in names if each.endswith(_GRAPHS)), None)
            if found is None and any(each.endswith("data.pkl") for each in names):
                raise ModelError(f"{name}: {NO_PICKLES}")
            if found is None:
                raise ModelError(f"{name}: is not a torch.export archive: it has no {_GRAPHS[0]}")
            with archive.open(found) as graph:
                text = graph.read(LARGEST_GRAPH_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{name}: cannot be read: {error.strerror or error}") from None
    except _NO_ARCHIVE as error:
        raise ModelError(f"{name}: is not a torch.export archive: {error}") from None
    if len(text) > LARGEST_GRAPH_BYTES:
        raise ModelError(f"{name}: its graph has more than {LARGEST_GRAPH_BYTES} bytes")
    try:
        document: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name}: is not a torch.export archive: its graph is not JSON: {error}") from None
    return document


def split_concatenations(network: Calls) -> Calls:
    """Let long concatenations along the channels share the concatenation of their first tensors, as in a DenseNet.

    `convert` does the same to the graph that it runs.
    """
    tensors = dict(network.tensors)
    calls: list[Call] = []
    shared: dict[tuple[str, ...], str] = {}
    for call in network.calls:
        names = call.tensors
        while len(names) > MOST_TENSORS and call.name == "cat" and call.number("dim", 0) == 1:
            first = names[:MOST_TENSORS]
            made = _joined(first, tensors)
            if made is None:
                break
            if first not in shared:
                shared[first] = f"{call.writes[0]}_{len(shared)}_first"
                tensors[shared[first]] = made
                calls.append(_cat(call, first, shared[first]))
            names = (shared[first], *names[MOST_TENSORS:])
        calls.append(call if names == call.tensors else _cat(call, names, call.writes[0]))
    return replace(network, calls=tuple(calls), tensors=tensors)


def _joined(names: tuple[str, ...], tensors: Mapping[str, TensorType]) -> TensorType | None:
    """The type of a concatenation along the channels; None if a size is unknown."""
    types = [tensors[name] for name in names if name in tensors and len(tensors[name].shape) > 1]
    channels = [channel for each in types if (channel := each.shape[1]) is not None]
    if len(channels) < len(names):
        return None
    batch, _, *rest = types[0].shape
    return replace(types[0], shape=(batch, sum(channels), *rest))


def _cat(call: Call, names: tuple[str, ...], to: str) -> Call:
    return replace(call, arguments={"tensors": [Ref(name) for name in names], "dim": 1}, writes=(to,))
