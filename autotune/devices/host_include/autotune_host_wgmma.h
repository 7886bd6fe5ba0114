// What templates/_ptx_wgmma_shared.cuh declares, on the CPU. Products of a warpgroup read shared memory, and write their sums, only when a
// warp waits for them; until then the sums are not numbers. Whatever writes an operand, by store_operand, must fence. An operand that changes
// in between ends the kernel: products began before it was there, or had not read it yet.
#pragma once

#include "autotune_host_ptx.h"

namespace autotune_host {
// Where a byte lies: chunks of 16 bytes change places within the swizzle, by the number of the row of 128 bytes.
AUTOTUNE_OWN inline char* swizzled(size_t at, int swizzle_bytes) {
    const size_t chunks = static_cast<size_t>(swizzle_bytes) / 16;
    return reinterpret_cast<char*>(chunks ? at ^ (at >> 7 & (chunks - 1)) << 4 : at);
}

// As matrix descriptors of PTX say where an operand lies.
struct Operand {
    unsigned long long bits;

    AUTOTUNE_OWN size_t field(int first) const { return static_cast<size_t>(bits >> first & 0x3fff) * 16; }
    AUTOTUNE_OWN size_t begin() const { return field(0); }
    AUTOTUNE_OWN size_t leading() const { return field(16); }  // bytes to the next 16 bytes in depth; not read where rows are swizzled
    AUTOTUNE_OWN size_t stride() const { return field(32); }   // to the next eight rows
    AUTOTUNE_OWN int swizzle_bytes() const { return bits >> 62 ? 256 >> (bits >> 62) : 0; }  // 128, 64 or 32, as long as the rows are

    // Where an element of a transposed operand lies, whose rows are its depth: 64 neighbours across it, then `leading` bytes on.
    AUTOTUNE_OWN const char* transposed(int row, int k, int element_bytes) const {
        const size_t at = begin() + static_cast<size_t>(row / 64) * leading() + static_cast<size_t>(k / 8) * stride();
        char* const smem = static_cast<char*>(autotune_smem_address());
        const size_t byte = at + static_cast<size_t>(k % 8) * 128 + static_cast<size_t>(row % 64 * element_bytes);
        return smem + reinterpret_cast<size_t>(swizzled(byte, 128));
    }
    void require_transposed(int rows, int line) const {
        if (bits >> 62 != 1) autotune_stop("trap", "a transposed operand that is not swizzled by 128 bytes", __FILE__, line);
        for (int row = 0; row < rows; row += 64) {
            const char* const first = static_cast<const char*>(autotune_smem_address()) + begin() / 1024 * 1024;
            require_fenced(first + static_cast<size_t>(row / 64) * leading(), stride() + 1024,
                           "a product of what a thread wrote without fence_bulk", line);
        }
    }

