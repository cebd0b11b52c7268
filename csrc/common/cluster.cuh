// Thread block clusters (sm_90): blocks that run side by side and reach into each other's shared memory. One function
// an instruction. Source: PTX ISA, barrier.cluster, mapa, st.async.
#pragma once

#include <cstdint>

// Every thread of the cluster arrives. Orders no memory but initialised mbarriers, behind mbarrier_init_fence: the
// releasing form waits for the whole GPU to see what was written.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Every thread of the cluster is here, and what it wrote is seen.
__device__ __forceinline__ void cluster_meet() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// Where the block of this rank has what lies at `own_smem` here; an address for the instructions below only.
__device__ __forceinline__ uint32_t cluster_address(const void *own_smem, uint32_t rank) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own_smem))), "r"(rank));
    return address;
}

// Stores 16 bytes in the background and counts them at an mbarrier of the block that receives them.
__device__ __forceinline__ void cluster_store_async(uint32_t to, float4 value, uint32_t received) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(received)
                 : "memory");
}

// Waits for the phase of this parity of an mbarrier at which other blocks count; their stores are then seen.
__device__ __forceinline__ void cluster_barrier_wait(uint64_t *received_smem, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n}" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(received_smem))),
        "r"(parity)
        : "memory");
}
