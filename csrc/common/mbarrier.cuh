// Barriers in shared memory which some threads arrive at and others wait for, sm_80 and up. Those of Hopper, which also
// count bytes, are in hopper.cuh.
#pragma once

#include <cstdint>

// A phase ends when `arrivals` threads have arrived. A barrier of the block must follow before anyone uses it.
__device__ __forceinline__ void barrier_init(uint64_t *barrier_smem, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier_smem))), "r"(arrivals)
                 : "memory");
}

// What this thread did before is done for whoever has waited.
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier_smem) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier_smem)))
                 : "memory");
}

// Whether the phase of this parity has ended. The first phase has parity 0; asked of parity 1, a new barrier says yes.
__device__ __forceinline__ bool barrier_passed(uint64_t *barrier_smem, uint32_t parity) {
    uint32_t passed;
    asm volatile(
        "{\n.reg .pred passed;\n"
        "mbarrier.test_wait.parity.shared.b64 passed, [%1], %2;\n"
        "selp.u32 %0, 1, 0, passed;\n}"
        : "=r"(passed)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier_smem))), "r"(parity)
        : "memory");
    return passed != 0;
}

__device__ __forceinline__ void barrier_wait(uint64_t *barrier_smem, uint32_t parity) {
    while (!barrier_passed(barrier_smem, parity)) {
    }
}