    // Where 16 bytes of a row lie, eight neighbours in depth.
    AUTOTUNE_OWN const char* chunk(int row, int index) const {
        const size_t eight = begin() + static_cast<size_t>(row / 8) * stride(), in_eight = static_cast<size_t>(row % 8);
        char* const smem = static_cast<char*>(autotune_smem_address());
        if (swizzle_bytes() == 0) return smem + eight + in_eight * 16 + static_cast<size_t>(index) * leading();
        const size_t row_bytes = static_cast<size_t>(swizzle_bytes());
        return smem + reinterpret_cast<size_t>(swizzled(eight + in_eight * row_bytes + static_cast<size_t>(index) * 16, swizzle_bytes()));
    }
    void require(int rows, int line) const {
        const size_t eights = static_cast<size_t>(rows / 8 - 1) * stride();
        const size_t row_bytes = static_cast<size_t>(swizzle_bytes()), first = row_bytes ? begin() / row_bytes * row_bytes : begin();
        const size_t bytes = eights + (row_bytes ? 8 * row_bytes : leading() + 128);
        require_fenced(static_cast<const char*>(autotune_smem_address()) + first, bytes, "a product of what a thread wrote without fence_bulk",
                       line);
    }
};

inline void require_operand(bool transposed, unsigned long long operand, int rows, int line) {
    transposed ? Operand{operand}.require_transposed(rows, line) : Operand{operand}.require(rows, line);
}
template <bool A_TRANSPOSED, bool B_TRANSPOSED>
inline void require_operands(const Product& product, int columns, int line) {
    if (!product.registers) require_operand(A_TRANSPOSED, product.a, 64, line);
    require_operand(B_TRANSPOSED, product.b, columns, line);
}

// Reads words of an operand as a kernel would, or unseen.
struct Watched {
    template <class Word>
    static Word load(const char* from) {
        Word word;
        memcpy(&word, from, sizeof word);
        return word;
    }
};
struct Unwatched {
    template <class Word>
    AUTOTUNE_OWN static Word load(const char* from) {
        Word word;
        memcpy(&word, from, sizeof word);
        return word;
    }
};

// Of the two chunks of each row, 32 bytes in depth.
template <class Reader>
AUTOTUNE_OWN inline unsigned long long hash_rows(bool transposed, unsigned long long operand, int first, int count) {
    unsigned long long hash = 0;
    const auto add = [&](unsigned long long word) AUTOTUNE_OWN { hash = (hash ^ word) * 0x9e3779b97f4a7c15ull; };
    for (int row = first; row < first + count; ++row) {
        for (int k = 0; k < 16 && transposed; ++k) add(Reader::template load<unsigned short>(Operand{operand}.transposed(row, k, 2)));
        for (int i = 0; i < 4 && !transposed; ++i) {
            add(Reader::template load<unsigned long long>(Operand{operand}.chunk(row, i / 2) + i % 2 * 8));
        }
    }
    return hash;
}
template <class Reader, bool A_TRANSPOSED, bool B_TRANSPOSED>
inline unsigned long long hash_operands(const Product& product, int columns, int warp) {
    const unsigned long long a = product.registers ? 0 : hash_rows<Reader>(A_TRANSPOSED, product.a, 16 * warp, 16);
    return 31 * a + hash_rows<Reader>(B_TRANSPOSED, product.b, 0, columns);
}

struct Tf32Format {
    using Bits = unsigned;
    static float widen(unsigned bits) { return float_of(bits & 0xffffe000u); }  // the instruction ignores the last 13 bits
};

template <class Format, int COUNT>
AUTOTUNE_OWN inline void widen(const typename Format::Bits (&from)[COUNT], float (&to)[COUNT]) {
    for (int i = 0; i < COUNT; ++i) to[i] = Format::widen(from[i]);
}

// Adds the products of a warp's 16 rows with the 8 columns of a tile.
template <int DEPTH>
AUTOTUNE_OWN inline void add_tile(const Product* const (&lanes)[32], float* const (&sums)[32], int tile, const float (&a)[16][DEPTH],
                                  const float (&b)[8][DEPTH]) {
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            float* const d = sums[lane] + 4 * tile + i;
            const double sum = lanes[lane]->accumulate ? *d : 0.0;
            *d = truncated(add_products(sum, a[lane / 4 + i / 2 * 8], b[lane % 4 * 2 + i % 2]));
        }
    }
}

template <class Format, bool A_TRANSPOSED, bool B_TRANSPOSED>
inline void multiply_shared(const Product* const (&lanes)[32], float* const (&sums)[32], int tiles, int warp) {
    using Bits = typename Format::Bits;
    constexpr int CHUNK = 16 / sizeof(Bits), DEPTH = 2 * CHUNK;  // elements of a chunk, and of a product
    const Product& product = *lanes[0];
    const auto row = [](bool transposed, unsigned long long operand, int index, float (&values)[DEPTH]) {
        Bits from[DEPTH];
        for (int k = 0; k < DEPTH && transposed; ++k) memcpy(from + k, Operand{operand}.transposed(index, k, sizeof(Bits)), sizeof(Bits));
        for (int chunk = 0; chunk < 2 && !transposed; ++chunk) memcpy(from + CHUNK * chunk, Operand{operand}.chunk(index, chunk), 16);
        widen<Format>(from, values);
    };
    float a[16][DEPTH], b[8][DEPTH];
    for (int i = 0; i < 16; ++i) {
        if (!product.registers) row(A_TRANSPOSED, product.a, 16 * warp + i, a[i]);
        constexpr int NEIGHBOURS = 4 / sizeof(Bits);  // elements of a word
        for (int k = 0; k < DEPTH && product.registers; ++k) {
            const unsigned word = lanes[i % 8 * 4 + k / NEIGHBOURS % 4]->words[k / CHUNK * 2 + i / 8];
            a[i][k] = Format::widen(static_cast<Bits>(word >> k % NEIGHBOURS * 16));
        }
    }
    for (int tile = 0; tile < tiles; ++tile) {
        for (int column = 0; column < 8; ++column) row(B_TRANSPOSED, product.b, 8 * tile + column, b[column]);
        add_tile(lanes, sums, tile, a, b);
    }
}

