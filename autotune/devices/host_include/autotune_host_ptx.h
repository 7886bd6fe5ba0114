// What templates/_ptx.cuh and the other _ptx_*.cuh declare, on the CPU: copies by all threads are done at once, bulk copies as late as
// they may be, loads when somebody waits for them, stores when besides nobody else can go on; what a warp does together (a matrix product,
// a load of matrices) is done by its last lane.
#pragma once

#include "autotune_host_small_float.h"

#include "autotune_host_pending.h"

template <int BYTES>
inline void copy_async_first(void* shared, const void* global, int read) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "a GPU copies 4, 8 or 16 bytes at once");
    if (reinterpret_cast<size_t>(shared) % BYTES || (read && reinterpret_cast<size_t>(global) % BYTES)) {
        autotune_stop("misaligned_address", "copy_async", __FILE__, __LINE__);
    }
    AutotuneLateCopy copy{shared, BYTES, 0, {}}, oldest;
    if (read) memcpy(copy.data, global, static_cast<size_t>(read));
    if (autotune_late(&copy, &oldest)) memcpy(oldest.to, oldest.data, oldest.bytes);
}
template <int BYTES>
inline void copy_async(void* shared, const void* global, bool inside = true) {
    copy_async_first<BYTES>(shared, global, inside ? BYTES : 0);
}
template <int THREADS>
inline void sync_threads(int id, int line = __builtin_LINE()) {
    autotune_some_barrier(id, THREADS, 1, line);
}
template <int THREADS>
inline void arrive_threads(int id, int line = __builtin_LINE()) {
    autotune_some_barrier(id, THREADS, 0, line);
}
inline void cluster_sync(int line = __builtin_LINE()) { autotune_cluster_barrier(line); }
template <class V>
inline V load_cluster(const V* shared, int rank, int line = __builtin_LINE()) {
    return *static_cast<const V*>(autotune_cluster_smem(shared, static_cast<unsigned>(rank), line));
}
// Copies come when a thread waits for them, and so not where it does not: all but its latest GROUPS groups, or all where that is negative.
inline void copy_async_commit() { autotune_late_commit(); }
template <int GROUPS>
inline void copy_async_wait() {
    AutotuneLateCopy copy;
    while (autotune_late_due(GROUPS, &copy)) memcpy(copy.to, copy.data, copy.bytes);
}

// Threads of this library's kernels that waited for the kernels before theirs: the driver asks, of one launched before these have ended.
extern "C" {
inline unsigned long autotune_began_dependent;
}
inline void begin_dependent() { __atomic_add_fetch(&autotune_began_dependent, 1, __ATOMIC_RELAXED); }

inline void fence_bulk() { autotune_host::thread_state()->fence(); }

namespace autotune_host {
inline void perform(const AutotuneCopy& copy) {
    if (copy.perform) {
        copy.perform(&copy);
    } else {
        memcpy(copy.to, copy.from, copy.bytes);
    }
}
inline void copy_bulk(const char* name, void* to, const void* from, int bytes, const void* owner) {
    if (reinterpret_cast<size_t>(to) % 16 || reinterpret_cast<size_t>(from) % 16 || bytes % 16) {
        autotune_stop("misaligned_address", name, __FILE__, __LINE__);
    }
    const AutotuneCopy copy = {to, from, static_cast<size_t>(bytes), owner, 0, nullptr, {}};
    autotune_defer(&copy);
}
}  // namespace autotune_host

inline void bulk_store(void* global, const void* shared, int bytes) {
    autotune_host::copy_bulk("bulk_store", global, shared, bytes, nullptr);
}
inline void bulk_store_commit() { autotune_commit(); }
template <int GROUPS>
inline void bulk_store_wait_read() {
    AutotuneCopy copy;
    for (bool first = true; autotune_due(nullptr, GROUPS, &copy); first = false) {
        if (first) autotune_linger();  // a store is under way for as long as others can do without it
        autotune_host::perform(copy);
    }
}

struct alignas(8) Barrier {
    unsigned awaited : 11, arrivals : 11;  // of this phase, of every phase
    unsigned fences : 10;                  // barrier_init_fence's calls before barrier_init
    unsigned bytes : 31;                   // under way
    unsigned parity : 1;                   // of this phase
};

