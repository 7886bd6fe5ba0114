// The C interface over the kernels of kernels.cpp: checks, loading, launches. Nothing here depends on a kernel.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "autotune_runtime.h"
#include "dispatch.h"
#include "driver.h"
#include "kernel.h"
#include "loaded.h"

namespace autotune_runtime {
namespace {

// Run `body` and turn its exceptions into a status; last_error then belongs to this call.
template <class Body>
conv2d_status guarded(Body body) noexcept {
    last_error.clear();
    try {
        body();
        return CONV2D_OK;
    } catch (const Failure &failure) {
        return failure.status;
    } catch (const std::bad_alloc &) {
        return CONV2D_OUT_OF_MEMORY;
    } catch (...) {
        return CONV2D_CUDA_ERROR;
    }
}

// The calling thread's context; null if there is no context or no driver.
CUcontext current_context() {
    CUcontext context = nullptr;
    if (driver().found) driver().cuCtxGetCurrent(&context);
    return context;
}

int attribute(int which, CUdevice device) {
    int value = 0;
    check(driver().cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
}

Device current_device() {
    CUdevice device = 0;
    check(driver().cuCtxGetDevice(&device), "cuCtxGetDevice");
    Device found = {
        10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) +
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device),
        attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
        attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device),
        attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device),
    };
    found.most_threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    for (int axis = 0; axis < 3; ++axis) {
        found.grid_limits[axis] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis, device);
        found.block_limits[axis] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis, device);
    }
    return found;
}

void check_problem(const conv2d_problem *problem) {
    if (!problem) fail(CONV2D_NULL_POINTER);
    if (!is_problem(*problem)) fail(CONV2D_BAD_PROBLEM);
}

void check_sizes(const RuntimeSizes &sizes) {
    for (const int32_t size : sizes)
        if (size < 1) fail(CONV2D_BAD_PROBLEM);
}

void check_pointer(const void *pointer) {
    if (!pointer) fail(CONV2D_NULL_POINTER);
    if (reinterpret_cast<uintptr_t>(pointer) % CONV2D_ALIGNMENT) fail(CONV2D_MISALIGNED);
}

// The arguments with all arrays of this library: arrays that the caller does not know are NULL.
conv2d_arguments known(const conv2d_arguments *given) {
    if (!given) fail(CONV2D_NULL_POINTER);
    const uint64_t size = given->size_bytes;
    const unsigned char *const bytes = reinterpret_cast<const unsigned char *>(given);
    if (size < FIRST_ARRAY || size % sizeof(void *)) fail(CONV2D_BAD_ARGUMENTS, "size_bytes is not the size of a conv2d_arguments");
    for (uint64_t at = sizeof(conv2d_arguments); at < size; ++at)
        if (bytes[at]) fail(CONV2D_BAD_ARGUMENTS, "an array is set that this library does not know");
    conv2d_arguments found = CONV2D_ARGUMENTS;
    std::memcpy(&found, given, size < sizeof found ? size : sizeof found);
    return found;
}

// The arrays of a call: all, all except the prepared ones, or only those to be prepared.
enum class Taken { given, passed, prepared };
constexpr Taken GIVEN = Taken::given, PASSED = Taken::passed, PREPARED = Taken::prepared;

// Device addresses of a call's arrays that the problem has; all others are 0.
Tensors tensors_of(const conv2d_arguments &arguments, const conv2d_problem &problem, Taken taken) {
    Tensors found;
    const Problem layer(problem);
    for (int i = 0; i < ARRAYS; ++i) {
        const bool weights = DECLARED[i].role == Role::weights;
        const bool wanted = taken == GIVEN || weights == (taken == PREPARED);
        if (!wanted || !DECLARED[i].is_in(layer)) continue;
        const char *const place = reinterpret_cast<const char *>(&arguments) + DECLARED[i].place;
        if (DECLARED[i].role == Role::scalar) {
            std::memcpy(&found.arrays[i], place, bytes_of(DECLARED[i].dtype(layer)));
            continue;
        }
        const void *pointer = nullptr;
        std::memcpy(&pointer, place, sizeof pointer);
        check_pointer(pointer);
        found.arrays[i] = reinterpret_cast<uintptr_t>(pointer);
    }
    return found;
}

