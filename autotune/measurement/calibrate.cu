// What a device can do at most: copying, reading and filling memory, fused multiply-adds, and tensor-core products.

struct __align__(16) Quad {
    float a, b, c, d;
};

// to[i] = from[i], 16 bytes a thread and step.
extern "C" __global__ void copy_memory(Quad* to, const Quad* from, long long count) {
    for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<long long>(gridDim.x) * blockDim.x)
        to[i] = from[i];
}

// to[i] = from[i] in tiles of AHEAD * blockDim.x: a thread reads AHEAD times 16 bytes before it writes any. `tiles` are
// whole. What is streamed leaves the caches first.
constexpr int AHEAD = 4;
#define COPY_AHEAD(NAME, LOAD, STORE)                                                                                   \
    extern "C" __global__ void NAME(float4* __restrict__ to, const float4* __restrict__ from, long long tiles) {        \
        for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {                                            \
            const long long begin = tile * AHEAD * blockDim.x + threadIdx.x;                                            \
            float4 quads[AHEAD];                                                                                        \
            _Pragma("unroll") for (int i = 0; i < AHEAD; ++i) quads[i] = LOAD(&from[begin + i * blockDim.x]);           \
            _Pragma("unroll") for (int i = 0; i < AHEAD; ++i) STORE(&to[begin + i * blockDim.x], quads[i]);             \
        }                                                                                                               \
    }
#define LOAD(from) (*(from))
#define STORE(to, value) (*(to) = (value))
COPY_AHEAD(copy_ahead, LOAD, STORE)
COPY_AHEAD(copy_streamed, __ldcs, __stcs)

// Reads tiles of AHEAD * blockDim.x, as copy_ahead does, and writes nothing.
extern "C" __global__ void read_memory(float* to, const float4* __restrict__ from, long long tiles) {
    float sum = 0.0f;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long begin = tile * AHEAD * blockDim.x + threadIdx.x;
        float4 quads[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) quads[i] = from[begin + i * blockDim.x];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) sum += quads[i].x + quads[i].y + quads[i].z + quads[i].w;
    }
    if (sum == 12345.678f) to[0] = sum;  // never; keeps the reads alive
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

// Operands of tensor cores are random: zeros take less power and run up to 13 % faster.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// Word `index` of random operands, of magnitude 1/8 to 1/2: one TF32, or two elements of 16 bits.
// `kept` are its random bits, `set` those that are one.
__device__ __forceinline__ unsigned random_word(unsigned index, unsigned kept, unsigned set) {
    unsigned bits = index * 0x9e3779b9u + 0x7f4a7c15u;
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    return ((bits ^ bits >> 16) & kept) | set;
}
#endif

#define TF32_BITS 0x80ffe000u, 0x3e000000u
#define F16_BITS 0x87ff87ffu, 0x30003000u
#define BF16_BITS 0x80ff80ffu, 0x3e003e00u

// MMA_CHAINS independent chains of products of a warp, SHAPE m16n8k8 (TF32, 2048 FLOP) or m16n8k16 (4096).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr int MMA_CHAINS = 8;
#define MMA(NAME, SHAPE, TYPE, ...)                                                                                     \
    extern "C" __global__ void NAME(float* to, int steps) {                                                             \
        float sum[MMA_CHAINS][4] = {};                                                                                  \
        unsigned operand[6];                                                                                            \
        for (int i = 0; i < 6; ++i) operand[i] = random_word(threadIdx.x * 6 + i, __VA_ARGS__);                         \
        for (int step = 0; step < steps; ++step) {                                                                      \
            _Pragma("unroll") for (int chain = 0; chain < MMA_CHAINS; ++chain) asm volatile(                            \
                "mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 "                                         \
                "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"                                                    \
                : "+f"(sum[chain][0]), "+f"(sum[chain][1]), "+f"(sum[chain][2]), "+f"(sum[chain][3])                    \
                : "r"(operand[0]), "r"(operand[1]), "r"(operand[2]), "r"(operand[3]), "r"(operand[4]), "r"(operand[5])); \
        }                                                                                                               \
        float total = 0.0f;                                                                                             \
        for (int chain = 0; chain < MMA_CHAINS; ++chain)                                                                \
            total += sum[chain][0] + sum[chain][1] + sum[chain][2] + sum[chain][3];                                     \
        if (total == 12345.678f) to[0] = total;                                                                         \
    }
