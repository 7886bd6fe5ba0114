// A kernel's code and its weights on a device, and the launches of a pass. Errors throw a Failure.
#pragma once

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "driver.h"
#include "kernel.h"

namespace autotune_runtime {

inline thread_local std::string last_error;  // returned by conv2d_last_error

// Ends a call early; it never leaves the library.
struct Failure {
    conv2d_status status;
};

[[noreturn]] inline void fail(conv2d_status status, const std::string &what = "") {
    last_error = what;
    throw Failure{status};
}

// Throw unless a call of the driver succeeded.
inline void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    const char *name = nullptr;
    driver().cuGetErrorName(result, &name);
    const std::string words = std::string(what) + ": " + (name ? name : "error") + " (" + std::to_string(result) + ")";
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE) fail(CONV2D_WRONG_DEVICE, words);
    fail(result == CUDA_ERROR_OUT_OF_MEMORY ? CONV2D_OUT_OF_MEMORY : CONV2D_CUDA_ERROR, words);
}

// Makes a context current for the calling thread while it exists.
class Current {
public:
    explicit Current(CUcontext context) {
        check(driver().cuCtxGetCurrent(&before_), "cuCtxGetCurrent");
        if (before_ != context) check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent"), changed_ = true;
    }
    ~Current() {
        if (changed_) driver().cuCtxSetCurrent(before_);
    }
    Current(const Current &) = delete;

private:
    CUcontext before_ = nullptr;
    bool changed_ = false;
};

// Owned device memory.
class Memory {
public:
    Memory() = default;
    explicit Memory(uint64_t bytes) {
        if (bytes) check(driver().cuMemAlloc(&address_, bytes), "cuMemAlloc");
    }
    Memory(Memory &&other) noexcept : address_(std::exchange(other.address_, 0)) {}
    Memory &operator=(Memory &&other) noexcept {
        std::swap(address_, other.address_);
        return *this;
    }
    ~Memory() {
        if (address_) driver().cuMemFree(address_);
    }
    CUdeviceptr address() const { return address_; }

private:
    CUdeviceptr address_ = 0;
};

// Device addresses of one pass, and the bits of scalars.
struct Tensors {
    CUdeviceptr arrays[ARRAYS] = {};
    CUdeviceptr packed_w = 0, workspace = 0;

    CUdeviceptr &at(Argument argument) {
        if (argument == Argument::packed_w) return packed_w;
        return argument == Argument::workspace ? workspace : arrays[static_cast<int>(argument)];
    }
};

// A pass's tensor maps, encoded for its arrays.
class TensorMaps {
public:
    TensorMaps() = default;
    TensorMaps(const Plan &plan, Tensors tensors) {
        for (int i = 0; i < plan.map_count; ++i) encode(&maps_[i], plan.map_at(i), tensors);
    }
    void *at(int index) { return &maps_[index]; }

private:
    static void encode(CUtensorMap *to, const TensorMap &map, Tensors &tensors) {
        if (!driver().cuTensorMapEncodeTiled || !driver().cuTensorMapEncodeIm2col)
            fail(CONV2D_WRONG_DEVICE, "the driver is older than CUDA 12.0, and the kernel takes tensor maps");
        const bool halves = map.data_type == DataType::f16 || map.data_type == DataType::bf16;
        uint64_t dims[5], strides[5], bytes = halves ? 2 : 4;
        uint32_t box[5], element_strides[5];
        int lower[3] = {}, upper[3] = {};
        for (int i = 0; i < map.rank; ++i) {
            dims[i] = static_cast<uint64_t>(map.global_dim[i].value());
            strides[i] = bytes *= dims[i];  // of the next dimension
            box[i] = static_cast<uint32_t>(map.box_dim[i].value());
            element_strides[i] = static_cast<uint32_t>(map.element_strides[i].value());
        }
        for (int i = 0; i < map.rank - 2; ++i) {
            lower[i] = static_cast<int>(map.lower_corner[i].value());
            upper[i] = static_cast<int>(map.upper_corner[i].value());
        }
        const int type = static_cast<int>(map.data_type);
        const int swizzle = map.swizzle_bytes == 128 ? 3 : map.swizzle_bytes / 32;  // CU_TENSOR_MAP_SWIZZLE_
        void *const address = reinterpret_cast<void *>(tensors.at(map.array));
        const uint32_t rank = static_cast<uint32_t>(map.rank);
        // For large float32 tensors, fetching 256 bytes into L2 takes up to 4 % less time.
        const bool large = !halves && bytes >= 1 << 27;
        const int promotion = large ? CU_TENSOR_MAP_L2_PROMOTION_256B : CU_TENSOR_MAP_L2_PROMOTION_128B;
        if (map.im2col) {
            check(driver().cuTensorMapEncodeIm2col(to, type, rank, address, dims, strides, lower, upper, box[0], box[1],
                                                   element_strides, 0, swizzle, promotion, 0),
                  "cuTensorMapEncodeIm2col");
        } else {
            check(driver().cuTensorMapEncodeTiled(to, type, rank, address, dims, strides, box, element_strides, 0,
                                                  swizzle, promotion, 0),
                  "cuTensorMapEncodeTiled");
        }
    }

    CUtensorMap maps_[MOST_MAPS];
};

// Whether a kernel may start before the previous one has ended, if both are known to wait (programmatic dependent launch).
inline bool launches_early() {
    static const char *const asked = std::getenv("AUTOTUNE_DEPENDENT_LAUNCH");
    return asked && asked == std::string("1") && driver().cuLaunchKernelEx;
}

