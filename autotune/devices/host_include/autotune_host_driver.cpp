// The CUDA driver on the CPU, as far as an exported library calls it: compiled as libcuda.so.1, over the runtime of
// autotune_host_runtime.cpp. Devices of compute capability 9.0, one unless AUTOTUNE_HOST_DEVICES says more; a module is a
// shared library of devices/host_compile.py, loaded anew for every cuModuleLoadData, so that each has constant memory of
// its own, and runs in its own context only. Streams run at once and in order.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "autotune_host_launch.h"

namespace {

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
};
constexpr unsigned SMEM_WITHOUT_OPT_IN = 48 << 10, SMEM_BYTES = 232448, MOST_THREADS = 1024;
constexpr unsigned GRID_LIMITS[3] = {2147483647, 65535, 65535}, BLOCK_LIMITS[3] = {1024, 1024, 64};
constexpr uint64_t LAUNCH_LIMIT_NS = 60ull * 1000 * 1000 * 1000;

struct Function;

struct Module {
    void* library;
    void* context;
    Function* functions;  // the latest that was asked for
    int fd;
    void* (*smem)();
    uint64_t tls_module, tls_bytes;
};

struct Function {
    Module* module;
    Function* before;  // the one of this module that was asked for before it
    void (*call)(void* const*);
    unsigned smem_bytes;  // of dynamic shared memory that it may have
    unsigned cluster;     // blocks of one
};

constexpr int MOST_DEVICES = 8;
char contexts[MOST_DEVICES];  // the addresses are the contexts
int failed;                   // what a kernel's failure leaves to every later call
thread_local void* current;

unsigned setting(const char* name, unsigned otherwise) {
    const char* const value = getenv(name);
    return value ? static_cast<unsigned>(atoi(value)) : otherwise;
}

// The runtime, whose functions the kernels' libraries find by being global; a process has one.
int (*runtime_launch)(const AutotuneLaunch*, char* reason, char* message, size_t message_bytes);
void (*runtime_tls)(void* library, uint64_t* module, uint64_t* size_bytes);

bool find_runtime() {
    void* const runtime = dlopen("libautotune_host.so", RTLD_NOW | RTLD_GLOBAL);
    if (!runtime) return false;
    runtime_launch = reinterpret_cast<decltype(runtime_launch)>(dlsym(runtime, "autotune_launch"));
    runtime_tls = reinterpret_cast<decltype(runtime_tls)>(dlsym(runtime, "autotune_tls"));
    return runtime_launch && runtime_tls;
}

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

size_t image_bytes(const void* image) {  // of an ELF file whose section table comes last; 0: it is none
    const ElfW(Ehdr)* const header = static_cast<const ElfW(Ehdr)*>(image);
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return 0;
    return header->e_shoff + size_t{header->e_shentsize} * header->e_shnum;
}

void* symbol(const Module* module, const char* prefix, const char* name) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return dlsym(module->library, full);
}

// TensorMap of autotune_host_tma.h, which is what CUtensorMap is to a kernel here.
struct TensorMap {
    const void* address;
    int64_t global_dim[5];
    uint16_t box_dim[5], element_strides[5];
    int16_t lower_corner[3], upper_corner[3];
    uint8_t rank, element_bytes, swizzle_bytes, im2col, tf32, spare[43];
};
static_assert(sizeof(TensorMap) == 128, "as large as CUtensorMap");

// A map without what tells tiled from im2col. Tensors have no gaps here.
int encode(TensorMap* map, int type, uint32_t rank, const void* address, const uint64_t* global_dim, const uint64_t* strides,
           const uint32_t* element_strides, int swizzle) {
    constexpr uint8_t SWIZZLES[] = {0, 32, 64, 128};
    if (rank < 1 || rank > 5 || swizzle < 0 || swizzle > 3 || !address || reinterpret_cast<uintptr_t>(address) % 16) return INVALID_VALUE;
    memset(map, 0, sizeof *map);
    map->address = address;
    map->rank = static_cast<uint8_t>(rank);
    map->element_bytes = type == 7 || type == 11 ? 4 : 2;  // CU_TENSOR_MAP_DATA_TYPE_FLOAT32, TFLOAT32
    map->tf32 = type == 11;
    map->swizzle_bytes = SWIZZLES[swizzle];
    uint64_t bytes = map->element_bytes;
    for (uint32_t i = 0; i < rank; ++i) {
        if (global_dim[i] < 1 || element_strides[i] < 1 || element_strides[i] > 8) return INVALID_VALUE;
        map->global_dim[i] = static_cast<int64_t>(global_dim[i]);
        map->element_strides[i] = static_cast<uint16_t>(element_strides[i]);
        bytes *= global_dim[i];
        if (i + 1 < rank && (strides[i] != bytes || bytes % 16)) return INVALID_VALUE;
    }
    return SUCCESS;
}

}  // namespace

