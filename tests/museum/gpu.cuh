// What the pieces for a GPU have in common, whatever their operator: clocks to be late by, and streams of their own.
#pragma once

#include <cuda_runtime.h>

#include "csrc/common/cuda_launch.h"
#include "csrc/common/reduce.cuh"

// A launcher's way out with a message when a call of the CUDA runtime fails.
#define MUSEUM_TRY(call)                                                               \
    do {                                                                               \
        const cudaError_t status_of_call = (call);                                     \
        if (status_of_call != cudaSuccess) return cuda_message(#call, status_of_call); \
    } while (false)

__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time)::"memory");
    return time;
}

// Keeps a warp for so long; bounded, so that even the longest wait leaves the GPU to its other users.
__device__ __forceinline__ void wait_ns(unsigned long long duration_ns) {
    const unsigned long long start = now_ns();
    while (now_ns() - start < duration_ns) __nanosleep(200);
}

__device__ __forceinline__ void wait_cycles(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

// Races. On an idle GPU the warps of a block keep step, and a missing barrier goes unnoticed: `keep_step` makes sure of
// that where inputs are small, so that what finds the race is a check for races. On longer inputs warps `fall_behind`,
// by something else each time, as they do when the scheduler has other work.
__device__ __forceinline__ void keep_step() {
    wait_cycles(4000);
}

__device__ __forceinline__ void fall_behind() {
    const unsigned draw = (static_cast<unsigned>(clock64()) * 2654435761u) ^ (threadIdx.x / kWarpSize * 40503u);
    wait_cycles((draw >> 13) % 4 * 3000);
}

// Does nothing for so long on its stream.
static __global__ void busy(unsigned long long duration_ns) {
    wait_ns(duration_ns);
}

// A stream that no other stream waits for, made at the first call.
static inline cudaStream_t own_stream() {
    static cudaStream_t stream = nullptr;
    if (stream == nullptr) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return stream;
}
