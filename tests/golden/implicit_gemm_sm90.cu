// conv2d n2 c8 11x13 k24 3x3 pad 1 f16 nhwc
// implicit_gemm_sm90 tile_m=64 tile_n=192 schedule=pingpong window_rows=0 folded=1 epilogue_subtiles=2

// D[k, nopq] = sum over t, r, s, c of W[k, trsc] * X[trsc, nopq]: M = K output channels, N = N*O*P*Q pixels, depth = T*R*S*C; of groups, those of one.
// A = w [K, T, R, S, C], depth-major, TMA tile.  B = x [N, D, H, W, C], depth-major, TMA im2col of one tap, or a TMA window of x for all taps.
// Tile TILE_M x TILE_N; tile space ceil(K / TILE_M) * ceil(N*O*P*Q / TILE_N), or windows of an image in place of pixels.
// Parts: tiles -> _tiles_pixels or _tiles_windows, mainloop -> _mainloop_sm90, epilogue -> _epilogue_sm90.
//
//   x         [N, D, H, W, C]  input; of two dimensions D = T = O = 1
//   w         [K, T, R, S, C]  filters; of several groups, here of a group's channels
//   bias      [K]              read where EPILOGUE has one
//   z         [N, O, P, Q, K]  residual, added where EPILOGUE has one
//   y         [N, O, P, Q, K]  output
//   n         images N, any number
//
// Output channels are the rows of a warpgroup's MMAs and pixels, counted through all images or of a window, their columns, of which there may
// be any multiple of eight: so tiles of TILE_M x TILE_N divide the work evenly between multiprocessors. A block stays and takes
// tiles gridDim.x apart; tiles of the same pixels follow each other, so that these are read once from memory.
//
//   producer   one thread of the first warpgroup: TMA loads TILE_K channels of one tap as a stage, of filters and pixels, or of filters
//              beside windows of x that serve all taps
//   consumers  multiply stages out of shared memory, finish the accumulators in registers, and store them by TMA; with PINGPONG in turn:
//              while one multiplies a tile, the other stores the tile before

#include <cuda_fp16.h>

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <typename T, int N>
struct alignas(N * sizeof(T)) AlignedArray {
    T at[N];
};

__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
    return __float2half_rn(value);
}

using T = __half;  // x, w, bias and y in memory

// What happens to a finished accumulator before it is stored: the output channel's bias and the residual are added, then
// comes the activation. A NaN stays a NaN, and an infinite sum gives the activation's limit.
// Families finish their accumulators with `finish`, or apply the activation's function where they do not.
// An activation is a function here, named by its word in operation.toml; "Epilogues" in docs/templates.md lists what else
// knows it. Needs _element.cuh.

__device__ __forceinline__ float identity(float value) { return value; }

// What is added to an accumulator, and what the sum goes through. With MASKED, outputs are 0 where a tensor of y's shape is not above 0.
template <bool BIAS, bool RESIDUAL, float (*ACTIVATION)(float), bool MASKED = false>
struct Epilogue {
    static constexpr bool HAS_BIAS = BIAS, HAS_RESIDUAL = RESIDUAL, HAS_MASK = MASKED;
    __device__ static __forceinline__ float activate(float value) { return ACTIVATION(value); }
};

// With the output channel's bias in a register.
template <class EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias) {
    if constexpr (EPILOGUE::HAS_BIAS) accumulator += bias;
    return EPILOGUE::activate(accumulator);
}

// And a residual.
template <class EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias, float residual) {
    return EPILOGUE::activate(accumulator + bias + residual);
}

template <class EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k, float residual) {
    return finish<EPILOGUE>(accumulator, to_float(bias[k]), residual);
}

// With bias[k], which is read only where there is one.
template <class EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k) {
    if constexpr (EPILOGUE::HAS_BIAS) accumulator += to_float(bias[k]);
    return EPILOGUE::activate(accumulator);
}

// Asynchronous copies, as instructions on the GPU and as plain copies on the CPU; a barrier of some warps of a block.
//
// copy_async: BYTES (4, 8, 16) from global to shared memory; where `inside` is false nothing is read and zeros come.
// copy_async_first: the first `read` of BYTES; zeros come for the rest.
// A thread's copies since its last commit are a group; copy_async_wait<N> waits until at most N groups are under way.
// bulk_store (sm_90): contiguous bytes from shared to global memory, by one thread; bytes and both addresses are
// multiples of 16. What threads wrote must be made visible to it: fence_bulk in each of them, a barrier, bulk_store.
// sync_threads: as __syncthreads for THREADS threads, whole warps; `id`, 1 to 15, tells barriers of a block apart.
// arrive_threads counts as well, and does not wait.

#ifdef __CUDACC__

template <int THREADS>
__device__ __forceinline__ void sync_threads(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void arrive_threads(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the calling thread's bulk stores, but for the latest GROUPS, have read their shared memory.
template <int GROUPS>
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif
// Barriers that are objects, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
//
// Barrier: an object in shared memory that lets threads wait for others, and for copies, without stopping those
// they wait for. One thread calls barrier_init with the arrivals of a phase; barrier_init_fence and __syncthreads then show
// it to all. Phases are numbered from 0; barrier_wait(b, i & 1) returns once phase i is complete, and must be called before
// phase i + 1 is. bulk_load copies contiguous bytes from global to shared memory, as bulk_store aligned; the phase of its
// barrier completes when the bytes that an arrival by barrier_arrive_expect announced are there, too. Threads that have read
// what a later copy overwrites call fence_bulk before they say so: a load that still waits for its turn reads the new bytes.

#ifdef __CUDACC__
struct alignas(8) Barrier {
    unsigned long long state;
};

__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, int bytes) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned passed;
    do {  // a loop in C++: ptxas needs far more registers around one in PTX
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!passed);
}

#else
#include <autotune_host_ptx.h>
#endif
// Copies of boxes of a tensor by the Tensor Memory Accelerator, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
// Needs _ptx_barrier.cuh, and _ptx.cuh for stores.
//
// TensorMap: a tensor's address, extents, box and swizzle, as the driver encodes them (CUtensorMap): a kernel's parameter
// `const __grid_constant__ TensorMap`. Coordinates count elements, the innermost first; what lies outside of the tensor is read as
// zeros and not written. `shared` is aligned to 1024 bytes; a swizzle of 128 bytes exchanges the 16-byte chunks of a row of 128
// bytes: chunk i of row j lies at i ^ (j % 8).
// tma_load completes the whole box's bytes at the barrier, as bulk_load does. tma_load_im2col reads pixels as a convolution's
// window moves over them: of the box's pixels the first one's window begins at (w, h, n), the next one's a stride further on, in the
// next row or image where a row or an image ends; `s` and `r` are the tap's offsets in the window. With depth `d` and `t`, rows, frames
// and videos end in the same way, and so does a signal without rows.
// tma_store writes a box, as bulk_store does: fence_bulk before, bulk_store_commit and bulk_store_wait_read after it.
// store_staged: words of such a box, into shared memory.

