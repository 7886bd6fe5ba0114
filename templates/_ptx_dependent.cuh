#pragma once

// The beginning of a kernel that may be launched before those before it on the stream have ended (programmatic dependent launch, sm_90), as
// instructions on the GPU and as a note to the driver on the CPU.
//
// begin_dependent, by all threads before they touch global memory: lets the next kernel be launched, and waits until those before have ended and
// what they wrote is seen. Without AUTOTUNE_DEPENDENT_LAUNCH, which exported libraries are compiled with, it is nothing.

#ifdef __CUDACC__
__device__ __forceinline__ void begin_dependent() {
#ifdef AUTOTUNE_DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#else
#include <autotune_host_ptx.h>
#endif
