// Loads from global memory that keep their place: the compiler may not sink one below a later one, so all are under way
// before the first is used.
#pragma once

#include <cstdint>

// 16 bytes that no thread writes while the kernel runs. The address is a multiple of 16.
__device__ __forceinline__ uint4 load_16(const void *from) {
    uint4 value;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

// The same where the kernel may have begun before the one that writes them has ended: nothing nearer than L2 is asked.
__device__ __forceinline__ uint4 load_16_from_l2(const void *from) {
    uint4 value;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}
