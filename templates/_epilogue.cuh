#pragma once

// What happens to a finished accumulator before it is stored: the output channel's bias and the residual are added, then
// comes the activation. A NaN stays a NaN, and an infinite sum gives the activation's limit.
// Families finish their accumulators with `finish`, or apply the activation's function where they do not.
// An activation is a function here, named by its word in operation.toml; "Epilogues" in docs/templates.md lists what else
// knows it. Needs _element.cuh.

__device__ __forceinline__ float identity(float value) { return value; }

__device__ __forceinline__ float relu(float value) { return value < 0.0f ? 0.0f : value; }

__device__ __forceinline__ float relu6(float value) { return value < 0.0f ? 0.0f : value > 6.0f ? 6.0f : value; }

// With PyTorch's slope below 0. Both sides of a NaN's maximum are one.
__device__ __forceinline__ float leaky_relu(float value) { return fmaxf(value, 0.01f * value); }

// value * relu6(value + 3) / 6
__device__ __forceinline__ float hardswish(float value) {
    value = value < -3.0f ? -3.0f : value;
    return value * __saturatef(fmaf(value, 1.0f / 6.0f, 0.5f));
}

// 2^value, and 1 / value, as one instruction each: they err by 2^-22 and 2^-23 at most (PTX ISA, ex2.approx, rcp.approx).
__device__ __forceinline__ float power_of_2(float value) {
#ifdef __CUDACC__
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(value));
    return value;
#else
    return exp2f(value);
#endif
}

__device__ __forceinline__ float reciprocal(float value) {
#ifdef __CUDACC__
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(value));
    return value;
#else
    return 1.0f / value;
#endif
}

// 1 / (1 + e^-value)
__device__ __forceinline__ float sigmoid(float value) { return reciprocal(1.0f + power_of_2(-1.44269504f * value)); }

// A factor of what vanishes at minus infinity; a finite one does not make it a NaN.
__device__ __forceinline__ float finite_below(float value) { return fmaxf(value, -3.402823466e38f); }

// value * sigmoid(value)
__device__ __forceinline__ float silu(float value) { return finite_below(value) * sigmoid(value); }

// silu(value) of SCALE * value, for a family whose sums carry that factor: a multiplication less. It is -log2(e) in 18 bits, 4e-7 of it
// too large, so that its products with whole numbers up to 64 are exact.
struct ScaledSilu {
    static constexpr float SCALE = -1.44269562f;
    __device__ static __forceinline__ float activate(float scaled) {
        return fminf(scaled, 3.402823466e38f) * reciprocal(fmaf(SCALE, power_of_2(scaled), SCALE));
    }
};

// value / 2 * (1 + tanh(sqrt(2 / pi) * (value + 0.044715 * value^3))), by 1 + tanh(u) = 2 * sigmoid(2 u) and with log2(e) in its factors
__device__ __forceinline__ float gelu_tanh(float value) {
    const float power = value * fmaf(value * value, -0.102943240f, -2.30220820f);
    return finite_below(value) * reciprocal(1.0f + power_of_2(power));
}

// value * Phi(value) = max(value, 0) - |value| * Phi(-|value|): no cancellation on either side. Phi(-a) = erfc(a / sqrt(2)) / 2 by
// Abramowitz and Stegun 1964, 7.1.26, which errs by less than a float's rounding of 1.
__device__ __forceinline__ float gelu(float value) {
    const float size = fminf(fabsf(value), 16.0f);  // from there on the tail is 0, and infinity no factor of it
    const float t = reciprocal(fmaf(size, 0.231641888f, 1.0f));
    float tail = fmaf(t, 0.530702715f, -0.726576014f);
    tail = fmaf(tail, t, 0.710706871f);
    tail = fmaf(tail, t, -0.142248368f);
    tail = fmaf(tail, t, 0.127414796f);
    return fmaf(-size, tail * t * power_of_2(size * size * -0.721347520f), relu(value));
}

// Derivatives of activations. A power of 2 that overflows is made finite, so that no infinity is multiplied by 0.
__device__ __forceinline__ float finite_above(float value) { return fminf(value, 3.402823466e38f); }

// s + value * s * (1 - s) with s = sigmoid(value), whose difference from 1 is a product, without cancellation
__device__ __forceinline__ float silu_derivative(float value) {
    const float power = finite_above(power_of_2(-1.44269504f * value)), s = reciprocal(1.0f + power);
    return s * fmaf(value, power * s, 1.0f);
}

// With gelu_tanh's s = (1 + tanh(u)) / 2 for u = sqrt(2 / pi) * (value + 0.044715 * value^3): s + value * 2 * s * (1 - s) * u'
__device__ __forceinline__ float gelu_tanh_derivative(float value) {
    const float power = finite_above(power_of_2(value * fmaf(value * value, -0.102943240f, -2.30220820f)));
    const float s = reciprocal(1.0f + power);
    return s * fmaf(value * (power * s), fmaf(value * value, 0.214064503f, 1.59576912f), 1.0f);
}

// Phi(value) + value * phi(value), which is 1 - (Phi(-value) - value * phi(value)); Phi(-|value|) as in gelu
__device__ __forceinline__ float gelu_derivative(float value) {
    const float size = fabsf(value) > 16.0f ? 16.0f : fabsf(value);  // unlike fminf, keeps a NaN
    const float t = reciprocal(fmaf(size, 0.231641888f, 1.0f));
    float tail = fmaf(t, 0.530702715f, -0.726576014f);
    tail = fmaf(tail, t, 0.710706871f);
    tail = fmaf(tail, t, -0.142248368f);
    tail = fmaf(tail, t, 0.127414796f);
    const float below = fmaf(size, -0.398942280f, tail * t) * power_of_2(size * size * -0.721347520f);
    return value < 0.0f ? below : 1.0f - below;
}

// What is added to an accumulator, and what the sum goes through. With MASKED, outputs are 0 where a tensor of y's shape is not above 0.
template <bool BIAS, bool RESIDUAL, float (*ACTIVATION)(float), bool MASKED = false>
struct Epilogue {
    static constexpr bool HAS_BIAS = BIAS, HAS_RESIDUAL = RESIDUAL, HAS_MASK = MASKED;
    __device__ static __forceinline__ float activate(float value) { return ACTIVATION(value); }
};

// With the output channel's bias in a register.
template <class EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias) {
    if constexpr (EPILOGUE::HAS_BIAS) accumulator += bias;
    return EPILOGUE::activate(accumulator);
}

// The activation of sums that carry a factor, such as ScaledSilu, for an accumulator without it; the bias carries it, or is 0.
template <class EPILOGUE>
__device__ __forceinline__ float finish_scaled(float accumulator, float scale, float scaled_bias) {
    return EPILOGUE::activate(fmaf(scale, accumulator, scaled_bias));
}

// And a residual.
template <class EPILOGUE>
__device__ __forceinline__ float finish(float accumulator, float bias, float residual) {
    return EPILOGUE::activate(accumulator + bias + residual);
}

template <class EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k, float residual) {
    return finish<EPILOGUE>(accumulator, to_float(bias[k]), residual);
}

// With bias[k], which is read only where there is one.
template <class EPILOGUE, typename T>
__device__ __forceinline__ float finish(float accumulator, const T* __restrict__ bias, int k) {
    if constexpr (EPILOGUE::HAS_BIAS) accumulator += to_float(bias[k]);
    return EPILOGUE::activate(accumulator);
}
