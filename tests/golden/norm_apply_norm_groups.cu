// norm_apply n 2 pixels 150 c 60 groups 12 f32 weight_bias_silu
// norm_apply_norm_groups block=512 slices=1 thread_pixels=8 vector=4 channel_slices=1 stores=streaming

// Group norm: y = activation((x - mean) / sqrt(variance + EPS) * weight + bias), with mean and variance of each image and group.
//
//   x          [n, PIXELS, C]       input
//   weight     [C]                  read if WEIGHT
//   bias       [C]                  read if BIAS
//   mean       [n, C]               over the pixels of x; shift is that of a group's first channel
//   variance   [n, C]               over the pixels of x
//   y          [n, PIXELS, C]       output
//
//   grid  x: slice of an image's pixels and channels, all channels of some pixels one after the other
//   block x: chunk of VECTOR channels;  y: pixel, of BLOCK_PIXELS at the same time
//
// A group's variance is the mean of (x - shift)^2 less (mean of x - shift)^2, where shift is the group's first element (Chan, Golub
// and LeVeque 1983): it loses digits only if that one lies many standard deviations from the mean. A mean here is that of x - shift.

#include "_dtype_f32.cuh"
#include "_epilogue.cuh"

// Problem
constexpr int C = 60, PIXELS = 150, GROUPS = 12;
constexpr float EPS = 10000000 * 1e-12;
constexpr bool CENTERED = true;  // whether the mean is subtracted
constexpr bool WEIGHT = true, BIAS = true;

// Parameters
constexpr int SLICES = 1, THREAD_PIXELS = 8, VECTOR = 4, CHANNEL_SLICES = 1;
constexpr bool STREAMING = true;

// Derived
constexpr int SLICE_C = 60, CHUNKS = 15, BLOCK_PIXELS = 34;
constexpr int THREADS = CHUNKS * BLOCK_PIXELS;
constexpr int GROUP = C / GROUPS;  // channels of a group
constexpr int SLICE_GROUPS = GROUPS / CHANNEL_SLICES;

#include "_norm.cuh"

// The most neighbours that are in the same group and chunk, wherever both begin: the greatest common divisor of GROUP and VECTOR.
constexpr int common_divisor(int one, int other) { return other == 0 ? one : common_divisor(other, one % other); }
constexpr int PART = common_divisor(VECTOR, GROUP);
constexpr int PARTS = VECTOR / PART;  // of a chunk

// A chunk as one access.
using Word = uint4;

__device__ __forceinline__ void store(T* to, const Chunk& chunk) {
    if constexpr (STREAMING) {
        Word word;
        __builtin_memcpy(&word, &chunk, sizeof word);
        __stcs(reinterpret_cast<Word*>(to), word);
    } else {
        *reinterpret_cast<Chunk*>(to) = chunk;
    }
}

struct alignas(8) Sums {
    float value, square;  // of x - shift

    __device__ __forceinline__ void add(Sums other) { value += other.value, square += other.square; }
};

// The sums of TERMS terms of each group of a slice by LANES lanes of a warp: finish(group, sums) for the sum of all term(group, i).
template <int TERMS, class Term, class Finish>
__device__ __forceinline__ void sum_each_group(const Term& term, const Finish& finish) {
    constexpr int LANES = TERMS > 16 ? 32 : TERMS > 8 ? 16 : TERMS > 4 ? 8 : TERMS > 2 ? 4 : TERMS;
    constexpr int TEAMS = THREADS / 32 * 32 / LANES;  // of whole warps
    const int thread = threadIdx.y * CHUNKS + threadIdx.x, lane = thread % LANES;
    if (thread >= TEAMS * LANES) return;
    for (int first = 0; first < SLICE_GROUPS; first += TEAMS) {
        const int group = first + thread / LANES;
        Sums sums = {};
        if (group < SLICE_GROUPS) {
            for (int i = lane; i < TERMS; i += LANES) sums.add(term(group, i));
        }
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            sums.add({__shfl_xor_sync(0xffffffffu, sums.value, lanes), __shfl_xor_sync(0xffffffffu, sums.square, lanes)});
        }
        if (lane == 0 && group < SLICE_GROUPS) finish(group, sums);
    }
}

