// Thread block clusters (sm_90): blocks that run side by side and reach into each other's shared memory. One function
// an instruction. Source: PTX ISA, barrier.cluster, mapa, st.async.
#pragma once

#include <cuda.h>

#include <cstdint>

// Every thread of the cluster arrives. Orders no memory but initialised mbarriers, behind mbarrier_init_fence: the
// releasing form waits for the whole GPU to see what was written.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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

// The same for 8 bytes.
__device__ __forceinline__ void cluster_store_async(uint32_t to, float2 value, uint32_t received) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(value.x), "f"(value.y), "r"(received)
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

// Arrives at an mbarrier of the block whose address this is. For reads that are over, wgmma's or copies to registers.
__device__ __forceinline__ void cluster_mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// As tensor_copy_4d of hopper.cuh, into every block of the cluster whose bit in `ranks` is set: at the same place, and
// counted by the barrier at the same place.
__device__ __forceinline__ void cluster_tensor_copy_4d(void *to_smem, const CUtensorMap *map, uint64_t *full_smem,
                                                       int column, int row, int head, int batch, uint16_t ranks) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to_smem))),
        "l"(map), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(full_smem))), "r"(column), "r"(row), "r"(head),
        "r"(batch), "h"(ranks)
        : "memory");
}
