// Programmatic dependent launch (sm_90): blocks of a kernel start while the last blocks of the one before still run.
// Without the launch attribute both do nothing.
#pragma once

// Waits until everything that the kernels before have written is there to read. Nothing of the caller's is touched
// before.
__device__ __forceinline__ void wait_for_kernels_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets blocks of the next kernel start where there is room for them.
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
