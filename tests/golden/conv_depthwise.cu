// conv n 2 c 6 w 75 k 12 s 4 pad_w 3 groups 6 f16 bias_silu
// conv_depthwise inputs=shared stores=direct thread_p=1 thread_q=1 planes=1 row_tiles=1 block=128 unroll=window filters=global warps=16

// y[n, k, p, q] = sum over r, s of w[k, r, s] * x[n, k / (K / C), h, w]: no matrix product; a thread sums its outputs' products in registers.
//
// Depthwise convolution: each output plane is one input plane convolved with one filter. A thread computes ROWS x COLUMNS
// outputs of a plane, each row of its inputs passing by once.
//
//   x     [N, C, H, W]  input
//   w     [K, 1, R, S]  filters; K / C output planes to an input plane
//   bias  [K]           read where EPILOGUE has one
//   y     [N, K, P, Q]  output
//   n     images N, any number
//
// The planes of all images form one row of N * C planes, of which a block takes PLANES, or one of ROW_TILES row tiles of a plane's rows.
// Their inputs and outputs are contiguous.
// Inputs are read where they lie, or copied to shared memory as they lie in x, filters to registers meanwhile; what is padding is told by
// where it lies.
//
//   grid    row tile, then block of PLANES planes
//   thread  column tile, then row tile, output plane

#include "_dtype_f16.cuh"

#include "_epilogue.cuh"

#include "_ptx.cuh"

// Problem
constexpr int C = 6, H = 1, W = 75;
constexpr int K = 12, R = 1, S = 4;
constexpr int P = 1, Q = 75;
constexpr int STRIDE_H = 1, STRIDE_W = 1;
constexpr int PAD_H = 0, PAD_W = 3;
constexpr bool PADDED_H = false;
constexpr int DILATION_H = 1, DILATION_W = 1;
using EPILOGUE = Epilogue<true, false, silu>;

// Parameters
constexpr int ROWS = 1, COLUMNS = 1;  // a thread's outputs
constexpr int PLANES = 1;  // of x, a block
constexpr int ROW_TILES = 1;
constexpr int MIN_BLOCKS = 5;  // blocks that fit a multiprocessor at once: about 16 warps
constexpr bool STAGED = false;  // outputs, in shared memory
constexpr bool WHOLE_FILTER = true;  // in a thread's registers, else a row of it
constexpr bool GLOBAL_FILTERS = true, SHARED_FILTERS = false;

// Derived
constexpr int THREADS = 96;
constexpr int MULTIPLIER = K / C;  // output planes to an input plane
constexpr int TILE_P = 1;
constexpr int TILES_P = 1, TILES_Q = 75;
constexpr int VECTOR = 8;  // elements of 16 bytes
constexpr int WINDOW_H = 1;  // input rows of a row tile
[[maybe_unused]] constexpr bool ALIGNED = false, EXACT = false;  // runs of inputs begin on 16 bytes; and are whole ones
constexpr int ITERATIONS = 2;
constexpr int OUTPUTS_AT = 176, FILTERS_AT = 176;  // in shared memory
constexpr int OUTPUT_PLANE = (STAGED ? TILE_P : P) * Q;
constexpr int LOAD = 1, STORE = 1;  // elements of one load of inputs, of one store of outputs
constexpr int LEAD = 0;  // elements loaded before the first that a thread needs of a row
constexpr int ROW_LOADS = 4;  // loads of a row

using Inputs = AlignedArray<T, LOAD>;
using Outputs = AlignedArray<T, STORE>;

// Of a row of a plane, the inputs from `column` on, a multiple of LOAD; zeros outside the plane. A load lies inside or outside as a whole.
__device__ __forceinline__ void load_row(float (&inputs)[ROW_LOADS * LOAD], const T* plane, int row, int column) {
    constexpr int FIRST = -PAD_W - LEAD, LAST = (Q - COLUMNS) * STRIDE_W - PAD_W - LEAD;  // columns that tiles begin with
    bool row_inside = true;
    if constexpr (PADDED_H) row_inside = static_cast<unsigned>(row) < static_cast<unsigned>(H);
#pragma unroll
    for (int i = 0; i < ROW_LOADS * LOAD; i += LOAD) {
        bool inside = row_inside;
        if (FIRST + i < 0 || LAST + i >= W) inside = inside && static_cast<unsigned>(column + i) < static_cast<unsigned>(W);
        if (inside) {
            const Inputs loaded = *reinterpret_cast<const Inputs*>(plane + (row * W + column + i));
#pragma unroll
            for (int j = 0; j < LOAD; ++j) inputs[i + j] = to_float(loaded.at[j]);
        } else {
#pragma unroll
            for (int j = 0; j < LOAD; ++j) inputs[i + j] = 0.0f;
        }
    }
}

// accumulator += what one filter row adds to an output row.
__device__ __forceinline__ void add_row(float (&accumulator)[COLUMNS], const float (&inputs)[ROW_LOADS * LOAD], const float* filter) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            accumulator[j] = fmaf(filter[s], inputs[LEAD + j * STRIDE_W + s * DILATION_W], accumulator[j]);
        }
    }
}

constexpr int FILTER = WHOLE_FILTER ? R * S : S;  // taps that a thread has loaded
using Weight = T;

__device__ __forceinline__ void load_filter(float (&filter)[FILTER], const Weight* __restrict__ w) {
#pragma unroll
    for (int i = 0; i < FILTER; ++i) filter[i] = to_float(w[i]);
}

#include "_channel_filters_global.cuh"

#include "_inputs_shared.cuh"

#include "_store_run.cuh"

// Where a thread's tile of outputs lies.
struct Tile {
    int plane, row, column;  // output plane of the block; first output row in the row tile, first column

