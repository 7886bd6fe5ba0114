#pragma once

// Activations in double precision, of operations whose word `epilogue` has a part `activation`: for their reference.cuh, whose
// `problem` and REFERENCE_FUNCTION these are.

// What a sum becomes, and how steep that function is at most: as often an error of the sum counts.
struct Activated {
    double value, steepest;
};

REFERENCE_FUNCTION Activated activated(Activation activation, double sum) {
    constexpr double SQRT_HALF = 0.70710678118654752, SQRT_2_OVER_PI = 0.79788456080286536;
    switch (activation) {
        case Activation::identity: return {sum, 1.0};
        case Activation::relu: return {sum < 0.0 ? 0.0 : sum, 1.0};
        case Activation::relu6: return {sum < 0.0 ? 0.0 : sum > 6.0 ? 6.0 : sum, 1.0};
        case Activation::silu: return {sum / (1.0 + exp(-sum)), 1.1};
        case Activation::hardswish: return {sum <= -3.0 ? 0.0 : sum >= 3.0 ? sum : sum * (sum + 3.0) / 6.0, 1.5};
        case Activation::sigmoid: return {1.0 / (1.0 + exp(-sum)), 0.25};
        case Activation::gelu: return {0.5 * sum * erfc(-sum * SQRT_HALF), 1.13};
        case Activation::gelu_tanh:
            return {0.5 * sum * (1.0 + tanh(SQRT_2_OVER_PI * (sum + 0.044715 * sum * sum * sum))), 1.13};
        case Activation::leaky_relu: return {sum < 0.0 ? 0.01 * sum : sum, 1.0};
    }
    return {sum, 1.0};
}

// What the activation may add to the error of an output's sum, computed in float32: 8 roundings of 2^-24 of the output
// and of what is summed, but of no more than 1 of that. Nothing where it rounds nothing: whole sums give exact outputs.
template <class Problem>
REFERENCE_FUNCTION double activation_error(const Problem& problem, double value, double magnitude) {
    const Activation activation = problem.activation;
    if (activation == Activation::identity || activation == Activation::relu || activation == Activation::relu6) return 0.0;
    return 8.0 / (1 << 24) * ((value < 0.0 ? -value : value) + (magnitude < 1.0 ? magnitude : 1.0));
}