namespace autotune_host {
inline thread_local unsigned fences = 0;  // barrier_init_fence's calls by the blocks that this CPU thread runs

// Before a use of an object of the thread's own block.
inline void check_fenced(const Barrier* barrier) {
    if (barrier->fences == (fences & 1023)) {
        autotune_stop("race", "no barrier_init_fence between barrier_init and the barrier's use", __FILE__, __LINE__);
    }
}

// Where kernels are checked, all that threads do with one orders them.
inline void use(const Barrier* barrier) {
#ifdef AUTOTUNE_CHECKED
    autotune_barrier_object(barrier, sizeof *barrier);
#endif
}
}  // namespace autotune_host

inline void barrier_init(Barrier* barrier, int arrivals) {
    autotune_host::use(barrier);
    const auto count = static_cast<unsigned>(arrivals) & 2047;
    *barrier = {count, count, autotune_host::fences & 1023, 0, 0};
}
inline void barrier_init_fence() { ++autotune_host::fences; }

namespace autotune_host {
inline bool next_phase(Barrier* barrier) {  // whether this one is complete
    if (barrier->awaited || barrier->bytes) return false;
    barrier->awaited = barrier->arrivals;
    barrier->parity ^= 1;
    return true;
}
inline int complete_phase(Barrier* barrier) {  // how many threads now go on
    return next_phase(barrier) ? autotune_wake() : 0;
}
inline void arrive(Barrier* barrier) {
    use(barrier);
    if (!barrier->awaited) autotune_stop("deadlock", "more arrivals than barrier_init was told", __FILE__, __LINE__);
    --barrier->awaited;
}
}  // namespace autotune_host

inline void barrier_arrive(Barrier* barrier) {
    autotune_host::check_fenced(barrier);
    autotune_host::arrive(barrier);
    if (autotune_host::complete_phase(barrier)) autotune_linger();  // they may be a copy that was let go too early
}
inline void barrier_arrive_cluster(Barrier* barrier, int rank, int line = __builtin_LINE()) {
    auto* const theirs = static_cast<Barrier*>(autotune_cluster_smem(barrier, static_cast<unsigned>(rank), line));
    autotune_host::arrive(theirs);
    if (autotune_host::next_phase(theirs)) autotune_cluster_wake(static_cast<unsigned>(rank));
}
inline void barrier_arrive_if(Barrier* barrier, bool arrives) {
    if (arrives) barrier_arrive(barrier);
}
inline bool barrier_arrive_last(Barrier* barrier) {
    autotune_host::use(barrier);
    const bool last = barrier->awaited == 1;
    barrier_arrive(barrier);
    return last;
}
inline void barrier_arrive_expect(Barrier* barrier, int bytes) {
    autotune_host::use(barrier);
    barrier->bytes += static_cast<unsigned>(bytes);
    barrier_arrive(barrier);
}
inline void copy_async_arrive(Barrier* barrier) {
    copy_async_wait<-1>();
    barrier_arrive(barrier);
}
inline bool barrier_passed(Barrier* barrier, int parity) {
    AutotuneCopy copy;
    autotune_host::check_fenced(barrier);
    autotune_host::use(barrier);
    const auto passed = [&] { return barrier->parity != static_cast<unsigned>(parity); };
    while (!passed() && autotune_due(barrier, 0, &copy)) {
        autotune_host::perform(copy);
        autotune_host::use(barrier);
        barrier->bytes -= static_cast<unsigned>(copy.bytes);
        autotune_host::complete_phase(barrier);
    }
    return passed();
}
inline void barrier_wait(Barrier* barrier, int parity, int line = __builtin_LINE()) {
    while (!barrier_passed(barrier, parity)) autotune_sleep(line);
}
inline void bulk_fetch(const void*, int) {}
inline void prefetch_l2(const void* global) { static_cast<void>(*static_cast<const volatile char*>(global)); }
inline void bulk_load(void* shared, const void* global, int bytes, Barrier* barrier) {
    autotune_host::copy_bulk("bulk_load", shared, global, bytes, barrier);
    autotune_wake();  // whoever waits for the barrier already does the copy
}

