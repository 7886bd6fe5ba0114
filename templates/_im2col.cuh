#pragma once

// im2col(x) element by element: the inputs that meet the filters at an output pixel. Needs _element.cuh, T and the
// problem's constants.

// Input row and column where a pixel's receptive field starts; negative in the padding.
struct Field {
    int row, column;
};

// The field of pixel 0 <= pixel < P * Q.
__device__ __forceinline__ Field field_at(int pixel) {
    return {pixel / Q * STRIDE_H - PAD_H, pixel % Q * STRIDE_W - PAD_W};
}

// The input of a plane under filter position (r, s), zero in the padding.
__device__ __forceinline__ T input_at(const T* plane, Field field, int r, int s) {
    const int row = field.row + r * DILATION_H;
    const int column = field.column + s * DILATION_W;
    bool inside = true;
    if constexpr (PAD_H > 0) inside = static_cast<unsigned>(row) < static_cast<unsigned>(H);
    if constexpr (PAD_W > 0) inside = inside && static_cast<unsigned>(column) < static_cast<unsigned>(W);
    return inside ? plane[row * W + column] : from_float<T>(0.0f);
}
