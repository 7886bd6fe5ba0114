// The operation's float64 reference as a kernel, behind what stands above `check.cu` and its reference.cuh.

template <class Exact>
__device__ inline auto products_of(const Exact& exact, double, int) -> decltype(static_cast<double>(exact.products)) {
    return static_cast<double>(exact.products);
}

template <class Exact>
__device__ inline double products_of(const Exact&, double reduction, long) {
    return reduction;
}

// ref[o] = the exact output o of the first images, in its array's layout. `reduction` counts as its products where the
// reference does not say how many there are.
extern "C" __global__ void reference(REFERENCE_PARAMETERS, double* ref, ErrorUnit* units, double reduction, wide outputs
                                     PROBLEM_PARAMETERS) {
    const Problem problem = {PROBLEM_ARGUMENTS};
    const Inputs in = {REFERENCE_ARGUMENTS};
    for (wide o = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; o < outputs;
         o += static_cast<wide>(gridDim.x) * blockDim.x) {
        const Output exact = reference_output(problem, in, o);
        ref[o] = exact.value;
        units[o] = {static_cast<float>(ERROR_UNIT(exact)), static_cast<float>(products_of(exact, reduction, 0))};
    }
}
