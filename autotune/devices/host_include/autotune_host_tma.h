// What templates/_ptx_tma.cuh and _ptx_stmatrix.cuh declare, on the CPU. A box is loaded when somebody waits for it, over bytes that are
// not numbers until then, and stored when nobody else can go on. Whatever writes what a box is stored from must fence.
#pragma once

#include "autotune_host_wgmma.h"

// As HostTensorMap in devices/host_tensor_map.py.
struct TensorMap {
    const char* address;
    long long global_dim[5];
    unsigned short box_dim[5], element_strides[5];
    short lower_corner[3], upper_corner[3];
    unsigned char rank, element_bytes, swizzle_bytes, im2col;
    unsigned char tf32;  // floats that loads round
    unsigned char spare[43];
};
static_assert(sizeof(TensorMap) == 128, "as large as CUtensorMap");

namespace autotune_host {
struct Box {  // what a copy that is put off is told
    TensorMap map;
    int at[5];      // coordinates, the innermost first
    int offset[3];  // im2col: of the tap, [w, h, d]
};
static_assert(sizeof(Box) <= sizeof(AutotuneCopy::what), "a copy has room for it");

// Calls move(shared, global, begin, end) for each chunk of 16 bytes of a box, whose bytes from begin to end lie inside of the tensor.
template <class Move>
inline void for_each_chunk(const Box& box, size_t shared, Move move) {
    const TensorMap& map = box.map;
    const int row_bytes = map.box_dim[0] * map.element_bytes;
    const auto row = [&](size_t index, const long long (&at)[5]) {
        bool inside = true;
        long long element = 0;
        for (int i = map.rank - 1; i > 0; --i) {
            inside = inside && at[i] >= 0 && at[i] < map.global_dim[i];
            element = (element + at[i]) * map.global_dim[i - 1];
        }
        const char* const from = map.address + (element + at[0]) * map.element_bytes;
        for (int byte = 0; byte < row_bytes; byte += 16) {
            const long long first = at[0] + byte / map.element_bytes, count = 16 / map.element_bytes;
            const long long begin = first < 0 ? (first > -count ? -first : count) : 0;
            const long long left = inside ? map.global_dim[0] - first : 0, end = left < count ? left : count;
            char* const place = swizzled(shared + index * row_bytes + byte, map.swizzle_bytes);
            move(place, from + byte, begin * map.element_bytes, (end > begin ? end : begin) * map.element_bytes);
        }
    };
    if (map.im2col) {
        const int images = map.rank - 1;  // the outermost dimension
        long long at[5] = {};
        for (int i = 0; i <= images; ++i) at[i] = box.at[i];
        for (int pixel = 0; pixel < map.box_dim[1]; ++pixel) {
            long long tap[5] = {at[0]};
            for (int i = 1; i <= images; ++i) tap[i] = at[i] + (i < images ? box.offset[i - 1] : 0);
            row(pixel, tap);
            for (int i = 1; i < images; ++i) {
                at[i] += map.element_strides[i];
                if (at[i] < map.global_dim[i] + map.upper_corner[i - 1]) break;
                at[i] = map.lower_corner[i - 1];
                if (i == images - 1) ++at[images];
            }
        }
        return;
    }
    int rows = 1;
    for (int i = 1; i < map.rank; ++i) rows *= map.box_dim[i];
    for (int index = 0; index < rows; ++index) {
        long long at[5] = {box.at[0]};
        for (int i = 1, left = index; i < map.rank; left /= map.box_dim[i++]) at[i] = box.at[i] + left % map.box_dim[i];
        row(index, at);
    }
}

inline size_t box_bytes(const TensorMap& map) {
    size_t bytes = map.element_bytes;
    for (int i = 0; i < (map.im2col ? 2 : map.rank); ++i) bytes *= map.box_dim[i];
    return bytes;
}

// To the nearest TF32, ties to even, as TMA does: on an RTX PRO 6000 (triton-lang/triton, pull request 11751).
inline unsigned rounded_to_tf32(unsigned bits) {
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u : bits;
}

inline void load_box(const AutotuneCopy* copy) {
    const Box& box = *reinterpret_cast<const Box*>(copy->what);
    for_each_chunk(box, reinterpret_cast<size_t>(copy->to), [&](char* to, const char* from, long long begin, long long end) {
        unsigned words[4] = {};
        if (end > begin) memcpy(reinterpret_cast<char*>(words) + begin, from + begin, end - begin);
        for (unsigned& word : words) word = box.map.tf32 ? rounded_to_tf32(word) : word;
        memcpy(to, words, 16);
    });
}

inline void store_box(const AutotuneCopy* copy) {
    for_each_chunk(*reinterpret_cast<const Box*>(copy->what), reinterpret_cast<size_t>(copy->from), [](char* from, const char* to, long long begin, long long end) {
        if (end > begin) memcpy(const_cast<char*>(to) + begin, from + begin, end - begin);
    });
}

inline AutotuneCopy box_copy(const char* name, void (*perform)(const AutotuneCopy*), void* to, const void* from, const Box& box,
                             const void* owner, int dimensions) {
    if (reinterpret_cast<size_t>(to ? to : from) % 128) autotune_stop("misaligned_address", name, __FILE__, __LINE__);
    if (box.map.rank != dimensions) autotune_stop("trap", "a tensor map of other dimensions", __FILE__, __LINE__);
    // An H200 ends with an illegal instruction.
    if (box.at[0] * box.map.element_bytes % 16) autotune_stop("trap", "a box that begins between multiples of 16 bytes", __FILE__, __LINE__);
    AutotuneCopy copy = {to, from, box_bytes(box.map), owner, 0, perform, {}};
    memcpy(copy.what, &box, sizeof box);
    return copy;
}

inline void load_later(const char* name, void* shared, const Box& box, Barrier* barrier, int dimensions) {
    const AutotuneCopy copy = box_copy(name, &load_box, shared, nullptr, box, barrier, dimensions);
    memset(shared, 0xff, copy.bytes);
    autotune_defer(&copy);
    autotune_wake();  // whoever waits for the barrier already does the copy
}
}  // namespace autotune_host