#ifdef __CUDACC__
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ void prefetch_tma_descriptor(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(at)
                 : "memory");
}

__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(at)
        : "memory");
}

__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(at)
        : "memory");
}

__device__ __forceinline__ void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int n, int s) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5], {%6};" ::"r"(to),
        "l"(map), "r"(c), "r"(w), "r"(n), "r"(at), "h"(static_cast<unsigned short>(s))
        : "memory");
}

__device__ __forceinline__ void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int h, int n, int s,
                                                int r) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6], "
        "{%7, %8};" ::"r"(to),
        "l"(map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(at), "h"(static_cast<unsigned short>(s)), "h"(static_cast<unsigned short>(r))
        : "memory");
}

__device__ __forceinline__ void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int h, int d, int n,
                                                int s, int r, int t) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7], "
        "{%8, %9, %10};" ::"r"(to),
        "l"(map), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "r"(at), "h"(static_cast<unsigned short>(s)),
        "h"(static_cast<unsigned short>(r)), "h"(static_cast<unsigned short>(t))
        : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap* map, const void* shared, int c0, int c1) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(c0), "r"(c1), "r"(from)
                 : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap* map, const void* shared, int c0, int c1, int c2, int c3) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map), "r"(c0), "r"(c1),
                 "r"(c2), "r"(c3), "r"(from)
                 : "memory");
}

#else
#include <autotune_host_tma.h>
#endif
// Matrix products of a warpgroup, four warps in a row, as instructions on the GPU (sm_90a) and as plain C++ on the CPU.
//
// MMAs whose operands are not those of _ptx_wgmma_rs.cuh are written where they are used, with wgmma_operand. On the CPU wgmma_TYPE_wide computes them: eight columns of
// b are 128 bytes behind the eight before, the second four words `deeper` bytes behind the first; a is a lane's part, or lies in
// shared memory in the same way.
// MMAs are asynchronous: neither d nor a may be touched between wgmma_begin and wgmma_wait, which waits for what was started
// before wgmma_commit; what threads wrote to b must be made visible before: fence_bulk in each of them and a barrier.
// MMAs since the last commit are a group. wgmma_wait_group<N> waits for all groups but the last N: a of the others may then be
// touched, their accumulators only where no MMAs under way add to them. What is put in a is seen after another wgmma_fence.
// warpgroup_reg_dealloc, warpgroup_reg_alloc: registers a thread has from here on, by all warps of a warpgroup, a multiple of 8.

#ifdef __CUDACC__
template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_keep(float (&d)[COLUMNS][TILES][4]) {
#pragma unroll
    for (int i = 0; i < COLUMNS * TILES * 4; ++i) asm volatile("" : "+f"(d[i / (TILES * 4)][i / 4 % TILES][i % 4])::"memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_begin(float (&d)[COLUMNS][TILES][4]) {
    wgmma_keep(d);
    wgmma_fence();
}

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

template <int COLUMNS, int TILES>
__device__ __forceinline__ void wgmma_wait(float (&d)[COLUMNS][TILES][4]) {
    wgmma_wait_group<0>();
    wgmma_keep(d);
}

template <int REGISTERS>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
#else
#include <autotune_host_ptx.h>
#endif

// Bytes that an address or a distance counts in the descriptor of an operand in shared memory (PTX ISA, matrix descriptor).
[[maybe_unused]] constexpr int DESCRIPTOR_UNIT = 16;

// Operands of a warpgroup's matrix products that lie in shared memory (sm_90a). Needs _ptx_wgmma.cuh.
//
// wgmma_descriptor: of an operand whose rows are ROW_BYTES (128 or 64) of neighbours in depth, row after row, swizzled as TMA does
// with as many bytes. Its first row lies on a multiple of 8 * ROW_BYTES, or on one of ROW_BYTES inside of what TMA wrote, as the swizzle is
// one of addresses. `eight_rows`: bytes from eight rows to the next eight, a multiple of ROW_BYTES.
// Operands that are not swizzled: wgmma_operand.
// store_operand: what a thread writes into an operand. Products see it after fence_bulk in that thread, and a barrier.

#ifdef __CUDACC__
#else
#include <autotune_host_wgmma.h>
#endif

[[maybe_unused]] constexpr int OPERAND_ROW_BYTES = 128;  // of neighbours in depth: what a swizzle of 128 bytes permutes
[[maybe_unused]] constexpr int MMA_DEPTH_BYTES = 32;     // of an operand's row that one MMA multiplies
[[maybe_unused]] constexpr int MMA_ROWS = 64;            // of operand a, and of the accumulators
// Steps of a descriptor: to the next MMA in depth, to the next row, to the next MMA's rows.
[[maybe_unused]] constexpr int DEPTH_STEP = MMA_DEPTH_BYTES / DESCRIPTOR_UNIT;
[[maybe_unused]] constexpr int ROW_STEP = OPERAND_ROW_BYTES / DESCRIPTOR_UNIT;
[[maybe_unused]] constexpr int MMA_ROWS_STEP = MMA_ROWS * OPERAND_ROW_BYTES / DESCRIPTOR_UNIT;

template <int ROW_BYTES = OPERAND_ROW_BYTES>
__device__ __forceinline__ unsigned long long wgmma_descriptor(const void* pointer, int eight_rows = 8 * ROW_BYTES) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "a swizzle is of 128 or 64 bytes");
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(pointer));
    constexpr unsigned long long SWIZZLE = 128 / ROW_BYTES;  // 1 is of 128 bytes, 2 of 64
    return at / DESCRIPTOR_UNIT | static_cast<unsigned long long>(eight_rows / DESCRIPTOR_UNIT) << 32 | SWIZZLE << 62;
}
// A ring of STAGES buffers in shared memory between a producer and its consumers. Names are CUTLASS's (sm90_pipeline.hpp).
// Needs _ptx_barrier.cuh.
//
// A buffer is empty when all its consumers have released it. Each side goes through the buffers in order with a PipelineState of its
// own: the buffer's index, and the parity of the barrier's phase.

template <int STAGES>
struct PipelineState {
    int index = 0;
    int phase = 0;

