#pragma once

// Tiles in shared memory: which of their elements a thread loads, and which it multiplies. Needs _element.cuh.

// How THREADS threads load a tile of SLOW rows of FAST elements, neighbours along FAST also being neighbours in global
// memory. Neighbouring threads take neighbouring elements, and a thread's positions along FAST are the same in all rows.
template <int FAST, int SLOW, int THREADS>
struct TileLoad {
    static constexpr bool WIDE = THREADS < FAST;  // a row needs several passes of all threads
    static constexpr int ROWS_A_PASS = WIDE ? 1 : THREADS / FAST;
    static constexpr int FAST_LOADS = WIDE ? (FAST + THREADS - 1) / THREADS : 1;
    static constexpr int SLOW_LOADS = (SLOW + ROWS_A_PASS - 1) / ROWS_A_PASS;
    static constexpr bool EXACT = (WIDE ? FAST % THREADS : THREADS % FAST) == 0 && SLOW % ROWS_A_PASS == 0;

    static __device__ __forceinline__ int fast(int thread, int load) {
        return WIDE ? thread + load * THREADS : thread % FAST;
    }

    static __device__ __forceinline__ int slow(int thread, int load) {
        return WIDE ? load : thread / FAST + load * ROWS_A_PASS;
    }

    // False where a thread has no element left to load.
    static __device__ __forceinline__ bool has(int thread, int fast_load, int slow_load) {
        if constexpr (EXACT) {
            return true;
        } else if constexpr (WIDE) {
            return fast(thread, fast_load) < FAST;
        } else {
            return thread < ROWS_A_PASS * FAST && slow(thread, slow_load) < SLOW;
        }
    }
};

// Position of a thread's element i in a row of the tile that THREADS threads share: WIDTH neighbours to each thread in
// turn, so that vector loads of a warp touch every bank equally often.
template <int THREADS, int WIDTH>
__device__ __forceinline__ int spread(int thread, int i) {
    return (i / WIDTH * THREADS + thread) * WIDTH + i % WIDTH;
}

// A thread's COUNT elements of a row.
template <int THREADS, int WIDTH, int COUNT>
__device__ __forceinline__ void load_spread(const float* row, int thread, float (&elements)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
        const auto loaded = *reinterpret_cast<const AlignedArray<float, WIDTH>*>(row + spread<THREADS, WIDTH>(thread, i));
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) elements[i + j] = loaded.at[j];
    }
}
