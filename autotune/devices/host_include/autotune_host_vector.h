// Built-in vector types of CUDA: the members, alignment and make_ functions of vector_types.h.
#pragma once

#define AUTOTUNE_VECTOR1(T, name)                                                            \
    struct name##1 {                                                                         \
        T x;                                                                                 \
    };                                                                                       \
    inline name##1 make_##name##1(T x) { return {x}; }
#define AUTOTUNE_VECTOR2(T, name, align)                                                     \
    struct __attribute__((aligned(align))) name##2 {                                         \
        T x, y;                                                                              \
    };                                                                                       \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define AUTOTUNE_VECTOR3(T, name)                                                            \
    struct name##3 {                                                                         \
        T x, y, z;                                                                           \
    };                                                                                       \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define AUTOTUNE_VECTOR4(T, name, align)                                                     \
    struct __attribute__((aligned(align))) name##4 {                                         \
        T x, y, z, w;                                                                        \
    };                                                                                       \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define AUTOTUNE_VECTORS(T, name, align2, align4)                                            \
    AUTOTUNE_VECTOR1(T, name)                                                                \
    AUTOTUNE_VECTOR2(T, name, align2)                                                        \
    AUTOTUNE_VECTOR3(T, name)                                                                \
    AUTOTUNE_VECTOR4(T, name, align4)

AUTOTUNE_VECTORS(signed char, char, 2, 4)
AUTOTUNE_VECTORS(unsigned char, uchar, 2, 4)
AUTOTUNE_VECTORS(short, short, 4, 8)
AUTOTUNE_VECTORS(unsigned short, ushort, 4, 8)
AUTOTUNE_VECTORS(int, int, 8, 16)
AUTOTUNE_VECTORS(unsigned, uint, 8, 16)
AUTOTUNE_VECTORS(long long, longlong, 16, 16)
AUTOTUNE_VECTORS(unsigned long long, ulonglong, 16, 16)
AUTOTUNE_VECTORS(float, float, 8, 16)
AUTOTUNE_VECTORS(double, double, 16, 16)

#undef AUTOTUNE_VECTORS
#undef AUTOTUNE_VECTOR1
#undef AUTOTUNE_VECTOR2
#undef AUTOTUNE_VECTOR3
#undef AUTOTUNE_VECTOR4

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