    // Where a side is after as many ++.
    __device__ __forceinline__ static PipelineState of(int count) { return {count % STAGES, count / STAGES % 2}; }
    __device__ __forceinline__ void operator++() {
        if (++index == STAGES) index = 0, phase ^= 1;
    }
    // As COUNT times ++.
    template <int COUNT>
    __device__ __forceinline__ void advance() {
        index += COUNT % STAGES;
        phase ^= COUNT / STAGES % 2;
        if (index >= STAGES) index -= STAGES, phase ^= 1;
    }
};

// What threads fill: a buffer is full when its producers have committed it.
template <int STAGES>
struct PipelineAsync {
    static_assert(STAGES > 0, "a pipeline has at least one buffer");
    Barrier full[STAGES];
    Barrier empty[STAGES];

    __device__ __forceinline__ void init(int producer_arrivals, int consumer_arrivals) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i, producer_arrivals);
            barrier_init(empty + i, consumer_arrivals);
        }
    }
    // Waits until the buffer is empty, which all are at first.
    __device__ __forceinline__ void producer_acquire(const PipelineState<STAGES>& state) {
        barrier_wait(empty + state.index, state.phase ^ 1);
    }
    // An arrival of a producer that has written its part of the buffer.
    __device__ __forceinline__ void producer_commit(int index) { barrier_arrive(full + index); }
    __device__ __forceinline__ void consumer_wait(const PipelineState<STAGES>& state) { barrier_wait(full + state.index, state.phase); }
    // An arrival of a consumer that reads the buffer no more.
    __device__ __forceinline__ void consumer_release(int index) { barrier_arrive(empty + index); }
};

// What TMA fills: a buffer is full when the bytes that the producer announced have arrived.
template <int STAGES>
struct PipelineTma : PipelineAsync<STAGES> {
    __device__ __forceinline__ void init(int consumer_arrivals) { PipelineAsync<STAGES>::init(1, consumer_arrivals); }
    // Waits until the buffer is empty, and announces what is to arrive.
    __device__ __forceinline__ void producer_acquire(const PipelineState<STAGES>& state, int bytes) {
        PipelineAsync<STAGES>::producer_acquire(state);
        barrier_arrive_expect(this->full + state.index, bytes);
    }
};

// Has consumer warpgroups multiply in turn, the first one first.
template <int GROUPS = 2>
struct OrderedSequenceBarrier {
    Barrier turn[GROUPS];

    __device__ __forceinline__ void init() {
        for (int i = 0; i < GROUPS; ++i) barrier_init(turn + i, 4);
    }
    // Waits for the warpgroup's turn: `phase` is 1 for the first warpgroup at first, which has it at once, and 0 for another.
    __device__ __forceinline__ void wait(int warpgroup, int phase) { barrier_wait(turn + warpgroup, phase); }
    // By a lane of each of its warps: the next one's turn has come.
    __device__ __forceinline__ void arrive(int warpgroup) { barrier_arrive(turn + (GROUPS == 2 ? warpgroup ^ 1 : (warpgroup + 1) % GROUPS)); }
};

// What the families of Hopper's producers and consumer warpgroups begin with. Names are CUTLASS's.

// The warp's number in its block: the same for its lanes, and seen to be, so that the operands of wgmma need uniform registers only.
__device__ __forceinline__ int canonical_warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }

// Tiles of a block that stays, or of a cluster of BLOCKS: `step` apart.
template <int BLOCKS = 1>
struct PersistentTileScheduler {
    __device__ __forceinline__ static int first() { return static_cast<int>(blockIdx.x) / BLOCKS; }
    __device__ __forceinline__ static int step() { return static_cast<int>(gridDim.x) / BLOCKS; }
};

// The beginning of a kernel that may be launched before those before it on the stream have ended (programmatic dependent launch, sm_90), as
// instructions on the GPU and as a note to the driver on the CPU.
//
// begin_dependent, by all threads before they touch global memory: lets the next kernel be launched, and waits until those before have ended and
// what they wrote is seen. Without AUTOTUNE_DEPENDENT_LAUNCH, which exported libraries are compiled with, it is nothing.

#ifdef __CUDACC__
__device__ __forceinline__ void begin_dependent() {
#ifdef AUTOTUNE_DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#else
#include <autotune_host_ptx.h>
#endif

// Results of a warp's matrix products into shared memory, as instructions on the GPU (sm_90) and as plain C++ on the CPU.
//
// store_matrices_trans: four (or two) matrices of 8 x 8 16-bit elements, stored transposed: lane 4 g + t holds elements (g, 2 t) and
// (g, 2 t + 1) of matrix i in d[i], and lane 8 i + j gives the address, a multiple of 16, at which column j of it is stored as 16
// bytes. Of two matrices lanes 0 to 15 give addresses; the others' are ignored.

#ifdef __CUDACC__
__device__ __forceinline__ void store_matrices_trans(void* column, const unsigned (&d)[4]) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(d[0]), "r"(d[1]), "r"(d[2]),
                 "r"(d[3])
                 : "memory");
}

__device__ __forceinline__ void store_matrices_trans(void* column, const unsigned (&d)[2]) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(d[0]), "r"(d[1]) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif

// Fragments of a warp out of shared memory, as an instruction on the GPU and as plain C++ on the CPU.
//
// load_matrices_trans: what store_matrices_trans stored: four (or two) matrices of 8 x 8 16-bit elements. Lane 8 i + j gives the
// address, a multiple of 16, of the 16 bytes of column j of matrix i; lane 4 g + t gets elements (g, 2 t) and (g, 2 t + 1) of it as
// d[i]. Of two matrices lanes 0 to 15 give addresses; the others' are ignored.

#ifdef __CUDACC__
__device__ __forceinline__ void load_matrices_trans(unsigned (&d)[4], const void* column) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_trans(unsigned (&d)[2], const void* column) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(column));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(from) : "memory");
}
#else
#include <autotune_host_ptx.h>
#endif

// Accumulators of a warpgroup's MMAs, whose rows are output channels and whose columns are pixels, into shared memory, from where TMA
// stores them. Needs _epilogue.cuh and an element type of 16 bits.

template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
    const AlignedArray<T, 2> pair = {from_float<T>(low), from_float<T>(high)};
    unsigned word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

template <typename T>
__device__ __forceinline__ float element(unsigned word, int i) {
    AlignedArray<T, 2> pair;
    memcpy(&pair, &word, sizeof word);
    return to_float(pair.at[i]);
}