namespace autotune_host {
inline unsigned bits_of(float value) {
    unsigned bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float float_of(unsigned bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// One lane's part of d = a * b + c, d and c being 16 x 8, a 16 x K and b K x 8.
struct Fragments {
    void (*multiply)(void* const* lanes);  // how the runtime computes the product of a whole warp
    const void* a;
    const void* b;
    const float* c;
    float* d;
};

// PTX ISA, matrix fragments for mma.m16n8k4 and mma.m16n8k8 with .tf32: lane 4 g + t holds rows g and g + 8 of a, column g of b, and of d
// columns 2 t and 2 t + 1.
template <int K>
struct Tf32Fragments {
    static constexpr int DEPTH = K;
    static float operand(const void* elements, int i) {  // the instruction ignores the last 13 bits
        return float_of(bits_of(static_cast<const float*>(elements)[i]) & 0xffffe000u);
    }
    static float a(void* const* lanes, int row, int k) {
        return operand(static_cast<const Fragments*>(lanes[row % 8 * 4 + k % 4])->a, k / 4 * 2 + row / 8);
    }
    static float b(void* const* lanes, int k, int column) {
        return operand(static_cast<const Fragments*>(lanes[column * 4 + k % 4])->b, k / 4);
    }
};

// The same with .f16 and .bf16, m16n8k8 and m16n8k16: two neighbouring k in a word, the first in its low half.
template <int K, class Format>
struct HalfFragments {
    static constexpr int DEPTH = K;
    static float operand(const void* words, int i, int k) {
        const unsigned word = static_cast<const unsigned*>(words)[i];
        return Format::widen(static_cast<unsigned short>(word >> k % 2 * 16));
    }
    static float a(void* const* lanes, int row, int k) {
        return operand(static_cast<const Fragments*>(lanes[row % 8 * 4 + k / 2 % 4])->a, k / 8 * 2 + row / 8, k);
    }
    static float b(void* const* lanes, int k, int column) {
        return operand(static_cast<const Fragments*>(lanes[column * 4 + k / 2 % 4])->b, k / 8, k);
    }
};

// Tensor cores round their sums towards zero.
AUTOTUNE_OWN inline float truncated(double sum) {
    const float nearest = static_cast<float>(sum);
    const bool farther = sum < 0 ? nearest < sum : nearest > sum;
    unsigned bits;
    memcpy(&bits, &nearest, sizeof bits);
    bits -= farther;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

// Of products that are exact in double, in the order of depth.
template <int DEPTH>
AUTOTUNE_OWN inline double add_products(double sum, const float (&a)[DEPTH], const float (&b)[DEPTH]) {
    for (int k = 0; k < DEPTH; ++k) sum += static_cast<double>(a[k]) * b[k];
    return sum;
}

template <class Layout>
inline void multiply_fragments(void* const* lanes) {
    float a[16][Layout::DEPTH], b[8][Layout::DEPTH];
    for (int k = 0; k < Layout::DEPTH; ++k) {
        for (int row = 0; row < 16; ++row) a[row][k] = Layout::a(lanes, row, k);
        for (int column = 0; column < 8; ++column) b[column][k] = Layout::b(lanes, k, column);
    }
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
            const Fragments* const lane = static_cast<const Fragments*>(lanes[row % 8 * 4 + column / 2]);
            const int at = row / 8 * 2 + column % 2;
            lane->d[at] = truncated(add_products(lane->c[at], a[row], b[column]));
        }
    }
}

template <class Layout>
inline void multiply_together(float* d, const void* a, const void* b, const float* c, int line) {
    Fragments mine = {&multiply_fragments<Layout>, a, b, c, d};
    autotune_warp(TOGETHER, 0xffffffffu, reinterpret_cast<unsigned long long>(&mine), 0, 32, line);
}
}  // namespace autotune_host

inline float to_tf32(float value) {
    const unsigned bits = autotune_host::bits_of(value);
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? autotune_host::float_of((bits + 0x1000u) & 0xffffe000u) : value;
}
inline void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2], const float (&c)[4],
                             int line = __builtin_LINE()) {
    autotune_host::multiply_together<autotune_host::Tf32Fragments<8>>(d, a, b, c, line);
}
inline void mma_m16n8k4_tf32(float (&d)[4], const float (&a)[2], float b, const float (&c)[4],
                             int line = __builtin_LINE()) {
    autotune_host::multiply_together<autotune_host::Tf32Fragments<4>>(d, a, &b, c, line);
}
inline void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4],
                              int line = __builtin_LINE()) {
    using Layout = autotune_host::HalfFragments<16, autotune_host::HalfFormat>;
    autotune_host::multiply_together<Layout>(d, a, b, c, line);
}
inline void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], unsigned b, const float (&c)[4],
                             int line = __builtin_LINE()) {
    using Layout = autotune_host::HalfFragments<8, autotune_host::HalfFormat>;
    autotune_host::multiply_together<Layout>(d, a, &b, c, line);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4],
                              int line = __builtin_LINE()) {
    using Layout = autotune_host::HalfFragments<16, autotune_host::Bfloat16Format>;
    autotune_host::multiply_together<Layout>(d, a, b, c, line);
}
inline void mma_m16n8k8_bf16(float (&d)[4], const unsigned (&a)[2], unsigned b, const float (&c)[4],
                             int line = __builtin_LINE()) {
    using Layout = autotune_host::HalfFragments<8, autotune_host::Bfloat16Format>;
    autotune_host::multiply_together<Layout>(d, a, &b, c, line);
}

