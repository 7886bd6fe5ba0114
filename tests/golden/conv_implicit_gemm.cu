// conv n 2 c 3 d 4 h 7 w 9 k 5 t 3 r 3 s 3 stride_h 2 stride_w 2 pad_d 1 pad_h 1 pad_d_end 1 pad_h_end 1 f32 bias_relu
// conv_implicit_gemm bm=32 bn=128 bk=8 tm=4 tn=8 vec=4 stages=2 unroll=8 filters=global offsets=computed smem_pad=4 min_blocks=1 launch=batch restrict=True

// D[k, nopq] = sum over c, t, r, s of W[k, ctrs] * X[ctrs, nopq], for each group: M = its output channels, N = N*O*P*Q pixels,
// depth = its C*T*R*S taps, where conv2d's D = O = T = 1.
// A = w, rows of taps.  B = im2col(x), gathered from x.  Tile BM x BN, BK taps a step; tile space ceil(K / BM) * ceil(N*O*P*Q / BN).
//
// Implicit matrix product: y [output channels x pixels] = w [output channels x taps] * im2col(x) [taps x pixels], for each group of
// channels.
// A pixel is an output position of an image, all images in a row; a tap is an input channel and a filter position.
// The block's tile of im2col(x) is gathered from x a step of BK taps at a time and never exists in global memory.
//
//   x     [N, C, D, H, W]           input; with NHWC [N, D, H, W, C]
//   w     [K, C / GROUPS, T, R, S]  filters; with NHWC [K, T, R, S, C / GROUPS]
//   bias  [K]                       read where EPILOGUE has one
//   y     [N, K, O, P, Q]           output; with NHWC [N, O, P, Q, K]
//   last  images N, any number; or the image that this launch computes
//
//   grid  x: (tile of BN pixels * GROUPS + group) * TILES_M + tile of BM output channels
//   block x: THREADS_M x THREADS_N threads, each TM x TN outputs

#include "_dtype_f32.cuh"

#include "_epilogue.cuh"

#include "_tile.cuh"

// Problem
constexpr bool NHWC = false;
constexpr int C = 3, D = 4, H = 7, W = 9;
constexpr int K = 5, FILTER_D = 3, R = 3, S = 3;
constexpr int O = 4, P = 4, Q = 4;
constexpr int STRIDE_D = 1, STRIDE_H = 2, STRIDE_W = 2;
constexpr int PAD_D = 1, PAD_H = 1, PAD_W = 0;
constexpr bool PADDED_D = true, PADDED_H = true, PADDED_W = false;
[[maybe_unused]] constexpr int DILATION_D = 1, DILATION_H = 1, DILATION_W = 1;
constexpr int GROUPS = 1;
using EPILOGUE = Epilogue<true, false, relu>;

// Parameters
constexpr int BM = 32, BN = 128, BK = 8;  // output channels and pixels a block, taps a step
constexpr int TM = 4, TN = 8;  // output channels and pixels a thread
constexpr int STAGES = 2;  // tiles in shared memory
constexpr int UNROLL = 8;  // taps unrolled
constexpr int SMEM_PAD = 4;  // unused elements after a row of a tile
constexpr int MIN_BLOCKS = 1;  // blocks that fit a multiprocessor at once
constexpr bool IMAGE_LAUNCHES = false;  // one for each image
constexpr bool TILED_FILTERS = true;  // in shared memory, else read from constant memory
constexpr bool TABLE = false;  // of taps' offsets, in shared memory
constexpr int TABLE_BYTES = 0;
using Input = const T* __restrict__;
using Output = T* __restrict__;
constexpr int FILTER_VEC = 4, PIXEL_VEC = 4;  // neighbouring output channels and pixels of a thread

