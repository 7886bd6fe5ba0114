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

#include "_activated.cuh"

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
