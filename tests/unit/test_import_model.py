"""`autotune import-model` of ONNX files: the layers of operators, and the messages for unsupported files."""

from __future__ import annotations

import pickle
import shlex
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.autotune_runtime.activations import BY_WORD
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, Layer, make_problem
from autotune.study_reader import load_study

from .tiny import Command, Finished

onnx = pytest.importorskip("onnx")

from onnx import FunctionProto, NodeProto, TensorProto, helper  # noqa: E402

Nodes = Sequence[NodeProto]
CONV = helper.make_node("Conv", ["x", "w", "b"], ["c"], name="stem", pads=[1, 1, 1, 1])
BARE = helper.make_node("Conv", ["x", "w"], ["c"], name="stem", pads=[1, 1, 1, 1])
OTHER = helper.make_node("Conv", ["x", "w", "b"], ["d"], name="shortcut", pads=[1, 1, 1, 1])
WEIGHTS = {"w": (4, 3, 3, 3), "b": (4,), "k1": (4, 1, 1), "per_column": (8,), "f": (4,)}
NUMBERS = {"three": 3.0, "six": 6.0, "zero": 0.0, "one": 1.0, "half": 0.5, "root": 2**0.5, "sixth": 1 / 6}


def node(kind: str, reads: str, writes: str, **attributes: object) -> NodeProto:
    return helper.make_node(kind, reads.split(), [writes], **attributes)


def saved(
    path: Path,
    nodes: Nodes,
    x: Sequence[int | str] = (2, 3, 8, 8),
    weights: Mapping[str, Sequence[int]] = WEIGHTS,
    opset: int = 17,
    outputs: Sequence[str] = (),
    functions: Sequence[FunctionProto] = (),
) -> Path:
    """A model whose last operator's output is the model's, in addition to others."""
    stored = [
        helper.make_tensor(name, TensorProto.FLOAT, size, bytes(4 * _product(size)), raw=True)
        for name, size in weights.items()
    ]
    stored += [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in NUMBERS.items()]
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*outputs, nodes[-1].output[0])],
        stored,
    )
    for value in graph.output:
        value.type.tensor_type.shape.SetInParent()
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, functions=functions), path)
    return path


def _product(sizes: Sequence[int]) -> int:
    made = 1
    for size in sizes:
        made *= size
    return made


def layers(autotune: Command, model: Path, *words: object) -> tuple[Layer, ...]:
    """The layers of the resulting study, read by autotune itself."""
    study = model.with_suffix(".toml")
    finished = autotune("import-model", model, *words, "--out", study)
    assert (finished.code, finished.err) == (0, ""), finished
    return load_study(study).layers


def refused(finished: Finished, *parts: str) -> None:
    lines = [line for line in finished.err.splitlines() if not line.endswith(" ...")]  # progress
    assert (finished.code, finished.out, len(lines)) == (1, "", 1), finished
    for part in parts:
        assert part in lines[0]


GELU = [
    node("Div", "c root", "d"),
    node("Erf", "d", "e"),
    node("Add", "e one", "g"),
    node("Mul", "c g", "h"),
    node("Mul", "h half", "y"),
]
HARDSWISH = [
    node("Add", "c three", "d"),
    node("Clip", "d zero six", "e"),
    node("Mul", "c e", "g"),
    node("Div", "g six", "y"),
]
NORM = node("BatchNormalization", "c f f f f", "n")


