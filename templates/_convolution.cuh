#pragma once

// A convolution in double precision, for the GPU, for the host device and for the self-test of an exported library: the
// reference of conv, and of conv2d, which derives the sizes that it lacks.
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

// An element of the frames in front of x. Only conv has such an array.
template <class Inputs>
REFERENCE_FUNCTION auto cached(const Inputs& in, long long at, int) -> decltype(in.cache[at]) {
    return in.cache[at];
}
template <class Inputs>
REFERENCE_FUNCTION double cached(const Inputs&, long long, long) {
    return 0.0;
}

// An input as it is multiplied, and the magnitude of what it is made of.
struct Input {
    double value, magnitude;
};

// An input after the prologue with the factors `at`. Only conv has a prologue.
template <class Problem, class Inputs>
REFERENCE_FUNCTION auto prologued(const Problem& problem, const Inputs& in, double x, long long at, int) -> decltype(in.scale[at], Input{}) {
    if (!problem.has_scale) return {x, x < 0.0 ? -x : x};
    const double product = x * in.scale[at], shift = problem.has_shift ? in.shift[at] : 0.0;
    const Activated input = activated(static_cast<Activation>(problem.prologue_activation), product + shift);
    const double magnitude = ((product < 0.0 ? -product : product) + (shift < 0.0 ? -shift : shift)) * input.steepest;
    const double least = problem.dtype == Dtype::f16 ? 1.0 / (1 << 14) : 0.0;  // below it the input is rounded as there
    return {input.value, magnitude < least ? least : magnitude};
}
template <class Problem, class Inputs>
REFERENCE_FUNCTION Input prologued(const Problem&, const Inputs&, double x, long long, long) {
    return {x, x < 0.0 ? -x : x};
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
        const int frame = o * problem.stride_d - problem.pad_d + t * problem.dilation_d;  // of cache, then of x
        if (frame < 0 || frame >= problem.cache_d + problem.d) continue;
        const bool in_cache = frame < problem.cache_d;
        const int d = in_cache ? frame : frame - problem.cache_d, frames = in_cache ? problem.cache_d : problem.d;
        for (int r = 0; r < problem.r; ++r) {
            const int h = p * problem.stride_h - problem.pad_h + r * problem.dilation_h;
            if (h < 0 || h >= problem.h) continue;
            for (int s = 0; s < problem.s; ++s) {
                const int w = q * problem.stride_w - problem.pad_w + s * problem.dilation_w;
                if (w < 0 || w >= problem.w) continue;
                products += c_group;
                for (int c = 0; c < c_group; ++c) {
                    const long long channel = static_cast<long long>(k / k_group) * c_group + c;
                    const long long plane = nhwc ? image : image * problem.c + channel;  // of frames
                    const long long pixel = ((plane * frames + d) * problem.h + h) * problem.w + w;
                    const long long filters = nhwc ? k : static_cast<long long>(k) * c_group + c;
                    const long long tap = ((filters * problem.t + t) * problem.r + r) * problem.s + s;
                    const long long element = nhwc ? pixel * problem.c + channel : pixel;
                    const Input input = prologued(problem, in, in_cache ? cached(in, element, 0) : in.x[element], image * problem.c + channel, 0);
                    const double filter = in.w[nhwc ? tap * c_group + c : tap];
                    sum += input.value * filter, magnitude += input.magnitude * (filter < 0.0 ? -filter : filter);
                }
            }
        }
    }
    if (problem.terms != Terms::none) add(in.bias[k]);
    if (problem.terms == Terms::bias_add) add(in.z[at]);
    const Activated output = activated(problem.activation, sum);
    return {output.value, magnitude * output.steepest, products};
}
