#pragma once

// The big part of a split float, the nearest TF32. Unlike to_tf32 it makes a number of a NaN: the small part, value - tf32_big(value), is what
// stays NaN.
__device__ __forceinline__ float tf32_big(float value) {
    return __uint_as_float((__float_as_uint(value) + 0x1000u) & 0xffffe000u);
}

// A part of a float as MMAs take it: the nearest TF32, or, of two parts, the big one and the small one, rounded alike.
template <int PARTS>
__device__ __forceinline__ float tf32_part(float value, int part) {
    if constexpr (PARTS == 1) {
        return to_tf32(value);
    } else {
        const float big = tf32_big(value);
        return part == 0 ? big : to_tf32(value - big);
    }
}

// A part of a word of an input: the word, or, of two parts of a float, the big one and what it leaves, which the MMA cuts off.
template <int PARTS, typename Word>
__device__ __forceinline__ Word word_part(Word word, int part) {
    if constexpr (PARTS == 1) {
        return word;
    } else {
        return part == 0 ? tf32_big(word) : word - tf32_big(word);
    }
}

// Elements ROUNDED as MMAs take them, or as they are.
template <bool ROUNDED, int ELEMENTS>
__device__ __forceinline__ Chunk staged_chunk(const Bits (&elements)[ELEMENTS]) {
    if constexpr (ROUNDED) {
        return chunk_of(elements);
    } else {
        return {{elements[0], elements[1], elements[2], elements[3]}};
    }
}
