"""Files of models that attack `import-model`."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every

from .attack import attacked, refused

MEMBER = "model/models/model.json"
TENSORS = ("x", "w", "y")


def graph(**changed: object) -> dict[str, object]:
    """The graph of an archive of torch.export that has one convolution, as its JSON; `changed` of its `graph`."""

    def tensor(name: str) -> object:
        return {"as_tensor": {"name": name}}

    def values(*sizes: int) -> object:
        made: dict[str, object] = {key: [{"as_int": size} for size in sizes] for key in ("sizes", "strides")}
        return {**made, "dtype": 7}

    node = {
        "target": "torch.ops.aten.conv2d.default",
        "inputs": [{"name": "input", "arg": tensor("x")}, {"name": "weight", "arg": tensor("w")}],
        "outputs": [tensor("y")],
        "metadata": {"nn_module_stack": "a,,M;b,conv,C"},
    }
    whole = {
        "inputs": [tensor("w"), tensor("x")],
        "outputs": [tensor("y")],
        "nodes": [node],
        "tensor_values": {"x": values(2, 3, 8, 8), "w": values(4, 3, 3, 3), "y": values(2, 4, 6, 6)},
    }
    specs = [
        {"parameter": {"arg": {"name": "w"}, "parameter_name": "conv.weight"}},
        {"user_input": {"arg": tensor("x")}},
    ]
    return {"graph_module": {"graph": {**whole, **changed}, "signature": {"input_specs": specs}}}


def sizes(size: object, times: int = 4) -> dict[str, object]:
    """A graph whose tensors have these sizes."""
    made = {key: [size] * times for key in ("sizes", "strides")}
    return graph(tensor_values={name: {**made, "dtype": 7} for name in TENSORS})


def written_in_place(times: int) -> dict[str, object]:
    """A graph in which one tensor is written again and again."""
    to_self = [{"name": "self", "arg": {"as_tensor": {"name": "x"}}}]
    nodes = [
        {"target": "torch.ops.aten.relu_.default", "inputs": to_self, "metadata": {}}
        | {"outputs": [{"as_tensor": {"name": f"r{at}"}}]}
        for at in range(times)
    ]
    return graph(nodes=nodes)


def archive(document: object, kind: int = zipfile.ZIP_DEFLATED, members: Mapping[str, bytes] = {}) -> bytes:
    """A zip file with the graph, and with other members."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", kind) as file:
        file.writestr(MEMBER, document if isinstance(document, bytes) else json.dumps(document))
        for name, content in members.items():
            file.writestr(name, content)
    return made.getvalue()


def damaged(content: bytes, at: int = 80, seed: int = 0) -> bytes:
    """The content with random bytes for 120 of its own."""
    return content[:at] + random.Random(seed).randbytes(120) + content[at + 120 :]


