// What the self-test and the benchmark need of a device: a context, arrays, and failing loudly.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "autotune_conv2d.h"
#include "driver.h"

namespace autotune_conv2d {

[[noreturn]] inline void stop(const std::string &what) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
}

inline void expect(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    const char *name = nullptr;
    driver().cuGetErrorName(result, &name);
    stop(std::string(what) + ": " + (name ? name : "error") + " (" + std::to_string(result) + ")");
}

inline void expect(conv2d_status status, const char *what) {
    if (status != CONV2D_OK)
        stop(std::string(what) + ": " + conv2d_status_text(status) + ". " + conv2d_last_error());
}

// Make a device's primary context the calling thread's and say which device it is.
inline CUcontext open_device(int ordinal) {
    if (!driver().found) stop("no NVIDIA driver on this machine");
    CUdevice device = 0;
    expect(driver().cuDeviceGet(&device, ordinal), "cuDeviceGet");
    char name[256] = "";
    expect(driver().cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
    CUcontext context = nullptr;
    expect(driver().cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::printf("device %d: %s, %s\n", ordinal, name, conv2d_library_version());
    return context;
}

// Device memory with a guard behind it; all ones, which is NaN in every storage type, until something is written.
class Array {
public:
    explicit Array(size_t bytes) : bytes_(bytes) {
        expect(driver().cuMemAlloc(&address_, bytes_ + GUARD_BYTES), "cuMemAlloc");
        poison();
    }
    explicit Array(const std::vector<unsigned char> &content) : Array(content.size()) { write(content); }
    ~Array() { driver().cuMemFree(address_); }
    Array(const Array &) = delete;

    void *pointer() const { return reinterpret_cast<void *>(static_cast<uintptr_t>(address_)); }
    size_t bytes() const { return bytes_; }
    CUdeviceptr address() const { return address_; }

    void poison() const {
        expect(driver().cuMemsetD8Async(address_, POISON, bytes_ + GUARD_BYTES, nullptr), "cuMemsetD8Async");
        expect(driver().cuCtxSynchronize(), "cuCtxSynchronize");
    }
    void write(const std::vector<unsigned char> &content) {
        if (!content.empty()) expect(driver().cuMemcpyHtoD(address_, content.data(), content.size()), "cuMemcpyHtoD");
    }
    // The content; stops when something was written behind it.
    std::vector<unsigned char> read() const {
        std::vector<unsigned char> content(bytes_ + GUARD_BYTES);
        expect(driver().cuCtxSynchronize(), "a kernel");
        expect(driver().cuMemcpyDtoH(content.data(), address_, content.size()), "cuMemcpyDtoH");
        for (size_t i = bytes_; i < content.size(); ++i)
            if (content[i] != POISON) stop("a kernel wrote behind its array");
        content.resize(bytes_);
        return content;
    }

private:
    static constexpr unsigned char POISON = 0xFF;
    static constexpr size_t GUARD_BYTES = 4096;
    size_t bytes_;
    CUdeviceptr address_ = 0;
};

// Sizes of a problem's tensors, in elements.
struct Sizes {
    explicit Sizes(const conv2d_problem &of)
        : element_bytes(of.dtype == CONV2D_F32 ? 4 : 2),
          p(1 + (of.h + 2 * int64_t{of.pad_h} - int64_t{of.dilation_h} * (of.r - 1) - 1) / of.stride_h),
          q(1 + (of.w + 2 * int64_t{of.pad_w} - int64_t{of.dilation_w} * (of.s - 1) - 1) / of.stride_w),
          x(int64_t{of.n} * of.c * of.h * of.w),
          w(int64_t{of.k} * (of.c / of.groups) * of.r * of.s),
          y(int64_t{of.n} * of.k * p * q) {}

    int64_t element_bytes;
    int64_t p, q;  // height and width of y
    int64_t x, w, y;
};

}  // namespace autotune_conv2d