inline void prefetch_tma_descriptor(const TensorMap*) {}

inline void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1) {
    autotune_host::load_later("tma_load", shared, {*map, {c0, c1}, {}}, barrier, 2);
}
inline void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2) {
    autotune_host::load_later("tma_load", shared, {*map, {c0, c1, c2}, {}}, barrier, 3);
}
inline void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3) {
    autotune_host::load_later("tma_load", shared, {*map, {c0, c1, c2, c3}, {}}, barrier, 4);
}
inline void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3, int c4) {
    autotune_host::load_later("tma_load", shared, {*map, {c0, c1, c2, c3, c4}, {}}, barrier, 5);
}
inline void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int n, int s) {
    if (!map->im2col) autotune_stop("trap", "tma_load_im2col of a tiled tensor map", __FILE__, __LINE__);
    if (s < 0 || s > 65535) autotune_stop("trap", "im2col offsets are 0 to 65535", __FILE__, __LINE__);
    autotune_host::load_later("tma_load_im2col", shared, {*map, {c, w, n}, {s}}, barrier, 3);
}
inline void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int h, int n, int s, int r) {
    if (!map->im2col) autotune_stop("trap", "tma_load_im2col of a tiled tensor map", __FILE__, __LINE__);
    if (s < 0 || s > 255 || r < 0 || r > 255) autotune_stop("trap", "im2col offsets are 0 to 255", __FILE__, __LINE__);
    autotune_host::load_later("tma_load_im2col", shared, {*map, {c, w, h, n}, {s, r}}, barrier, 4);
}
inline void tma_load_im2col(void* shared, const TensorMap* map, Barrier* barrier, int c, int w, int h, int d, int n, int s, int r, int t) {
    if (!map->im2col) autotune_stop("trap", "tma_load_im2col of a tiled tensor map", __FILE__, __LINE__);
    if (s < 0 || s > 31 || r < 0 || r > 31 || t < 0 || t > 31) autotune_stop("trap", "im2col offsets are 0 to 31", __FILE__, __LINE__);
    autotune_host::load_later("tma_load_im2col", shared, {*map, {c, w, h, d, n}, {s, r, t}}, barrier, 5);
}

