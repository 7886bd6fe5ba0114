// The functions of the CUDA driver that the library uses, declared as in cuda.h and looked up in libcuda.so.1 at the
// first use. So the build needs neither CUDA's headers nor a stub library. On a machine without a driver the program
// loads, and the library returns an error code.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "autotune_runtime.h"

namespace autotune_runtime {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st *;
using CUmodule = struct CUmod_st *;
using CUfunction = struct CUfunc_st *;
using CUevent = struct CUevent_st *;
using CUstream = conv2d_stream;
struct alignas(64) CUtensorMap {
    uint64_t opaque[16];
};
struct alignas(8) CUlaunchAttribute {
    int id, padding;
    int value[16];
};
struct CUlaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
    CUstream stream;
    const CUlaunchAttribute *attributes;
    unsigned attribute_count;
};

enum : CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
};
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
enum { CU_TENSOR_MAP_L2_PROMOTION_128B = 2, CU_TENSOR_MAP_L2_PROMOTION_256B = 3 };
enum { CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_DISABLE_TIMING = 2 };
enum {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};

// Name here, name in libcuda.so.1 (which distinguishes revisions of a function), parameters.
#define AUTOTUNE_CONV2D_DRIVER(FUNCTION)                                                                            \
    FUNCTION(cuInit, "cuInit", (unsigned flags))                                                                    \
    FUNCTION(cuGetErrorName, "cuGetErrorName", (CUresult error, const char **name))                                 \
    FUNCTION(cuDeviceGet, "cuDeviceGet", (CUdevice *device, int ordinal))                                           \
    FUNCTION(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                                    \
    FUNCTION(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device))            \
    FUNCTION(cuDeviceGetName, "cuDeviceGetName", (char *name, int bytes, CUdevice device))                          \
    FUNCTION(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *context, CUdevice device))           \
    FUNCTION(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext *context))                                              \
    FUNCTION(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                               \
    FUNCTION(cuCtxGetDevice, "cuCtxGetDevice", (CUdevice *device))                                                  \
    FUNCTION(cuCtxSynchronize, "cuCtxSynchronize", ())                                                              \
    FUNCTION(cuModuleLoadData, "cuModuleLoadData", (CUmodule *module, const void *image))                           \
    FUNCTION(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                                   \
    FUNCTION(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *function, CUmodule module, const char *name)) \
    FUNCTION(cuModuleGetGlobal, "cuModuleGetGlobal_v2",                                                             \
             (CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name))                              \
    FUNCTION(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction function, int attribute, int value))             \
    FUNCTION(cuLaunchKernel, "cuLaunchKernel",                                                                      \
             (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,             \
              unsigned block_y, unsigned block_z, unsigned smem_bytes, CUstream stream, void **parameters,          \
              void **extra))                                                                                        \
    FUNCTION(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *address, size_t bytes))                                     \
    FUNCTION(cuMemFree, "cuMemFree_v2", (CUdeviceptr address))                                                      \
    FUNCTION(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr to, const void *from, size_t bytes))                     \
    FUNCTION(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, CUdeviceptr from, size_t bytes))                           \
    FUNCTION(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                                             \
             (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                                     \
    FUNCTION(cuMemsetD8Async, "cuMemsetD8Async",                                                                    \
             (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))                                  \
    FUNCTION(cuStreamCreate, "cuStreamCreate", (CUstream *stream, unsigned flags))                                  \
    FUNCTION(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                         \
    FUNCTION(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                              \
    FUNCTION(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))              \
    FUNCTION(cuEventCreate, "cuEventCreate", (CUevent *event, unsigned flags))                                      \
    FUNCTION(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                      \
    FUNCTION(cuEventSynchronize, "cuEventSynchronize", (CUevent event))                                             \
    FUNCTION(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, CUevent start, CUevent end))           \
    FUNCTION(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))

// Functions of drivers from CUDA 12.0 on: for kernels with tensor maps, and for dependent launches.
#define AUTOTUNE_CONV2D_NEWER_DRIVER(FUNCTION)                                                                      \
    FUNCTION(cuLaunchKernelEx, "cuLaunchKernelEx",                                                                  \
             (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))                  \
    FUNCTION(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                      \
             (CUtensorMap * map, int type, uint32_t rank, void *address, const uint64_t *global_dim,                \
              const uint64_t *global_strides, const uint32_t *box_dim, const uint32_t *element_strides,             \
              int interleave, int swizzle, int l2_promotion, int outside))                                          \
    FUNCTION(cuTensorMapEncodeIm2col, "cuTensorMapEncodeIm2col",                                                    \
             (CUtensorMap * map, int type, uint32_t rank, void *address, const uint64_t *global_dim,                \
              const uint64_t *global_strides, const int *lower_corner, const int *upper_corner, uint32_t channels,  \
              uint32_t pixels, const uint32_t *element_strides, int interleave, int swizzle, int l2_promotion,      \
              int outside))

struct Driver {
#define AUTOTUNE_CONV2D_MEMBER(name, symbol, parameters) CUresult(*name) parameters = nullptr;
    AUTOTUNE_CONV2D_DRIVER(AUTOTUNE_CONV2D_MEMBER)
    AUTOTUNE_CONV2D_NEWER_DRIVER(AUTOTUNE_CONV2D_MEMBER)  // nullptr if the driver does not have it
#undef AUTOTUNE_CONV2D_MEMBER
    bool found = false;     // whether all required functions exist and the driver is initialized
    bool no_device = true;  // whether there is no driver or no GPU

    Driver() {
        void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library) return;
        found = true;
#define AUTOTUNE_CONV2D_LOOK_UP(name, symbol, parameters)                      \
    name = reinterpret_cast<CUresult(*) parameters>(dlsym(library, symbol)); \
    found = found && name;
        AUTOTUNE_CONV2D_DRIVER(AUTOTUNE_CONV2D_LOOK_UP)
#undef AUTOTUNE_CONV2D_LOOK_UP
#define AUTOTUNE_CONV2D_LOOK_UP(name, symbol, parameters) \
    name = reinterpret_cast<CUresult(*) parameters>(dlsym(library, symbol));
        AUTOTUNE_CONV2D_NEWER_DRIVER(AUTOTUNE_CONV2D_LOOK_UP)
#undef AUTOTUNE_CONV2D_LOOK_UP
        const CUresult started = found ? cuInit(0) : CUDA_SUCCESS;
        no_device = started == CUDA_ERROR_NO_DEVICE;
        found = found && started == CUDA_SUCCESS;
    }
};

// The driver of this process.
inline const Driver &driver() {
    static const Driver found;
    return found;
}

}  // namespace autotune_runtime