// Finishes a part of an MMA's accumulators, PIXELS columns from the eight of `first` on, and stages them: a pixel's 64 channels in a row,
// swizzled, or as two boxes, each 32 channels a row. `warp` is the warp's number in its warpgroup; `bias` is that of its channel lane / 4, and of the eighth after it.
// Where the epilogue adds a residual, it lies where the outputs will, and a mask behind them.
template <typename T, class EPILOGUE, int PIXELS, int BOX_CHANNELS = 64, int TILES>
__device__ __forceinline__ void stage_outputs(unsigned char* to, const float (&d)[TILES][4], int first, const float (&bias)[2], int warp,
                                              int lane) {
    // Lane 8 i + j stores a pixel's eight channels as row j of matrix i: of eight pixels the warp's first eight channels and its last.
    constexpr int ROW_BYTES = 2 * BOX_CHANNELS, SWIZZLED = 128 / ROW_BYTES;  // of a box; neighbouring rows whose chunks change places alike
    static_assert(BOX_CHANNELS == 64 || BOX_CHANNELS == 32, "rows are a swizzle's");
    unsigned char* const box = BOX_CHANNELS == 64 ? to : to + warp / 2 * (PIXELS * ROW_BYTES);
    const int part = BOX_CHANNELS == 64 ? warp : warp % 2;
    unsigned char* const column = box + (lane / 16 * 8 + lane % 8) * ROW_BYTES + ((part * 2 + lane / 8 % 2) ^ lane % 8 / SWIZZLED) * 16;
    constexpr int MASK = 64 * PIXELS * static_cast<int>(sizeof(T));  // bytes from an output to its mask
    const auto word = [&](int tile, int half, unsigned z, unsigned mask) {
        const float* const accumulators = d[first + tile] + 2 * half;
        if constexpr (EPILOGUE::HAS_MASK) {
            const auto masked = [&](int i) {
                return element<T>(mask, i) > 0.0f ? finish<EPILOGUE>(accumulators[i], bias[half], element<T>(z, i)) : 0.0f;
            };
            return pack<T>(masked(0), masked(1));
        } else if constexpr (EPILOGUE::HAS_RESIDUAL) {
            return pack<T>(finish<EPILOGUE>(accumulators[0], bias[half], element<T>(z, 0)),
                           finish<EPILOGUE>(accumulators[1], bias[half], element<T>(z, 1)));
        } else {
            return pack<T>(finish<EPILOGUE>(accumulators[0], bias[half]), finish<EPILOGUE>(accumulators[1], bias[half]));
        }
    };
#pragma unroll
    for (int tile = 0; tile < PIXELS / 16 * 2; tile += 2) {
        unsigned z[4] = {}, mask[4] = {};
        if constexpr (EPILOGUE::HAS_RESIDUAL) load_matrices_trans(z, column + tile * (8 * ROW_BYTES));
        if constexpr (EPILOGUE::HAS_MASK) load_matrices_trans(mask, column + tile * (8 * ROW_BYTES) + MASK);
        store_matrices_trans(column + tile * (8 * ROW_BYTES), {word(tile, 0, z[0], mask[0]), word(tile, 1, z[1], mask[1]),
                                                               word(tile + 1, 0, z[2], mask[2]), word(tile + 1, 1, z[3], mask[3])});
    }
    if constexpr (PIXELS % 16 > 0) {
        constexpr int LAST = PIXELS / 8 - 1;
        // Lanes of the first two matrices give the addresses.
        unsigned char* const last = box + (LAST * 8 + lane % 8) * ROW_BYTES + ((part * 2 + lane / 8 % 2) ^ lane % 8 / SWIZZLED) * 16;
        unsigned z[2] = {}, mask[2] = {};
        if constexpr (EPILOGUE::HAS_RESIDUAL) load_matrices_trans(z, last);
        if constexpr (EPILOGUE::HAS_MASK) load_matrices_trans(mask, last + MASK);
        store_matrices_trans(last, {word(LAST, 0, z[0], mask[0]), word(LAST, 1, z[1], mask[1])});
    }
}

// The epilogue of a consumer warpgroup, what CUTLASS's CollectiveEpilogue does: it finishes accumulators, whose rows are output channels, in
// subtiles, stages these in shared memory and stores them by TMA. Needs _epilogue.cuh and _epilogue_tma_*.cuh.

// A lane's biases of BLOCKS times 64 output channels from `channel` on, or each FOLD the same; `warp` is the warp's number.
template <class EPILOGUE, int CHANNELS, int FOLD = 0, int BLOCKS, typename T>
__device__ __forceinline__ void load_biases(float (&biases)[BLOCKS][2], const T* __restrict__ bias, int channel, int warp, int lane) {
    if constexpr (EPILOGUE::HAS_BIAS) {
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; ++i) {
            const int row = i / 2 * 64 + warp % 4 * 16 + i % 2 * 8 + lane / 4, own = channel + (FOLD > 0 ? row % FOLD : row);
            biases[i / 2][i % 2] = own < CHANNELS ? to_float(bias[own]) : 0.0f;
        }
    }
}

// Where outputs begin: a column, or a column of a row of an image, or the like.
struct Place {
    int column, row, image;
};

// Where the box lies that begins `further` columns of a tile on, from the tile's first.
struct ByColumns {
    __device__ __forceinline__ static int columns(int further) { return further; }
    __device__ __forceinline__ static int rows(int) { return 0; }
};

// Boxes of output channels by columns; of columns of a row of an image, or the like.
struct Boxes2d : ByColumns {
    __device__ __forceinline__ static void load(unsigned char* to, const TensorMap& map, Barrier* full, int channel, int column, int, int) {
        tma_load(to, &map, full, channel, column);
    }
    __device__ __forceinline__ static void store(const TensorMap& map, const unsigned char* from, int channel, int column, int, int) {
        tma_store(&map, from, channel, column);
    }
};

// Of BLOCKS times 64 output channels, SUBTILES times COLUMNS columns each, in STAGES epilogue stages. A subtile is boxes of 128 bytes of
// output channels, or of FOLD of them, which Boxes loads and stores. Where a tile is: its first channel, its first column, and what else Boxes needs.
template <typename T, class EPILOGUE, class Boxes, int BLOCKS, int SUBTILES, int COLUMNS, int STAGES, int RESIDUAL_BYTES = 0, int FOLD = 128 / static_cast<int>(sizeof(T))>
struct CollectiveEpilogue {
    static constexpr int BOX_CHANNELS = FOLD, BOXES = 64 / BOX_CHANNELS, BOX_BYTES = COLUMNS * BOX_CHANNELS * static_cast<int>(sizeof(T));
    static constexpr int STAGE_BYTES = (EPILOGUE::HAS_MASK ? 2 : 1) * BOXES * BOX_BYTES;  // a mask lies behind the outputs
    static_assert(STAGES == 1 || STAGES == 2, "outputs have one or two epilogue stages");
    static_assert(COLUMNS % 8 == 0, "a subtile is a multiple of 8 columns, as an MMA's accumulators are");