#else
#define MMA(NAME, SHAPE, TYPE, ...) \
    extern "C" __global__ void NAME(float* to, int steps) { (void)to, (void)steps; }
#endif

MMA(mma_tf32, "m16n8k8", "tf32", TF32_BITS)
MMA(mma_f16, "m16n8k16", "f16", F16_BITS)

// Products of a warpgroup, SHAPE m64n256k8 (TF32, 262144 FLOP) or m64n256k16 (524288), both operands in shared memory:
// WGMMA_PRODUCTS a step, half of them subtracted, so that sums stay as small as a real product's.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int WGMMA_PRODUCTS = 8;
constexpr int ROW_WORDS = 32;  // 128 bytes: four products' share of the reduction, 128-byte swizzled

// Matrix descriptor of 8-row groups of 1024 bytes (PTX ISA, asynchronous warpgroup level matrix shared memory layout).
__device__ __forceinline__ unsigned long long described(const unsigned* rows) {
    const unsigned long long at = static_cast<unsigned>(__cvta_generic_to_shared(rows));
    return at >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

#define SUMS_8(i)                                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define WGMMA_PRODUCT(SHAPE, TYPE, SIGN, TRANSPOSED)                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256" SHAPE ".f32." TYPE "." TYPE " {"                              \
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
                 "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,"   \
                 "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,"   \
                 "%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,"   \
                 "%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,"     \
                 "%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},%128,%129,1," SIGN ",1" TRANSPOSED ";"            \
                 : SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96)                                                  \
                 : "l"(a + 2 * slice), "l"(b + 2 * slice)) /* 32 bytes on */

#define WGMMA(NAME, SHAPE, TYPE, TRANSPOSED, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(256, 1) NAME(float* to, int steps) {                                \
        __shared__ __align__(1024) unsigned operands[(2 * 64 + 256) * ROW_WORDS]; /* a of each warpgroup, b of both */ \
        for (int i = threadIdx.x; i < (2 * 64 + 256) * ROW_WORDS; i += 256)                                          \
            operands[i] = random_word(blockIdx.x * 65536 + i, __VA_ARGS__);                                          \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                                 \
        __syncthreads();                                                                                             \
        const unsigned long long a = described(operands + threadIdx.x / 128 * 64 * ROW_WORDS);                       \
        const unsigned long long b = described(operands + 2 * 64 * ROW_WORDS);                                       \
        float d[128];                                                                                                \
        _Pragma("unroll") for (int i = 0; i < 128; ++i) d[i] = 0.0f;                                                 \
        for (int step = 0; step < steps; ++step) {                                                                   \
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                                  \
            _Pragma("unroll") for (int slice = 0; slice < WGMMA_PRODUCTS / 2; ++slice)                               \
                WGMMA_PRODUCT(SHAPE, TYPE, "1", TRANSPOSED);                                                         \
            _Pragma("unroll") for (int slice = 0; slice < WGMMA_PRODUCTS / 2; ++slice)                               \
                WGMMA_PRODUCT(SHAPE, TYPE, "-1", TRANSPOSED);                                                        \
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                                           \
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");                                           \
        }                                                                                                            \
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                                               \
        float total = 0.0f;                                                                                          \
        _Pragma("unroll") for (int i = 0; i < 128; ++i) {                                                            \
            asm volatile("" : "+f"(d[i])::"memory");                                                                 \
            total += d[i];                                                                                           \
        }                                                                                                            \
        if (total == 12345.678f) to[0] = total;                                                                      \
    }
#else
#define WGMMA(NAME, SHAPE, TYPE, TRANSPOSED, ...) \
    extern "C" __global__ void NAME(float* to, int steps) { (void)to, (void)steps; }
#endif

WGMMA(wgmma_tf32, "k8", "tf32", "", TF32_BITS)
WGMMA(wgmma_f16, "k16", "f16", ",0,0", F16_BITS)
WGMMA(wgmma_bf16, "k16", "bf16", ",0,0", BF16_BITS)