extern "C" {

int cuTensorMapEncodeTiled(TensorMap* map, int type, uint32_t rank, void* address, const uint64_t* global_dim, const uint64_t* strides,
                           const uint32_t* box_dim, const uint32_t* element_strides, int, int swizzle, int, int) {
    const int encoded = encode(map, type, rank, address, global_dim, strides, element_strides, swizzle);
    for (uint32_t i = 0; encoded == SUCCESS && i < rank; ++i) {
        if (box_dim[i] < 1 || box_dim[i] > 256) return INVALID_VALUE;
        map->box_dim[i] = static_cast<uint16_t>(box_dim[i]);
    }
    return encoded;
}

int cuTensorMapEncodeIm2col(TensorMap* map, int type, uint32_t rank, void* address, const uint64_t* global_dim, const uint64_t* strides,
                            const int* lower_corner, const int* upper_corner, uint32_t channels, uint32_t pixels,
                            const uint32_t* element_strides, int, int swizzle, int, int) {
    const int encoded = encode(map, type, rank, address, global_dim, strides, element_strides, swizzle);
    if (encoded != SUCCESS) return encoded;
    if (rank < 3 || channels < 1 || channels > 256 || pixels < 1 || pixels > 1024) return INVALID_VALUE;
    map->im2col = 1;
    map->box_dim[0] = static_cast<uint16_t>(channels);
    map->box_dim[1] = static_cast<uint16_t>(pixels);
    const int limit = rank == 3 ? 32768 : rank == 4 ? 128 : 16;  // corners of 16, 8 and 5 bits
    for (uint32_t i = 0; i + 2 < rank; ++i) {
        if (lower_corner[i] < -limit || lower_corner[i] >= limit || upper_corner[i] < -limit || upper_corner[i] >= limit) return INVALID_VALUE;
        map->lower_corner[i] = static_cast<int16_t>(lower_corner[i]);
        map->upper_corner[i] = static_cast<int16_t>(upper_corner[i]);
    }
    return SUCCESS;
}

int cuTensorMapReplaceAddress(TensorMap* map, void* address) {
    if (!address || reinterpret_cast<uintptr_t>(address) % 16) return INVALID_VALUE;
    map->address = address;
    return SUCCESS;
}

int cuInit(unsigned) {
    return find_runtime() ? SUCCESS : NOT_FOUND;
}

int cuGetErrorName(int error, const char** name) {
    *name = error == INVALID_VALUE   ? "CUDA_ERROR_INVALID_VALUE"
            : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE"
            : error == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
            : error == NOT_FOUND     ? "CUDA_ERROR_NOT_FOUND"
            : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                     : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

int cuDeviceGetCount(int* count) {
    const int wanted = static_cast<int>(setting("AUTOTUNE_HOST_DEVICES", 1));
    *count = wanted < MOST_DEVICES ? wanted : MOST_DEVICES;
    return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
    int count = 0;
    cuDeviceGetCount(&count);
    *device = ordinal;
    return ordinal >= 0 && ordinal < count ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    const unsigned arch = setting(device == 0 ? "AUTOTUNE_HOST_ARCH" : "AUTOTUNE_HOST_OTHERS_ARCH", 90);
    switch (attribute) {  // CU_DEVICE_ATTRIBUTE_...
        case 1: *value = MOST_THREADS; break;
        case 2: case 3: case 4: *value = BLOCK_LIMITS[attribute - 2]; break;
        case 5: case 6: case 7: *value = GRID_LIMITS[attribute - 5]; break;
        case 16: *value = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); break;
        case 38: *value = 1 << 20; break;
        case 75: *value = arch / 10; break;
        case 76: *value = arch % 10; break;
        case 97: *value = setting("AUTOTUNE_HOST_SMEM_BYTES", SMEM_BYTES); break;
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}

int cuDeviceGetName(char* name, int bytes, int) {
    snprintf(name, static_cast<size_t>(bytes), "the CPU");
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &contexts[device], SUCCESS; }
int cuCtxGetCurrent(void** context) { return *context = current, SUCCESS; }
int cuCtxSetCurrent(void* context) { return current = context, SUCCESS; }
int cuCtxGetDevice(int* device) {
    if (!current) return INVALID_CONTEXT;
    *device = static_cast<int>(static_cast<char*>(current) - contexts);
    return SUCCESS;
}
int cuCtxSynchronize() { return failed; }

int cuModuleLoadData(void** module, const void* image) {
    if (!current) return INVALID_CONTEXT;
    const size_t bytes = image_bytes(image);
    if (!bytes) return INVALID_IMAGE;
    const int fd = memfd_create("autotune-kernel", 0);
    if (fd < 0) return OUT_OF_MEMORY;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    void* const library =
        write(fd, image, bytes) == static_cast<ssize_t>(bytes) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) {
        const char* const why = dlerror();
        fprintf(stderr, "cannot load a kernel: %s\n", why ? why : "no memory");
        close(fd);
        return INVALID_IMAGE;
    }
    Module* const made = static_cast<Module*>(calloc(1, sizeof(Module)));
    made->library = library;
    made->context = current;
    made->fd = fd;
    made->smem = reinterpret_cast<void* (*)()>(dlsym(library, "autotune_smem_address"));
    runtime_tls(library, &made->tls_module, &made->tls_bytes);
    *module = made;
    return SUCCESS;
}

int cuModuleUnload(void* module) {
    Module* const own = static_cast<Module*>(module);
    while (Function* const last = own->functions) {
        own->functions = last->before;
        free(last);
    }
    dlclose(own->library);
    close(own->fd);  // not earlier: the loader knows a library by its path, and the number would be used again
    free(own);
    return SUCCESS;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
    Module* const own = static_cast<Module*>(module);
    void* const call = symbol(own, "autotune_call_", name);
    if (!call) return NOT_FOUND;
    Function* const made = static_cast<Function*>(calloc(1, sizeof(Function)));
    made->module = own;
    made->before = own->functions;
    made->call = reinterpret_cast<void (*)(void* const*)>(call);
    made->smem_bytes = SMEM_WITHOUT_OPT_IN;
    const void* const cluster = symbol(own, "autotune_cluster_", name);
    made->cluster = cluster ? *static_cast<const unsigned*>(cluster) : 1;
    *function = own->functions = made;
    return SUCCESS;
}

int cuModuleGetGlobal_v2(unsigned long long* address, size_t* bytes, void* module, const char* name) {
    void* const found = symbol(static_cast<Module*>(module), "", name);
    Dl_info info;
    void* entry = nullptr;
    if (!found || !dladdr1(found, &info, &entry, RTLD_DL_SYMENT) || !entry) return NOT_FOUND;
    *address = reinterpret_cast<uintptr_t>(found);
    *bytes = static_cast<const ElfW(Sym)*>(entry)->st_size;
    return SUCCESS;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute != 8 || value < 0 || static_cast<unsigned>(value) > SMEM_BYTES) return INVALID_VALUE;
    static_cast<Function*>(function)->smem_bytes = static_cast<unsigned>(value);
    return SUCCESS;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned smem_bytes, void*, void** arguments, void**) {
    const Function* const own = static_cast<const Function*>(function);
    const Index grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    const unsigned grids[3] = {grid_x, grid_y, grid_z}, blocks[3] = {block_x, block_y, block_z};
    for (int axis = 0; axis < 3; ++axis)
        if (!grids[axis] || grids[axis] > GRID_LIMITS[axis] || !blocks[axis] || blocks[axis] > BLOCK_LIMITS[axis])
            return INVALID_VALUE;
    if (uint64_t{block_x} * block_y * block_z > MOST_THREADS || smem_bytes > own->smem_bytes) return INVALID_VALUE;
    if (grid_x % own->cluster) return INVALID_VALUE;
    if (own->module->context != current) return INVALID_CONTEXT;
    if (failed) return failed;
    AutotuneLaunch launch = {};
    launch.smem_byte = 0xff;
    launch.kernel = own->call;
    launch.arguments = arguments;
    launch.smem = own->module->smem;
    launch.smem_bytes = smem_bytes;
    launch.tls_module = own->module->tls_module;
    launch.tls_bytes = own->module->tls_bytes;
    launch.limit_ns = LAUNCH_LIMIT_NS;
    launch.grid = grid;
    launch.block = block;
    launch.cluster = own->cluster;
    launch.cores = static_cast<unsigned>(sysconf(_SC_NPROCESSORS_ONLN));
    char reason[32] = "", message[512] = "";
    if (runtime_launch(&launch, reason, message, sizeof message)) {
        fprintf(stderr, "a kernel failed: %s: %s\n", reason, message);
        failed = LAUNCH_FAILED;
    }
    return SUCCESS;
}

