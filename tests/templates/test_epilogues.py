"""Every activation, with a bias and with a residual, is right for each way to store outputs, and mistakes are found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from autotune.compilation.compile import Program
from autotune.compilation.toolchain import find_cxx
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Conv2dProblem
from tests.compiled import host_device
from tests.exports import H200
from tests.long_run import every
from tests.templates.shipped_families import default_of, family, output_bytes, verify

pytestmark = pytest.mark.cxx

ACTIVATIONS = operation(CONV2D).enumerations["activation"][1:]
ODD = Conv2dProblem(3, 8, 9, 11, 16, 3, 3, pad_h=1, pad_w=1)
HALF = replace(ODD, dtype="f16", layout="nhwc")
SERVED: Mapping[str, tuple[str, Conv2dProblem, str]] = {
    "implicit_gemm_sm90": ("implicit_gemm_sm90", HALF, "bias_add"),
    "implicit_gemm_sm90 f32": ("implicit_gemm_sm90", replace(ODD, layout="nhwc"), "bias"),
    "mma_gemm": ("mma_gemm", HALF, "bias_add"),
    "implicit_gemm": ("implicit_gemm", replace(ODD, dtype="bf16", layout="nhwc"), "bias"),
    "implicit_gemm nchw": ("implicit_gemm", ODD, "bias_add"),
    "direct": ("direct", replace(ODD, dtype="f16"), "bias_add"),
    "depthwise_nhwc": ("depthwise_nhwc", replace(HALF, k=8, groups=8), "bias"),
    "direct_strip": ("direct_strip", ODD, "bias"),
    "input_scatter": ("input_scatter", ODD, "bias"),
}
"""family, problem, and added terms; the last family accumulates in y and then applies the activation"""
CASES = {f"{activation} in {case}": (case, activation) for activation in ACTIVATIONS for case in SERVED}


@pytest.mark.parametrize("case", every(len(SERVED) + 1, CASES))  # each activation in another family
def test_activation_is_right(case: str, host: DeviceEvaluator) -> None:
    served, activation = CASES[case]
    name, problem, terms = SERVED[served]
    problem = replace(problem, epilogue=f"{terms}_{activation}")
    config = default_of(name, problem)
    assert config is not None
    assert BoundTemplate(family(name), problem, H200).supported
    verify(name, problem, config.params, host)


FAULTS: Mapping[str, tuple[str, str, str]] = {
    "no ReLU": ("relu", "value < 0.0f ? 0.0f : value;", "value;"),
    "no upper limit": ("relu6", " : value > 6.0f ? 6.0f : value;", " : value;"),
    "another slope": ("leaky_relu", "0.01f", "0.1f"),
    "a slope a little off": ("leaky_relu", "0.01f", "0.0101f"),
    "another shift": ("hardswish", "0.5f)", "0.49f)"),
    "base 2 and not e": ("sigmoid", "-1.44269504f * value", "-value"),
    "a sigmoid": ("silu", "finite_below(value) * sigmoid", "sigmoid"),
    "the wrong side": ("gelu", "fmaf(-size,", "fmaf(size,"),
    "no cube": ("gelu_tanh", "-0.102943240f", "0.0f"),
}
"""the activation, the replaced text, and the new text"""


def refused(source: KernelSource, host: DeviceEvaluator) -> str:
    """The reason why verification rejects a kernel; empty if it is right."""
    host.begin_layer(source.problem)
    try:
        host.verify(source, host.compile(source).result())
    except Rejected as rejected:
        return rejected.reason
    return ""


def source_of(name: str, problem: Conv2dProblem, host: DeviceEvaluator) -> KernelSource:
    config = default_of(name, problem)
    assert config is not None
    return render(BoundTemplate(family(name), problem, host.info), config)


@pytest.mark.parametrize("what", every(3, FAULTS))
def test_a_mistake_in_an_activation_is_found(what: str, host: DeviceEvaluator) -> None:
    activation, old, new = FAULTS[what]
    source = source_of("implicit_gemm", replace(HALF, epilogue=f"bias_add_{activation}"), host)
    assert source.program.text.count(old) == 1
    broken = Program(source.program.text.replace(old, new), source.program.entries)
    assert refused(replace(source, program=broken), host) in ("wrong", "inexact")


@pytest.mark.parametrize("dtype", every(3, ["f32", "bf16", "f16"]))
def test_one_gelu_is_not_taken_for_the_other(dtype: str, host: DeviceEvaluator) -> None:
    erf, tanh = (replace(HALF, dtype=dtype, epilogue=f"bias_{word}") for word in ("gelu", "gelu_tanh"))
    if dtype == "f32":
        exact = replace(source_of("implicit_gemm", tanh, host), problem=erf)
        assert refused(exact, host) == "wrong", "they differ by more than the bound of float32 arithmetic"
    tensor_cores = replace(source_of("implicit_gemm_sm90", tanh, host), problem=erf)
    assert refused(tensor_cores, host) == "inexact", "their bound is wider, but sums of integers are exact"


LIMITS: Mapping[str, tuple[float, float]] = {
    "identity": (-math.inf, math.inf),
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "silu": (0.0, math.inf),
    "hardswish": (0.0, math.inf),
    "sigmoid": (0.0, 1.0),
    "gelu": (0.0, math.inf),
    "gelu_tanh": (0.0, math.inf),
    "leaky_relu": (-math.inf, math.inf),
}


@pytest.mark.parametrize("activation", every(3, LIMITS))
def test_infinities_become_limits_and_a_nan_stays_one(activation: str) -> None:
    epilogue = "bias" if activation == "identity" else f"bias_{activation}"
    problem = Conv2dProblem(1, 1, 1, 4, 1, 1, 1, epilogue=epilogue)
    device = host_device(str(find_cxx()))
    x = np.array([-math.inf, math.inf, math.nan, 0.0], np.float32)
    one, nothing = np.ones(1, np.float32), np.zeros(1, np.float32)
    config = default_of("direct", problem)
    assert config is not None
    source = render(BoundTemplate(family("direct"), problem, device.info), config)
    inputs = {"x": x.tobytes(), "w": one.tobytes(), "bias": nothing.tobytes()}
    found = np.frombuffer(output_bytes(device, source, inputs), np.float32)
    device.close()
    expected = (*LIMITS[activation], math.nan, 0.5 if activation == "sigmoid" else 0.0)
    np.testing.assert_array_equal(found, expected)
