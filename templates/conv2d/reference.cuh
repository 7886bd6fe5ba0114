#pragma once

// conv2d in double precision, for the GPU, for the host device and for the self-test of an exported library.
//
// `problem` has the sizes, words and derived sizes of operation.toml, and `in` its input arrays: in.x[i] is an element
// as a double. Who includes this defines REFERENCE_FUNCTION and the
// enumerations Layout, Terms and Activation.

// An output, and the sum of its terms' magnitudes times the activation's steepest slope, which its error bound is a
// multiple of.
struct Output {
    double value, magnitude;
};

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

// Output `at` of y as it is stored.
template <class Problem, class Inputs>
REFERENCE_FUNCTION Output reference_output(const Problem& problem, const Inputs& in, long long at) {
    const bool nhwc = problem.layout == Layout::nhwc;
    const int c_group = problem.c / problem.groups, k_group = problem.k / problem.groups;
    long long image = at;
    int k, p, q;
    if (nhwc) {
        k = static_cast<int>(image % problem.k), image /= problem.k;
        q = static_cast<int>(image % problem.q), image /= problem.q;
        p = static_cast<int>(image % problem.p), image /= problem.p;
    } else {
        q = static_cast<int>(image % problem.q), image /= problem.q;
        p = static_cast<int>(image % problem.p), image /= problem.p;
        k = static_cast<int>(image % problem.k), image /= problem.k;
    }
    double sum = 0.0, magnitude = 0.0;
    const auto add = [&](double term) { sum += term, magnitude += term < 0.0 ? -term : term; };
    for (int r = 0; r < problem.r; ++r) {
        const int h = p * problem.stride_h - problem.pad_h + r * problem.dilation_h;
        if (h < 0 || h >= problem.h) continue;
        for (int s = 0; s < problem.s; ++s) {
            const int w = q * problem.stride_w - problem.pad_w + s * problem.dilation_w;
            if (w < 0 || w >= problem.w) continue;
            for (int c = 0; c < c_group; ++c) {
                const long long channel = static_cast<long long>(k / k_group) * c_group + c;
                const long long at_x = nhwc ? ((image * problem.h + h) * problem.w + w) * problem.c + channel
                                            : ((image * problem.c + channel) * problem.h + h) * problem.w + w;
                const long long at_w = nhwc ? ((static_cast<long long>(k) * problem.r + r) * problem.s + s) * c_group + c
                                            : ((static_cast<long long>(k) * c_group + c) * problem.r + r) * problem.s + s;
                add(in.x[at_x] * in.w[at_w]);
            }
        }
    }
    if (problem.terms != Terms::none) add(in.bias[k]);
    if (problem.terms == Terms::bias_add) add(in.z[at]);
    const Activated output = activated(problem.activation, sum);
    return {output.value, magnitude * output.steepest};
}