// Derived
constexpr int GROUP_C = C / GROUPS, GROUP_K = K / GROUPS;
constexpr int TAPS = GROUP_C * FILTER_D * R * S;
constexpr int PIXELS = O * P * Q;  // an image
constexpr int INPUTS = C * D * H * W;
constexpr int STEPS = (TAPS + BK - 1) / BK;
constexpr int TILES_M = (GROUP_K + BM - 1) / BM;
constexpr int THREADS_M = BM / TM, THREADS_N = BN / TN;
constexpr int THREADS = THREADS_M * THREADS_N;
constexpr int PIXEL_ROW = BN + SMEM_PAD;  // a row of a tile in shared memory, elements
constexpr int FILTER_ROW = BM + SMEM_PAD;
constexpr int STORE_VEC = NHWC ? (GROUP_K % FILTER_VEC == 0 ? FILTER_VEC : 1) : (PIXELS % PIXEL_VEC == 0 ? PIXEL_VEC : 1);
using Offset = int;  // from a tile's first image

// In nchw neighbouring threads load neighbouring pixels, in nhwc neighbouring channels.
using PixelLoad = TileLoad<NHWC ? BK : BN, NHWC ? BN : BK, THREADS>;
constexpr int PIXELS_KEPT = NHWC ? PixelLoad::SLOW_LOADS : PixelLoad::FAST_LOADS;

using FilterLoad = TileLoad<BK, BM, THREADS>;

#include "_filters_global.cuh"

// Where a pixel's receptive field starts; its frames, rows and columns are negative in the padding.
struct Pixel {
    Offset offset;
    int frame, row, column;
};

// Where a tap lies within the receptive field.
using Index = int;
struct alignas(TABLE ? 8 : 4) Tap {
    int offset;
    Index row, column;
    Index frame;
};

__device__ __forceinline__ int frame_of([[maybe_unused]] const Tap& tap) { return tap.frame; }

__device__ __forceinline__ Pixel pixel_at(int index) {
    const int image = index / PIXELS;
    const int position = index % PIXELS;
    const int frame = (O > 1 ? position / (P * Q) : 0) * STRIDE_D - PAD_D;
    const int row = (O > 1 ? position % (P * Q) : position) / Q * STRIDE_H - PAD_H;
    const int column = position % Q * STRIDE_W - PAD_W;
    return {static_cast<Offset>(image) * INPUTS + ((frame * H + row) * W + column) * (NHWC ? C : 1), frame, row, column};
}

__device__ __forceinline__ Tap tap_at(int index) {
    const int channel = NHWC ? index % GROUP_C : index / (FILTER_D * R * S);
    const int position = NHWC ? index / GROUP_C : index % (FILTER_D * R * S);
    const int frame = (FILTER_D > 1 ? position / (R * S) : 0) * DILATION_D;
    const int row = (FILTER_D > 1 ? position % (R * S) : position) / S * DILATION_H;
    const int column = position % S * DILATION_W;
    const int offset = NHWC ? ((frame * H + row) * W + column) * C + channel : ((channel * D + frame) * H + row) * W + column;
    return {offset, static_cast<Index>(row), static_cast<Index>(column), static_cast<Index>(frame)};
}

