// conv_transpose n 2 c 6 h 5 w 7 k 9 r 4 s 4 stride_h 2 stride_w 2 padding_h 1 padding_w 1 groups 3 f32 bias_relu
// conv_transpose_direct block=128 thread_k=1 unroll=1

// D[k, nopq] = sum over c, t, r, s of W[k, ctrs] * X[ctrs, nopq]: M = K output channels, N = N*O*P*Q pixels, depth = the C*T*R*S products that
// meet an output, a STRIDE_D*STRIDE_H*STRIDE_W-th of all, without tiles in shared memory.
//
// y[n, k, o, p, q] = sum over c, t, r, s of x[n, c, d, h, w] * w[c, k, t, r, s], where d * STRIDE_D + t * DILATION_D - PADDING_D = o, and
// likewise h and w: of an axis each STRIDE-th tap meets an output, from one on that its position decides.
//
//   x     [N, C, D, H, W]           input; with NHWC [N, D, H, W, C]
//   w     [C, K / GROUPS, T, R, S]  filters; with NHWC [C, T, R, S, K / GROUPS]
//   bias  [K]                       read where EPILOGUE has one
//   z     like y                    residual, added where EPILOGUE has one
//   y     [N, K, O, P, Q]           output; with NHWC [N, O, P, Q, K]
//   n     images N, any number
//
//   grid  x: threads, of neighbouring columns; with NHWC of neighbouring tiles of THREAD_K output channels

#include "_dtype_f32.cuh"

#include "_epilogue.cuh"

// Problem
constexpr bool NHWC = false;
constexpr int C = 6, D = 1, H = 5, W = 7;
constexpr int K = 9, FILTER_D = 1, R = 4, S = 4;
constexpr int O = 1, P = 10, Q = 14;
constexpr int GROUPS = 3, GROUP_C = C / GROUPS, GROUP_K = K / GROUPS;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int BLOCK = 128;
constexpr int THREAD_K = 1, TILES_K = 3, ALL_TILES_K = GROUPS * TILES_K;
constexpr int UNROLL = 1;  // input channels

// An axis of the convolution.
template <int IN, int TAPS, int STRIDE, int PADDING, int DILATION>
struct Axis {
    static constexpr int common(int a, int b) { return b == 0 ? a : common(b, a % b); }
    static constexpr int STEP = STRIDE / common(STRIDE, DILATION);  // from a tap that meets an output to the next

    // The first of them; TAPS where there is none.
    __device__ __forceinline__ static int first_tap(int output) {
        for (int tap = 0; tap < STEP; ++tap) {
            if ((output + PADDING - tap * DILATION) % STRIDE == 0) return tap;
        }
        return TAPS;
    }
    // The input under a tap that meets an output; negative or at least IN outside.
    __device__ __forceinline__ static int input(int output, int tap) {
        const int at = output + PADDING - tap * DILATION;
        return at < 0 ? -1 : at / STRIDE;
    }
    __device__ __forceinline__ static bool inside(int input) { return static_cast<unsigned>(input) < static_cast<unsigned>(IN); }
};

using Depth = Axis<D, FILTER_D, 1, 0, 1>;
using Height = Axis<H, R, 2, 1, 1>;
using Width = Axis<W, S, 2, 1, 1>;

extern "C" __global__ void __launch_bounds__(BLOCK)
conv_transpose_direct(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    constexpr int PIXELS = O * P * Q;
    const long long thread = blockIdx.x * static_cast<long long>(BLOCK) + threadIdx.x, pixels = static_cast<long long>(n) * PIXELS;
    if (thread >= pixels * ALL_TILES_K) return;
    const int tile = static_cast<int>(NHWC ? thread % ALL_TILES_K : thread / pixels);
    const long long pixel = NHWC ? thread / ALL_TILES_K : thread % pixels;
    const int image = static_cast<int>(pixel / PIXELS), position = static_cast<int>(pixel % PIXELS);
    const int o = position / (P * Q), p = position / Q % P, q = position % Q;
    const int group = tile / TILES_K, first_k = tile % TILES_K * THREAD_K;  // of the group
    const T* const input = x + image * (static_cast<long long>(C) * D * H * W) + group * GROUP_C * (NHWC ? 1 : D * H * W);
    const T* const filters = w + group * GROUP_C * (GROUP_K * FILTER_D * R * S);

    float sums[THREAD_K] = {};
    for (int t = Depth::first_tap(o); t < FILTER_D; t += Depth::STEP) {
        const int d = Depth::input(o, t);
        if (!Depth::inside(d)) continue;
        for (int r = Height::first_tap(p); r < R; r += Height::STEP) {
            const int h = Height::input(p, r);
            if (!Height::inside(h)) continue;
            for (int s = Width::first_tap(q); s < S; s += Width::STEP) {
                const int column = Width::input(q, s);
                if (!Width::inside(column)) continue;
                const int at = (d * H + h) * W + column, tap = (t * R + r) * S + s;
#pragma unroll UNROLL
                for (int c = 0; c < GROUP_C; ++c) {
                    const float value = to_float(input[NHWC ? at * C + c : c * (D * H * W) + at]);
#pragma unroll
                    for (int i = 0; i < THREAD_K; ++i) {
                        const int k = GROUP_K % THREAD_K == 0 ? first_k + i : min(first_k + i, GROUP_K - 1);
                        constexpr int TAPS = FILTER_D * R * S;
                        const float filter = to_float(filters[NHWC ? (c * TAPS + tap) * GROUP_K + k : (c * GROUP_K + k) * TAPS + tap]);
                        sums[i] = fmaf(value, filter, sums[i]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < THREAD_K; ++i) {
        if (GROUP_K % THREAD_K != 0 && first_k + i >= GROUP_K) break;
        const int k = group * GROUP_K + first_k + i;
        const long long to = NHWC ? pixel * K + k : (static_cast<long long>(image) * K + k) * PIXELS + position;
        y[to] = from_float<T>(finish<EPILOGUE>(sums[i], bias, k));
    }
}
