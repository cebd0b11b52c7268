// Copies from global to shared memory which bypass registers and complete in the background.
#pragma once

#include <cstdint>

// Queues 16 bytes; zeros instead where the source does not exist. Both addresses are multiples of 16.
__device__ __forceinline__ void cp_async_16(void *to_smem, const void *from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to_smem))), "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
}

// The same for an address of shared memory as a number, which leaves constants to be added to the instruction.
__device__ __forceinline__ void cp_async_16(uint32_t to_smem, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to_smem), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_16(uint32_t to_smem, const void *from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to_smem), "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
}

// Closes a group of the copies queued since the last one.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are under way. Other threads' copies need a barrier as well.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
