"""The gradient of a convolution's filters as an operation: two inputs, summed over all images into an array of filters.

One family adds to the caller's array with atomics. Another splits the sums and adds the parts in a second stage.
"""

from __future__ import annotations

DECLARATION = """runtime = "n"
independent = false  # an output is a sum over all images

[sizes]
n = { doc = "images" }
c = { doc = "input channels" }
k = { doc = "output channels" }
h = { doc = "input height" }
w = { doc = "input width" }
r = { doc = "filter height" }
s = { doc = "filter width" }

[words]
dtype = ["f32", "f16"]

[derived]
p = "h - r + 1"
q = "w - s + 1"

[rules]
"a filter of ${r} x ${s} is larger than the input" = "r <= h and s <= w"

[[array]]
name = "x"
role = "in"
shape = ["n", "c", "h", "w"]
integers = [-2, 2]

[[array]]
name = "dy"
role = "in"
shape = ["n", "k", "p", "q"]
integers = [-2, 2]

[[array]]
name = "dw"
role = "inout"
shape = ["k", "c", "r", "s"]
dtype = "f32"
integers = [-8, 8]

[cost]
reduction = "n * p * q + 1"
flops = "2 * n * k * c * r * s * p * q"

[similarity]
factors = { n = 0.5, c = 1.0, k = 1.0, h = 0.5, w = 0.5, r = 1.0, s = 1.0 }
"""
REFERENCE = '''import numpy as np


def reference(p, x, dy, dw):
    """dw[k, c, r, s] += sum of x[n, c, p + r, q + s] dy[n, k, p, q]."""
    return dw + gradient(p, x, dy), abs(dw) + gradient(p, abs(x), abs(dy))


def gradient(p, x, dy):
    windows = np.lib.stride_tricks.sliding_window_view(x, (p.p, p.q), axis=(2, 3))
    return np.einsum("ncrspq,nkpq->kcrs", windows, dy)
'''
_HEADER = """/*# kernel
summary  = "A block sums a filter's element over a slice of the images."
supports = { "a filter element's index fits 31 bits" = "k * c * r * s < 2147483648" }
arch     = { "compute capability 6.0 or newer" = "device.arch >= 60" }
accuracy = "'fp32' if dtype == 'f32' else 'fp16'"
"""
_SUMS = """#include "_dtype_${dtype}.cuh"
constexpr int C = ${c}, K = ${k}, H = ${h}, W = ${w}, R = ${r}, S = ${s}, P = ${p}, Q = ${q};
constexpr int THREADS = ${threads}, SLICES = ${slices}, FILTERS = K * C * R * S;

// A block's sum of the images of a slice, in thread 0.
__device__ float sum_of_slice(const T* x, const T* dy, int n, int element, int slice) {
    __shared__ float of_warps[THREADS / 32];
    const int s = element % S, r = element / S % R, c = element / (S * R) % C, k = element / (S * R * C);
    float sum = 0.0f;
    for (int image = slice; image < n; image += SLICES) {
        for (int i = threadIdx.x; i < P * Q; i += THREADS) {
            const int p = i / Q, q = i % Q;
            sum += to_float(x[((static_cast<long long>(image) * C + c) * H + p + r) * W + q + s]) *
                   to_float(dy[(static_cast<long long>(image) * K + k) * P * Q + i]);
        }
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    float all = 0.0f;
    for (int warp = 0; warp < THREADS / 32; ++warp) all += of_warps[warp];
    return all;
}
"""
_PARAMS = """
[params]
threads = { values = [64, 32, 128], doc = "threads of a block" }
slices  = { values = [1, 4, 16],    doc = "slices of the images" }
"""
ATOMICS = f"""{_HEADER}deterministic = "slices == 1"
{_PARAMS}
[[stage]]
entry = "add_slices"
args  = ["x", "dy", "dw", "n"]
block = ["threads", "1", "1"]
grid  = ["k * c * r * s", "slices", "1"]
#*/
{_SUMS}
extern "C" __global__ void add_slices(const T* x, const T* dy, float* dw, int n) {{
    const float sum = sum_of_slice(x, dy, n, blockIdx.x, blockIdx.y);
    if (threadIdx.x == 0) atomicAdd(dw + blockIdx.x, sum);
}}
"""
SPLIT = f"""{_HEADER}{_PARAMS}
[workspace]
bytes = "4 * slices * k * c * r * s"

[[stage]]
entry = "sum_slices"
args  = ["x", "dy", "workspace", "n"]
block = ["threads", "1", "1"]
grid  = ["k * c * r * s", "slices", "1"]

[[stage]]
entry = "add_sums"
args  = ["workspace", "dw"]
block = ["64", "1", "1"]
grid  = ["ceil_div(k * c * r * s, 64)", "1", "1"]
#*/
{_SUMS}
extern "C" __global__ void sum_slices(const T* x, const T* dy, float* partial, int n) {{
    const float sum = sum_of_slice(x, dy, n, blockIdx.x, blockIdx.y);
    if (threadIdx.x == 0) partial[blockIdx.y * FILTERS + blockIdx.x] = sum;
}}

extern "C" __global__ void add_sums(const float* partial, float* dw) {{
    const int element = blockIdx.x * 64 + threadIdx.x;
    if (element >= FILTERS) return;
    float sum = 0.0f;
    for (int slice = 0; slice < SLICES; ++slice) sum += partial[slice * FILTERS + element];
    dw[element] += sum;
}}
"""
FAMILIES = {"atomics": ATOMICS, "split": SPLIT}


def texts(family: str) -> dict[str, str]:
    """The files of the operation's folder with one of the families."""
    return {"operation.toml": DECLARATION, "reference.py": REFERENCE, f"{family}.cu.j2": FAMILIES[family]}