CUdeviceptr workspace_of(const conv2d_arguments &arguments, uint64_t bytes) {
    if (bytes == 0) return reinterpret_cast<uintptr_t>(arguments.workspace);
    if (arguments.workspace_bytes < bytes) fail(CONV2D_SHORT_WORKSPACE);
    check_pointer(arguments.workspace);
    return reinterpret_cast<uintptr_t>(arguments.workspace);
}

// The offset of packed filters in the workspace of conv2d_forward, and the bytes of both.
uint64_t packed_at(const Plan &plan) { return (unsigned_of(plan.workspace_bytes) + 255) / 256 * 256; }
uint64_t forward_bytes(const Plan &plan) {
    return plan.packed_w_bytes == 0 ? unsigned_of(plan.workspace_bytes) : packed_at(plan) + unsigned_of(plan.packed_w_bytes);
}

// The kernel for a problem on a device (null: on the devices on which kernels were tuned).
const Kernel &choose(const conv2d_problem &problem, const Device *device) {
    conv2d_status status = CONV2D_UNSUPPORTED;
    std::string reason = "the library has no kernel for this shape";
    const Kernel *const found = dispatch(problem, [&](const Kernel &kernel) {
        const Plan plan(kernel, runtime_sizes(problem), device ? *device : kernel.tuned_on);
        if (plan.status != CONV2D_OK) status = plan.status, reason = std::string(kernel.info.name) + ": " + plan.reason;
        return plan.status == CONV2D_OK;
    });
    if (!found) fail(status, reason);
    return *found;
}

bool takes(const Plan &plan, Argument wanted) {
    for (int i = 0; i < plan.stage_count; ++i)
        for (int j = 0; j < plan.stage_at(i).argument_count; ++j)
            if (plan.stage_at(i).arguments[j] == wanted) return true;
    for (int i = 0; i < plan.map_count; ++i)
        if (plan.map_at(i).array == wanted) return true;
    return false;
}

CUcontext needed_context() {
    const CUcontext context = current_context();
    if (!context) fail(CONV2D_NO_CONTEXT);
    return context;
}

}  // namespace
}  // namespace autotune_runtime

using namespace autotune_runtime;

struct conv2d_handle {
    conv2d_handle(const Kernel &kernel, CUcontext context, const Device &device) : loaded(kernel, context, device) {}

    Loaded loaded;
    Memory weights[ARRAYS];  // the weights of a pass
    Memory packed_w;
};