    // Stages a subtile, and stores it by the warpgroup's first thread; `staged`: the warp has output channels that exist.
    template <int TILES>
    __device__ __forceinline__ static void store_subtile(const float (&d)[TILES][4], const float (&biases)[2], unsigned char* to, int subtile,
                                                         const TensorMap& map, int channel, int column, int row, int image, int consumer,
                                                         int warp, int lane, bool staged = true) {
        if (staged) stage_outputs<T, EPILOGUE, COLUMNS, BOX_CHANNELS>(to, d, subtile * (COLUMNS / 8), biases, warp % 4, lane);
        fence_bulk();
        sync_threads<128>(1 + consumer);
        if (threadIdx.x % 128 == 0) {
#pragma unroll
            for (int box = 0; box < BOXES; ++box) {
                Boxes::store(map, to + box * BOX_BYTES, channel + box * BOX_CHANNELS, column + Boxes::columns(subtile * COLUMNS),
                             row + Boxes::rows(subtile * COLUMNS), image);
            }
            bulk_store_commit();
        }
    }
    // Stores a tile; goes on with the epilogue stage `stage`.
    template <int TILES>
    __device__ __forceinline__ static void store(const float (&d)[BLOCKS][TILES][4], const float (&biases)[BLOCKS][2], unsigned char* stages,
                                                 int& stage, const TensorMap& map, int channel, int column, int row, int image, int consumer,
                                                 int warp, int lane, bool staged = true) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int subtile = 0; subtile < SUBTILES; ++subtile) {
                if (threadIdx.x % 128 == 0) bulk_store_wait_read<STAGES - 1>();
                sync_threads<128>(1 + consumer);
                store_subtile(d[i], biases[i], stages + stage * STAGE_BYTES, subtile, map, channel + i * 64, column, row, image, consumer, warp, lane,
                              staged);
                stage ^= STAGES - 1;
            }
        }
    }

    // A residual, of which TMA brings RESIDUAL_BYTES, lies where the outputs will that it is added to; `full` says of a stage that it has come.
    // Loads that of the i-th of all subtiles, and its mask if there is one.
    template <class... Mask>
    __device__ __forceinline__ static void load_subtile(unsigned char* stages, Barrier* full, int i, int stage, int channel, int column, int row,
                                                        int image, const TensorMap& map, const Mask&... mask) {
        const int further = i % SUBTILES * COLUMNS;
        barrier_arrive_expect(full + stage, RESIDUAL_BYTES * (1 + static_cast<int>(sizeof...(mask))));
        unsigned char* to = stages + stage * STAGE_BYTES;
        const auto load_boxes = [&](const TensorMap& from) {
#pragma unroll
            for (int box = 0; box < BOXES; ++box, to += BOX_BYTES) {
                Boxes::load(to, from, full + stage, channel + i / SUBTILES * 64 + box * BOX_CHANNELS, column + Boxes::columns(further),
                            row + Boxes::rows(further), image);
            }
        };
        load_boxes(map);
        (load_boxes(mask), ...);
    }
    // Starts to load a tile's residual, of as many subtiles as there are stages.
    template <class Load>
    __device__ __forceinline__ static void load(const PipelineState<STAGES>& state, const Load& load_subtile) {
        if (threadIdx.x % 128 > 0) return;
        bulk_store_wait_read<0>();  // the outputs of the tile before
        PipelineState<STAGES> next = state;
#pragma unroll
        for (int i = 0; i < STAGES; ++i, ++next) load_subtile(i, next.index);
    }
    // Stores a tile whose residual is being loaded, and loads what is left of that.
    template <int TILES, class Load>
    __device__ __forceinline__ static void store(const float (&d)[BLOCKS][TILES][4], const float (&biases)[BLOCKS][2], unsigned char* stages,
                                                 PipelineState<STAGES>& state, Barrier* full, const Load& load_subtile, const TensorMap& map,
                                                 int channel, int column, int row, int image, int consumer, int warp, int lane) {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
            for (int subtile = 0; subtile < SUBTILES; ++subtile, ++state) {
                barrier_wait(full + state.index, state.phase);
                store_subtile(d[i], biases[i], stages + state.index * STAGE_BYTES, subtile, map, channel + i * 64, column, row, image, consumer,
                              warp, lane);
                const int next = i * SUBTILES + subtile + STAGES;
                if (threadIdx.x % 128 == 0 && next < BLOCKS * SUBTILES) {
                    bulk_store_wait_read<0>();
                    load_subtile(next, state.index);
                }
            }
        }
    }
};

// Problem
constexpr int CHANNELS = 8;  // that an output channel is made of; of packed groups with those of the groups beside it
constexpr int K = 24, R = 3, S = 3, TAPS = 9;
[[maybe_unused]] constexpr int D = 1;
[[maybe_unused]] constexpr int O = 1, P = 11, Q = 13;  // of what TMA takes for an image
[[maybe_unused]] constexpr int PIXELS = 143;                           // of an image
[[maybe_unused]] constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 1, PAD_W = 1;
constexpr int DILATION_H = 1, DILATION_W = 1;
[[maybe_unused]] constexpr bool DEEP = false, FLAT = false;  // of three dimensions, of one
[[maybe_unused]] constexpr int STRIDE_D = 1, PAD_D = 0, DILATION_D = 1;
constexpr int GROUPS = 1, GROUP_C = 8, GROUP_K = 24;
[[maybe_unused]] constexpr bool POINTWISE = false;
using EPILOGUE = Epilogue<false, false, identity>;

// Parameters
constexpr int TILE_M = 64, TILE_N = 192, TILE_K = 64;
constexpr int STAGES = 5;
constexpr bool PINGPONG = true;
constexpr int WINDOW_ROWS = 0, WINDOWS = 0;
constexpr bool WINDOWED = WINDOWS > 0;
[[maybe_unused]] constexpr bool STRIP = false;  // windows are of eight columns
[[maybe_unused]] constexpr int IMAGE_TILES = 1, STRIPS = 1, WINDOW_IMAGES = 1;  // of windows