TAILS = {
    "nothing": ([BARE], "none"),
    "bias": ([CONV], "bias"),
    "no bias, which is zeros then": ([BARE, node("Relu", "c", "y")], "bias_relu"),
    "batch norm": ([BARE, NORM, node("Relu", "n", "y")], "bias_relu"),
    "scaled by channel": (
        [BARE, node("Mul", "c k1", "d"), node("Add", "d k1", "e"), node("Relu", "e", "y")],
        "bias_relu",
    ),
    "scaled by column": ([CONV, node("Mul", "c per_column", "d"), node("Relu", "d", "y")], "bias"),
    "dropout between": ([CONV, node("Dropout", "c", "d"), node("Relu", "d", "y")], "bias_relu"),
    "ReLU6 as Clip": ([CONV, node("Clip", "c zero six", "y")], "bias_relu6"),
    "Clip elsewhere": ([CONV, node("Clip", "c one six", "y")], "bias"),
    "leaky ReLU": ([CONV, node("LeakyRelu", "c", "y")], "bias_leaky_relu"),
    "another slope": ([CONV, node("LeakyRelu", "c", "y", alpha=0.2)], "bias"),
    "SiLU written out": ([CONV, node("Sigmoid", "c", "d"), node("Mul", "c d", "y")], "bias_silu"),
    "hardswish": ([CONV, node("HardSwish", "c", "y")], "bias_hardswish"),
    "hardswish written out": ([CONV, *HARDSWISH], "bias_hardswish"),
    "hardswish of two": ([CONV, node("HardSigmoid", "c", "d", alpha=1 / 6), node("Mul", "c d", "y")], "bias_hardswish"),
    "another slope of two": ([CONV, node("HardSigmoid", "c", "d"), node("Mul", "c d", "y")], "bias"),
    "GELU written out": ([CONV, *GELU], "bias_gelu"),
    "GELU, a part of which is read": ([CONV, *GELU, node("Mul", "g y", "z")], "bias"),
    "read twice": ([CONV, node("Relu", "c", "d"), node("Mul", "c d", "y")], "bias"),
}


@pytest.mark.parametrize("name", TAILS)
def test_what_follows_is_part_of_the_kernel(name: str, autotune: Command, tmp_path: Path) -> None:
    nodes, epilogue = TAILS[name]
    (layer,) = layers(autotune, saved(tmp_path / "net.onnx", nodes))
    assert layer == Layer("stem", Conv2dProblem(2, 3, 8, 8, 4, 3, 3, pad_h=1, pad_w=1, epilogue=epilogue))


