#pragma once

// Activations in double precision, of operations whose word `epilogue` has a part `activation`: for their reference.cuh, whose
// `problem` and REFERENCE_FUNCTION these are.

// What a sum becomes, and how steep that function is at most: as often an error of the sum counts.
struct Activated {
    double value, steepest;
};

REFERENCE_FUNCTION Activated activated(Activation activation, double v) {
    switch (activation) {
        case Activation::identity: return {v, 1.0};
        // autotune puts a case here for each activation of the table in autotune_runtime/activations.py.
    }
    return {v, 1.0};
}

// What the activation may add to the error of an output's sum, computed in float32: 8 roundings of 2^-24 of the output
// and of what is summed, but of no more than 1 of that. Nothing where it rounds nothing: whole sums give exact outputs.
REFERENCE_FUNCTION double rounding_error(Activation activation, double value, double magnitude) {
    switch (activation) {
        case Activation::identity: return 0.0;
        // autotune puts a case here for each activation that does not round.
        default: break;
    }
    return 8.0 / (1 << 24) * ((value < 0.0 ? -value : value) + (magnitude < 1.0 ? magnitude : 1.0));
}

// What a prologue may add, whose activation rounds: half a unit in the last place of each input that is multiplied. Only conv has a prologue.
template <class Problem>
REFERENCE_FUNCTION auto prologue_error(const Problem& problem, double magnitude, int) -> decltype(problem.prologue_activation, 0.0) {
    if (rounding_error(static_cast<Activation>(problem.prologue_activation), 1.0, 1.0) == 0.0) return 0.0;
    return (problem.dtype == Dtype::bf16 ? 1.0 / (1 << 8) : 1.0 / (1 << 11)) * magnitude;
}
template <class Problem>
REFERENCE_FUNCTION double prologue_error(const Problem&, double, long) {
    return 0.0;
}

// What a derivative that rounds may add: 8 roundings of the sum that it multiplies. Only conv_transpose has derivatives.
template <class Problem>
REFERENCE_FUNCTION auto derivative_error(const Problem& problem, double magnitude, int) -> decltype(problem.derivative, 0.0) {
    return problem.derivative && rounding_error(problem.activation, 1.0, 1.0) > 0.0 ? 8.0 / (1 << 24) * magnitude : 0.0;
}
template <class Problem>
REFERENCE_FUNCTION double derivative_error(const Problem&, double, long) {
    return 0.0;
}

template <class Problem>
REFERENCE_FUNCTION double activation_error(const Problem& problem, double value, double magnitude) {
    return rounding_error(problem.activation, value, magnitude) + prologue_error(problem, magnitude, 0) + derivative_error(problem, magnitude, 0);
}
