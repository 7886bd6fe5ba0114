// A kernel of the library: its tuned problem, its code, and its launches for any run-time sizes (the plan).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "autotune_runtime.h"
#include "expression.h"
#include "operation.h"

namespace autotune_runtime {

constexpr int MOST_STAGES = 16;     // of a plan; also the limit of a kernel's entries and constants
constexpr int MOST_ARGUMENTS = 16;  // of a stage
constexpr int MOST_MAPS = 7;        // tensor maps of a kernel

// The properties of a device in the expressions of a plan, and the limits of its launches.
struct Device {
    Int arch;  // compute capability times ten
    Int sm_count;
    Int smem_per_block_bytes;  // maximum of a block after opt-in
    Int l2_bytes;
    int64_t most_threads = 1024;
    int64_t grid_limits[3] = {2147483647, 65535, 65535};
    int64_t block_limits[3] = {1024, 1024, 64};
};

struct Extents {
    Int x, y, z;
};

enum class DataType { f16 = 6, f32 = 7, bf16 = 9, tf32 = 11 };  // CU_TENSOR_MAP_DATA_TYPE_; tf32: f32 that loads round

// A copy of the Tensor Memory Accelerator, with the names of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col.
struct TensorMap {
    Argument array;
    DataType data_type;
    int rank;
    Int global_dim[5];
    Int box_dim[5];  // im2col: channels and pixels
    Int element_strides[5];
    int swizzle_bytes;
    bool im2col;
    Int lower_corner[3], upper_corner[3];
};

struct Launch {
    int entry;  // index into the kernel's entries
    int argument_count;
    Argument arguments[MOST_ARGUMENTS];
    Extents grid, block;
    Int smem_bytes;
};

class Plan;

struct Constant {
    const char *name;  // of a __constant__ array, filled before the first pass
    Argument origin;   // weights or packed_w
};

struct Kernel {
    conv2d_kernel info;
    Device tuned_on;
    const unsigned char *image;
    bool dependent;  // it waits for previous kernels itself, so it may be launched before they have ended
    bool overlaps;   // so do its stages after the first one, for the stages before them
    int entry_count;
    const char *entries[MOST_STAGES];
    int constant_count;
    Constant constants[MOST_STAGES];
    void (*plan)(const Problem &layer, const Device &device, Plan &plan);
};

// The launches of a kernel for given run-time sizes on a device, or the reason why it does not support them.
class Plan {
public:
    Plan(const Kernel &kernel, const RuntimeSizes &sizes, const Device &device) {
        try {
            kernel.plan(Problem(with_runtime_sizes(kernel.info.problem, sizes)), device, *this);
        } catch (const Unevaluable &) {
            refuse(CONV2D_UNSUPPORTED, "a size in its launches does not fit into 64 bits");
        }
        check_limits(device);
    }

    conv2d_status status = CONV2D_OK;
    const char *reason = "";
    Int workspace_bytes = 0, packed_w_bytes = 0, loop_count = 1;
    int prepare_count = 0, stage_count = 0, map_count = 0;

    const Launch &prepare_at(int index) const { return prepares_[index]; }
    const Launch &stage_at(int index) const { return stages_[index]; }
    const TensorMap &map_at(int index) const { return maps_[index]; }

    // Called by a kernel's plan.
    void needs_device(bool holds, const char *what) {
        if (!holds) refuse(CONV2D_WRONG_DEVICE, what);
    }
    void needs_sizes(bool holds, const char *what) {
        if (!holds) refuse(CONV2D_UNSUPPORTED, what);
    }
    void tensor_map(const TensorMap &map) { maps_[map_count++] = map; }
    void prepare(int entry, std::initializer_list<Argument> arguments, Extents grid, Extents block, Int smem_bytes) {
        prepares_[prepare_count++] = launch(entry, arguments, grid, block, smem_bytes);
    }
    void stage(int entry, std::initializer_list<Argument> arguments, Extents grid, Extents block, Int smem_bytes) {
        stages_[stage_count++] = launch(entry, arguments, grid, block, smem_bytes);
    }

private:
    void refuse(conv2d_status why, const char *what) {
        if (status == CONV2D_OK) status = why, reason = what;
    }

    static Launch launch(int entry, std::initializer_list<Argument> arguments, Extents grid, Extents block, Int smem) {
        Launch made = {entry, 0, {}, grid, block, smem};
        for (const Argument argument : arguments) made.arguments[made.argument_count++] = argument;
        return made;
    }

    void check_limits(const Device &device) {
        if (workspace_bytes < 0 || loop_count < 1 || loop_count > 2147483647)
            refuse(CONV2D_UNSUPPORTED, "its number of passes is out of range");
        for (int i = 0; i < prepare_count; ++i) check_limits(prepares_[i], device);
        for (int i = 0; i < stage_count; ++i) check_limits(stages_[i], device);
    }

    void check_limits(const Launch &launch, const Device &device) {
        const Int grid[3] = {launch.grid.x, launch.grid.y, launch.grid.z};
        const Int block[3] = {launch.block.x, launch.block.y, launch.block.z};
        Int threads = 1;
        for (int axis = 0; axis < 3; ++axis) {
            if (grid[axis] < 1 || grid[axis] > device.grid_limits[axis])
                refuse(CONV2D_UNSUPPORTED, "a grid exceeds the device's limits");
            if (block[axis] < 1 || block[axis] > device.block_limits[axis]) {
                refuse(CONV2D_WRONG_DEVICE, "a block exceeds the device's limits");
                return;
            }
            threads = threads * block[axis];
        }
        if (threads > device.most_threads) refuse(CONV2D_WRONG_DEVICE, "a block has more threads than the device runs");
        if (launch.smem_bytes < 0 || launch.smem_bytes > device.smem_per_block_bytes)
            refuse(CONV2D_WRONG_DEVICE, "a block needs more shared memory than the device has");
    }

    Launch prepares_[MOST_STAGES], stages_[MOST_STAGES];
    TensorMap maps_[MOST_MAPS];
};

// In the order of conv2d_kernel_at; defined in kernels.cpp.
extern const Kernel *const kernels[];
extern const int kernel_count;
extern const char *const library_version;

inline uint64_t unsigned_of(Int size) { return static_cast<uint64_t>(size.value()); }

}  // namespace autotune_runtime
