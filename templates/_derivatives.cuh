#pragma once

// Products with the derivatives of activations in double precision, for a reference.cuh that includes _activated.cuh.

// A derivative, and its largest magnitude.
REFERENCE_FUNCTION Activated derivative(Activation activation, double v) {
    switch (activation) {
        case Activation::identity: return {1.0, 1.0};
        // autotune puts a case here for each derivative of that table.
    }
    return {1.0, 1.0};
}

// What a sum becomes in the gradient through an activation that got `saved`.
REFERENCE_FUNCTION Activated differentiated(Activation activation, double sum, double saved) {
    const Activated slope = derivative(activation, saved);
    return {sum * slope.value, slope.steepest};
}
