// squeeze_excitation n 3 pixels 35 c 120 squeezed 30 f16
// squeeze_excitation_sm90 block=512 image_blocks=4 vector=8

// Squeeze-and-excitation: y = x * sigmoid(w2 * relu(w1 * mean of x + b1) + b2).
//
//   x   [n, PIXELS, C]  input
//   w1  [SQUEEZED, C]   first layer;   b1 [SQUEEZED]
//   w2  [C, SQUEEZED]   second layer;  b2 [C]
//   y   [n, PIXELS, C]  output
//
//   grid  x: image and block of its cluster, which has BLOCK_CHUNKS chunks of VECTOR channels
//   block x: chunk and pixel, of BLOCK_PIXELS at the same time
//
// A block multiplies its channels' means by its columns of w1. The cluster adds these sums in the order of its blocks, through distributed
// shared memory. So a weight is read once for each image, and a block has all that its channels' factors need. Weights come to shared
// memory while the image is read. Most loops are not unrolled, because each instruction runs once or twice and has to be fetched.

#include "_dtype_f16.cuh"
#include "_epilogue.cuh"
#include "_ptx.cuh"
#include "_ptx_cluster.cuh"

// Problem
constexpr int C = 120, PIXELS = 35, SQUEEZED = 30;

// Parameters
constexpr int BLOCK = 512, IMAGE_BLOCKS = 4, VECTOR = 8;

// Derived
constexpr int CHUNKS = 15, BLOCK_CHUNKS = 4, BLOCK_PIXELS = 128, STEPS = 1;
constexpr int CHANNELS = BLOCK_CHUNKS * VECTOR;                    // of a block
constexpr int PARTS = BLOCK > CHANNELS ? BLOCK / CHANNELS : 1;     // of the sum of a channel
constexpr int SQUEEZED_ROOM = 32, LAYER_BYTES = 1920;
constexpr int ROWS_AT_ONCE = 4;  // of a layer's weights that a warp multiplies at the same time

using Chunk = AlignedArray<T, VECTOR>;
using Sums = AlignedArray<float, 4>;

__device__ __forceinline__ void copy(Chunk* shared, const Chunk* __restrict__ global) {
    if constexpr (sizeof(Chunk) >= 4) {
        copy_async<sizeof(Chunk)>(shared, global);
    } else {
        *shared = *global;
    }
}

