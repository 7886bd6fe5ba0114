"""Hostile model files for `import-model`."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every

from .attack import attacked, refused


def onnx_model(
    nodes: Sequence[object] = (),
    stored: Sequence[object] = (),
    functions: Sequence[object] = (),
    x: Sequence[int] = (1, 3, 8, 8),
    **conv: object,
) -> bytes:
    """A model whose last operator is a convolution with these attributes, applied to the nodes' output z."""
    onnx = pytest.importorskip("onnx")
    helper, tensor = onnx.helper, onnx.TensorProto
    weights = helper.make_tensor("w", tensor.FLOAT, (4, 3, 3, 3), [0.0] * 108)
    last = helper.make_node("Conv", ["z" if nodes else "x", "w"], ["y"], **conv)
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        [*nodes, last],
        "graph",
        [value("x", tensor.FLOAT, x)],
        [value("y", tensor.FLOAT, ["n", "k", "p", "q"])],
        [weights, *stored],
    )
    versions = [helper.make_opsetid(*each) for each in (("", 17), ("own", 1))]
    content: bytes = helper.make_model(made, opset_imports=versions, functions=functions).SerializeToString()
    return content


def functions(levels: int, times: int, last: str = "Relu") -> bytes:
    """A model with functions, each of which calls the next one this many times."""
    onnx = pytest.importorskip("onnx")
    node, versions = onnx.helper.make_node, [onnx.helper.make_opsetid(*each) for each in (("", 17), ("own", 1))]
    made = []
    for level in range(levels):
        called = (f"f{level + 1}", "own") if level < levels - 1 else (last, "own" if last.startswith("f") else "")
        calls = [node(called[0], [f"t{at}"], [f"t{at + 1}"], domain=called[1]) for at in range(times)]
        made.append(onnx.helper.make_function("own", f"f{level}", ["t0"], [f"t{times}"], calls, versions))
    return onnx_model([node("f0", ["x"], ["z"], domain="own")], functions=made)


def constant(**fields: object) -> bytes:
    """A model with an operator Constant that has no output, or with a tensor with these fields."""
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node
    if not fields:
        return onnx_model([node("Constant", [], []), node("Relu", ["x"], ["z"])])
    tensor = onnx.TensorProto(name="b", **{"data_type": 1, "dims": [1], **fields})
    return onnx_model([node("Add", ["x", "b"], ["z"])], [tensor])


def elsewhere(location: str) -> bytes:
    """A model with one number in a file of its own."""
    return constant(data_location=1, external_data=[{"key": "location", "value": location}])


MODELS: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "noise": (lambda: random.Random(0).randbytes(1 << 20), "is not an ONNX model"),
    "cut short": (lambda: onnx_model()[:-50], "is not an ONNX model"),
    "functions that make 10^8 operators": (lambda: functions(8, 10), "make more than 200000 operators"),
    "functions that call themselves": (lambda: functions(3, 1, "f1"), "cannot be inlined: Cycle"),
    "3000 functions in each other": (lambda: functions(3000, 1), "cannot be inlined"),
    "an operator without an output": (constant, "is not a valid ONNX model"),
    "a stride of zero": (lambda: onnx_model(auto_pad="SAME_UPPER", strides=[0, 0]), "do not fit its other sizes"),
    "sizes of 2^62": (lambda: onnx_model(x=(1 << 62, 3, 1 << 62, 1 << 62)), "expected 1 to"),
    "a tensor of 2^62 numbers": (lambda: constant(dims=[0, 1 << 62]), "its sizes cannot be inferred"),
    "a tensor of no type": (lambda: constant(data_type=99, raw_data=b"1234"), "its sizes cannot be inferred"),
}


@pytest.mark.parametrize("name", every(2, MODELS))
def test_onnx_files_that_attack_are_one_line(name: str, folder: Path, fork_server: ForkServer) -> None:
    make, words = MODELS[name]
    (folder / "bomb.onnx").write_bytes(make())
    refused(attacked(fork_server, folder, "import-model", "bomb.onnx", within_s=20), "bomb.onnx: ", words)


@pytest.mark.parametrize("location", every(3, ("pipe", "/dev/zero", "../../outside", "link", "missing", "")))
def test_files_that_an_onnx_file_names_are_not_opened(location: str, folder: Path, fork_server: ForkServer) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "model.onnx").write_bytes(elsewhere(location))
    done = attacked(fork_server, folder, "import-model", "model.onnx", within_s=20)
    assert (done.code, done.out.count("[[layer]]")) == (0, 1), done.err