NORMS = {
    "GroupNormalization": (node("GroupNormalization", "c f f", "y", num_groups=2), "groups", 2),
    "LayerNormalization": (node("LayerNormalization", "c rows", "y", axis=-2), "c", 64),
    "RMSNormalization": (node("RMSNormalization", "c per_column", "y", epsilon=1e-6), "kind", "rms"),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_layers_of_norm(name: str, autotune: Command, tmp_path: Path) -> None:
    norm, word, expected = NORMS[name]
    model = saved(tmp_path / "net.onnx", [CONV, norm], opset=23, weights=WEIGHTS | {"rows": (8, 8)})
    (layer,) = layers(autotune, model, "--op", "norm", "--layout", "nhwc")
    assert layer.problem.values[word] == expected


def resized(**attributes: object) -> list[NodeProto]:
    resize = helper.make_node("Resize", ["x", "", "twice"], ["u"], mode="nearest", **attributes)
    return [resize, node("Conv", "u w b", "y", pads=[1, 1, 1, 1])]


AROUND = {
    "upsampling": (resized(), "conv_transpose"),
    "upsampling of corners": (resized(coordinate_transformation_mode="align_corners"), "conv2d"),
    "pixel shuffle": ([CONV, node("DepthToSpace", "c", "y", blocksize=2, mode="CRD")], "conv_transpose"),
    "channels in another order": ([CONV, node("DepthToSpace", "c", "y", blocksize=2)], "conv2d"),
    "padding": ([helper.make_node("Pad", ["x", "pads", ""], ["p"]), node("Conv", "p w b", "y")], "conv"),
    "padding of ones": ([node("Pad", "x pads one", "p"), node("Conv", "p w b", "y")], "conv2d"),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_is_around_a_convolution_is_part_of_its_kernel(name: str, autotune: Command, tmp_path: Path) -> None:
    nodes, op = AROUND[name]
    twice = helper.make_tensor("value", TensorProto.FLOAT, [4], [1, 1, 2, 2])
    pads = node("Constant", "", "pads", value_ints=[0, 0, 1, 1, 0, 0, 1, 2])
    lists = [node("Constant", "", "twice", value=twice), pads]
    (layer,) = layers(autotune, saved(tmp_path / "net.onnx", [*lists, *nodes]))
    assert layer.problem.operation.name == op


def test_every_activation_is_an_epilogue() -> None:
    assert {f"bias_{word}" for word in BY_WORD} == {*operation("conv2d").words["epilogue"]} - {
        *("none", "bias", "bias_add"),
        *(f"bias_add_{word}" for word in BY_WORD),
    }


@pytest.mark.parametrize(
    ("nodes", "words", "epilogues"),
    [
        ([CONV, OTHER, node("Add", "c d", "e"), node("Relu", "e", "y")], (), ["bias", "bias_add_relu"]),
        ([CONV, OTHER, node("Add", "d c", "e"), node("Relu", "e", "y")], ("--no-residuals",), ["bias", "bias"]),
        ([CONV, OTHER, node("Sum", "c d", "e"), node("Mul", "e k1", "y")], (), ["bias", "bias_add"]),
        ([CONV, OTHER, node("GlobalAveragePool", "c", "e"), node("Add", "e d", "y")], (), ["bias", "bias"]),
        ([CONV, node("Add", "c c", "y")], (), ["bias"]),
    ],
    ids=["of two the last", "not wished", "scaled behind", "broadcast", "to itself"],
)
def test_of_two_convolutions_that_meet_one_takes_the_addition(
    nodes: Nodes, words: Sequence[str], epilogues: Sequence[str], autotune: Command, tmp_path: Path
) -> None:
    found = layers(autotune, saved(tmp_path / "net.onnx", nodes), *words)
    assert [layer.problem.values["epilogue"] for layer in found for _ in range(layer.count)] == epilogues


def test_an_output_that_the_network_returns_is_not_changed(autotune: Command, tmp_path: Path) -> None:
    (layer,) = layers(autotune, saved(tmp_path / "net.onnx", [CONV, node("Relu", "c", "y")], outputs=["c"]))
    assert layer.problem.values["epilogue"] == "bias"


@pytest.mark.parametrize(
    ("attributes", "weights", "problem"),
    [
        ({"strides": [2, 1], "pads": [1, 0, 1, 0]}, (4, 3, 3, 1), Conv2dProblem(2, 3, 8, 8, 4, 3, 1, 2, 1, 1, 0)),
        (
            {"auto_pad": "SAME_UPPER", "dilations": [2, 2]},
            (4, 3, 3, 3),
            Conv2dProblem(2, 3, 8, 8, 4, 3, 3, 1, 1, 2, 2, 2, 2),
        ),
        ({"auto_pad": "VALID", "group": 3}, (6, 1, 3, 3), Conv2dProblem(2, 3, 8, 8, 6, 3, 3, groups=3)),
    ],
    ids=["strides", "same", "groups"],
)
def test_sizes(
    attributes: Mapping[str, object],
    weights: Sequence[int],
    problem: Conv2dProblem,
    autotune: Command,
    tmp_path: Path,
) -> None:
    model = saved(tmp_path / "net.onnx", [node("Conv", "x w", "y", **attributes)], weights={"w": weights})
    assert [layer.problem for layer in layers(autotune, model)] == [problem]


def test_layers_have_counts_names_and_the_settings_asked_for(autotune: Command, tmp_path: Path) -> None:
    def block(at: int, reads: str) -> list[NodeProto]:
        name = f"/body/body.{at}/Conv"
        conv = helper.make_node("Conv", [reads, "v", "b"], [f"c{at}"], name=name, pads=[1, 1, 1, 1])
        return [conv, node("Relu", f"c{at}", f"r{at}")]

    model = saved(
        tmp_path / "net.onnx", [CONV, *block(0, "c"), *block(1, "r0")], ["N", 3, 8, 8], {**WEIGHTS, "v": (4, 4, 3, 3)}
    )
    words = ("--input", "2x3x8x8", "--batch", "1,16", "--dtype", "f16", "--layout", "nhwc", "--accuracy", "fp16-acc16")
    found = layers(autotune, model, *words)
    assert [(layer.name, layer.count) for layer in found] == [
        ("stem-n1", 1),
        ("body-body-0-n1", 2),
        ("stem-n16", 1),
        ("body-body-0-n16", 2),
    ]
    assert [layer.problem.runtime_size for layer in found] == [1, 1, 16, 16]
    assert {(layer.problem.dtype, layer.problem.values["layout"]) for layer in found} == {("f16", "nhwc")}
    study = load_study(tmp_path / "net.toml")
    assert (study.name, study.accuracy) == ("net", "fp16-acc16")
    assert "\n# 72.7 %: body.body.0, body.body.1\n# Fused: ReLU\n" in study.text
    tuned = autotune("tune", tmp_path / "net.toml", "--device", "null", "--trials", "1")
    assert tuned.code == 0, tuned


def test_what_cannot_be_served_is_a_comment_with_its_share(autotune: Command, tmp_path: Path) -> None:
    weights = {"w": (4, 3, 3, 3), "b": (4,), "t": (4, 4, 2, 2), "v": (4, 4, 1, 1, 1), "m": (16, 5)}
    five = node("Unsqueeze", "t1 axis", "u")
    nodes = [
        CONV,
        node("ConvTranspose", "c t", "t1", strides=[2, 2]),
        helper.make_node("Constant", [], ["axis"], value_ints=[2]),
        five,
        node("Conv", "u v", "v1"),
        helper.make_node("Conv", ["x", "w"], ["side"], name="sided", pads=[0, 0, 1, 1]),
        helper.make_node("Conv", ["x", "own_w"], ["two"], name="made"),
        helper.make_node("MatMul", ["v1", "m"], ["p"], name="head"),
    ]
    nodes.insert(0, node("Mul", "x x", "xx"))
    nodes.insert(1, node("ReduceSum", "xx", "xs", keepdims=1))
    nodes.insert(2, node("Mul", "w xs", "own_w"))
    model = saved(tmp_path / "net.onnx", nodes, weights=weights)
    found = layers(autotune, model)
    _, up, deep, sided = found
    assert [each.name for each in found] == ["stem", "t", "v", "sided"]
    conv, transposed = operation("conv"), {"stride_h": 2, "stride_w": 2, "r": 2, "s": 2}
    sizes = {"n": 2, "c": 4, "h": 8, "w": 8, "k": 4, **transposed}
    assert up.problem == make_problem(operation("conv_transpose"), sizes)
    assert deep.problem == make_problem(conv, {"n": 2, "c": 4, "d": 1, "h": 16, "w": 16, "k": 4, "t": 1, "s": 1})
    sizes = {"n": 2, "c": 3, "h": 8, "w": 8, "k": 4, "r": 3, "s": 3, "pad_h_end": 1, "pad_w_end": 1}
    assert sided.problem == make_problem(conv, sizes)
    comments = [line for line in (tmp_path / "net.toml").read_text().splitlines() if line.startswith("#   ")]
    flops = {
        "made: its filters are computed by the network": 2 * (2 * 4 * 6 * 6) * 27,
        "head: matrix products, which --op gemm imports": 2 * (2 * 4 * 16) * 16 * 5,
    }
    total = sum(each.problem.flops for each in found) + sum(flops.values())
    said = {f"#   {100 * count / total:.1f} %  {words}" for words, count in flops.items()}
    assert {*comments} == said


def test_linear_layers_of_images_are_convolutions_of_pixels(autotune: Command, tmp_path: Path) -> None:
    nodes = [
        CONV,
        node("Transpose", "c", "rows", perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["rows", "wide"], ["w1"], name="first"),
        node("Add", "w1 b8", "w2"),
        node("Relu", "w2", "w3"),
        helper.make_node("MatMul", ["w3", "narrow"], ["n1"], name="second"),
        node("Transpose", "n1", "n2", perm=[0, 3, 1, 2]),
        node("Mul", "n2 k1", "n3"),
        node("Add", "n3 c", "y"),
    ]
    model = saved(tmp_path / "net.onnx", nodes, weights={**WEIGHTS, "wide": (4, 8), "b8": (8,), "narrow": (8, 4)})
    _, first, second = layers(autotune, model, "--layout", "nhwc")
    pixels = Conv2dProblem(2, 4, 8, 8, 8, 1, 1, layout="nhwc", epilogue="bias_relu")
    assert (first, second) == (
        Layer("first", pixels),
        Layer("second", replace(pixels, c=8, k=4, epilogue="bias_add")),
    )


def test_products_of_matrices_are_layers_of_gemm(autotune: Command, tmp_path: Path) -> None:
    nodes = [
        CONV,
        node("MatMul", "c m", "p"),
        node("Flatten", "p", "q"),
        helper.make_node("Gemm", ["q", "g", "bias"], ["r"], name="head", transB=1),
        node("Relu", "r", "s"),
        helper.make_node("MatMul", ["c", "c"], ["squares"], name="squares"),
        node("ReduceSum", "squares", "y"),
    ]
    weights = {**WEIGHTS, "m": (8, 5), "g": (7, 160), "bias": (7,)}
    model = saved(tmp_path / "net.onnx", nodes, weights=weights, outputs=["s"])
    found = layers(autotune, model, "--op", "gemm")
    assert [(layer.name, layer.problem.operation.name, dict(layer.problem.values)) for layer in found] == [
        (
            name,
            "gemm",
            {"batch": batch, "m": m, "n": n, "k": k, "dtype": "f32", "transposes": way, "epilogue": epilogue},
        )
        for name, batch, m, n, k, way, epilogue in (
            ("m", 1, 64, 5, 8, "nn", "none"),
            ("head", 1, 2, 7, 160, "nt", "bias_relu"),
            ("squares", 8, 8, 8, 8, "nn", "none"),
        )
    ]
    assert " %  stem: convolutions, which --op conv2d imports\n" in (tmp_path / "net.toml").read_text()
    assert autotune("tune", tmp_path / "net.toml", "--device", "null", "--trials", "1").code == 0


def test_convolutions_of_other_domains_are_named(autotune: Command, tmp_path: Path) -> None:
    kinds = ("FusedConv", "NhwcConv", "Conv", "Conv(", "Convert")
    foreign = [
        helper.make_node(kind, ["x", "w"], [f"y{at}"], name=f"foreign{at}", domain="com.microsoft")
        for at, kind in enumerate(kinds)
    ]
    finished = autotune("import-model", saved(tmp_path / "net.onnx", [CONV, *foreign]))
    said = finished.err.splitlines()
    assert said[0].endswith("1 of 5 convolutions, 100.0 % of 2.765e-05 GFLOPs known")
    reasons = [
        f"left out: ? %  foreign{at}: a {kind} of com.microsoft, which is another operation"
        for at, kind in enumerate(kinds[:-1])
    ]
    assert said[2:] == reasons
    alone = autotune("import-model", saved(tmp_path / "alone.onnx", foreign[:1]))
    refused(alone, "nothing to tune: ? %  foreign0: a FusedConv of com.microsoft")


def test_a_convolution_that_contradicts_itself_is_left_out(autotune: Command, tmp_path: Path) -> None:
    wrong = [
        helper.make_node("Conv", ["x", "w"], ["y0"], name="padded", auto_pad="SAME_UPPPER"),
        helper.make_node("Conv", ["x", "w"], ["y1"], name="sized", kernel_shape=[5, 5]),
    ]
    finished = autotune("import-model", saved(tmp_path / "net.onnx", [CONV, *wrong]))
    assert "1 of 3 convolutions" in finished.err
    assert "  padded: its auto_pad SAME_UPPPER is not one of NOTSET, SAME_UPPER, SAME_LOWER, VALID\n" in finished.err
    assert "  sized: its kernel_shape is 5x5, and its filters are 3x3\n" in finished.err


def test_convolutions_of_a_loop_are_named(autotune: Command, tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["i"], name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("i", TensorProto.FLOAT, [2, 4, 6, 6])],
    )
    positive = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s zero", "p")]
    either = helper.make_node("If", ["p"], ["q"], then_branch=inner, else_branch=inner)
    layers(autotune, saved(tmp_path / "net.onnx", [CONV, *positive, either]))
    text = (tmp_path / "net.toml").read_text()
    assert "#   ? %  inner, inner: in a subgraph of If, which may run any number of times\n" in text


def branching(name: str) -> NodeProto:
    """An If whose branches read `a`, a tensor of the graph around them."""
    branches = {
        key: helper.make_graph(
            [node(kind, "a", key)], key, [], [helper.make_tensor_value_info(key, TensorProto.FLOAT, [2, 4, 6, 6])]
        )
        for key, kind in (("then_branch", "Neg"), ("else_branch", "Identity"))
    }
    return helper.make_node("If", ["p"], [name], **branches)


def test_operators_whose_branches_read_tensors_are_no_constants(autotune: Command, tmp_path: Path) -> None:
    """Its condition compares sizes; torch.onnx.export writes a squeeze like this."""
    constant = [node("Shape", "a", "s"), node("Gather", "s first", "n", axis=0), node("Equal", "n first", "p")]
    nodes = [
        node("Constant", "", "first", value=helper.make_tensor("first", TensorProto.INT64, [], [1])),
        helper.make_node("Conv", ["x", "w"], ["a"], name="before"),
        *constant,
        branching("q"),
        helper.make_node("Conv", ["q", "v"], ["y"], name="behind"),
    ]
    found = layers(autotune, saved(tmp_path / "net.onnx", nodes, weights={**WEIGHTS, "v": (4, 4, 3, 3)}))
    assert [layer.name for layer in found] == ["before", "behind"]


def test_what_a_branch_reads_is_stored_whole(autotune: Command, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="stem"),
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "p"),
        branching("q"),
        node("Relu", "a", "r"),
        node("Add", "q r", "y"),
    ]
    (layer,) = layers(autotune, saved(tmp_path / "net.onnx", nodes))
    assert layer.problem.values["epilogue"] == "none", "its sums are read, too, not their ReLU alone"