__device__ __forceinline__ bool inside(const Pixel& pixel, const Tap& tap) {
    bool result = true;
    if constexpr (PADDED_H) result = static_cast<unsigned>(pixel.row + tap.row) < static_cast<unsigned>(H);
    if constexpr (PADDED_W) result = result && static_cast<unsigned>(pixel.column + tap.column) < static_cast<unsigned>(W);
    if constexpr (PADDED_D) result = result && static_cast<unsigned>(pixel.frame + frame_of(tap)) < static_cast<unsigned>(D);
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_implicit_gemm(Input x, Input w, Input bias, Output y, int last) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int n = IMAGE_LAUNCHES ? 1 : last;
    if constexpr (IMAGE_LAUNCHES) {
        x += static_cast<long long>(last) * INPUTS;
        y += static_cast<long long>(last) * (K * PIXELS);
    }
    Tap* const table = reinterpret_cast<Tap*>(smem);  // [TAPS]
    float* const pixel_tiles = reinterpret_cast<float*>(smem + TABLE_BYTES);  // [STAGES][BK][PIXEL_ROW]
    float* const filter_tiles = pixel_tiles + STAGES * BK * PIXEL_ROW;        // [STAGES][BK][FILTER_ROW]

    const int thread = static_cast<int>(threadIdx.x);
    const int tile_m = static_cast<int>(blockIdx.x % TILES_M);
    const int group = static_cast<int>(blockIdx.x / TILES_M % GROUPS);
    const int first_channel = group * GROUP_K + tile_m * BM;
    const int channels_left = GROUP_K - tile_m * BM;
    const long long first_pixel = static_cast<long long>(blockIdx.x / (TILES_M * GROUPS)) * BN;
    const int pixels_left = static_cast<int>(min(static_cast<long long>(n) * PIXELS - first_pixel, static_cast<long long>(BN)));
    const int first_image = static_cast<int>(first_pixel / PIXELS);
    const int skipped = static_cast<int>(first_pixel % PIXELS);  // pixels of the first image in tiles before this one

    const Input input = x + static_cast<long long>(first_image) * INPUTS + group * GROUP_C * (NHWC ? 1 : D * H * W);
    const Input weights = filters_of(w) + first_channel * TAPS;

    // The pixels that this thread loads; those beyond the last image repeat the tile's first one and are not stored.
    Pixel pixels[PIXELS_KEPT];
#pragma unroll
    for (int i = 0; i < PIXELS_KEPT; ++i) {
        const int position = NHWC ? PixelLoad::slow(thread, i) : PixelLoad::fast(thread, i);
        pixels[i] = pixel_at(skipped + (position < pixels_left ? position : 0));
    }
    if constexpr (TABLE) {
        for (int i = thread; i < TAPS; i += THREADS) table[i] = tap_at(i);
        __syncthreads();
    }

    float fetched_pixels[PixelLoad::SLOW_LOADS][PixelLoad::FAST_LOADS];
    float fetched_filters[FilterLoad::SLOW_LOADS][FilterLoad::FAST_LOADS];
    float accumulator[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) accumulator[i][j] = 0.0f;
    }

    // Global memory to registers: this thread's part of a step's tiles, zero beyond the last tap or output channel.
    const auto fetch = [&](int first_tap) {
#pragma unroll
        for (int i = 0; i < PixelLoad::SLOW_LOADS; ++i) {
#pragma unroll
            for (int j = 0; j < PixelLoad::FAST_LOADS; ++j) {
                const int index = first_tap + (NHWC ? PixelLoad::fast(thread, j) : PixelLoad::slow(thread, i));
                float value = 0.0f;
                if (PixelLoad::has(thread, j, i) && (TAPS % BK == 0 || index < TAPS)) {
                    const Pixel& pixel = pixels[NHWC ? i : j];
                    const Tap tap = TABLE ? table[index] : tap_at(index);
                    if (inside(pixel, tap)) value = to_float(input[pixel.offset + tap.offset]);
                }
                fetched_pixels[i][j] = value;
            }
        }

        if constexpr (TILED_FILTERS) {
#pragma unroll
            for (int i = 0; i < FilterLoad::SLOW_LOADS; ++i) {
#pragma unroll
                for (int j = 0; j < FilterLoad::FAST_LOADS; ++j) {
                    const int output_channel = FilterLoad::slow(thread, i);
                    const int index = first_tap + FilterLoad::fast(thread, j);
                    const bool exists = FilterLoad::has(thread, j, i) && (GROUP_K % BM == 0 || output_channel < channels_left) &&
                                        (TAPS % BK == 0 || index < TAPS);
                    fetched_filters[i][j] = exists ? to_float(weights[output_channel * TAPS + index]) : 0.0f;
                }
            }
        }
    };

    // Registers to shared memory.
    const auto put = [&](int stage) {
        float* const pixel_tile = pixel_tiles + stage * (BK * PIXEL_ROW);
#pragma unroll
        for (int i = 0; i < PixelLoad::SLOW_LOADS; ++i) {
#pragma unroll
            for (int j = 0; j < PixelLoad::FAST_LOADS; ++j) {
                const int fast = PixelLoad::fast(thread, j), slow = PixelLoad::slow(thread, i);
                if (PixelLoad::has(thread, j, i)) {
                    pixel_tile[NHWC ? fast * PIXEL_ROW + slow : slow * PIXEL_ROW + fast] = fetched_pixels[i][j];
                }
            }
        }

        if constexpr (TILED_FILTERS) {
            float* const filter_tile = filter_tiles + stage * (BK * FILTER_ROW);
#pragma unroll
            for (int i = 0; i < FilterLoad::SLOW_LOADS; ++i) {
#pragma unroll
                for (int j = 0; j < FilterLoad::FAST_LOADS; ++j) {
                    const int fast = FilterLoad::fast(thread, j), slow = FilterLoad::slow(thread, i);
                    if (FilterLoad::has(thread, j, i)) filter_tile[fast * FILTER_ROW + slow] = fetched_filters[i][j];
                }
            }
        }
    };

    // Neighbouring threads of the multiplication store neighbouring outputs: pixels in nchw, output channels in nhwc.
    const int thread_m = NHWC ? thread % THREADS_M : thread / THREADS_N;
    const int thread_n = NHWC ? thread / THREADS_M : thread % THREADS_N;

    fetch(0);
    put(0);
    __syncthreads();
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        const bool more = step + 1 < STEPS;
        if (STAGES == 2 && more) fetch((step + 1) * BK);

        const float* const pixel_tile = pixel_tiles + step % STAGES * (BK * PIXEL_ROW);
        const float* const filter_tile = filter_tiles + step % STAGES * (BK * FILTER_ROW);