// Derived
constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);  // warpgroups, and the producer's
constexpr int GROUP_M = 64, GROUP_N = 192;                 // what one computes of a tile
constexpr int BLOCKS_M = GROUP_M / 64;                                    // MMAs side by side
constexpr int EPILOGUE_N = 96, EPILOGUE_STAGES = 2;   // pixels staged at once
constexpr int CHANNEL_TILES = 1, K_TILES = 9 * CHANNEL_TILES;
constexpr int K_BLOCKS = 1;  // MMAs in depth of a stage: none of padding alone
[[maybe_unused]] constexpr bool JOINED_TAPS = false;          // a stage has filters of several taps
[[maybe_unused]] constexpr int TAP_BLOCKS = 1;             // MMAs in depth of a tap, of one channel tile
[[maybe_unused]] constexpr int LAST_K_BLOCKS = 1;       // of the last channels
constexpr int TILES_M = 1;
[[maybe_unused]] constexpr bool AS_STORED = false;  // filters are [C, T, R, S, K]
constexpr int PITCH = 14;  // of a window's rows
[[maybe_unused]] constexpr int FOLDED = 1, FOLD = 64 / FOLDED;  // rows of outputs that are rows of an MMA, FOLD of it each
[[maybe_unused]] constexpr int PIXEL_BYTES = 128;  // of a window
constexpr int WINDOW_BYTES = 28672;
constexpr int STAGE_BYTES = 32768;
constexpr int RESIDUAL_BYTES = (WINDOWED && !STRIP ? WINDOW_ROWS * PITCH : EPILOGUE_N) * 64 * static_cast<int>(sizeof(T));  // that TMA brings
constexpr int RELEASES = 4 * (PINGPONG ? 1 : CONSUMERS);  // of a stage, by warps
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

using WindowPipeline = PipelineTma<WINDOWED ? WINDOWS : 1>;

// d = w [64 x 16] * x [16 x GROUP_N] (+ d), operands in shared memory.
__device__ __forceinline__ void mma(float (&d)[24][4], unsigned long long a, unsigned long long b, bool accumulate) {
#ifdef __CUDACC__
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %98, 0; "
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {"
        "%0, %1, %2, %3, "
        "%4, %5, %6, %7, "
        "%8, %9, %10, %11, "
        "%12, %13, %14, %15, "
        "%16, %17, %18, %19, "
        "%20, %21, %22, %23, "
        "%24, %25, %26, %27, "
        "%28, %29, %30, %31, "
        "%32, %33, %34, %35, "
        "%36, %37, %38, %39, "
        "%40, %41, %42, %43, "
        "%44, %45, %46, %47, "
        "%48, %49, %50, %51, "
        "%52, %53, %54, %55, "
        "%56, %57, %58, %59, "
        "%60, %61, %62, %63, "
        "%64, %65, %66, %67, "
        "%68, %69, %70, %71, "
        "%72, %73, %74, %75, "
        "%76, %77, %78, %79, "
        "%80, %81, %82, %83, "
        "%84, %85, %86, %87, "
        "%88, %89, %90, %91, "
        "%92, %93, %94, %95"
        "}, %96, %97, p, 1, 1, 0, 0;}"
        :
        "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
        "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
        "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]),
        "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3]),
        "+f"(d[16][0]), "+f"(d[16][1]), "+f"(d[16][2]), "+f"(d[16][3]),
        "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3]),
        "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]),
        "+f"(d[19][0]), "+f"(d[19][1]), "+f"(d[19][2]), "+f"(d[19][3]),
        "+f"(d[20][0]), "+f"(d[20][1]), "+f"(d[20][2]), "+f"(d[20][3]),
        "+f"(d[21][0]), "+f"(d[21][1]), "+f"(d[21][2]), "+f"(d[21][3]),
        "+f"(d[22][0]), "+f"(d[22][1]), "+f"(d[22][2]), "+f"(d[22][3]),
        "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3])
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));

#else
    wgmma_f16_shared(d, a, b, accumulate);
#endif
}

// The main loop of a consumer warpgroup, what CUTLASS's CollectiveMma does. Needs above it the function mma of _wgmma.jinja, d (+)= a * b.

// d = the products of k tiles `begin` to `end`, a stage each, whose MMAs are under way when it returns; returned is the last stage, which is not released.
// Descriptors a and b are of the first stage, d[i] has the rows of a from 64 i on. Mma says how a stage is waited for, multiplied and
// released, and what follows: of `more`, where operands lie elsewhere, too. Mma::multiply commits: where branches of it join before the commit,
// the compiler ends a group in each of them, and the wait below would be for all MMAs. Arguments, not members or closures, after which the compiler
// numbers registers as it would without a function.
template <class Mma, int STAGES, int BLOCKS, int TILES, class... More>
__device__ __forceinline__ int collective_mma(float (&d)[BLOCKS][TILES][4], PipelineTma<STAGES>& pipeline, PipelineState<STAGES>& state,
                                              unsigned long long a, unsigned long long b, int begin, int end, int lane,
                                              More&... more) {
    wgmma_begin(d);
    int last = 0;  // stage whose MMAs are under way
#pragma unroll 1
    for (int k_tile = begin; k_tile < end; ++k_tile, ++state) {
        Mma::wait(pipeline, state, more...);
        wgmma_fence();
        Mma::multiply(d, a, b, state.index, k_tile > begin, more...);
        if (k_tile > begin) {
            wgmma_wait_group<1>();
            Mma::release(pipeline, last, lane, more...);
        }
        last = state.index;
        Mma::next(more...);
    }
    return last;
}

// Of descriptors, from MMA to MMA in depth. A transposed operand's row is one step in depth, an MMA 16 of them.
template <bool TRANSPOSED>
constexpr int OPERAND_STEP = TRANSPOSED ? 16 * ROW_STEP : DEPTH_STEP;

// Operands that lie in the same stage, K_BLOCKS MMAs in depth: rows of ROW_BYTES of neighbours in depth, or TRANSPOSED, rows that are
// the depth.
template <int STAGE_BYTES, int K_BLOCKS, bool A_TRANSPOSED = false, bool B_TRANSPOSED = false, int ROW_BYTES = OPERAND_ROW_BYTES>
struct StagedMma {
    static_assert(STAGE_BYTES % (8 * ROW_BYTES) == 0, "a stage begins where the pattern of the swizzle does, every 8 rows");
    static_assert(K_BLOCKS * MMA_DEPTH_BYTES <= ROW_BYTES, "a stage is one operand row deep");
    static constexpr int ROWS_STEP = MMA_ROWS * ROW_BYTES / DESCRIPTOR_UNIT;

