#pragma once

// Elements in memory: conversion to and from float, and groups of N neighbours moved as one access.

__device__ __forceinline__ float to_float(float value) { return value; }

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <typename T, int N>
struct alignas(N * sizeof(T)) AlignedArray {
    T at[N];
};
