#pragma once

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
