#pragma once

// A transposed convolution in double precision, for the GPU, for the host device and for the self-test of an exported library.
//
// `problem` has the sizes, words and derived sizes of operation.toml, and `in` its input arrays: in.x[i] is an element
// as a double. The including file defines REFERENCE_FUNCTION and the enumerations Layout, Terms and Activation.

// An output, and the sum of its terms' magnitudes times the activation's steepest slope, which its error bound is a
// multiple of, and how many products it sums: none in the padding.
struct Output {
    double value, magnitude;
    long long products;
};

#include "_activated.cuh"

#include "_derivatives.cuh"

// The input position whose tap meets an output on an axis; -1 where none does.
REFERENCE_FUNCTION int input_position(int output, int padding, int tap, int dilation, int stride, int extent) {
    const int at = output + padding - tap * dilation;
    return at >= 0 && at % stride == 0 && at / stride < extent ? at / stride : -1;
}

// Output `at` of y as it is stored.
template <class Problem, class Inputs>
REFERENCE_FUNCTION Output reference_output(const Problem& problem, const Inputs& in, long long at) {
    const bool nhwc = problem.layout == Layout::nhwc;
    const int c_group = problem.c / problem.groups, k_group = problem.k / problem.groups;
    long long image = at;
    const auto next = [&image](int extent) {
        const int index = static_cast<int>(image % extent);
        image /= extent;
        return index;
    };
    int k = nhwc ? next(problem.k) : 0;
    const int q = next(problem.q), p = next(problem.p), o = next(problem.o);
    if (!nhwc) k = next(problem.k);
    double sum = 0.0, magnitude = 0.0;
    long long products = 0;
    const auto add = [&](double term) { sum += term, magnitude += term < 0.0 ? -term : term; };
    for (int t = 0; t < problem.t; ++t) {
        const int d = input_position(o, problem.padding_d, t, problem.dilation_d, problem.stride_d, problem.d);
        for (int r = 0; d >= 0 && r < problem.r; ++r) {
            const int h = input_position(p, problem.padding_h, r, problem.dilation_h, problem.stride_h, problem.h);
            for (int s = 0; h >= 0 && s < problem.s; ++s) {
                const int w = input_position(q, problem.padding_w, s, problem.dilation_w, problem.stride_w, problem.w);
                if (w < 0) continue;
                products += c_group;
                for (int c = 0; c < c_group; ++c) {
                    const long long channel = static_cast<long long>(k / k_group) * c_group + c;
                    const long long plane = nhwc ? image : image * problem.c + channel;  // of frames
                    const long long pixel = ((plane * problem.d + d) * problem.h + h) * problem.w + w;
                    const long long filter = nhwc ? channel : channel * k_group + k % k_group;
                    const long long tap = ((filter * problem.t + t) * problem.r + r) * problem.s + s;
                    add(nhwc ? in.x[pixel * problem.c + channel] * in.w[tap * k_group + k % k_group] : in.x[pixel] * in.w[tap]);
                }
            }
        }
    }
    if (problem.terms == Terms::bias || problem.terms == Terms::bias_add) add(in.bias[k]);
    if (problem.residual) add(in.z[at]);
    if (problem.masked && !(in.mask[at] > 0.0)) return {0.0, 0.0, 0};
    const Activated output = problem.derivative ? differentiated(problem.activation, sum, in.saved[at]) : activated(problem.activation, sum);
    return {output.value, magnitude * output.steepest, products};
}