// As cuda.h has them; of attributes programmatic stream serialization alone is known.
struct alignas(8) LaunchAttribute {
    int id, padding;
    int value[16];
};
struct LaunchConfig {
    unsigned grid[3], block[3], smem_bytes;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};

int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void** extra) {
    bool dependent = false;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        if (config->attributes[i].id != 6) return INVALID_VALUE;
        dependent = config->attributes[i].value[0];
    }
    void* const counter = symbol(static_cast<Function*>(function)->module, "", "autotune_began_dependent");
    const auto began = [counter] { return counter ? __atomic_load_n(static_cast<unsigned long*>(counter), __ATOMIC_RELAXED) : 0; };
    const unsigned long before = began();
    const int result = cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1],
                                      config->block[2], config->smem_bytes, config->stream, arguments, extra);
    if (dependent && began() == before) {
        fprintf(stderr, "a kernel failed: race: it was launched before those before it had ended, and did not wait for them\n");
        failed = LAUNCH_FAILED;
    }
    return result;
}

int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
    if (!current) return INVALID_CONTEXT;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes ? bytes : 1) != 0) return OUT_OF_MEMORY;
    *address = reinterpret_cast<uintptr_t>(memory);
    return SUCCESS;
}

int cuMemFree_v2(unsigned long long address) {
    free(reinterpret_cast<void*>(static_cast<uintptr_t>(address)));
    return SUCCESS;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t bytes) {
    memcpy(reinterpret_cast<void*>(static_cast<uintptr_t>(to)), from, bytes);
    return failed;
}

