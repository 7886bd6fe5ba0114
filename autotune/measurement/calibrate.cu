// What a device can do at most: copying and filling memory, fused multiply-adds, and tensor-core products.

struct __align__(16) Quad {
    float a, b, c, d;
};

// to[i] = from[i], 16 bytes a thread and step.
extern "C" __global__ void copy_memory(Quad* to, const Quad* from, long long count) {
    for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<long long>(gridDim.x) * blockDim.x)
        to[i] = from[i];
}

// to[i] = value, 16 bytes a thread and step.
extern "C" __global__ void fill_memory(Quad* to, float value, long long count) {
    const Quad quad = {value, value, value, value};
    for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<long long>(gridDim.x) * blockDim.x)
        to[i] = quad;
}

// CHAINS independent chains of `steps` fused multiply-adds a thread: 2 * CHAINS * steps FLOP.
constexpr int CHAINS = 16;

extern "C" __global__ void multiply_add(float* to, float factor, int steps) {
    float sum[CHAINS];
    for (int chain = 0; chain < CHAINS; ++chain) sum[chain] = static_cast<float>(threadIdx.x + chain);
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int chain = 0; chain < 16; ++chain) sum[chain] = fmaf(sum[chain], factor, factor);
    }
    float total = 0.0f;
    for (int chain = 0; chain < CHAINS; ++chain) total += sum[chain];
    if (total == 12345.678f) to[0] = total;  // never; keeps the chains alive
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TENSOR_CORES 1
constexpr int MMA_CHAINS = 8;
#endif

// MMA_CHAINS independent chains of m16n8k8 TF32 products a warp: 2048 FLOP each and step.
extern "C" __global__ void multiply_tf32(float* to, int steps) {
#ifdef TENSOR_CORES
    float sum[MMA_CHAINS][4] = {};
    const unsigned a = threadIdx.x << 13, b = threadIdx.x << 14;
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int chain = 0; chain < MMA_CHAINS; ++chain)
            asm volatile(
                "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%4,%4,%4},{%5,%5},{%0,%1,%2,%3};"
                : "+f"(sum[chain][0]), "+f"(sum[chain][1]), "+f"(sum[chain][2]), "+f"(sum[chain][3])
                : "r"(a), "r"(b));
    }
    float total = 0.0f;
    for (int chain = 0; chain < MMA_CHAINS; ++chain) total += sum[chain][0] + sum[chain][1] + sum[chain][2] + sum[chain][3];
    if (total == 12345.678f) to[0] = total;
#else
    (void)to, (void)steps;
#endif
}

// The same with m16n8k16 FP16 products accumulated in FP32: 4096 FLOP each and step.
extern "C" __global__ void multiply_fp16(float* to, int steps) {
#ifdef TENSOR_CORES
    float sum[MMA_CHAINS][4] = {};
    const unsigned a = threadIdx.x, b = threadIdx.x << 3;
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int chain = 0; chain < MMA_CHAINS; ++chain)
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%4,%4,%4},{%5,%5},{%0,%1,%2,%3};"
                : "+f"(sum[chain][0]), "+f"(sum[chain][1]), "+f"(sum[chain][2]), "+f"(sum[chain][3])
                : "r"(a), "r"(b));
    }
    float total = 0.0f;
    for (int chain = 0; chain < MMA_CHAINS; ++chain) total += sum[chain][0] + sum[chain][1] + sum[chain][2] + sum[chain][3];
    if (total == 12345.678f) to[0] = total;
#else
    (void)to, (void)steps;
#endif
}