// A kernel's code in one context, with its constant memory.
class Loaded {
public:
    Loaded(const Kernel &loaded, CUcontext where, const Device &there) : kernel(loaded), context(where), device(there) {
        check(driver().cuModuleLoadData(&module_, kernel.image), "cuModuleLoadData");
        try {
            for (int i = 0; i < kernel.entry_count; ++i)
                check(driver().cuModuleGetFunction(&functions_[i], module_, kernel.entries[i]), "cuModuleGetFunction");
        } catch (...) {
            driver().cuModuleUnload(module_);
            throw;
        }
    }
    ~Loaded() { driver().cuModuleUnload(module_); }
    Loaded(const Loaded &) = delete;

    // Enqueue the stages that depend only on the weights.
    void prepare(const Plan &plan, Tensors tensors, CUstream stream) const {
        TensorMaps none;
        for (int i = 0; i < plan.prepare_count; ++i) launch(plan.prepare_at(i), tensors, none, {}, 0, false, stream);
        const Problem problem(kernel.info.problem);
        for (int i = 0; i < kernel.constant_count; ++i) {
            const Constant &constant = kernel.constants[i];
            CUdeviceptr to = 0;
            size_t bytes = 0;
            check(driver().cuModuleGetGlobal(&to, &bytes, module_, constant.name), "cuModuleGetGlobal");
            const CUdeviceptr from = tensors.at(constant.origin);
            const size_t available = constant.origin == Argument::packed_w
                                         ? unsigned_of(plan.packed_w_bytes)
                                         : size_bytes(DECLARED[static_cast<int>(constant.origin)], problem);
            bytes = bytes < available ? bytes : available;
            if (from) check(driver().cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
        }
    }

    // Enqueue a pass.
    void forward(const Plan &plan, const RuntimeSizes &sizes, const Tensors &tensors, CUstream stream) const {
        const bool early = kernel.dependent && launches_early();
        const bool overlaps = kernel.overlaps && device.arch.value() >= 90 && driver().cuLaunchKernelEx;
        const int64_t count = plan.loop_count.value();
        TensorMaps maps(plan, tensors);
        for (int64_t i = 0; i < count; ++i)
            for (int at = 0; at < plan.stage_count; ++at)
                launch(plan.stage_at(at), tensors, maps, sizes, static_cast<int32_t>(i), early || (overlaps && at > 0), stream);
    }

    const Kernel &kernel;
    const CUcontext context;
    const Device device;

private:
    void launch(const Launch &launch, const Tensors &tensors, TensorMaps &maps, RuntimeSizes sizes, int32_t i, bool early,
                CUstream stream) const {
        Tensors addresses = tensors;
        void *arguments[MOST_ARGUMENTS];
        for (int at = 0; at < launch.argument_count; ++at) {
            const Argument argument = launch.arguments[at];
            if (argument >= FIRST_RUNTIME && argument < BEHIND_RUNTIME) {
                arguments[at] = &sizes[static_cast<size_t>(argument) - static_cast<size_t>(FIRST_RUNTIME)];
                continue;
            }
            switch (argument) {
                case Argument::i: arguments[at] = &i; break;
                case Argument::map0: arguments[at] = maps.at(0); break;
                case Argument::map1: arguments[at] = maps.at(1); break;
                case Argument::map2: arguments[at] = maps.at(2); break;
                case Argument::map3: arguments[at] = maps.at(3); break;
                case Argument::map4: arguments[at] = maps.at(4); break;
                case Argument::map5: arguments[at] = maps.at(5); break;
                case Argument::map6: arguments[at] = maps.at(6); break;
                default: arguments[at] = &addresses.at(argument);
            }
        }
        const CUfunction function = functions_[launch.entry];
        const int smem_bytes = static_cast<int>(launch.smem_bytes.value());
        if (smem_bytes > admitted_[launch.entry]) {  // above 48 KB a function needs permission
            const std::lock_guard<std::mutex> lock(admitting_);
            if (smem_bytes > admitted_[launch.entry]) {  // and the permission that another thread set must not shrink
                check(driver().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes),
                      "cuFuncSetAttribute");
                admitted_[launch.entry] = smem_bytes;
            }
        }
        const auto size = [](Int extent) { return static_cast<unsigned>(extent.value()); };
        if (early) {
            const CUlaunchAttribute attribute = {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 0, {1}};
            const CUlaunchConfig config = {
                size(launch.grid.x), size(launch.grid.y), size(launch.grid.z), size(launch.block.x), size(launch.block.y),
                size(launch.block.z), size(launch.smem_bytes), stream, &attribute, 1};
            check(driver().cuLaunchKernelEx(&config, function, arguments, nullptr), kernel.entries[launch.entry]);
            return;
        }
        check(driver().cuLaunchKernel(function, size(launch.grid.x), size(launch.grid.y), size(launch.grid.z),
                                      size(launch.block.x), size(launch.block.y), size(launch.block.z),
                                      size(launch.smem_bytes), stream, arguments, nullptr),
              kernel.entries[launch.entry]);
    }

    CUmodule module_ = nullptr;
    CUfunction functions_[MOST_STAGES] = {};
    mutable std::mutex admitting_;
    mutable std::atomic<int> admitted_[MOST_STAGES] = {};  // bytes of dynamic shared memory
};

}  // namespace autotune_runtime
