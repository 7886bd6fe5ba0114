"""The verifier itself: its reference against NumPy, its data, and what it accepts and rejects."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from autotune.compilation.compile import Binary, Program, Target
from autotune.devices.host import HostDevice
from autotune.errors import Rejected
from autotune.family.source import KernelSource, Stage
from autotune.measurement.bounds import error_bound, exact_on_integers
from autotune.measurement.guard_bands import GuardedArray
from autotune.measurement.launcher import LoadedKernel
from autotune.measurement.reference import check_program
from autotune.measurement.storage import stored
from autotune.measurement.test_data import DataSet
from autotune.measurement.verify import Verifier
from autotune.operation.storage_types import TYPES
from autotune.problem import Conv2dProblem
from autotune.trial import ACCURACY_CLASSES, Config, ErrorStats
from tests.compiled import compiled
from tests.problems import AWKWARD

pytestmark = pytest.mark.cxx

Array = npt.NDArray[np.float64]
MANY = Conv2dProblem(130, 64, 5, 5, 2, 4, 4)
"""More images than either data set has different ones; 1024 products per sum."""
EDGE = Conv2dProblem(61, 16, 1, 1, 32, 7, 7, pad_h=6, pad_w=6)
"""Each output has one tap of 49 in the image: 16 of 784 products."""
ODD = Conv2dProblem(1, 1, 3, 3, 1, 1, 1, dtype="f16", epilogue="bias")
"""Arrays of 2 and 18 bytes, which end inside a word."""
TARGET = Target("host")


@pytest.fixture(scope="module")
def checks(cxx: str) -> dict[Conv2dProblem, Binary]:
    """Verification programs, compiled."""
    problems = [*AWKWARD.values(), MANY, EDGE, ODD]
    with ThreadPoolExecutor(2) as pool:
        binaries = pool.map(lambda problem: compiled(check_program(problem), cxx=cxx), problems)
        return dict(zip(problems, binaries, strict=True))


# ---- the reference ----


def test_layers_of_the_same_words_share_a_program() -> None:
    assert check_program(replace(ODD, c=3, k=5, pad_h=1)) == check_program(ODD)
    assert check_program(replace(ODD, epilogue="bias_relu")) != check_program(ODD)


def decoded(device: HostDevice, address: int, elements: int, dtype: str) -> Array:
    """Elements on the device as float64."""
    content = device.read(address, elements * (4 if dtype == "f32" else 2))
    if dtype == "bf16":
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(content, np.float32 if dtype == "f32" else np.float16).astype(np.float64)


def inputs(device: HostDevice, problem: Conv2dProblem, data: DataSet) -> tuple[Array, Array, Array]:
    """x [N, C, H, W], w [K, C/groups, R, S] and bias [K] of a data set, in float64."""
    p, c_group = problem, problem.c // problem.groups
    arrays = {name: decoded(device, data.inputs[name].address, p.array(name).elements, p.dtype) for name in data.inputs}
    x, w, bias = arrays["x"], arrays["w"], arrays.get("bias", np.zeros(p.k))
    if p.layout == "nhwc":
        x = x.reshape(p.n, p.h, p.w, p.c).transpose(0, 3, 1, 2)
        w = w.reshape(p.k, p.r, p.s, c_group).transpose(0, 3, 1, 2)
    return x.reshape(p.n, p.c, p.h, p.w), w.reshape(p.k, c_group, p.r, p.s), bias


def convolved(problem: Conv2dProblem, x: Array, w: Array) -> Array:
    """y [N, K, P, Q]: a sum over shifted views of the padded input, group by group."""
    p = problem
    padded = np.pad(x, ((0, 0), (0, 0), (p.pad_h, p.pad_h), (p.pad_w, p.pad_w)))
    c_group, k_group = p.c // p.groups, p.k // p.groups
    y = np.zeros((p.n, p.k, p.p, p.q))
    for group in range(p.groups):
        maps = slice(group * k_group, (group + 1) * k_group)
        channels = padded[:, group * c_group : (group + 1) * c_group]
        for r in range(p.r):
            for s in range(p.s):
                rows = channels[:, :, r * p.dilation_h :: p.stride_h][:, :, : p.p]
                view = rows[:, :, :, s * p.dilation_w :: p.stride_w][:, :, :, : p.q]
                y[:, maps] += np.einsum("nchw,kc->nkhw", view, w[maps, :, r, s])
    return y


@pytest.mark.parametrize("name", AWKWARD)
def test_reference_is_the_convolution(device: HostDevice, checks: dict[Conv2dProblem, Binary], name: str) -> None:
    problem = AWKWARD[name]
    verifier = Verifier(device, problem, checks[problem])
    for data in (verifier.integers, verifier.normal):
        assert data.period == problem.n
        x, w, bias = inputs(device, problem, data)
        expected, magnitude = convolved(problem, x, w), convolved(problem, abs(x), abs(w))
        if problem.epilogue != "none":
            expected += bias[:, None, None]
            magnitude += abs(bias)[:, None, None]
        if problem.epilogue == "bias_relu":
            expected = np.maximum(expected, 0.0)
        if problem.layout == "nhwc":
            expected, magnitude = expected.transpose(0, 2, 3, 1), magnitude.transpose(0, 2, 3, 1)
        products = convolved(problem, np.ones_like(x), np.ones_like(w))
        if problem.layout == "nhwc":
            products = products.transpose(0, 2, 3, 1)
        of_ref, of_units = data.references["y"]
        ref = np.frombuffer(device.read(of_ref, 8 * problem.array("y").elements))
        found = np.frombuffer(device.read(of_units, 8 * problem.array("y").elements), np.float32).reshape(-1, 2)
        assert np.all(abs(ref - expected.ravel()) <= 1e-13 * magnitude.ravel())
        np.testing.assert_allclose(found[:, 0], magnitude.ravel(), rtol=1e-6)
        np.testing.assert_array_equal(found[:, 1], products.ravel())
    verifier.close()


def test_data_are_small_integers_and_normal_numbers(device: HostDevice, checks: dict[Conv2dProblem, Binary]) -> None:
    verifier = Verifier(device, MANY, checks[MANY])
    x, w, _ = inputs(device, MANY, verifier.integers)
    assert set(x.ravel()) == {-2, -1, 0, 1, 2}
    assert set(w.ravel()) == {-1, 0, 1}
    x, w, _ = inputs(device, MANY, verifier.normal)
    for values in (x[:50], w):
        assert abs(values.mean()) < 5 / np.sqrt(values.size)
        assert abs(values.std() - 1) < 5 / np.sqrt(values.size)
    assert len(np.unique(x[:50])) > 0.99 * x[:50].size
    verifier.close()


def test_a_problem_has_a_bias_where_its_epilogue_adds_one(
    device: HostDevice, checks: dict[Conv2dProblem, Binary]
) -> None:
    for problem in AWKWARD.values():
        verifier = Verifier(device, problem, checks[problem])
        assert ("bias" in verifier.normal.inputs) == (problem.epilogue != "none")
        assert set(inputs(device, problem, verifier.integers)[2]) <= {-2, -1, 0, 1, 2}
        verifier.close()


def test_data_sets_repeat_after_different_numbers_of_images(
    device: HostDevice, checks: dict[Conv2dProblem, Binary]
) -> None:
    verifier = Verifier(device, MANY, checks[MANY])
    assert (verifier.integers.period, verifier.normal.period) == (53, 61)
    for data in (verifier.integers, verifier.normal):
        x, _, _ = inputs(device, MANY, data)
        np.testing.assert_array_equal(x[data.period :], x[: MANY.n - data.period])
        assert len({image.tobytes() for image in x}) == data.period
    verifier.close()


# ---- what it accepts and rejects ----

KERNELS = """
#include <cuda_fp16.h>
constexpr int C = 64, HW = 25, K = 2, TAPS = 1024;

