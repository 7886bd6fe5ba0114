#pragma once

// Stages of a kernel that overlap: the launch of the next stage, and what that does before it reads what the stage before wrote, while this one ends
// (programmatic dependent launch, from sm_90 on; on others the stages follow each other). A kernel that calls launch_next_stage has its later stages
// launched so.
//
// launch_next_stage: lets the next stage be launched when all blocks have called it; its blocks then begin wherever there is room for them.
// wait_for_stage_before, by all threads: waits until the stages before have ended and what they wrote is seen.

#ifdef __CUDACC__
__device__ __forceinline__ void launch_next_stage() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_stage_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#else
#include <autotune_host_ptx.h>
inline void launch_next_stage() {}
inline void wait_for_stage_before() { begin_dependent(); }
#endif
