// Programmatic dependent launch (sm_90): a kernel that is queued behind another begins while that one still runs, so
// that its start, its constants and its addresses cost nothing. A kernel launched so (Grid::dependent) waits itself.
// One function an instruction, none on earlier GPUs, where nothing is launched so. Source: PTX ISA, griddepcontrol.
#pragma once

// The next kernel may begin as soon as every block of this one has come here, or ended.
__device__ __forceinline__ void dependents_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until all that was queued before this kernel is over and its results are seen. No global memory may be read or
// written before.
__device__ __forceinline__ void prerequisites_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