__device__ inline float shortened(float value) {  // to the ten fraction bits of TF32, rounded
    unsigned bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x1000u) & 0xFFFFE000u;
    memcpy(&value, &bits, 4);
    return value;
}
__device__ inline float same(float value) { return value; }
__device__ inline float rounded(float value) { return __half2float(__float2half_rn(value)); }

// One output a thread: y[image] from x[source].
#define KERNEL(NAME, IMAGE, FACTOR, SUM)                                                                   \\
    extern "C" __global__ void NAME(const float* x, const float* w, float* y, int n) {                     \\
        const int at = blockIdx.x * blockDim.x + threadIdx.x, image = at / (4 * K), k = at / 4 % K;        \\
        if (image >= n) return;                                                                            \\
        const int source = (IMAGE);                                                                        \\
        float sum = 0.0f;                                                                                  \\
        for (int tap = 0; tap < TAPS; ++tap) {                                                             \\
            const int pixel = (at / 2 % 2 + tap / 4 % 4) * 5 + at % 2 + tap % 4;                           \\
            sum = SUM(fmaf(FACTOR(x[(source * C + tap / 16) * HW + pixel]), FACTOR(w[k * TAPS + tap]), sum)); \\
        }                                                                                                  \\
        y[at] = sum;                                                                                       \\
    }