// To the same place of several blocks of the cluster, each of which has its own barrier told.
inline void tma_load_multicast(void* shared, const TensorMap* map, Barrier* barrier, int blocks, int c0, int c1, int c2,
                               int line = __builtin_LINE()) {
    for (unsigned rank = 0; blocks >> rank; ++rank) {
        if (!(blocks >> rank & 1)) continue;
        void* const to = autotune_cluster_smem(shared, rank, line);
        const AutotuneCopy copy = autotune_host::box_copy("tma_load_multicast", &autotune_host::load_box, to, nullptr,
                                                          {*map, {c0, c1, c2}, {}}, autotune_cluster_smem(barrier, rank, line), 3);
        memset(to, 0xff, copy.bytes);
        autotune_cluster_defer(&copy, rank);
        autotune_cluster_wake(rank);
    }
}

namespace autotune_host {
inline void store_later(const void* shared, const Box& box, int dimensions) {
    const AutotuneCopy copy = box_copy("tma_store", &store_box, nullptr, shared, box, nullptr, dimensions);
    require_fenced(static_cast<const char*>(shared), copy.bytes, "tma_store of what a thread wrote without fence_bulk", __LINE__);
    autotune_defer(&copy);
}
}  // namespace autotune_host

inline void tma_store(const TensorMap* map, const void* shared, int c0, int c1) {
    autotune_host::store_later(shared, {*map, {c0, c1}, {}}, 2);
}
inline void tma_store(const TensorMap* map, const void* shared, int c0, int c1, int c2, int c3) {
    autotune_host::store_later(shared, {*map, {c0, c1, c2, c3}, {}}, 4);
}
inline void tma_store(const TensorMap* map, const void* shared, int c0, int c1, int c2, int c3, int c4) {
    autotune_host::store_later(shared, {*map, {c0, c1, c2, c3, c4}, {}}, 5);
}

template <typename Words>
inline void store_staged(Words* to, const Words& words) {
    *to = words;
    autotune_host::thread_state()->wrote(reinterpret_cast<const char*>(to), sizeof(Words));
}

// Matrices stored transposed.
namespace autotune_host {
struct MatrixColumn {
    void (*store)(void* const* lanes);  // how the runtime stores those of a whole warp
    void* column;
    const unsigned* d;
    int matrices;
};

inline void store_columns(void* const* lanes) {
    const auto of = [&](int lane) { return static_cast<const MatrixColumn*>(lanes[lane]); };
    for (int lane = 0; lane < 8 * of(0)->matrices; ++lane) {
        const int matrix = lane / 8, column = lane % 8;
        for (int row = 0; row < 8; ++row) {
            const unsigned word = of(row * 4 + column / 2)->d[matrix];
            static_cast<unsigned short*>(of(lane)->column)[row] = static_cast<unsigned short>(word >> column % 2 * 16);
        }
    }
}

template <int MATRICES>
inline void store_matrices(void* column, const unsigned (&d)[MATRICES], int line) {
    if (static_cast<int>(threadIdx.x % 32) < 8 * MATRICES) {
        if (reinterpret_cast<size_t>(column) % 16) autotune_stop("misaligned_address", "store_matrices_trans", __FILE__, line);
        thread_state()->wrote(static_cast<const char*>(column), 16);
    }
    MatrixColumn mine = {&store_columns, column, d, MATRICES};
    autotune_warp(TOGETHER, 0xffffffffu, reinterpret_cast<unsigned long long>(&mine), 0, 32, line);
}
}  // namespace autotune_host

inline void store_matrices_trans(void* column, const unsigned (&d)[4], int line = __builtin_LINE()) {
    autotune_host::store_matrices(column, d, line);
}
inline void store_matrices_trans(void* column, const unsigned (&d)[2], int line = __builtin_LINE()) {
    autotune_host::store_matrices(column, d, line);
}