def test_tensors_made_of_nothing(autotune: Command, tmp_path: Path) -> None:
    nodes = [BARE, helper.make_node("RandomNormal", [], ["r"], shape=[2, 4, 8, 8]), node("Mul", "c r", "y")]
    (layer,) = layers(autotune, saved(tmp_path / "net.onnx", nodes))
    assert layer.name == "stem"


def test_sizes_that_the_model_computes_are_known(autotune: Command, tmp_path: Path) -> None:
    """And not onnx's own inference, which stops at the Cast."""
    nodes = [
        node("Shape", "x", "s"),
        node("Cast", "s", "t", to=TensorProto.INT32),
        node("Cast", "t", "u", to=TensorProto.INT64),
        node("Reshape", "x u", "same"),
        helper.make_node("Conv", ["same", "w"], ["y"], name="behind"),
    ]
    (layer,) = layers(autotune, saved(tmp_path / "net.onnx", nodes))
    assert layer == Layer("behind", Conv2dProblem(2, 3, 8, 8, 4, 3, 3))


def test_functions_are_looked_into(autotune: Command, tmp_path: Path) -> None:
    body = [node("Conv", "a w", "c"), node("Relu", "c", "r")]
    block = helper.make_function("own", "Block", ["a", "w"], ["r"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("Block", ["x", "w"], ["y"], domain="own")
    (layer,) = layers(autotune, saved(tmp_path / "net.onnx", [call], functions=[block]))
    assert layer.problem == Conv2dProblem(2, 3, 8, 8, 4, 3, 3, epilogue="bias_relu")


def test_names_of_a_hostile_file_are_harmless(autotune: Command, tmp_path: Path) -> None:
    name = 'a\n[[layer]]\nname = "b"\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}' + "x" * 1000
    conv = helper.make_node("Conv", ["x", "w"], ["c"], name=name)
    up = helper.make_node("ConvTranspose", ["c", "v"], ["y"], name=name)
    model = saved(tmp_path / "net.onnx", [conv, up], weights={**WEIGHTS, "v": (4, 4, 2, 2)})
    finished = autotune("import-model", model)
    assert all(each.isprintable() for line in (finished.out, finished.err) for each in line.replace("\n", ""))
    assert max(map(len, finished.out.splitlines())) < 200
    assert all(layer.name.startswith("a-layer-name-b-31m") for layer in layers(autotune, model))


def garbage(path: Path) -> Path:
    path.write_bytes(bytes(range(256)) * 64)
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def zipped(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("__", "/"), content)
    return path


def test_bad_models_are_one_line(autotune: Command, tmp_path: Path) -> None:
    refused(autotune("import-model", garbage(tmp_path / "noise.onnx")), "noise.onnx", "is not an ONNX model")
    refused(autotune("import-model", written(tmp_path / "empty.onnx", b"")), "empty.onnx", "it has no graph")
    whole = saved(tmp_path / "net.onnx", [CONV]).read_bytes()
    refused(
        autotune("import-model", written(tmp_path / "half.onnx", whole[: len(whole) // 2])), "half.onnx", "ONNX model"
    )
    wrong = saved(tmp_path / "wrong.onnx", [CONV], x=(2, 5, 8, 8))
    refused(autotune("import-model", wrong), "wrong.onnx", "channels")
    refused(autotune("import-model", saved(tmp_path / "unknown.onnx", [node("Nothing", "x", "y")])), "Nothing")
    refused(autotune("import-model", saved(tmp_path / "none.onnx", [node("Relu", "x", "y")])), "it has no convolution")
    refused(autotune("import-model", tmp_path), "is a folder")
    refused(autotune("import-model", "missing.onnx"), "no such file", "PACKAGE.MODULE:NAME")
    refused(autotune("import-model", written(tmp_path / "net.py", b"")), f"{tmp_path / 'net.py'}:build")
    assert not (tmp_path / "autotune.db").exists()


def test_sizes_that_are_not_known_are_one_line(autotune: Command, tmp_path: Path) -> None:
    model = saved(tmp_path / "net.onnx", [CONV], x=["N", 3, "H", 8])
    refused(autotune("import-model", model), "are not all fixed; give them by --input; it has x ?x3x?x8")
    refused(autotune("import-model", model, "--batch", "4"), "--input")
    refused(autotune("import-model", model, "--input", "1x3x8"), "--input 1x3x8 has 3 sizes; it has x ?x3x?x8")
    refused(autotune("import-model", model, "--input", "1x3x8x8", "--input", "1"), "is given for 2 inputs")
    for words in (("--input", "1x3x-8x8"), ("--input", "1x3x99999999999x8"), ("--batch", "0"), ("--batch", "1,,2")):
        finished = autotune("import-model", model, *words)
        assert (finished.code, finished.out) == (2, "")
        assert "expected" in finished.err.splitlines()[-1]


def test_values_without_a_shape(autotune: Command, tmp_path: Path) -> None:
    model = saved(tmp_path / "net.onnx", [CONV])
    content = onnx.load(model)
    content.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(content, model)
    (layer,) = layers(autotune, model)
    content.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(content, model)
    refused(autotune("import-model", model), "its input x has no shape; give the sizes of all inputs by --input")
    model.with_suffix(".toml").unlink()
    assert layers(autotune, model, "--input", "2x3x8x8") == (layer,)


def test_pickles_are_not_loaded(autotune: Command, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, (f"open({str(tmp_path / 'attacked')!r}, 'w')",))

    attack = pickle.dumps(Attack())
    for path in (
        written(tmp_path / "weights.pth", attack),
        zipped(tmp_path / "model.pt", archive__data__pkl=attack),
        zipped(tmp_path / "script.pt", **{"model/data.pkl": attack}),
    ):
        finished = autotune("import-model", path)
        assert finished.code == 1
        assert len(finished.err.splitlines()) == 1
    refused(finished, "contains pickled Python objects", "my_module.py:build")
    assert not (tmp_path / "attacked").exists()


def test_a_missing_package_is_named(autotune: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved(tmp_path / "net.onnx", [CONV])
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(autotune("import-model", model), "pip install 'autotune-conv[onnx]'")
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(autotune("import-model", "torchvision.models:resnet50"), "needs PyTorch")


def test_a_study_that_is_there_is_kept(autotune: Command, tmp_path: Path) -> None:
    model, study = saved(tmp_path / "net.onnx", [CONV]), tmp_path / "study.toml"
    study.write_text("mine")
    refused(autotune("import-model", model, "--out", study), "exists already")
    assert study.read_text() == "mine"
    refused(autotune("import-model", model, "--out", tmp_path / "no" / "study.toml"), "there is no folder")
    refused(
        autotune("import-model", model, "--dtype", "f16", "--accuracy", "fp32"), "accuracy fp32 admits no kernel of f16"
    )


def test_the_next_command_can_be_pasted(autotune: Command, tmp_path: Path) -> None:
    model, study = saved(tmp_path / "net.onnx", [CONV]), tmp_path / "my study.toml"
    said = autotune("import-model", model, "--out", study).out.splitlines()[-1]
    assert shlex.split(said) == ["autotune", "tune", str(study)]


def test_the_study_goes_to_standard_output(autotune: Command, tmp_path: Path) -> None:
    finished = autotune("import-model", saved(tmp_path / "net.onnx", [CONV]))
    assert finished.code == 0
    assert finished.out.endswith('epilogue = "bias"\n')
    (tmp_path / "again.toml").write_text(finished.out)
    assert [layer.name for layer in load_study(tmp_path / "again.toml").layers] == ["stem"]
    assert "1 of 1 convolutions, 100.0 % of" in finished.err


def test_training_has_the_gradients_of_each_convolution_but_the_first_ones_data(
    autotune: Command, tmp_path: Path
) -> None:
    weights = {"w": (8, 3, 3, 3), "b": (8,), "v": (16, 4, 3, 3), "u": (16, 4, 1, 1), "t": (16, 4, 3, 3)}
    nodes = [
        CONV,
        node("Relu", "c", "r"),
        node("Pad", "r", "padded", pads=[0, 0, 0, 0, 0, 0, 1, 1]),
        node("Conv", "padded v", "v1", group=2, strides=[2, 2]),
        node("Conv", "r u", "u1", group=2, strides=[2, 2]),
        node("Add", "v1 u1", "sum"),
        node("ConvTranspose", "sum t", "t1", group=2, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    ]
    model = saved(tmp_path / "net.onnx", nodes, weights=weights, opset=10)
    found = {layer.name: layer.problem for layer in layers(autotune, model, "--training", "--layout", "nhwc")}
    others = [f"{name}{part}" for name in "vut" for part in ("", "-data", "-filter")]
    assert list(found) == ["stem", "stem-filter", *others]
    assert load_study(tmp_path / "net.toml").accuracy == "tf32", "no family computes filter gradients in float32"
    assert {found[name].values["epilogue"] for name in ("stem", "v", "v-data", "u")} == {"none"}
    for name in ("v", "u"):
        forward, data, weight = found[name].names(), found[f"{name}-data"].names(), found[f"{name}-filter"]
        outputs = [data[size] for size in ("n", "k", "o", "p", "q")]
        assert outputs == [forward[size] for size in ("n", "c", "d", "h", "w")]
        assert weight.array("dw").shape == (16, 1, *((3, 3) if name == "v" else (1, 1)), 4)
        assert weight.flops == found[name].flops == found[f"{name}-data"].flops
    sizes, of_input, of_filters = found["t"].names(), found["t-data"], found["t-filter"]
    assert of_input.array("x").shape == (2, sizes["p"], sizes["q"], sizes["k"])
    assert of_input.array("y").shape == (2, sizes["h"], sizes["w"], sizes["c"])
    assert of_filters.array("dw").shape == (16, 1, 3, 3, 4)


def test_training_has_what_data_gradients_compute_as_well(autotune: Command, tmp_path: Path) -> None:
    """A residual block, and a convolution behind another one's activation."""
    weights = {"w": (8, 3, 3, 3), "b": (8,), **dict.fromkeys("vut", (8, 8, 1, 1))}
    weights |= {f"{name}{at}": (8,) for name in ("scale", "shift", "mean", "var") for at in (1, 2)}
    first, second = (f"scale{at} shift{at} mean{at} var{at}" for at in (1, 2))
    nodes = [
        CONV,
        node("BatchNormalization", f"c {first}", "n1"),
        node("Relu", "n1", "r"),
        node("Conv", "r v", "v1"),
        node("BatchNormalization", f"v1 {second}", "n2"),
        node("Add", "n2 r", "sum"),
        node("Relu", "sum", "s"),
        node("Conv", "s u", "u1"),
        node("Sigmoid", "u1", "gate"),
        node("Mul", "u1 gate", "silu"),
        node("Conv", "silu t", "t1"),
    ]
    model = saved(tmp_path / "net.onnx", nodes, weights=weights)
    found = {layer.name: layer.problem for layer in layers(autotune, model, "--training", "--layout", "nhwc")}
    data = {name: problem.values["epilogue"] for name, problem in found.items() if name.endswith("-data")}
    assert data == {"v-data": "add_masked", "u-data": "none", "t-data": "derivative_silu"}


def test_training_is_of_channels_last_convolutions(autotune: Command, tmp_path: Path) -> None:
    model = saved(tmp_path / "net.onnx", [CONV])
    refused(autotune("import-model", model, "--training"), "--training", "add --layout nhwc")
    refused(autotune("import-model", model, "--training", "--layout", "nhwc", "--op", "gemm"), "leave out --op")