int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t bytes) {
    memcpy(to, reinterpret_cast<void*>(static_cast<uintptr_t>(from)), bytes);
    return failed;
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void*) {
    memmove(reinterpret_cast<void*>(static_cast<uintptr_t>(to)), reinterpret_cast<void*>(static_cast<uintptr_t>(from)),
            bytes);
    return failed;
}

int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void*) {
    memset(reinterpret_cast<void*>(static_cast<uintptr_t>(to)), value, bytes);
    return failed;
}

int cuStreamCreate(void** stream, unsigned) { return *stream = malloc(1), SUCCESS; }
int cuStreamSynchronize(void*) { return failed; }
int cuStreamDestroy_v2(void* stream) { return free(stream), SUCCESS; }
int cuStreamWaitEvent(void*, void*, unsigned) { return SUCCESS; }

int cuEventCreate(void** event, unsigned) { return *event = calloc(1, sizeof(int64_t)), SUCCESS; }
int cuEventRecord(void* event, void*) { return *static_cast<int64_t*>(event) = now_ns(), failed; }
int cuEventSynchronize(void*) { return failed; }
int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
    *milliseconds = static_cast<float>(*static_cast<int64_t*>(end) - *static_cast<int64_t*>(start)) / 1e6f;
    return SUCCESS;
}
int cuEventDestroy_v2(void* event) { return free(event), SUCCESS; }

}  // extern "C"
