#pragma once

// The epilogue of outputs whose rows TMA does not store: threads store them from shared memory. Needs _epilogue_sm90.cuh and the family's constants.

// Stores a warpgroup's outputs, of the rows from `row` and the columns from `column` on. A warp stores 32 neighbours of a row at a time.
__device__ __forceinline__ void store_rows(const float (&d)[BLOCKS_N][TILE_M / 8][4], const float (&biases)[BLOCKS_N][2], unsigned char* staged,
                                           T* __restrict__ y, int row, int column, int consumer, int warp, int lane) {
    constexpr int BOX = EpilogueTma::BOX_CHANNELS, BYTES = static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < BLOCKS_N; ++i) {
#pragma unroll
        for (int subtile = 0; subtile < TILE_M / EPILOGUE_M; ++subtile) {
            sync_threads<128>(1 + consumer);  // what was staged before has been stored
            stage_outputs<T, EPILOGUE, EPILOGUE_M, BOX>(staged, d[i], subtile * (EPILOGUE_M / 8), biases[i], warp, lane);
            sync_threads<128>(1 + consumer);
            const int first_row = row + subtile * EPILOGUE_M, first_column = column + i * 64;
#pragma unroll 2
            for (int j = warp; j < EPILOGUE_M && first_row + j < M; j += 4) {
                T* const to = y + static_cast<long long>(first_row + j) * N + first_column;
#pragma unroll
                for (int at = lane; at < 64; at += 32) {
                    const int byte = at % BOX * BYTES;  // of a row of 128, whose chunks of 16 are exchanged
                    const unsigned char* const from = staged + at / BOX * EpilogueTma::BOX_BYTES + j * 128 + (byte / 16 ^ j % 8) * 16 + byte % 16;
                    if (first_column + at < N) to[at] = *reinterpret_cast<const T*>(from);
                }
            }
        }
    }
}
