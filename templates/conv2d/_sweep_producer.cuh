#pragma once

// What copies and transforms the inputs of mma_sweep. Needs _alignment.cuh, _pipeline.cuh, _ptx_fetch.cuh and the family's constants.

// Elements of a pixel that are a part of a chunk.
struct alignas(PART * sizeof(Bits)) Part {
    Bits elements[PART];
};

// Starts an image's copy, by one thread: whole vectors, which others share at both ends; but before the first one and behind the last one
// there may be nothing to read.
__device__ __forceinline__ void copy_image(Bits* to, const Bits* __restrict__ x, int image, int n, Barrier* copy_full) {
    const Bits* const from = x + image * static_cast<long long>(IMAGE);
    const int before = alignment_offset(from), end = before + IMAGE;
    const int first = image == 0 && before > 0 ? VECTOR : 0, last = image == n - 1 ? end / VECTOR * VECTOR : (end + VECTOR - 1) / VECTOR * VECTOR;
    for (int i = before; i < min(first, end); ++i) to[i] = from[i - before];
    for (int i = max(last, before); i < end; ++i) to[i] = from[i - before];
    const int bytes = max(last - first, 0) * static_cast<int>(sizeof(Bits));
    barrier_arrive_expect(copy_full, bytes);
    if (bytes > 0) bulk_load(to + first, from - before + first, bytes, copy_full);
    if (COPY_STAGES == 1 && IMAGE * sizeof(Bits) >= 64 && image + static_cast<int>(gridDim.x) < n) {
        bulk_fetch(from + gridDim.x * static_cast<long long>(IMAGE), IMAGE * static_cast<int>(sizeof(Bits)));
    }
}

// What transforms the inputs' layout: PRODUCER_WARPS warps. A lane takes PRODUCER_PIXELS pixels at once, AT_ONCE chunks of each, the first
// before there is a pipeline stage for them.
__device__ __forceinline__ void transform_chunks(Chunk* stages, Bits* copy_stages, PipelineAsync<STAGES>& pipeline, PipelineAsync<COPY_STAGES>& copies, const Bits* __restrict__ x, int n, int warp) {
    constexpr int PIXELS = H * W, STRIDE = 32 * PRODUCER_WARPS;
    constexpr int ITERATIONS = (PLACES + PRODUCER_PIXELS * STRIDE - 1) / (PRODUCER_PIXELS * STRIDE);
    const int lane = static_cast<int>(threadIdx.x % 32);
    PipelineState<STAGES> state;
    PipelineState<COPY_STAGES> copy;
    for (int image = static_cast<int>(blockIdx.x); image < n; image += static_cast<int>(gridDim.x), ++state, ++copy) {
        Chunk* const chunks = stages + state.index * STAGE;
        const Bits* const elements = copy_stages + copy.index * COPY_STAGE + alignment_offset(x + image * static_cast<long long>(IMAGE));
        copies.consumer_wait(copy);
#pragma unroll 1
        for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
            Chunk own[PRODUCER_PIXELS][AT_ONCE];
            const int first = (iteration * PRODUCER_PIXELS * PRODUCER_WARPS + warp) * 32 + lane;
#pragma unroll
            for (int i = 0; i < PRODUCER_PIXELS; ++i) {
                const int place = first + i * STRIDE, group = CHANNEL_ITERATIONS > 1 ? place / PIXELS : 0;
                const Bits* const from = elements + group * (AT_ONCE * VECTOR * PIXELS) + (CHANNEL_ITERATIONS > 1 ? place % PIXELS : place);
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j) {
                    Bits channels[VECTOR];
#pragma unroll
                    for (int e = 0; e < VECTOR; ++e) {
                        const bool there = place < PLACES && (group * AT_ONCE + j) * VECTOR + e < C;
                        channels[e] = there ? from[(j * VECTOR + e) * PIXELS] : Bits{0};
                    }
                    own[i][j] = chunk_of(channels);
                }
            }
            if (iteration + 1 == ITERATIONS) {
                // The last warp that has read the image has the next one copied in its place.
                fence_bulk();
                __syncwarp();
                const int next = image + COPY_STAGES * static_cast<int>(gridDim.x);
                if (lane == 0 && barrier_arrive_last(copies.empty + copy.index) && next < n) copy_image(copy_stages + copy.index * COPY_STAGE, x, next, n, copies.full + copy.index);
            }
            if (iteration == 0) pipeline.producer_acquire(state);
#pragma unroll
            for (int i = 0; i < PRODUCER_PIXELS; ++i) {
                const int place = first + i * STRIDE, pixel = CHANNEL_ITERATIONS > 1 ? place % PIXELS : place;
                if (place >= PLACES) continue;
                const int row = pixel / W + PAD_H, column = pixel % W + PAD_W;
                const int row_tile = min(row / TILE_P, ROW_TILES - 1), within = row - row_tile * TILE_P;
                // The first rows of a row tile are the last ones of the row tile before, too.
                constexpr int BEFORE = TILE_P * ACROSS - PITCH;
                const bool twice = row_tile > 0 && within < R - 1;
                Chunk* const to = chunks + (within * ROW_TILES + row_tile) * PITCH + column;
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j) {
                    const int block = (CHANNEL_ITERATIONS > 1 ? place / PIXELS * AT_ONCE : 0) + j;
                    if (PLANES % AT_ONCE > 0 && block >= PLANES) continue;
                    if (LEFT_CHANNELS > 0 && block == WHOLE_BLOCKS) {
                        const Part part = reinterpret_cast<const Part&>(own[i][j]);
#pragma unroll
                        for (int tile_index = 0; tile_index < FOLD; ++tile_index) {
                            // Every eight lanes begin elsewhere, or they would meet the banks of others.
                            const int k = (tile_index + lane / 8 * (FOLD > 4 ? FOLD / 4 : 1)) % FOLD;
                            if (column < k) continue;
                            *(reinterpret_cast<Part*>(to + block * PLANE) - k * (FOLD - 1)) = part;
                            if (twice) *(reinterpret_cast<Part*>(to + block * PLANE + BEFORE) - k * (FOLD - 1)) = part;
                        }
                        continue;
                    }
                    to[block * PLANE] = own[i][j];
                    if (twice) to[block * PLANE + BEFORE] = own[i][j];
                }
            }
        }
        fence_bulk();  // MMAs read chunks by another way
        __syncwarp();
        if (lane == 0) pipeline.producer_commit(state.index);
    }
}