    template <int STAGES, class... More>
    __device__ __forceinline__ static void wait(PipelineTma<STAGES>& pipeline, const PipelineState<STAGES>& state, More&...) {
        pipeline.consumer_wait(state);
    }
    template <int BLOCKS, int TILES, class... More>
    __device__ __forceinline__ static void multiply(float (&d)[BLOCKS][TILES][4], unsigned long long a, unsigned long long b, int index,
                                                    bool accumulate, More&...) {
#pragma unroll
        for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
            const int at = index * (STAGE_BYTES / DESCRIPTOR_UNIT);
            const int a_at = at + k_block * OPERAND_STEP<A_TRANSPOSED>, b_at = at + k_block * OPERAND_STEP<B_TRANSPOSED>;
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) mma(d[i], a + (a_at + i * ROWS_STEP), b + b_at, accumulate || k_block > 0);
        }
        wgmma_commit();
    }
    template <int STAGES, class... More>
    __device__ __forceinline__ static void release(PipelineTma<STAGES>& pipeline, int index, int lane, More&...) {
        if (lane == 0) pipeline.consumer_release(index);
    }
    // As `release`, of a tile's last stage.
    template <int STAGES, class... More>
    __device__ __forceinline__ static void release_tile(PipelineTma<STAGES>& pipeline, int index, int lane, More&...) {
        if (lane == 0) pipeline.consumer_release(index);
    }
    template <class... More>
    __device__ __forceinline__ static void next(More&...) {}
};

// Of x, for the output channels from k on.
__device__ __forceinline__ int first_channel(int k) { return GROUPS > 1 ? k / GROUP_K * GROUP_C : 0; }

// A stage's filters: TILE_M rows, loaded ROWS at a time; with ROWS = 0 those of a transposed convolution, of which 64 output channels are TILE_K
// rows, with the taps in the opposite order. Rows of no output channel are not loaded, because TMA takes time to write zeros, too:
// what they hold only reaches outputs that are not stored. Needs _sm90.cuh and the family's constants.

// The bytes that load_filters brings for the output channels from k on.
template <int ROWS>
__device__ __forceinline__ int filter_bytes(int k) {
    const int rows = ROWS == TILE_M || k + TILE_M <= K ? TILE_M : K - k;
    return (ROWS == 0 ? (rows + 63) / 64 * 64 : rows) * OPERAND_ROW_BYTES;
}

template <int ROWS>
__device__ __forceinline__ void load_filters(unsigned char* to, const TensorMap& w_map, Barrier* full, int c, int tap, int k) {
    constexpr int STEP = ROWS == 0 ? 64 : ROWS;
    static_assert(ROWS == TILE_M || ROWS == 0 || K % STEP == 0, "loads have no row of zeros");
#pragma unroll
    for (int row = 0; row < TILE_M; row += STEP) {
        if (row > 0 && k + row >= K) break;
        unsigned char* const rows = to + row * OPERAND_ROW_BYTES;
        if constexpr (ROWS == 0) {
            tma_load(rows, &w_map, full, k + row, TAPS - 1 - tap, c);
        } else {
            tma_load(rows, &w_map, full, c, tap, k + row);
        }
    }
}

// Stages of filters and of pixels of one tap, as TMA loads them. Needs _sm90.cuh, first_channel for `produce`,
// and the family's constants.

// Where the window of a pixel begins in an image.
struct Corner {
    int image, top, left, front;
};

// The corner of a pixel, counted through all images.
__device__ __forceinline__ Corner window_corner(int pixel) {
    Corner corner;
    corner.image = pixel / (O * P * Q);
    corner.top = pixel % (P * Q) / Q * STRIDE_H - PAD_H;
    corner.left = pixel % Q * STRIDE_W - PAD_W;
    corner.front = DEEP ? pixel % (O * P * Q) / (P * Q) * STRIDE_D - PAD_D : 0;
    return corner;
}

// Loads a box of pixels from `pixel` on.
__device__ __forceinline__ void load_pixels(unsigned char* to, const TensorMap& x_map, Barrier* full, int channel, int pixel,
                                            const Corner& corner, int tap) {
    if constexpr (POINTWISE) {
        tma_load(to, &x_map, full, channel, pixel);
    } else if constexpr (FLAT) {
        tma_load_im2col(to, &x_map, full, channel, corner.left, corner.image, tap * DILATION_W);
    } else if constexpr (DEEP) {
        tma_load_im2col(to, &x_map, full, channel, corner.left, corner.top, corner.front, corner.image, tap % S * DILATION_W,
                        tap / S % R * DILATION_H, tap / (R * S) * DILATION_D);
    } else {
        tma_load_im2col(to, &x_map, full, channel, corner.left, corner.top, corner.image, tap % S * DILATION_W, tap / S * DILATION_H);
    }
}

// Loads all stages of the block's tiles: FILTERS parts of the filters, or one of FILTER_ROWS at a time, then pixels.
template <int FILTERS = 1, int FILTER_ROWS = TILE_M, class Maps, class... Windows>
__device__ __forceinline__ void produce(unsigned char* stages, PipelineTma<STAGES>& pipeline, const Maps& x_map, const TensorMap& w_map,
                                        int tiles, Windows...) {
    constexpr int MOST_BOX = 256;  // pixels, TMA's limit
    constexpr int BOXES = (TILE_N + MOST_BOX - 1) / MOST_BOX, BOX = TILE_N / BOXES, W_BYTES = FILTERS * TILE_M * OPERAND_ROW_BYTES;
    static_assert(BOXES * BOX == TILE_N, "boxes of pixels divide a tile");
    using Scheduler = PersistentTileScheduler<>;
    PipelineState<STAGES> state;
    for (int index = Scheduler::first(); index < tiles; index += Scheduler::step()) {
        const int k = index % TILES_M * TILE_M, pixel = index / TILES_M * TILE_N;
        Corner corners[BOXES] = {};  // of the first pixels
#pragma unroll
        for (int i = 0; !POINTWISE && i < BOXES; ++i) corners[i] = window_corner(pixel + i * BOX);
#pragma unroll 1
        for (int tap = 0; tap < TAPS; ++tap) {
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c += TILE_K, ++state) {
                pipeline.producer_acquire(state, (FILTERS == 1 ? filter_bytes<FILTER_ROWS>(k) : W_BYTES) + TILE_N * OPERAND_ROW_BYTES);
                unsigned char* const stage = stages + state.index * STAGE_BYTES;
                Barrier* const full = pipeline.full + state.index;
                if constexpr (FILTERS == 1) {
                    load_filters<FILTER_ROWS>(stage, w_map, full, c, tap, k);
                } else {
                    tma_load(stage, &w_map, full, c, tap, k, 0);
                }
#pragma unroll
                for (int i = 0; i < BOXES; ++i) {
                    unsigned char* const to = stage + W_BYTES + i * (BOX * OPERAND_ROW_BYTES);
                    load_pixels(to, x_map, full, first_channel(k) + c, pixel + i * BOX, corners[i], tap);
                }
            }
        }
    }
}