// The products of rows of weights, `stride` apart, and a vector; all in shared memory.
__device__ __noinline__ void multiply(const T* weights, const float* vector, float* products, int rows, int columns, int stride) {
    constexpr int WARPS = BLOCK / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int first = warp; first < rows; first += WARPS * ROWS_AT_ONCE) {
        float sums[ROWS_AT_ONCE] = {};
#pragma unroll 1
        for (int column = lane; column < columns; column += 32) {
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                const int row = first + i * WARPS;
                if (row < rows) sums[i] = fmaf(to_float(weights[row * stride + column]), vector[column], sums[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; ++i) {
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], lanes);
            if (lane == 0 && first + i * WARPS < rows) products[first + i * WARPS] = sums[i];
        }
    }
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(BLOCK)
squeeze_excitation_sm90(const T* __restrict__ x, const T* __restrict__ w1, const T* __restrict__ b1, const T* __restrict__ w2,
                        const T* __restrict__ b2, T* __restrict__ y) {
    extern __shared__ __align__(16) unsigned char smem[];
    T* const first_layer = reinterpret_cast<T*>(smem);                        // [SQUEEZED][CHANNELS]
    T* const second_layer = reinterpret_cast<T*>(smem + LAYER_BYTES);         // [channel][SQUEEZED]
    float* const sums = reinterpret_cast<float*>(smem + 2 * LAYER_BYTES);     // [channel of a chunk][pixel][chunk]
    float* const products = sums + BLOCK * VECTOR;                            // of the block's channels and the first layer
    float* const squeezed = products + SQUEEZED_ROOM;                         // of all channels
    float* const first_bias = squeezed + SQUEEZED_ROOM;
    float* const factors = first_bias + SQUEEZED_ROOM;                        // of the channels; the means first
    float* const second_bias = factors + CHANNELS;

    const int thread = threadIdx.x, rank = blockIdx.x % IMAGE_BLOCKS;
    const long long image = blockIdx.x / IMAGE_BLOCKS;
    const int first_chunk = rank * BLOCK_CHUNKS, first_channel = first_chunk * VECTOR;
    const int channels = C - first_channel < CHANNELS ? C - first_channel : CHANNELS;
    const int own = thread % BLOCK_CHUNKS, first_pixel = thread / BLOCK_CHUNKS;
    const bool loads = first_chunk + own < CHUNKS && first_pixel < BLOCK_PIXELS;
    const long long begin = image * PIXELS * CHUNKS + first_chunk + own;

#pragma unroll 1
    for (int i = thread; i < SQUEEZED * BLOCK_CHUNKS; i += BLOCK) {
        const int row = i / BLOCK_CHUNKS, chunk = first_chunk + i % BLOCK_CHUNKS;
        if (chunk < CHUNKS) copy(reinterpret_cast<Chunk*>(first_layer) + i, reinterpret_cast<const Chunk*>(w1) + row * CHUNKS + chunk);
    }
#pragma unroll 1
    for (int i = thread; i < channels / VECTOR * SQUEEZED; i += BLOCK) {
        copy(reinterpret_cast<Chunk*>(second_layer) + i, reinterpret_cast<const Chunk*>(w2) + first_chunk * SQUEEZED + i);
    }
    copy_async_commit();
    Chunk kept[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
        const int pixel = first_pixel + i * BLOCK_PIXELS;
        if (loads && pixel < PIXELS) kept[i] = reinterpret_cast<const Chunk*>(x)[begin + pixel * CHUNKS];
    }
#pragma unroll 1
    for (int i = thread; i < SQUEEZED; i += BLOCK) first_bias[i] = to_float(b1[i]);
#pragma unroll 1
    for (int i = thread; i < channels; i += BLOCK) second_bias[i] = to_float(b2[first_channel + i]);
    if (loads) {
        float own_sums[VECTOR] = {};
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            if (first_pixel + i * BLOCK_PIXELS >= PIXELS) break;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) own_sums[j] += to_float(kept[i].at[j]);
        }
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) sums[j * BLOCK + thread] = own_sums[j];
    }
    __syncthreads();
    const auto sums_of = [&](int i) { return sums + i % CHANNELS / BLOCK_CHUNKS * BLOCK + i % BLOCK_CHUNKS; };
#pragma unroll 1
    for (int i = thread; i < PARTS * CHANNELS; i += BLOCK) {
        float sum = 0.0f;
#pragma unroll 2
        for (int pixel = i / CHANNELS; pixel < BLOCK_PIXELS; pixel += PARTS) sum += sums_of(i)[pixel * BLOCK_CHUNKS];
        sums_of(i)[i / CHANNELS * BLOCK_CHUNKS] = sum;
    }
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < CHANNELS; i += BLOCK) {
        float sum = 0.0f;
#pragma unroll 2
        for (int part = 0; part < PARTS; ++part) sum += sums_of(i)[part * BLOCK_CHUNKS];
        factors[i % BLOCK_CHUNKS * VECTOR + i / BLOCK_CHUNKS] = sum * (1.0f / PIXELS);
    }
    __syncthreads();

    multiply(first_layer, factors, products, SQUEEZED, channels, CHANNELS);
    cluster_sync();
#pragma unroll 1
    for (int i = thread; i < SQUEEZED_ROOM / 4; i += BLOCK) {
        float of_all[4] = {};
#pragma unroll
        for (int block = 0; block < IMAGE_BLOCKS; ++block) {
            const Sums part = load_cluster(reinterpret_cast<const Sums*>(products) + i, block);
#pragma unroll
            for (int j = 0; j < 4; ++j) of_all[j] += part.at[j];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = i * 4 + j;
            if (row < SQUEEZED) squeezed[row] = relu(of_all[j] + first_bias[row]);
        }
    }
    cluster_sync();  // no block has ended while others read its products
    multiply(second_layer, squeezed, factors, channels, SQUEEZED, SQUEEZED);
    __syncthreads();

    if (!loads) return;
    float own_factors[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) own_factors[j] = sigmoid(factors[own * VECTOR + j] + second_bias[own * VECTOR + j]);
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
        const int pixel = first_pixel + i * BLOCK_PIXELS;
        if (pixel >= PIXELS) break;
        Chunk result;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) result.at[j] = from_float<T>(to_float(kept[i].at[j]) * own_factors[j]);
        reinterpret_cast<Chunk*>(y)[begin + pixel * CHUNKS] = result;
    }
}