    // The last tiles of rows and columns move up to end with the row tile: outputs of two threads are the same.
    __device__ __forceinline__ explicit Tile(int tile)
        : plane(PLANES * MULTIPLIER == 1 ? 0 : tile / (TILES_P * TILES_Q)),
          row(min(tile / TILES_Q % TILES_P * ROWS, TILE_P - ROWS)),
          column(min(tile % TILES_Q * COLUMNS, Q - COLUMNS)) {}
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv2d_depthwise(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, int n) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int thread = static_cast<int>(threadIdx.x);
    const int first_plane = static_cast<int>(blockIdx.x) / ROW_TILES * PLANES;
    const int planes = PLANES == 1 ? 1 : min(PLANES, n * C - first_plane);
    // The last row tile moves up to end with the plane.
    const int tile_row = ROW_TILES == 1 ? 0 : min(static_cast<int>(blockIdx.x) % ROW_TILES * TILE_P, P - TILE_P);
    const int tiles = planes * (MULTIPLIER * TILES_P * TILES_Q);

    // The run of inputs that the block needs: whole planes, or rows of one.
    const int first_row = ROW_TILES == 1 ? 0 : min(max(tile_row * STRIDE_H - PAD_H, 0), H);
    const int last_row = ROW_TILES == 1 ? H : max(min(tile_row * STRIDE_H - PAD_H + WINDOW_H, H), first_row);
    const int count = ROW_TILES == 1 ? planes * (H * W) : (last_row - first_row) * W;
    const T* const block_inputs = copy_inputs(smem, x, first_plane, first_row * W, count);

    const long long output_begin = static_cast<long long>(first_plane) * (MULTIPLIER * P * Q) + tile_row * Q;
    const int output_phase = static_cast<int>(output_begin % VECTOR);  // staged as they lie in y within 16 bytes
    T* const staged_outputs = reinterpret_cast<T*>(smem + OUTPUTS_AT);
    T* const block_outputs = STAGED ? staged_outputs + output_phase : y + output_begin;
    const int first_k = first_plane % C * MULTIPLIER;
    const auto k_of = [&](int plane) { return PLANES * MULTIPLIER == 1 ? first_k : (first_k + plane) % K; };

    float filter[FILTER];
    float* const shared_filters = reinterpret_cast<float*>(smem + FILTERS_AT);  // of the block's output channels
    if constexpr (SHARED_FILTERS) {
        for (int i = thread; i < planes * (MULTIPLIER * R * S); i += THREADS) {
            shared_filters[i] = to_float(w[PLANES == 1 ? first_k * (R * S) + i : (first_k * (R * S) + i) % (K * R * S)]);
        }
    }
    const Weight* const filters = filters_of(w, shared_filters, first_k);
    if constexpr (GLOBAL_FILTERS && WHOLE_FILTER) load_filter(filter, filters + k_of(min(thread, tiles - 1) / (TILES_P * TILES_Q)) * (R * S));
    wait_for_inputs(smem);
#pragma unroll 1
    for (int i = thread; i < tiles; i += THREADS) {
        const Tile tile(i);
        const int k = k_of(tile.plane);
        const T* const plane = block_inputs + tile.plane / MULTIPLIER * (H * W);
        const int row = (tile_row + tile.row) * STRIDE_H - PAD_H, column = tile.column * STRIDE_W - PAD_W - LEAD;

        float accumulator[ROWS][COLUMNS];
#pragma unroll
        for (int p = 0; p < ROWS; ++p) {
#pragma unroll
            for (int q = 0; q < COLUMNS; ++q) accumulator[p][q] = 0.0f;
        }

        const int filter_at = GLOBAL_FILTERS ? k : tile.plane;
        if constexpr (WHOLE_FILTER) {
            if (!GLOBAL_FILTERS || (ITERATIONS > 1 && PLANES * MULTIPLIER > 1 && i != thread)) {
                load_filter(filter, filters + filter_at * (R * S));
            }
#pragma unroll
            for (int h = 0; h < (ROWS - 1) * STRIDE_H + (R - 1) * DILATION_H + 1; ++h) {
                float inputs[ROW_LOADS * LOAD];
                load_row(inputs, plane, row + h, column);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const int p = (h - r * DILATION_H) / STRIDE_H;  // the output row that filter row r sends it to
                    if (h < r * DILATION_H || p >= ROWS || (h - r * DILATION_H) % STRIDE_H) continue;
                    add_row(accumulator[p], inputs, filter + r * S);
                }
            }
        } else {
#pragma unroll 1
            for (int r = 0; r < R; ++r) {
                load_filter(filter, filters + (filter_at * R + r) * S);
#pragma unroll
                for (int p = 0; p < ROWS; ++p) {
                    float inputs[ROW_LOADS * LOAD];
                    load_row(inputs, plane, row + p * STRIDE_H + r * DILATION_H, column);
                    add_row(accumulator[p], inputs, filter);
                }
            }
        }

        T* const output = block_outputs + tile.plane * OUTPUT_PLANE + tile.row * Q + tile.column;
#pragma unroll
        for (int p = 0; p < ROWS; ++p) {
#pragma unroll
            for (int q = 0; q < COLUMNS; q += STORE) {
                Outputs stored;
#pragma unroll
                for (int j = 0; j < STORE; ++j) {
                    stored.at[j] = from_float<T>(finish<EPILOGUE>(accumulator[p][q + j], bias, k));
                }
                *reinterpret_cast<Outputs*>(output + p * Q + q) = stored;
            }
        }
    }
    if constexpr (STAGED) {
        __syncthreads();
        store_run<THREADS>(y + output_begin, staged_outputs, output_phase, planes * MULTIPLIER * OUTPUT_PLANE);
    }
}