#define SHIFTED(DISTANCE) KERNEL(shifted_##DISTANCE, image + DISTANCE < n ? image + DISTANCE : image, same, same)
KERNEL(plain, image, same, same)
KERNEL(tf32, image, shortened, same)
KERNEL(half_sum, image, same, rounded)
"""
EDGE_TEXT = (
    KERNELS.split("// One output")[0]
    + """
extern "C" __global__ void tf32(const float* x, const float* w, float* y, int n) {  // one output a thread
    const int at = blockIdx.x * blockDim.x + threadIdx.x, tap = 48 - at % 49, k = at / 49 % 32, image = at / 49 / 32;
    if (image >= n) return;
    float sum = 0.0f;
    for (int c = 0; c < 16; ++c) sum = fmaf(shortened(x[image * 16 + c]), shortened(w[(k * 16 + c) * 49 + tap]), sum);
    y[at] = sum;
}
"""
)
DISTANCES = (1, 2, 3, 4, 8, 16, 32, 53, 61, 64, 128)
ENTRIES = ("plain", "tf32", "half_sum", *(f"shifted_{distance}" for distance in DISTANCES))
MANY_TEXT = KERNELS + "".join(f"SHIFTED({distance})\n" for distance in DISTANCES)

ODD_TEXT = """
#include <cuda_fp16.h>
#define KERNEL(NAME, FAULT)                                                                              \\
    extern "C" __global__ void NAME(const __half* x, const __half* w, const __half* bias, __half* y, int n) { \\
        const float filter = __half2float(w[0]), added = __half2float(bias[0]);                          \\
        for (int i = 0; i < 9 * n; ++i) y[i] = __float2half_rn(__half2float(x[i]) * filter + added);     \\
        FAULT;                                                                                           \\
    }