#pragma unroll UNROLL
        for (int k = 0; k < BK; ++k) {
            float pixel[TN], filter[TM];
            load_spread<THREADS_N, PIXEL_VEC>(pixel_tile + k * PIXEL_ROW, thread_n, pixel);
            if constexpr (TILED_FILTERS) {
                load_spread<THREADS_M, FILTER_VEC>(filter_tile + k * FILTER_ROW, thread_m, filter);
            } else {
                const int tap = TAPS % BK == 0 ? step * BK + k : min(step * BK + k, TAPS - 1);  // beyond it, pixels are zero
#pragma unroll
                for (int i = 0; i < TM; ++i) filter[i] = to_float(weights[spread<THREADS_M, FILTER_VEC>(thread_m, i) * TAPS + tap]);
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) accumulator[i][j] = fmaf(filter[i], pixel[j], accumulator[i][j]);
            }
        }

        if (more) {
            if (STAGES == 1) {
                fetch((step + 1) * BK);
                __syncthreads();  // every thread has read the only tile
            }
            put((step + 1) % STAGES);
            __syncthreads();
        }
    }

    // STORE_VEC neighbouring outputs at a time.
#pragma unroll
    for (int j = 0; j < TN; j += NHWC ? 1 : STORE_VEC) {
        const int position = spread<THREADS_N, PIXEL_VEC>(thread_n, j);
        if (position >= pixels_left) continue;
        const int image = (skipped + position) / PIXELS;
        const Output output = NHWC ? y + (first_pixel + position) * K + first_channel
                                      : y + (static_cast<long long>(first_image + image) * K + first_channel) * PIXELS +
                                            (skipped + position) % PIXELS;
#pragma unroll
        for (int i = 0; i < TM; i += NHWC ? STORE_VEC : 1) {
            const int output_channel = spread<THREADS_M, FILTER_VEC>(thread_m, i);
            if (GROUP_K % BM != 0 && output_channel >= channels_left) continue;
            AlignedArray<T, STORE_VEC> stored;
#pragma unroll
            for (int v = 0; v < STORE_VEC; ++v) {
                const float value = NHWC ? accumulator[i + v][j] : accumulator[i][j + v];
                stored.at[v] = from_float<T>(finish<EPILOGUE>(value, bias, first_channel + output_channel + (NHWC ? v : 0)));
            }
            *reinterpret_cast<AlignedArray<T, STORE_VEC>*>(output + output_channel * (NHWC ? 1 : PIXELS)) = stored;
        }
    }
}
