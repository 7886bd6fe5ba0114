// What the self-test and the benchmark need of a device: a context, arrays, and failing loudly.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "autotune_runtime.h"
#include "driver.h"
#include "operation.h"

namespace autotune_runtime {

[[noreturn]] inline void stop(const std::string &what) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
}

// Where there is nothing to run on; CTest and Automake call a test that ends with 77 skipped.
[[noreturn]] inline void skip(const char *why) {
    std::fprintf(stderr, "%s\n", why);
    std::exit(77);
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
    if (driver().no_device) skip("not run: there is no GPU on this machine");
    if (!driver().found) stop("the NVIDIA driver on this machine is too old or does not start");
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
    void write(const std::vector<unsigned char> &content) const {
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

// The arrays that a problem has and that are wanted, on the device.
class Arrays {
public:
    explicit Arrays(const conv2d_problem &problem, bool (*wanted)(const Declared &) = [](const Declared &) { return true; }) {
        const Problem layer(problem);
        for (int i = 0; i < ARRAYS; ++i)
            if (DECLARED[i].is_in(layer) && wanted(DECLARED[i])) arrays_[i] = std::make_unique<Array>(size_bytes(DECLARED[i], layer));
    }

    // Null where the problem has none.
    const Array *at(int index) const { return arrays_[index].get(); }

    // Arguments of a call, with a workspace.
    conv2d_arguments with(const Array &workspace) const {
        conv2d_arguments made = CONV2D_ARGUMENTS;
        made.workspace = workspace.pointer(), made.workspace_bytes = workspace.bytes();
        set(made);
        return made;
    }

    // Put them into the arguments of a call.
    void set(conv2d_arguments &arguments) const {
        for (int i = 0; i < ARRAYS; ++i)
            if (arrays_[i] && DECLARED[i].role == Role::scalar) set(arguments, i, arrays_[i]->read());
            else if (arrays_[i]) set(arguments, i, arrays_[i]->pointer());
    }

    static void set(conv2d_arguments &arguments, int index, const std::vector<unsigned char> &number) {
        std::memcpy(reinterpret_cast<char *>(&arguments) + DECLARED[index].place, number.data(), number.size());
    }

    static void set(conv2d_arguments &arguments, int index, void *pointer) {
        std::memcpy(reinterpret_cast<char *>(&arguments) + DECLARED[index].place, &pointer, sizeof pointer);
    }

private:
    std::unique_ptr<Array> arrays_[ARRAYS];
};

// Run-time sizes as a person reads them: 8, or of several 8 x 100.
inline std::string text_of(const RuntimeSizes &sizes) {
    std::string text;
    for (const int32_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
    return text;
}

}  // namespace autotune_runtime