namespace autotune_host {
// One lane's part of a load of four matrices of 8 rows of four words.
struct MatrixRow {
    void (*load)(void* const* lanes);  // how the runtime loads those of a whole warp
    const void* row;
    unsigned* d;
};

inline void load_rows(void* const* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
        for (int matrix = 0; matrix < 4; ++matrix) {
            const void* const row = static_cast<const MatrixRow*>(lanes[matrix * 8 + lane / 4])->row;
            static_cast<const MatrixRow*>(lanes[lane])->d[matrix] = static_cast<const unsigned*>(row)[lane % 4];
        }
    }
}
}  // namespace autotune_host

inline void load_matrices(unsigned (&d)[4], const void* row, int line = __builtin_LINE()) {
    if (reinterpret_cast<size_t>(row) % 16) autotune_stop("misaligned_address", "load_matrices", __FILE__, line);
    autotune_host::MatrixRow mine = {&autotune_host::load_rows, row, d};
    autotune_warp(autotune_host::TOGETHER, 0xffffffffu, reinterpret_cast<unsigned long long>(&mine), 0, 32, line);
}

namespace autotune_host {
// One lane's part of a load of matrices of 8 x 8 16-bit elements by columns.
struct MatrixColumns {
    void (*load)(void* const* lanes);  // how the runtime loads those of a whole warp
    const void* column;
    unsigned* d;
    int matrices;
};

inline void load_columns(void* const* lanes) {
    const auto of = [&](int lane) { return static_cast<const MatrixColumns*>(lanes[lane]); };
    for (int lane = 0; lane < 32; ++lane) {
        for (int matrix = 0; matrix < of(0)->matrices; ++matrix) {
            unsigned word = 0;
            for (int i = 0; i < 2; ++i) {
                const void* const column = of(matrix * 8 + lane % 4 * 2 + i)->column;
                word |= static_cast<unsigned>(static_cast<const unsigned short*>(column)[lane / 4]) << i * 16;
            }
            of(lane)->d[matrix] = word;
        }
    }
}

template <int MATRICES>
inline void load_columns_together(unsigned (&d)[MATRICES], const void* column, int line) {
    if (static_cast<int>(threadIdx.x % 32) < 8 * MATRICES && reinterpret_cast<size_t>(column) % 16) {
        autotune_stop("misaligned_address", "load_matrices_trans", __FILE__, line);
    }
    MatrixColumns mine = {&load_columns, column, d, MATRICES};
    autotune_warp(TOGETHER, 0xffffffffu, reinterpret_cast<unsigned long long>(&mine), 0, 32, line);
}
}  // namespace autotune_host