struct Slice {
    long long image;
    int slice, begin, end;   // pixels
    int channel, group;      // the thread's first channel, and the slice's first group

    __device__ __forceinline__ explicit Slice(int block)
        : image(block / CHANNEL_SLICES / SLICES),
          slice(block / CHANNEL_SLICES % SLICES),
          begin(static_cast<long long>(slice) * PIXELS / SLICES),
          end(static_cast<long long>(slice + 1) * PIXELS / SLICES),
          channel(block % CHANNEL_SLICES * SLICE_C + static_cast<int>(threadIdx.x) * VECTOR),
          group(block % CHANNEL_SLICES * SLICE_GROUPS) {}

    // Where the sums of a group of the slice are, as [SLICES].
    __device__ __forceinline__ long long sums(int index) const { return (image * GROUPS + group + index) * SLICES; }
};

// The shift of the group that a channel of an image with these means belongs to.
__device__ __forceinline__ float shift_of(const float* __restrict__ means, int channel) {
    return CENTERED ? means[channel / GROUP * GROUP] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
normalise_groups(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                 const float* __restrict__ mean, const float* __restrict__ variance, T* __restrict__ y, int) {
    __shared__ float mean_of[SLICE_GROUPS], scale_of[SLICE_GROUPS];
    const Slice own(gridDim.x - 1 - blockIdx.x);
    const T* image = x + own.image * PIXELS * C;
    const float* const means_of_image = mean + own.image * C;
    const float* const variances_of_image = variance + own.image * C;
    sum_each_group<GROUP>(
        [&](int group, int i) {
            const int channel = (own.group + group) * GROUP;
            const float shifted = means_of_image[channel + i] - shift_of(means_of_image, channel);
            return Sums{shifted, variances_of_image[channel + i] + shifted * shifted};
        },
        [&](int group, Sums sums) {
            constexpr float COUNT = GROUP;
            const float mean = CENTERED ? sums.value / COUNT : 0.0f;
            mean_of[group] = mean;
            const float variance = sums.square / COUNT - mean * mean;
            scale_of[group] = inverse_deviation(variance < 0.0f ? 0.0f : variance);  // which keeps a NaN
        });
    __syncthreads();

    const int channel = own.channel;
    Affine<WEIGHT, BIAS> affine(weight, bias, channel);
    float shifts[PARTS], means[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        shifts[i] = shift_of(means_of_image, channel + i * PART);
        means[i] = mean_of[(channel + i * PART) / GROUP - own.group];
    }
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) affine.weight[i] *= scale_of[(channel + i) / GROUP - own.group];

    // From the last pixel, which was read last.
    for (int last = own.end - 1 - static_cast<int>(threadIdx.y); last >= own.begin; last -= BLOCK_PIXELS * THREAD_PIXELS) {
        Chunk loaded[THREAD_PIXELS];
#pragma unroll
        for (int i = 0; i < THREAD_PIXELS; ++i) {
            const int pixel = last - i * BLOCK_PIXELS;
            if (pixel >= own.begin) loaded[i] = *reinterpret_cast<const Chunk*>(image + static_cast<long long>(pixel) * C + channel);
        }
#pragma unroll
        for (int i = 0; i < THREAD_PIXELS; ++i) {
            const long long pixel = last - i * BLOCK_PIXELS;
            if (pixel < own.begin) break;
            Chunk result;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                const float deviation = to_float(loaded[i].at[j]) - shifts[j / PART] - means[j / PART];
                result.at[j] = from_float<T>(silu(fmaf(deviation, affine.weight[j], affine.bias[j])));
            }
            store(y + (own.image * PIXELS + pixel) * C + channel, result);
        }
    }
}
