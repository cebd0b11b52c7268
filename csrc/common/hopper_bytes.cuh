// Hopper's instructions on 8-bit elements (sm_90a), one function each: wgmma on float8_e4m3, and the store that goes
// with transposing bytes. wgmma transposes no 8-bit operand: both lie K-major, and descriptors are those of hopper.cuh,
// a row of 128 bytes being 128 elements of the sum, the next 32 of which are 32 bytes further on.
//
// The tensor cores of sm_90 keep 14 bits of a sum of 8-bit products, whatever the type of the accumulator: a long sum
// is to be cut into pieces that are added up elsewhere.
#pragma once

#include "hopper.cuh"

#define HOPPER_WGMMA_E4M3_SS(N, a_name, b_name, keep_name)                                      \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keep_name                            \
                 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" HOPPER_NAMES_N##N \
                 "}, " a_name ", " b_name ", keep, 1, 1;\n}"                                    \
                 : HOPPER_D_N##N                                                                \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                            \
                 : "memory")

#define HOPPER_WGMMA_E4M3_RS(N, a0, a1, a2, a3, b_name, keep_name)                                       \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keep_name                                     \
                 ", 0;\n"                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" HOPPER_NAMES_N##N          \
                 "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b_name ", keep, 1, 1;\n}"                       \
                 : HOPPER_D_N##N                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)) \
                 : "memory")

// d = a b, or d += a b, for 64 rows, 2 kSize columns and a sum over 32; both in shared memory. Runs in the background:
// commit and wait.
template <int kSize>
__device__ __forceinline__ void wgmma_k32_e4m3(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    if constexpr (kSize == 32) {
        HOPPER_WGMMA_E4M3_SS(64, "%32", "%33", "%34");
    } else if constexpr (kSize == 64) {
        HOPPER_WGMMA_E4M3_SS(128, "%64", "%65", "%66");
    } else {
        static_assert(kSize < 0, "no wgmma of this width has been written out above");
    }
}

// The same with a in registers: a[0] row g, elements 4 t ... 4 t + 3 of the sum, the first in the lowest byte; a[1] row
// g + 8; a[2] and a[3] the same rows, elements + 16. They may not change before the wait.
template <int kSize>
__device__ __forceinline__ void wgmma_k32_e4m3(float (&d)[kSize], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    if constexpr (kSize == 32) {
        HOPPER_WGMMA_E4M3_RS(64, "%32", "%33", "%34", "%35", "%36", "%37");
    } else if constexpr (kSize == 64) {
        HOPPER_WGMMA_E4M3_RS(128, "%64", "%65", "%66", "%67", "%68", "%69");
    } else {
        static_assert(kSize < 0, "no wgmma of this width has been written out above");
    }
}

// Four 8 x 8 matrices of 16-bit elements into shared memory: lane l gives the address of row l % 8 of matrix l / 8, and
// of matrix i, in r[i], row g, columns 2t and 2t + 1.
__device__ __forceinline__ void stmatrix_x4(void *row_smem, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row_smem)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
