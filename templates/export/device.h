// Helpers of the self-test and the benchmark: a context, arrays, and errors that end the program.
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

// Exit code if there is no device; CTest and Automake report a test that ends with 77 as skipped.
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

// Make a device's primary context the calling thread's, and print the device's name.
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

// Device memory with a guard band after it; filled with ones, which are NaN in every storage type.
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
    // The content; ends the program if the guard band was overwritten.
    std::vector<unsigned char> read() const {
        std::vector<unsigned char> content(bytes_ + GUARD_BYTES);
        expect(driver().cuCtxSynchronize(), "a kernel");
        expect(driver().cuMemcpyDtoH(content.data(), address_, content.size()), "cuMemcpyDtoH");
        for (size_t i = bytes_; i < content.size(); ++i)
            if (content[i] != POISON) stop("a kernel wrote beyond its array");
        content.resize(bytes_);
        return content;
    }

private:
    static constexpr unsigned char POISON = 0xFF;
    static constexpr size_t GUARD_BYTES = 4096;
    size_t bytes_;
    CUdeviceptr address_ = 0;
};

// The selected arrays of a problem, on the device.
class Arrays {
public:
    explicit Arrays(const conv2d_problem &problem, bool (*wanted)(const Declared &) = [](const Declared &) { return true; }) {
        const Problem layer(problem);
        for (int i = 0; i < ARRAYS; ++i)
            if (DECLARED[i].is_in(layer) && wanted(DECLARED[i])) arrays_[i] = std::make_unique<Array>(size_bytes(DECLARED[i], layer));
    }

    // Null if the problem has no such array.
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

// Run-time sizes as text: 8, or 8 x 100 if there are several.
inline std::string text_of(const RuntimeSizes &sizes) {
    std::string text;
    for (const int32_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
    return text;
}

}  // namespace autotune_runtime