KERNEL(plain, (void)n)
KERNEL(one_behind, y[9 * n] = y[0])
KERNEL(changes_bias, const_cast<__half*>(bias)[0] = y[0])
KERNEL(one_short, memset(y + 8, 0xFF, 2))
KERNEL(before_y, y[-3] = y[0])
KERNEL(behind_x, const_cast<__half*>(x)[9 * n + 1] = y[0])
KERNEL(before_w, const_cast<__half*>(w)[-1] = y[0])
KERNEL(behind_w, const_cast<__half*>(w)[1] = y[0])
KERNEL(before_bias, const_cast<__half*>(bias)[-1] = const_cast<__half*>(bias)[-2] = y[0])
"""

PLACES = {
    "before_y": "2 bytes before y (18 bytes), the nearest at byte -5",
    "behind_x": "2 bytes behind x (18 bytes), the nearest at byte 20",
    "before_w": "2 bytes before w (2 bytes), the nearest at byte -1",
    "behind_w": "2 bytes behind w (2 bytes), the nearest at byte 2",
    "before_bias": "4 bytes before bias (2 bytes), the nearest at byte -1",
}
"""Kernels that write outside an array, and the messages: the last byte before an array is its byte -1."""


class Verified:
    """A verifier of one problem and a program of kernels to verify."""

    def __init__(self, device: HostDevice, problem: Conv2dProblem, check: Binary, kernels: Binary, text: str) -> None:
        self.device, self.problem, self.text = device, problem, text
        self.verifier = Verifier(device, problem, check)
        self.module = device.load(kernels)

    def __call__(self, entry: str, args: tuple[str, ...], accuracy: str) -> ErrorStats:
        """Verify one kernel of the program in an accuracy class."""
        source = KernelSource(
            problem=self.problem,
            config=Config.of("test", {}),
            program=Program(self.text, (entry,)),
            prepare=(),
            stages=(Stage(entry, args, (1, 1, 1), (self.problem.array("y").elements, 1, 1), 0),),
            loop_count=1,
            constants=(),
            packed_w_bytes=0,
            workspace_bytes=0,
            accuracy=accuracy,
            deterministic=True,
        )
        nothing = GuardedArray(self.device, "nothing", 0)
        kernel = LoadedKernel(self.device, self.module, source)
        return self.verifier.verify(kernel, nothing, nothing).error


@pytest.fixture(scope="module")
def many(cxx: str, device: HostDevice, checks: dict[Conv2dProblem, Binary]) -> Verified:
    kernels = compiled(Program(MANY_TEXT, ENTRIES), cxx=cxx)
    return Verified(device, MANY, checks[MANY], kernels, MANY_TEXT)


@pytest.fixture(scope="module")
def odd(cxx: str, device: HostDevice, checks: dict[Conv2dProblem, Binary]) -> Verified:
    entries = ("plain", "one_behind", "changes_bias", "one_short", *PLACES)
    kernels = compiled(Program(ODD_TEXT, entries), cxx=cxx)
    return Verified(device, ODD, checks[ODD], kernels, ODD_TEXT)


@pytest.fixture(scope="module")
def edge(cxx: str, device: HostDevice, checks: dict[Conv2dProblem, Binary]) -> Verified:
    kernels = compiled(Program(EDGE_TEXT, ("tf32",)), cxx=cxx)
    return Verified(device, EDGE, checks[EDGE], kernels, EDGE_TEXT)


FORWARD = ("x", "w", "y", "n")


def refused(verified: Verified, entry: str, args: tuple[str, ...], accuracy: str) -> str:
    """The reason why a kernel is rejected."""
    with pytest.raises(Rejected) as error:
        verified(entry, args, accuracy)
    assert error.value.outcome == "wrong_result"
    return error.value.reason


def test_plain_kernel_is_accepted(many: Verified, odd: Verified) -> None:
    assert 0 < many("plain", FORWARD, "fp32").over_bound < 1
    assert odd("plain", ("x", "w", "bias", "y", "n"), "fp16").over_bound < 1


@pytest.mark.parametrize("distance", DISTANCES)
def test_images_mixed_up_are_caught(many: Verified, distance: int) -> None:
    expected = "inexact" if distance == 61 else "wrong"  # 61 is the period of the normal data
    assert refused(many, f"shifted_{distance}", FORWARD, "fp32") == expected


def test_error_bound_tells_accuracy_classes_apart(many: Verified) -> None:
    assert many("tf32", FORWARD, "tf32").over_bound < 1
    assert refused(many, "tf32", FORWARD, "fp32") == "wrong"
    assert refused(many, "tf32", FORWARD, "fp32-3xtf32") == "wrong"
    assert many("half_sum", FORWARD, "fp16-acc16").over_bound < 1
    assert refused(many, "half_sum", FORWARD, "fp32") == "wrong"


def test_a_bound_does_not_count_products_of_padding(edge: Verified) -> None:
    assert 0.3 < edge("tf32", FORWARD, "tf32").over_bound < 1  # and 1.85 times a bound for 784 products
    assert refused(edge, "tf32", FORWARD, "fp32-3xtf32") == "wrong"


def test_arrays_that_end_inside_a_word_are_watched_to_their_end(odd: Verified) -> None:
    args = ("x", "w", "bias", "y", "n")
    assert refused(odd, "one_behind", args, "fp16") == "oob_write"
    odd.verifier.y.fill_guards()
    assert refused(odd, "one_short", args, "fp16") == "unwritten"
    assert refused(odd, "changes_bias", args, "fp16") == "input_overwritten"


@pytest.mark.parametrize("entry", PLACES)
def test_array_side_and_offset_of_a_write_outside_are_named(odd: Verified, entry: str) -> None:
    with pytest.raises(Rejected, match=re.escape(f"overwrites {PLACES[entry]}")) as error:
        odd(entry, ("x", "w", "bias", "y", "n"), "fp16")
    assert error.value.reason == "oob_write"


@pytest.mark.parametrize(
    ("accuracy", "reduction", "factor"),
    [
        ("fp32", 25, 9 * 2.0**-24),
        ("fp32", 4096, 68 * 2.0**-24),
        ("fp32-3xtf32", 64, 32 * 2.0**-24),
        ("tf32", 25, 2.0**-10),
        ("tf32", 256, 2.0**-11),
        ("fp16", 1024, 2.0**-12),
        ("bf16", 64, 2.0**-8),
        ("bf16", 256, 2.0**-9),
        ("fp16-acc16", 16, 8 * 2.0**-11),
    ],
)
def test_error_bound_of_each_class(accuracy: str, reduction: int, factor: float) -> None:
    bound = error_bound(accuracy, ODD)
    assert bound.factor(reduction) == pytest.approx(factor, rel=1e-15)
    assert bound.times(3).of(2.0, reduction) == pytest.approx(6 * factor, rel=1e-2)


@pytest.mark.parametrize("accuracy", ["tf32", "fp16", "bf16", "fp16-acc16"])
@pytest.mark.parametrize("products", [1, 2, 4, 16, 49, 784])
def test_a_kernel_that_rounds_its_inputs_meets_its_bound_whatever_the_number_of_products(
    accuracy: str, products: int
) -> None:
    """Of 2^20 products of normal numbers; those of one product include some that are subnormal in f16."""
    random = np.random.default_rng(products)
    x, w = random.standard_normal((2, 2**20 // products, products)).astype(np.float32).astype(np.float64)
    exact, size = np.sum(x * w, axis=1), np.sum(abs(x * w), axis=1)
    if accuracy == "tf32":
        shortened = [
            ((each.astype(np.float32).view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32) for each in (x, w)
        ]
    else:
        shortened = [stored(each, "bf16" if accuracy == "bf16" else "f16") for each in (x, w)]
    terms = np.prod(np.array(shortened, np.float64), axis=0)
    found = np.sum(terms, axis=1)
    if accuracy == "fp16-acc16":
        found = np.zeros(len(terms))
        for each in terms.T:
            found = stored(found + each, "f16").astype(np.float64)
    bound = error_bound(accuracy, MANY)
    allowed = bound.factor(products) * (size + bound.least_term * products)
    assert 0.05 < np.max(abs(found - exact) / allowed) < 1


@pytest.mark.parametrize(("dtype", "digits"), [("f16", 11), ("bf16", 8)])
def test_a_number_halfway_between_two_outputs_is_within_the_rounding(dtype: str, digits: int) -> None:
    halfway = 1 + 2.0**-digits  # the next output above 1 is 2 ** (1 - digits) away
    assert halfway - 1 <= TYPES[dtype].rounding * halfway < 1.01 * (halfway - 1)


def test_only_long_half_sums_may_be_inexact_on_integers() -> None:
    short, long = Conv2dProblem(1, 1, 31, 33, 1, 31, 33), Conv2dProblem(1, 4, 16, 16, 1, 16, 16)
    assert 2 * short.reduction + 2 == 2048
    assert exact_on_integers("fp16-acc16", short)
    assert not exact_on_integers("fp16-acc16", long)
    assert all(exact_on_integers(accuracy, long) for accuracy in ACCURACY_CLASSES if accuracy != "fp16-acc16")