GOOD = archive(graph())
PLENTY = archive({"padding": "".join(map(str, range(2000))), **graph()}, zipfile.ZIP_LZMA)
NOT_THAT = "is not a torch.export archive"
ARCHIVES: Mapping[str, tuple[Callable[[], bytes], str]] = {
    # what it is, and what is said of it
    "nested": (lambda: archive(b"[" * (1 << 20)), "is not JSON"),
    "as large as may be": (lambda: archive(b"[" + b"{}," * (5 << 20) + b"{}]"), NOT_THAT),
    "64 MB of nothing": (lambda: archive(b" " * (1 << 26)), "has more than"),
    "cut short": (lambda: GOOD[: len(GOOD) // 2], NOT_THAT),
    "deflated badly": (lambda: damaged(GOOD), NOT_THAT),
    "packed badly by bzip2": (lambda: damaged(archive(graph(), zipfile.ZIP_BZIP2)), "cannot be read: Invalid data"),
    "packed badly by LZMA": (lambda: damaged(PLENTY), NOT_THAT),
    "LZMA with 4 GB of window": (
        lambda: PLENTY[:58] + b"\xff\xff\xff\xff" + PLENTY[62:],
        "there is not enough memory",
    ),
    "a name that is not UTF-8": (
        lambda: archive(graph(), members={"é": b""}).replace("é".encode(), b"\xff\xfe"),
        NOT_THAT,
    ),
    "20,000 dimensions": (lambda: archive(sizes({"as_int": 10**18}, 20_000)), "20000 dimensions"),
    "sizes of 10^30": (lambda: archive(sizes({"as_int": 10**30})), "a size of more than 64 bits"),
    "sizes below zero": (lambda: archive(sizes({"as_int": -1})), "expected 1 to"),
    "sizes that run code": (
        lambda: archive(sizes({"as_expr": {"expr_str": "__import__('os').system('touch ran')"}})),
        "sizes of its inputs are not all fixed",
    ),
    "sizes nested deeply": (
        lambda: archive(sizes({"as_expr": {"expr_str": "-" * 100_000 + "1"}})),
        "sizes of its inputs are not all fixed",
    ),
    "powers of powers": (
        lambda: archive(sizes({"as_expr": {"expr_str": "s0 ** 9 ** 9 ** 9"}})),
        "sizes of its inputs are not all fixed",
    ),
    "written in place 20,000 times": (lambda: archive(written_in_place(20_000)), "it has no convolution"),
}


@pytest.mark.parametrize("name", every(2, ARCHIVES))
def test_archives_that_attack_are_one_line(name: str, folder: Path, fork_server: ForkServer) -> None:
    make, words = ARCHIVES[name]
    (folder / "bomb.pt2").write_bytes(make())
    refused(attacked(fork_server, folder, "import-model", "bomb.pt2", within_s=20), words)
    assert sorted(path.name for path in folder.iterdir()) == ["bomb.pt2", "families", "small.toml", "temporary"]


class Runs:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ran",)


def test_no_pickle_runs_and_no_member_is_unpacked(folder: Path, fork_server: ForkServer) -> None:
    runs = pickle.dumps(Runs())
    members = {"model/data/sample_inputs/model.pt": runs, "model/data.pkl": runs, "../../outside": b"", "/outside": b""}
    (folder / "good.pt2").write_bytes(archive(graph(), members=members))
    done = attacked(fork_server, folder, "import-model", "good.pt2", within_s=20)
    assert (done.code, done.out.count("[[layer]]")) == (0, 1), done.err
    (folder / "good.pt2").write_bytes(runs)
    refused(attacked(fork_server, folder, "import-model", "good.pt2"), "holds pickled Python objects")
    assert not (folder / "ran").exists()
    assert not (folder.parent.parent / "outside").exists()


@pytest.mark.parametrize("seed", every(8, range(40)))
def test_archives_with_other_bytes(seed: int, folder: Path, fork_server: ForkServer) -> None:
    content, some = bytearray(GOOD), random.Random(seed)
    for _ in range(some.choice((1, 5, 50))):
        content[some.randrange(2, len(content))] = some.randrange(256)
    (folder / "any.pt2").write_bytes(content)
    done = attacked(fork_server, folder, "import-model", "any.pt2", within_s=20)
    assert done.code == 0 or refused(done, "any.pt2: ")


def onnx_model(
    nodes: Sequence[object] = (),
    stored: Sequence[object] = (),
    functions: Sequence[object] = (),
    x: Sequence[int] = (1, 3, 8, 8),
    **conv: object,
) -> bytes:
    """A model whose last operator is a convolution, given attributes, of what the nodes before make as z."""
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
    """A model with functions, each of which calls the next so many times."""
    onnx = pytest.importorskip("onnx")
    node, versions = onnx.helper.make_node, [onnx.helper.make_opsetid(*each) for each in (("", 17), ("own", 1))]
    made = []
    for level in range(levels):
        called = (f"f{level + 1}", "own") if level < levels - 1 else (last, "own" if last.startswith("f") else "")
        calls = [node(called[0], [f"t{at}"], [f"t{at + 1}"], domain=called[1]) for at in range(times)]
        made.append(onnx.helper.make_function("own", f"f{level}", ["t0"], [f"t{times}"], calls, versions))
    return onnx_model([node("f0", ["x"], ["z"], domain="own")], functions=made)


def constant(**fields: object) -> bytes:
    """A model with an operator Constant that has no output, or with a tensor of these fields."""
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node
    if not fields:
        return onnx_model([node("Constant", [], []), node("Relu", ["x"], ["z"])])
    tensor = onnx.TensorProto(name="b", **{"data_type": 1, "dims": [1], **fields})
    return onnx_model([node("Add", ["x", "b"], ["z"])], [tensor])


def elsewhere(location: str) -> bytes:
    """A model of which one number is in a file of its own."""
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
