#pragma once

// The gradient of a convolution's filters in double precision, for the GPU, for the host device and for the self-test of an exported library.
//
// `problem` has the sizes, words and derived sizes of operation.toml, and `in` its input arrays: in.x[i] is an element
// as a double. The including file defines REFERENCE_FUNCTION.

// An output, the sum of its terms' magnitudes, which its error bound is a multiple of, and how many products it sums: none in
// the padding.
struct Output {
    double value, magnitude;
    long long products;
};

// Element `at` of dw.
template <class Problem, class Inputs>
REFERENCE_FUNCTION Output reference_output(const Problem& problem, const Inputs& in, long long at) {
    const int c_group = problem.c / problem.groups;
    const auto next = [&at](int extent) {
        const int index = static_cast<int>(at % extent);
        at /= extent;
        return index;
    };
    const int in_group = next(c_group), s = next(problem.s), r = next(problem.r), t = next(problem.t), k = static_cast<int>(at);
    const int c = k / (problem.k / problem.groups) * c_group + in_group;
    Output output = {};
    for (long long image = 0; image < problem.n; ++image) {
        for (int o = 0; o < problem.o; ++o) {
            const int d = o * problem.stride_d - problem.pad_d + t * problem.dilation_d;
            if (d < 0 || d >= problem.d) continue;
            for (int p = 0; p < problem.p; ++p) {
                const int h = p * problem.stride_h - problem.pad_h + r * problem.dilation_h;
                if (h < 0 || h >= problem.h) continue;
                const long long inputs = ((image * problem.d + d) * problem.h + h) * problem.w;
                const long long outputs = ((image * problem.o + o) * problem.p + p) * problem.q;
                for (int q = 0; q < problem.q; ++q) {
                    const int w = q * problem.stride_w - problem.pad_w + s * problem.dilation_w;
                    if (w < 0 || w >= problem.w) continue;
                    const double term = in.x[(inputs + w) * problem.c + c] * in.dy[(outputs + q) * problem.k + k];
                    output.value += term;
                    output.magnitude += term < 0.0 ? -term : term;
                    ++output.products;
                }
            }
        }
    }
    return output;
}
