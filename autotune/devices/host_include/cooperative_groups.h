// The host device's cooperative_groups.h: the block, its tiles of at most a warp, and the threads that are together. A whole
// grid cannot wait for itself here, as in a launch that is not cooperative.
#pragma once
#include "autotune_host.h"

namespace cooperative_groups {

class thread_block {
public:
    static void sync(int line = __builtin_LINE()) { __syncthreads(line); }
    static unsigned thread_rank() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
    static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned size() { return num_threads(); }
    static dim3 group_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
    static dim3 thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
    static dim3 dim_threads() { return blockDim; }
    static dim3 group_dim() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

class grid_group {
public:
    static unsigned long long block_rank() { return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
    static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
    static unsigned long long num_threads() { return num_blocks() * thread_block::size(); }
    static unsigned long long size() { return num_threads(); }
};
inline grid_group this_grid() { return {}; }

// Lanes of one warp, from lane FIRST of a group on; ranks count the lanes of the mask.
class coalesced_group {
public:
    explicit coalesced_group(unsigned mask) : mask_(mask) {}
    unsigned mask() const { return mask_; }
    unsigned thread_rank() const { return rank(thread_block::thread_rank() % 32); }
    unsigned num_threads() const { return static_cast<unsigned>(__builtin_popcount(mask_)); }
    unsigned size() const { return num_threads(); }
    void sync(int line = __builtin_LINE()) const { __syncwarp(mask_, line); }
    int any(int predicate, int line = __builtin_LINE()) const { return __any_sync(mask_, predicate, line); }
    int all(int predicate, int line = __builtin_LINE()) const { return __all_sync(mask_, predicate, line); }
    unsigned ballot(int predicate, int line = __builtin_LINE()) const {
        unsigned found = 0;
        for (unsigned lanes = __ballot_sync(mask_, predicate, line); lanes; lanes &= lanes - 1)
            found |= 1u << rank(static_cast<unsigned>(__builtin_ctz(lanes)));
        return found;
    }
    template <class T>
    T shfl(T value, unsigned from, int line = __builtin_LINE()) const {
        return __shfl_sync(mask_, value, lane(from % num_threads()), 32, line);
    }
    template <class T>
    T shfl_up(T value, unsigned by, int line = __builtin_LINE()) const {
        const unsigned own = thread_rank();
        return __shfl_sync(mask_, value, lane(own >= by ? own - by : own), 32, line);
    }
    template <class T>
    T shfl_down(T value, unsigned by, int line = __builtin_LINE()) const {
        const unsigned own = thread_rank();
        return __shfl_sync(mask_, value, lane(own + by < num_threads() ? own + by : own), 32, line);
    }
    template <class T>
    T shfl_xor(T value, unsigned by, int line = __builtin_LINE()) const {
        const unsigned own = thread_rank(), other = own ^ by;
        return __shfl_sync(mask_, value, lane(other < num_threads() ? other : own), 32, line);
    }

private:
    unsigned rank(unsigned of) const { return static_cast<unsigned>(__builtin_popcount(mask_ & ((1u << of) - 1))); }
    int lane(unsigned of) const {
        unsigned lanes = mask_;
        while (of--) lanes &= lanes - 1;
        return __builtin_ctz(lanes);
    }

    unsigned mask_;
};
inline coalesced_group coalesced_threads(int line = __builtin_LINE()) { return coalesced_group(__activemask(line)); }

// SIZE neighbouring threads of a block.
template <unsigned SIZE, class Parent = thread_block>
class thread_block_tile : public coalesced_group {
    static_assert(SIZE <= 32 && (SIZE & (SIZE - 1)) == 0, "a tile here has 1, 2, 4, 8, 16 or 32 threads");

public:
    thread_block_tile() : coalesced_group((SIZE == 32 ? ~0u : (1u << SIZE) - 1) << thread_block::thread_rank() % 32 / SIZE * SIZE) {}
    static constexpr unsigned num_threads() { return SIZE; }
    static constexpr unsigned size() { return SIZE; }
    static unsigned meta_group_rank() { return thread_block::thread_rank() / SIZE; }
    static unsigned meta_group_size() { return (thread_block::size() + SIZE - 1) / SIZE; }
};
template <unsigned SIZE, class Parent>
thread_block_tile<SIZE, Parent> tiled_partition(const Parent&) {
    return {};
}

template <class Group>
void sync(const Group& group, int line = __builtin_LINE()) {
    group.sync(line);
}

template <class T>
struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
    T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
    T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
    T operator()(T a, T b) const { return a ^ b; }
};

template <class T, class Combine>
T reduce(const coalesced_group& group, T value, Combine combine, int line = __builtin_LINE()) {
    return autotune_host::reduce(group.mask(), value, combine, line);
}

}  // namespace cooperative_groups
