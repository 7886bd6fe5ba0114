#pragma once

// A matrix product in double precision.
//
// `problem` has the sizes and words of operation.toml, and `in` its input arrays: in.a[i] is an element as a double. Who
// includes this defines REFERENCE_FUNCTION and the enumerations Transposes, Terms and Activation.

// An output, and the sum of its terms' magnitudes times the activation's steepest slope, which its error bound is a
// multiple of.
struct Output {
    double value, magnitude;
};

#include "_activated.cuh"

// Output `at` of y as it is stored.
template <class Problem, class Inputs>
REFERENCE_FUNCTION Output reference_output(const Problem& problem, const Inputs& in, long long at) {
    const long long m = problem.m, n = problem.n, k = problem.k;
    const long long column = at % n, row = at / n % m, of_batch = at / n / m;
    // From one of the sum's elements to the next one.
    const long long a_step = problem.transposes == Transposes::tn ? m : 1, b_step = problem.transposes == Transposes::nt ? 1 : n;
    const long long a = of_batch * m * k + (problem.transposes == Transposes::tn ? row : row * k);
    const long long b = of_batch * n * k + (problem.transposes == Transposes::nt ? column * k : column);
    double sum = 0.0, magnitude = 0.0;
    const auto add = [&](double term) { sum += term, magnitude += term < 0.0 ? -term : term; };
    for (long long i = 0; i < k; ++i) add(in.a[a + i * a_step] * in.b[b + i * b_step]);
    if (problem.terms != Terms::none) add(in.bias[column]);
    const Activated output = activated(problem.activation, sum);
    return {output.value, magnitude * output.steepest};
}