template <class Format, bool A_TRANSPOSED = false, bool B_TRANSPOSED = false, int TILES>
inline void begin_shared(float (&d)[TILES][4], unsigned long long a, const unsigned* registers, unsigned long long b, bool accumulate,
                         int line) {
    static_assert(TILES <= 32, "a product has 256 columns at most");
    Product product = {&multiply_shared<Format, A_TRANSPOSED, B_TRANSPOSED>, &require_operands<A_TRANSPOSED, B_TRANSPOSED>,
                       &hash_operands<Unwatched, A_TRANSPOSED, B_TRANSPOSED>, 0, a, b, registers, {}, 0, accumulate, 0};
    if (threadIdx.x % 32 == 0) {
        const int warp = static_cast<int>(threadIdx.x % 128 / 32);
        product.begun_hash = hash_operands<Watched, A_TRANSPOSED, B_TRANSPOSED>(product, 8 * TILES, warp);
    }
    if (registers) memcpy(product.words, registers, sizeof product.words);
    thread_state()->begin(product, &d[0][0], TILES, line);
}
}  // namespace autotune_host

template <typename V>
inline void store_operand(void* to, const V& value) {
    autotune_host::thread_state()->wrote(static_cast<const char*>(to), static_cast<int>(sizeof value));
    *static_cast<V*>(to) = value;
}

#define WGMMA(NAME, FORMAT)                                                                                                          \
    template <int TILES>                                                                                                             \
    inline void NAME(float (&d)[TILES][4], unsigned long long a, unsigned long long b, bool accumulate, int line = __builtin_LINE()) { \
        autotune_host::begin_shared<autotune_host::FORMAT>(d, a, nullptr, b, accumulate, line);                                      \
    }                                                                                                                                \
    template <int TILES>                                                                                                             \
    inline void NAME(float (&d)[TILES][4], const unsigned (&a)[4], unsigned long long b, bool accumulate, int line = __builtin_LINE()) { \
        autotune_host::begin_shared<autotune_host::FORMAT>(d, 0, a, b, accumulate, line);                                            \
    }
WGMMA(wgmma_f16_shared, HalfFormat)
WGMMA(wgmma_bf16_shared, Bfloat16Format)
WGMMA(wgmma_tf32_shared, Tf32Format)
#undef WGMMA

// Operands of 16 bits whose rows are their depth, where one is transposed.
#define WGMMA(NAME, FORMAT)                                                                                                          \
    template <bool A_TRANSPOSED, bool B_TRANSPOSED, int TILES>                                                                       \
    inline void NAME(float (&d)[TILES][4], unsigned long long a, unsigned long long b, bool accumulate, int line = __builtin_LINE()) { \
        autotune_host::begin_shared<autotune_host::FORMAT, A_TRANSPOSED, B_TRANSPOSED>(d, a, nullptr, b, accumulate, line);          \
    }                                                                                                                                \
    template <bool A_TRANSPOSED, bool B_TRANSPOSED, int TILES>                                                                       \
    inline void NAME(float (&d)[TILES][4], const unsigned (&a)[4], unsigned long long b, bool accumulate, int line = __builtin_LINE()) { \
        autotune_host::begin_shared<autotune_host::FORMAT, A_TRANSPOSED, B_TRANSPOSED>(d, 0, a, b, accumulate, line);                \
    }
WGMMA(wgmma_f16_transposed, HalfFormat)
WGMMA(wgmma_bf16_transposed, Bfloat16Format)
#undef WGMMA