// Tiles of TILE_N pixels, counted through all images: each stage has the pixels of one tap. Needs _mainloop_sm90.cuh,
// _epilogue_sm90.cuh, first_channel and the family's constants.

__device__ __forceinline__ int tiles_of(int n) { return (n * PIXELS + TILE_N - 1) / TILE_N * TILES_M; }

using Boxes = Boxes2d;

// Where a tile's outputs begin, from its pixel `first` on.
__device__ __forceinline__ Place place_of(int index, int first) { return {index / TILES_M * TILE_N + first, 0, 0}; }

// The operand of a stage's pixels, from `first` on.
__device__ __forceinline__ unsigned long long pixels_operand(const unsigned char* pixels, int first) { return wgmma_descriptor(pixels + first * OPERAND_ROW_BYTES); }

// Of a tile; there are no windows.
struct Window {
    __device__ __forceinline__ void begin_tile() {}
    __device__ __forceinline__ void skip_tile() {}
};

using Mma = StagedMma<STAGE_BYTES, K_BLOCKS, AS_STORED>;

// No windows, no zeros behind them.
__device__ __forceinline__ void clear_behind_windows(unsigned char*) {}

using EpilogueTma = CollectiveEpilogue<T, EPILOGUE, Boxes, BLOCKS_M, GROUP_N / EPILOGUE_N, EPILOGUE_N, EPILOGUE_STAGES, RESIDUAL_BYTES>;
extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_implicit_gemm_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                          const __grid_constant__ TensorMap y_map, const T* __restrict__ bias, int n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* const windows = smem;                             // [window] pixels [WINDOW_BYTES / PIXEL_BYTES][PIXEL_BYTES]
    unsigned char* const stages = windows + WINDOWS * WINDOW_BYTES;  // [stage] filters [TILE_M][TILE_K], then pixels [TILE_N][TILE_K]
    unsigned char* const epilogue_stages = stages + STAGES * STAGE_BYTES;  // [consumer][epilogue stage][box] outputs [EPILOGUE_N][TILE_K]
    unsigned char* const barriers = epilogue_stages + CONSUMERS * EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES;
    PipelineTma<STAGES>& pipeline = *reinterpret_cast<PipelineTma<STAGES>*>(barriers);
    WindowPipeline& window_pipeline = *reinterpret_cast<WindowPipeline*>(&pipeline + 1);
    auto& mainloop_order = *reinterpret_cast<OrderedSequenceBarrier<>*>(reinterpret_cast<Barrier*>(&pipeline + 1) + 2 * WINDOWS);
    using Residuals = Barrier[CONSUMERS][EPILOGUE_STAGES];  // have come
    Residuals& residuals = *reinterpret_cast<Residuals*>(&mainloop_order + (PINGPONG ? 1 : 0));

    const int warp = canonical_warp_index(), group = warp / 4;
    const int tiles = tiles_of(n);
    if (group == 0) {
        if (threadIdx.x == 0) {
            pipeline.init(RELEASES);
            if constexpr (WINDOWED) window_pipeline.init(RELEASES);
            if constexpr (PINGPONG) mainloop_order.init();
            if constexpr (EPILOGUE::HAS_RESIDUAL) {
                for (int i = 0; i < CONSUMERS * EPILOGUE_STAGES; ++i) barrier_init(&residuals[0][0] + i, 1);
            }
            barrier_init_fence();
        }
        __syncwarp();
        arrive_threads<THREADS>(CONSUMERS + 1);  // and the first loads are under way before the others come
        begin_dependent();
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce<1, 24>(stages, pipeline, x_map, w_map, tiles, windows, &window_pipeline);
        return;
    }
    clear_behind_windows(windows);
    sync_threads<THREADS>(CONSUMERS + 1);  // for the barriers
    begin_dependent();
    warpgroup_reg_alloc<CONSUMER_REGISTERS>();
    const int consumer = group - 1, thread = static_cast<int>(threadIdx.x) % 128, lane = static_cast<int>(threadIdx.x) % 32;
    // What is this warpgroup's of a tile.
    const int group_m = !PINGPONG && TILE_M > 64 ? consumer * GROUP_M : 0;
    const int group_n = GROUP_N < TILE_N ? consumer * GROUP_N : 0;
    const unsigned long long w_operand = wgmma_descriptor(stages + group_m * OPERAND_ROW_BYTES);
    const unsigned long long x_operand = pixels_operand(WINDOWED ? windows : stages + TILE_M * OPERAND_ROW_BYTES, group_n);
    unsigned char* const outputs = epilogue_stages + consumer * (EPILOGUE_STAGES * EpilogueTma::STAGE_BYTES);
    if (thread == 0) prefetch_tma_descriptor(&y_map);

    PipelineState<STAGES> state;
    [[maybe_unused]] PipelineState<EPILOGUE_STAGES> residual;
    [[maybe_unused]] int epilogue_stage = 0;
    Window window;
    int order_phase = consumer ^ 1;  // the first warpgroup's first turn is at once
    using Scheduler = PersistentTileScheduler<>;
    if (PINGPONG && consumer == 1) {
        state.advance<K_TILES>();
        window.skip_tile();
    }
    const int first_tile = Scheduler::first() + (PINGPONG ? consumer * Scheduler::step() : 0);
    for (int index = first_tile; index < tiles; index += (PINGPONG ? 2 : 1) * Scheduler::step()) {
        const int k = index % TILES_M * TILE_M + group_m;
        const Place at = place_of(index, group_n);
        float biases[BLOCKS_M][2] = {};
        load_biases<EPILOGUE, K>(biases, bias, k, warp, lane);
        float d[BLOCKS_M][GROUP_N / 8][4];
        if constexpr (PINGPONG) {
            mainloop_order.wait(consumer, order_phase);
            order_phase ^= 1;
        }
        window.begin_tile();
        const int last = collective_mma<Mma>(d, pipeline, state, w_operand, x_operand, 0, K_TILES, lane, window_pipeline, window);
        if (PINGPONG && lane == 0) mainloop_order.arrive(consumer);
        wgmma_wait(d);
        Mma::release_tile(pipeline, last, lane, window_pipeline, window);
        if constexpr (PINGPONG) {
            state.advance<K_TILES>();
            window.skip_tile();
        }
        EpilogueTma::store(d, biases, outputs, epilogue_stage, y_map, k, at.column, at.row, at.image, consumer, warp, lane);
    }
    if (thread == 0) bulk_store_wait_read<0>();
}
