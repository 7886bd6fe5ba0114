// conv2d n3 c6 23x21 k7 3x5 stride 2 pad 1x2 f32 nchw bias_relu
// register_gemm tile_m=32 tile_n=16 tiles=1 filters=global stores=direct unroll=1 restrict=True

// D[k, npq] = sum over c, r, s of W[k, crs] * X[crs, npq]: M = K output channels, N = N*P*Q pixels, depth = C*R*S taps.
// A = w [K, C, R, S], in registers.  B = im2col(x), STEP x TILE_N of it in shared memory.  Tile TILE_M x (TILES * TILE_N).
//
// Register-tiled implicit matrix product: y [output channels x pixels] = w [output channels x taps] * im2col(x) [taps x pixels].
// A pixel is an output position of an image, all images in a row; a tap is an input channel and a filter position.
// A thread computes TILE_N pixels of one output channel. In a step it holds STEP filters of its output channel in registers, and loads one
// of the STEP x TILE_N inputs that the TILE_M threads of a tile share.
//
//   x     [N, C, H, W]  input
//   w     [K, C, R, S]  filters
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
//   grid  x: block of TILES * TILE_N pixels;  y: block of TILE_M output channels
//   block x: output channel;  y: tile of TILE_N pixels

#include "_dtype_f32.cuh"

#include "_epilogue.cuh"

// Problem
constexpr int C = 6, H = 23, W = 21;
constexpr int K = 7, R = 3, S = 5;
constexpr int P = 12, Q = 11;
constexpr int STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_H = 1, PAD_W = 2;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int TILE_M = 32;  // output channels a tile, one a thread
constexpr int TILE_N = 16;  // pixels a tile, all of them to each thread
constexpr int TILES = 1;  // tiles a block
constexpr int UNROLL = 1;  // steps unrolled

// Derived
constexpr int TAPS = C * R * S;
constexpr int PIXELS = P * Q;  // an image
constexpr int STEP = TILE_M / TILE_N;  // taps
constexpr int BLOCK_N = TILES * TILE_N;
constexpr int THREADS = TILE_M * TILES;
constexpr int TILE_BYTES = 128;  // of shared memory before the filters
constexpr bool SHARED_FILTERS = false, STAGED = false;  // outputs, in shared memory
constexpr int TAP_STRIDE = SHARED_FILTERS ? TILE_M : 1;
using Input = const T* __restrict__;
using Output = T* __restrict__;

#include "_im2col.cuh"

#include "_filters_global.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
conv2d_register_gemm(Input x, Input w, Input bias, Output y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int thread_m = static_cast<int>(threadIdx.x), tile = static_cast<int>(threadIdx.y);
    float* const inputs = reinterpret_cast<float*>(smem) + tile * TILE_M;  // [tap of the step][pixel of the tile]

    // The block's pixels start `skipped` pixels into `first_image`.
    const long long first_pixel = static_cast<long long>(blockIdx.x) * BLOCK_N;
    const long long left = static_cast<long long>(n) * PIXELS - first_pixel;
    const int pixels_left = left < BLOCK_N ? static_cast<int>(left) : BLOCK_N;
    const long long first_image = first_pixel / PIXELS;
    const int skipped = static_cast<int>(first_pixel % PIXELS);
    const int first_k = static_cast<int>(blockIdx.y) * TILE_M;

    // This thread's element of the shared inputs: always of the same pixel, every STEP taps.
    const int load_tap = thread_m / TILE_N, load_pixel = tile * TILE_N + thread_m % TILE_N;
    const bool loads = load_pixel < pixels_left;
    const int load_position = skipped + (loads ? load_pixel : 0);
    const T* const image = x + (first_image + load_position / PIXELS) * (C * H * W);
    const Field field = field_at(load_position % PIXELS);

    // All filters of the block's output channels, [tap][output channel].
    float* const filter_tile = reinterpret_cast<float*>(smem + TILE_BYTES);
    if constexpr (SHARED_FILTERS) {
        for (int j = tile * TILE_M + thread_m; j < TILE_M * TAPS; j += THREADS) {
            const bool exists = K % TILE_M == 0 || first_k + j / TAPS < K;
            filter_tile[j % TAPS * TILE_M + j / TAPS] = exists ? to_float(w[first_k * TAPS + j]) : 0.0f;
        }
        __syncthreads();
    }
    // Threads beyond the last output channel repeat it.
    const auto* const filters = filters_of(w) + min(first_k + thread_m, K - 1) * TAPS;

    float accumulator[TILE_N];
#pragma unroll
    for (int j = 0; j < TILE_N; ++j) accumulator[j] = 0.0f;

#pragma unroll UNROLL
    for (int first_tap = 0; first_tap < TAPS; first_tap += STEP) {
        const int tap = first_tap + load_tap;
        float input = 0.0f;
        if (loads && (TAPS % STEP == 0 || tap < TAPS)) {
            input = to_float(input_at(image + tap / (R * S) * (H * W), field, tap / S % R, tap % S));
        }
        float filter[STEP];
#pragma unroll
        for (int j = 0; j < STEP; ++j) {
            const bool exists = TAPS % STEP == 0 || first_tap + j < TAPS;
            filter[j] = exists ? to_float(filters[(first_tap + j) * TAP_STRIDE]) : 0.0f;
        }
        inputs[thread_m] = input;
        __syncthreads();

#pragma unroll
        for (int j = 0; j < STEP; ++j) {
            const auto* const pixels = reinterpret_cast<const AlignedArray<float, 4>*>(inputs + j * TILE_N);
#pragma unroll
            for (int m = 0; m < TILE_N / 4; ++m) {
                const AlignedArray<float, 4> pixel = pixels[m];
#pragma unroll
                for (int v = 0; v < 4; ++v) accumulator[m * 4 + v] = fmaf(filter[j], pixel.at[v], accumulator[m * 4 + v]);
            }
        }
        __syncthreads();  // every thread has read the inputs
    }

    if constexpr (STAGED) {
        // The block's outputs, [output channel][pixel], with an unused element after each row against bank conflicts.
        float* const outputs = reinterpret_cast<float*>(smem);
#pragma unroll
        for (int j = 0; j < TILE_N; ++j) outputs[thread_m * (BLOCK_N + 1) + tile * TILE_N + j] = accumulator[j];
        __syncthreads();
        for (int j = tile * TILE_M + thread_m; j < TILE_M * BLOCK_N; j += THREADS) {
            const int k = first_k + j / BLOCK_N, pixel = j % BLOCK_N;
            if ((K % TILE_M != 0 && k >= K) || pixel >= pixels_left) continue;
            const int position = skipped + pixel;
            const float value = outputs[j / BLOCK_N * (BLOCK_N + 1) + pixel];
            y[((first_image + position / PIXELS) * K + k) * PIXELS + position % PIXELS] =
                from_float<T>(finish<EPILOGUE>(value, bias, k));
        }
    } else {
        const int k = first_k + thread_m;
        if (K % TILE_M != 0 && k >= K) return;
#pragma unroll
        for (int j = 0; j < TILE_N; ++j) {
            const int pixel = tile * TILE_N + j;
            if (pixel >= pixels_left) return;
            const int position = skipped + pixel;
            y[((first_image + position / PIXELS) * K + k) * PIXELS + position % PIXELS] =
                from_float<T>(finish<EPILOGUE>(accumulator[j], bias, k));
        }
    }
}
