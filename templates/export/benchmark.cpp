// Times the library's kernels on a device with events: median and quartiles in microseconds, of single passes from a
// cold L2 cache (overwritten before each) and of passes in a row, with a warm cache.
//
//     benchmark [N [DEVICE]]        N: a run-time size in place of the tuned one; 8x100 if there are several
#include <algorithm>
#include <chrono>

#include "device.h"

using namespace autotune_runtime;

namespace {

constexpr int SAMPLES = 30;
constexpr int ROW = 10;  // passes in a row

// Print a summary of times in microseconds; their median.
double median_of(std::vector<float> times, const char *what) {
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    std::printf("  %s: median %.2f us, quartiles %.2f to %.2f\n", what, median, times[times.size() / 4],
                times[times.size() * 3 / 4]);
    return median;
}

// Run-time sizes as text; 0, or fewer than there are, stands for those of a kernel.
RuntimeSizes parsed(const char *text, RuntimeSizes sizes) {
    for (int32_t &size : sizes) {
        char *end = nullptr;
        const long number = std::strtol(text, &end, 10);
        if (number > 0) size = static_cast<int32_t>(number);
        if (*end != 'x') break;
        text = end + 1;
    }
    return sizes;
}

void time_kernel(const conv2d_kernel &kernel, const char *asked, CUdevice device) {
    const RuntimeSizes tuned = runtime_sizes(kernel.problem), sizes = parsed(asked, tuned);
    const std::string shown = text_of(sizes);
    const conv2d_problem problem = with_runtime_sizes(kernel.problem, sizes);
    const Arrays arrays(problem);
    for (int i = 0; i < ARRAYS; ++i)  // zeros: NaN would be slower on some units
        if (const Array *const array = arrays.at(i))
            expect(driver().cuMemsetD8Async(array->address(), 0, array->bytes(), nullptr), "cuMemsetD8Async");
    int l2_bytes = 0;
    expect(driver().cuDeviceGetAttribute(&l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device), "cuDeviceGetAttribute");
    const Array flush(2 * static_cast<size_t>(std::max(l2_bytes, 32 << 20)));
    conv2d_handle *handle = nullptr;
    uint64_t workspace_bytes = 0;
    // For the size that it was tuned at, so that it is this kernel which runs.
    const conv2d_arguments prepared = arrays.with(Array(0));
    conv2d_status status = conv2d_prepare(&kernel.problem, &prepared, nullptr, &handle);
    if (status == CONV2D_OK) status = handle_workspace_size(handle, sizes, &workspace_bytes);
    if (status == CONV2D_WRONG_DEVICE || status == CONV2D_UNSUPPORTED) {
        std::printf("%s at %s = %s: not timed: %s (%s)\n", kernel.name, RUNTIME_NAME, shown.c_str(),
                    conv2d_status_text(status), conv2d_last_error());
        expect(conv2d_release(handle), "conv2d_release");
        return;
    }
    expect(status, "conv2d_prepare");
    const Array workspace(workspace_bytes);
    const conv2d_arguments arguments = arrays.with(workspace);
    CUevent start = nullptr, end = nullptr;
    expect(driver().cuEventCreate(&start, CU_EVENT_DEFAULT), "cuEventCreate");
    expect(driver().cuEventCreate(&end, CU_EVENT_DEFAULT), "cuEventCreate");
    double least_call_us = 1e9;
    const auto times = [&](bool cold) {
        std::vector<float> found;
        const int passes = cold ? 1 : ROW;
        for (int sample = -3; sample < SAMPLES; ++sample) {  // the first three warm up
            if (cold) expect(driver().cuMemsetD8Async(flush.address(), 1, flush.bytes(), nullptr), "cuMemsetD8Async");
            expect(driver().cuEventRecord(start, nullptr), "cuEventRecord");
            const auto called = std::chrono::steady_clock::now();
            for (int pass = 0; pass < passes; ++pass)
                expect(run_at(handle, sizes, arguments, nullptr), "conv2d_run");
            const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - called;
            least_call_us = std::min(least_call_us, elapsed.count() / passes);
            expect(driver().cuEventRecord(end, nullptr), "cuEventRecord");
            expect(driver().cuEventSynchronize(end), "a kernel");
            float milliseconds = 0.0f;
            expect(driver().cuEventElapsedTime(&milliseconds, start, end), "cuEventElapsedTime");
            if (sample >= 0) found.push_back(1000.0f * milliseconds / static_cast<float>(passes));
        }
        return found;
    };
    std::printf("%s at %s = %s (tuned at %s on %s: %.2f us)\n", conv2d_handle_kernel_name(handle), RUNTIME_NAME,
                shown.c_str(), text_of(tuned).c_str(), kernel.device, kernel.median_us);
    const double us = median_of(times(true), "cold");
    median_of(times(false), "in a row");
    const double flop = static_cast<double>(flops(Problem(problem)).value());
    std::printf("  cold: %.1f GFLOP/s; a call takes %.2f us of the CPU at least\n", flop / us / 1000.0, least_call_us);
    expect(driver().cuEventDestroy(start), "cuEventDestroy");
    expect(driver().cuEventDestroy(end), "cuEventDestroy");
    expect(conv2d_release(handle), "conv2d_release");
}

}  // namespace

int main(int argc, char **argv) {
    const int ordinal = argc > 2 ? std::atoi(argv[2]) : 0;
    open_device(ordinal);
    CUdevice device = 0;
    expect(driver().cuDeviceGet(&device, ordinal), "cuDeviceGet");
    conv2d_kernel kernel;
    for (int i = 0; conv2d_kernel_at(i, &kernel) == CONV2D_OK; ++i)
        time_kernel(kernel, argc > 1 ? argv[1] : "", device);
    return 0;
}