inline void load_matrices_trans(unsigned (&d)[4], const void* column, int line = __builtin_LINE()) {
    autotune_host::load_columns_together(d, column, line);
}
inline void load_matrices_trans(unsigned (&d)[2], const void* column, int line = __builtin_LINE()) {
    autotune_host::load_columns_together(d, column, line);
}

// A product of four warps: each computes its 16 rows of it, at once.
namespace autotune_host {
template <class Layout, bool ADDED, class Word, int TILES>
inline void multiply_warpgroup(float (&d)[TILES][4], const Word (&a)[4], const void* b, int deeper, int further, int line) {
    if (reinterpret_cast<size_t>(b) % 16) autotune_stop("misaligned_address", "wgmma", __FILE__, line);
    for (int tile = 0; tile < TILES; ++tile) {
        const Word* const column = static_cast<const Word*>(b) + tile * further / 4 + threadIdx.x % 32;
        const Word fragment[2] = {column[0], column[deeper / 4]};
        const float zero[4] = {};
        multiply_together<Layout>(d[tile], a, fragment, ADDED ? d[tile] : zero, line);
    }
}
}  // namespace autotune_host

template <int REGISTERS>
inline void warpgroup_reg_dealloc() {}
template <int REGISTERS>
inline void warpgroup_reg_alloc() {}
// Recorded kernels have these names for the two functions above and wgmma_wait_group.
template <int REGISTERS>
inline void decrease_registers() {}
template <int REGISTERS>
inline void increase_registers() {}
template <int GROUPS>
inline void wgmma_wait_but(int line = __builtin_LINE()) {
    autotune_host::wait_for_products(GROUPS, line);
}
template <class Sums>
inline void wgmma_begin(Sums&) {}
inline void wgmma_fence() {}
inline void wgmma_commit(int line = __builtin_LINE()) {
    __syncwarp(0xffffffffu, line);  // no lane goes on before the others have come so far
    ++autotune_host::thread_state()->groups;
}
template <int GROUPS>
inline void wgmma_wait_group(int line = __builtin_LINE()) {
    autotune_host::wait_for_products(GROUPS, line);
}
template <class Sums>
inline void wgmma_wait(Sums&, int line = __builtin_LINE()) {
    autotune_host::wait_for_products(0, line);
}
#define WGMMA(NAME, WORD, ...)                                                                                                       \
    template <bool ADDED, int PITCH, int TILES>                                                                                      \
    inline void NAME(float (&d)[TILES][4], const WORD (&a)[4], const void* b, int offset = 0, int line = __builtin_LINE()) {         \
        using Layout = autotune_host::__VA_ARGS__;                                                                                   \
        autotune_host::multiply_warpgroup<Layout, ADDED>(d, a, static_cast<const char*>(b) + offset, 128, PITCH * 4, line);          \
    }                                                                                                                                \
    template <bool ADDED, int TILES>                                                                                                 \
    inline void NAME##_wide(float (&d)[TILES][4], const WORD (&a)[4], const void* b, int deeper, int line = __builtin_LINE()) {      \
        autotune_host::multiply_warpgroup<autotune_host::__VA_ARGS__, ADDED>(d, a, b, deeper, 128, line);                            \
    }                                                                                                                                \
    template <bool ADDED, int TILES>                                                                                                 \
    inline void NAME##_wide(float (&d)[TILES][4], const WORD* a, int a_deeper, int a_further, const void* b, int deeper,        \
                            int line = __builtin_LINE()) {                                                                           \
        if (reinterpret_cast<size_t>(a) % 16) autotune_stop("misaligned_address", "wgmma", __FILE__, line);                          \
        const WORD* const row = a + threadIdx.x % 128 / 32 * 2 * a_further / 4 + threadIdx.x % 32;                                   \
        const int eight = a_further / 4, second = a_deeper / 4;                                                                      \
        NAME##_wide<ADDED>(d, {row[0], row[eight], row[second], row[second + eight]}, b, deeper, line);                              \
    }
WGMMA(wgmma_tf32, float, Tf32Fragments<8>)
WGMMA(wgmma_f16, unsigned, HalfFragments<16, autotune_host::HalfFormat>)
WGMMA(wgmma_bf16, unsigned, HalfFragments<16, autotune_host::Bfloat16Format>)
#undef WGMMA
