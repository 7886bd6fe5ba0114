"""The contenders of a library for a layer, and how the finals report them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cli.summary import summary
from autotune.devices import torch_gemm
from autotune.devices.torch_baseline import baselines_of
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, Layer, Problem, make_problem
from autotune.study import ADMITTED
from autotune.trial import Config, Outcome, Timing, Trial, comparable
from autotune.tuning.layer_finals import Compared, Comparison, FinalsResult
from autotune.tuning.layer_result import LayerResult

LAYER = Conv2dProblem(64, 64, 56, 56, 64, 3, 3, epilogue="bias_relu", layout="nhwc")
WINNER = Trial(3, Config.of("direct", {"block_p": 4}), Outcome.CORRECT, accuracy="fp32")


PRODUCT = make_problem(
    operation("gemm"), {"m": 8, "n": 24, "k": 32, "transposes": "nt", "dtype": "f16", "epilogue": "bias_relu"}
)

FILTER_GRADIENT = make_problem(
    operation("conv_filter_gradient"), {"n": 2, "c": 8, "w": 9, "k": 8, "s": 3, "dtype": "f16"}
)


def with_word(problem: Problem, **words: str) -> Problem:
    """The problem with other words."""
    return make_problem(problem.operation, {**problem.values, **words})


def timing(us: float, launch: str = "graph") -> Timing:
    return Timing((us,) * 3, us, us, us, "cold", launch="graph" if launch == "graph" else "stream")


@pytest.mark.parametrize(
    ("library", "problem", "names"),
    [
        (
            "cudnn",
            replace(LAYER, dtype="f16"),
            ["cudnn nchw", "cudnn nchw fused", "cudnn nhwc", "cudnn nhwc fused"],
        ),
        ("cudnn", replace(LAYER, dtype="bf16", epilogue="none"), ["cudnn nchw", "cudnn nhwc"]),
        ("cudnn", replace(LAYER, dtype="bf16", epilogue="bias_add_silu"), ["cudnn nchw", "cudnn nhwc"]),
        ("cudnn", replace(LAYER, epilogue="none"), ["cudnn nchw", "cudnn nhwc", "cudnn nchw tf32", "cudnn nhwc tf32"]),
        ("cudnn", FILTER_GRADIENT, ["cudnn nchw", "cudnn nhwc"]),
        ("inductor", FILTER_GRADIENT, []),
        ("inductor", replace(LAYER, dtype="f16"), ["inductor nhwc"]),
        ("inductor", replace(LAYER, layout="nchw"), ["inductor nchw", "inductor nchw tf32"]),
        ("cublas", LAYER, []),
        ("cudnn", PRODUCT, []),
        ("cublas", PRODUCT, ["cublas nt", "cublas nt fused"]),
        ("cublas", with_word(PRODUCT, epilogue="bias_gelu"), ["cublas nt"]),
        ("cublas", with_word(PRODUCT, epilogue="none", dtype="f32"), ["cublas nt", "cublas nt tf32"]),
        ("cublas", PRODUCT.with_runtime(8), ["cublas nt"]),
    ],
)
def test_every_way_that_a_library_has_is_a_contender(library: str, problem: Problem, names: list[str]) -> None:
    assert [baseline.name for baseline in baselines_of(library, problem)] == names


def test_where_tf32_may_win_pytorch_always_uses_it() -> None:
    layer = replace(LAYER, epilogue="none")
    names = [each.name for each in baselines_of("cudnn", layer, ADMITTED["tf32"])]
    assert names == ["cudnn nchw tf32", "cudnn nhwc tf32"]
    assert baselines_of("cudnn", layer, ADMITTED["fp32-class"]) == baselines_of("cudnn", layer)


@pytest.mark.parametrize("transposes", ["nn", "nt", "tn"])
@pytest.mark.parametrize(("epilogue", "batch"), [("none", 3), ("bias", 1), ("bias_relu", 1), ("bias_gelu_tanh", 1)])
def test_cublas_computes_what_the_reference_does(transposes: str, epilogue: str, batch: int) -> None:
    torch = pytest.importorskip("torch")
    problem = with_word(PRODUCT, dtype="f32", transposes=transposes, epilogue=epilogue).with_runtime(batch)
    a, b, *bias = torch_gemm.inputs(problem, lambda *shape: torch.randn(shape))
    y = (a.mT if transposes == "tn" else a) @ (b.mT if transposes == "nt" else b) + sum(bias)
    after = {"bias_relu": torch.relu, "bias_gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh")}
    expected = after.get(epilogue, lambda y: y)(y)
    for fused in {False, torch_gemm.fuses(problem)}:
        found = torch_gemm.product(problem, fused=fused)(a, b, *bias).reshape(y.shape)
        assert torch.allclose(found, expected, atol=2e-3), "on the CPU PyTorch's fused GELU is the exact one"


def test_the_verdict_is_against_the_fastest_that_the_study_admits_and_all_are_shown() -> None:
    def compared(name: str, us: float, accuracy: str) -> Compared:
        verdict = "win" if us > 30 else "loss"
        paired = Comparison(verdict, 29 / us, 28 / us, 30 / us)  # the printed ratio is that of the printed times
        return Compared(name, us, accuracy, paired, library="cudnn")

    rivals = (
        compared("cudnn nchw", 90.0, "fp32"),
        compared("cudnn nhwc fused", 25.0, "fp32"),
        compared("cudnn nhwc fused tf32", 15.0, "tf32"),
    )
    refused = (("cudnn nchw fused", "no engine"),)
    finals = FinalsResult(WINNER, timing(30.0), False, 0.01, compared=rivals, admitted=("fp32",), refused=refused)
    assert finals.rival("cudnn") is rivals[1]
    assert finals.rival("inductor") is None
    result = LayerResult(Layer("conv", LAYER), "net.conv", WINNER, 1, 1, {}, {}, "budget", None, finals)
    lines = list(summary(result))
    assert lines[2:] == [
        "  LOSS against cudnn nhwc fused: 0.833 times as fast (25.00 us)",
        "    cudnn nchw: 90.00 us; 3.000 times as fast",
        "    cudnn nhwc fused tf32: 15.00 us, another accuracy class (tf32); 0.500 times as fast",
        "    cudnn nchw fused: cannot run this layer: no engine",
    ]
    assert all(len(line) <= 100 for line in lines)
    where_tf32_may_win = replace(finals, admitted=ADMITTED["tf32"])
    assert where_tf32_may_win.rival("cudnn") is rivals[2], "also where our fastest is float32"
    line = list(summary(replace(result, finals=where_tf32_may_win)))[2]
    assert line.endswith("0.500 times as fast (15.00 us, another accuracy class (tf32))")


def test_short_times_are_compared_only_with_times_taken_alike() -> None:
    assert comparable(timing(10.0), timing(20.0))
    assert not comparable(timing(10.0), timing(20.0, "stream"))
    assert not comparable(timing(300.0, "stream"), timing(100.0)), "what became short"
    assert comparable(timing(300.0, "stream"), timing(200.0))