namespace {

// A kernel that conv2d_forward keeps loaded.
struct Kept {
    Kept(const Kernel &kernel, CUcontext context, const Device &device) : loaded(kernel, context, device) {
        check(driver().cuEventCreate(&used, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    }
    ~Kept() { driver().cuEventDestroy(used); }

    std::mutex preparing;  // held while a thread writes constants and enqueues the pass that reads them
    Loaded loaded;
    CUevent used = nullptr;  // the latest pass that reads constants
};

struct Keeper {
    std::mutex mutex;
    std::map<std::pair<CUcontext, const Kernel *>, std::unique_ptr<Kept>> kept;
};

Keeper &keeper() {
    static Keeper *const only = new Keeper;  // never freed, because the driver may already be unloaded when the process ends
    return *only;
}

Kept &keep(const Kernel &kernel, CUcontext context, const Device &device) {
    const std::lock_guard<std::mutex> lock(keeper().mutex);
    std::unique_ptr<Kept> &found = keeper().kept[{context, &kernel}];
    if (!found) found = std::make_unique<Kept>(kernel, context, device);
    return *found;
}

}  // namespace

extern "C" {

conv2d_status conv2d_workspace_size(const conv2d_problem *problem, uint64_t *bytes) {
    return guarded([&] {
        check_problem(problem);
        if (!bytes) fail(CONV2D_NULL_POINTER);
        if (current_context()) {
            const Device device = current_device();
            *bytes = forward_bytes(Plan(choose(*problem, &device), runtime_sizes(*problem), device));
        } else {
            const Kernel &kernel = choose(*problem, nullptr);
            *bytes = forward_bytes(Plan(kernel, runtime_sizes(*problem), kernel.tuned_on));
        }
    });
}

conv2d_status conv2d_prepare(const conv2d_problem *problem, const conv2d_arguments *arguments, conv2d_stream stream,
                             conv2d_handle **handle) {
    return guarded([&] {
        check_problem(problem);
        if (!handle) fail(CONV2D_NULL_POINTER);
        Tensors tensors = tensors_of(known(arguments), *problem, PREPARED);
        const CUcontext context = needed_context();
        const Device device = current_device();
        const Kernel &kernel = choose(*problem, &device);
        const Plan plan(kernel, runtime_sizes(*problem), device);
        auto made = std::make_unique<conv2d_handle>(kernel, context, device);
        for (int i = 0; i < ARRAYS; ++i) {
            if (!tensors.arrays[i] || !takes(plan, static_cast<Argument>(i))) continue;
            const uint64_t bytes = size_bytes(DECLARED[i], Problem(*problem));
            made->weights[i] = Memory(bytes);
            check(driver().cuMemcpyDtoDAsync(made->weights[i].address(), tensors.arrays[i], bytes, stream),
                  "cuMemcpyDtoDAsync");
        }
        made->packed_w = Memory(unsigned_of(plan.packed_w_bytes));
        tensors.packed_w = made->packed_w.address();
        made->loaded.prepare(plan, tensors, stream);
        *handle = made.release();
    });
}

conv2d_status conv2d_handle_workspace_size(const conv2d_handle *handle, CONV2D_RUNTIME_PARAMETERS, uint64_t *bytes) {
    const RuntimeSizes sizes = {{CONV2D_RUNTIME_ARGUMENTS}};
    return guarded([&] {
        if (!handle || !bytes) fail(CONV2D_NULL_POINTER);
        check_sizes(sizes);
        const Plan plan(handle->loaded.kernel, sizes, handle->loaded.device);
        if (plan.status != CONV2D_OK) fail(plan.status, plan.reason);
        *bytes = unsigned_of(plan.workspace_bytes);
    });
}

conv2d_status conv2d_run(const conv2d_handle *handle, CONV2D_RUNTIME_PARAMETERS, const conv2d_arguments *arguments,
                         conv2d_stream stream) {
    const RuntimeSizes sizes = {{CONV2D_RUNTIME_ARGUMENTS}};
    return guarded([&] {
        if (!handle) fail(CONV2D_NULL_POINTER);
        check_sizes(sizes);
        const conv2d_arguments given = known(arguments);
        Tensors tensors = tensors_of(given, handle->loaded.kernel.info.problem, PASSED);
        const Plan plan(handle->loaded.kernel, sizes, handle->loaded.device);
        if (plan.status != CONV2D_OK) fail(plan.status, plan.reason);
        for (int i = 0; i < ARRAYS; ++i)
            if (DECLARED[i].role == Role::weights) tensors.arrays[i] = handle->weights[i].address();
        tensors.packed_w = handle->packed_w.address();
        tensors.workspace = workspace_of(given, unsigned_of(plan.workspace_bytes));
        const Current current(handle->loaded.context);
        handle->loaded.forward(plan, sizes, tensors, stream);
    });
}

const char *conv2d_handle_kernel_name(const conv2d_handle *handle) {
    return handle ? handle->loaded.kernel.info.name : nullptr;
}

conv2d_status conv2d_release(conv2d_handle *handle) {
    return guarded([&] {
        if (!handle) return;
        const Current current(handle->loaded.context);
        const std::unique_ptr<conv2d_handle> owned(handle);  // freed before the context is popped
        check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
    });
}

conv2d_status conv2d_forward(const conv2d_problem *problem, const conv2d_arguments *arguments, conv2d_stream stream) {
    return guarded([&] {
        check_problem(problem);
        const conv2d_arguments given = known(arguments);
        const CUcontext context = needed_context();
        const Device device = current_device();
        const Kernel &kernel = choose(*problem, &device);  // first, because a problem without a kernel may have other arrays
        Tensors tensors = tensors_of(given, *problem, GIVEN);
        const Plan plan(kernel, runtime_sizes(*problem), device);
        tensors.workspace = workspace_of(given, forward_bytes(plan));
        if (plan.packed_w_bytes > 0) tensors.packed_w = tensors.workspace + packed_at(plan);
        Kept &own = keep(kernel, context, device);
        if (kernel.constant_count == 0) {
            own.loaded.prepare(plan, tensors, stream);
            own.loaded.forward(plan, runtime_sizes(*problem), tensors, stream);
            return;
        }
        const std::lock_guard<std::mutex> lock(own.preparing);
        check(driver().cuStreamWaitEvent(stream, own.used, 0), "cuStreamWaitEvent");
        own.loaded.prepare(plan, tensors, stream);
        own.loaded.forward(plan, runtime_sizes(*problem), tensors, stream);
        check(driver().cuEventRecord(own.used, stream), "cuEventRecord");
    });
}

conv2d_status conv2d_unload(void) {
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(keeper().mutex);
        for (auto &entry : keeper().kept) {
            const Current current(entry.first.first);
            check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
            entry.second.reset();
        }
        keeper().kept.clear();
    });
}

const char *conv2d_kernel_name(const conv2d_problem *problem) {
    const char *name = nullptr;
    guarded([&] {
        check_problem(problem);
        if (current_context()) {
            const Device device = current_device();
            name = choose(*problem, &device).info.name;
        } else {
            name = choose(*problem, nullptr).info.name;
        }
    });
    return name;
}

const char *conv2d_status_text(conv2d_status status) {
    switch (status) {
        case CONV2D_OK: return "ok";
        case CONV2D_BAD_PROBLEM: return "invalid problem of conv2d: a size is out of range, or sizes do not fit each other";
        case CONV2D_NULL_POINTER: return "a required pointer is NULL";
        case CONV2D_MISALIGNED: return "a device pointer is not a multiple of 16 bytes";
        case CONV2D_SHORT_WORKSPACE: return "the workspace is smaller than the size query returns";
        case CONV2D_UNSUPPORTED: return "the library has no kernel for this problem, or for a problem this large";
        case CONV2D_WRONG_DEVICE: return "the kernel for this problem does not run on this device";
        case CONV2D_NO_CONTEXT: return "no NVIDIA driver, or the calling thread has no CUDA context";
        case CONV2D_OUT_OF_MEMORY: return "out of memory";
        case CONV2D_CUDA_ERROR: return "a call of the CUDA driver failed; conv2d_last_error has the message";
        case CONV2D_BAD_ARGUMENTS: return "the arguments do not match this library's header";
    }
    return "unknown status";
}

const char *conv2d_last_error(void) { return last_error.c_str(); }

int32_t conv2d_abi_version(void) { return CONV2D_ABI_VERSION; }

const char *conv2d_library_version(void) { return library_version; }

int32_t conv2d_kernel_count(void) { return kernel_count; }

int32_t conv2d_array_count(void) { return ARRAYS; }

conv2d_status conv2d_array_at(const conv2d_problem *problem, int32_t index, conv2d_array *array) {
    return guarded([&] {
        check_problem(problem);
        if (!array) fail(CONV2D_NULL_POINTER);
        if (index < 0 || index >= ARRAYS) fail(CONV2D_UNSUPPORTED, "the array's index is out of range");
        const Declared &declared = DECLARED[index];
        const Problem layer(*problem);
        *array = conv2d_array();
        array->name = declared.name, array->role = ROLE_NAMES[static_cast<int>(declared.role)];
        if (!declared.is_in(layer)) return;
        array->dtype = STORED_NAMES[static_cast<int>(declared.dtype(layer))];
        array->size_bytes = size_bytes(declared, layer), array->rank = declared.rank;
        for (int axis = 0; axis < declared.rank; ++axis) array->shape[axis] = declared.extent(layer, axis).value();
    });
}

conv2d_status conv2d_kernel_at(int32_t index, conv2d_kernel *kernel) {
    return guarded([&] {
        if (!kernel) fail(CONV2D_NULL_POINTER);
        if (index < 0 || index >= kernel_count) fail(CONV2D_UNSUPPORTED, "the kernel's index is out of range");
        *kernel = kernels[index]->info;
    });
}

}  // extern "C"
