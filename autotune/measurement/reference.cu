// The operation's float64 reference as a kernel, behind what stands above `check.cu` and its reference.cuh.

// ref[o] = the exact output o of the first images, in its array's layout; magnitude[o] = what its error is measured in.
extern "C" __global__ void reference(REFERENCE_PARAMETERS, double* ref, float* magnitude, wide outputs
                                     PROBLEM_PARAMETERS) {
    const Problem problem = {PROBLEM_ARGUMENTS};
    const Inputs in = {REFERENCE_ARGUMENTS};
    for (wide o = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; o < outputs;
         o += static_cast<wide>(gridDim.x) * blockDim.x) {
        const Output exact = reference_output(problem, in, o);
        ref[o] = exact.value;
        magnitude[o] = static_cast<float>(ERROR_UNIT(exact));
    }
}
