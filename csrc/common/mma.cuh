// Tensor-core multiplication of registers and the loads that lay them out: one function an instruction.
//
// Lane l of a warp has group g = l / 4 and member t = l % 4. A 16 x 8 accumulator d[4] holds rows g (d[0], d[1]) and
// g + 8 (d[2], d[3]) at columns 2t, 2t + 1. Source: PTX ISA, matrix fragments for mma and ldmatrix.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// d += a b with a [16, 16] row-major, b [16, 8] column-major (as [8, 16]), both of 16-bit T, d in FP32.
// a[0]: row g, columns 2t, 2t + 1; a[1]: row g + 8; a[2], a[3]: the same rows, columns + 8.
// b[0]: column g, rows 2t, 2t + 1; b[1]: rows + 8.
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                            const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane l gives the address of row l % 8 of matrix l / 8,
// and receives of matrix i, in r[i], row g, columns 2t and 2t + 1.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row_smem)))
                 : "memory");
}

// The same, each matrix transposed on the way: r[i] holds rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *row_smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row_smem)))
                 : "memory");
}

// Two numbers as one register, `low` in the lower half, rounded to nearest.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t &>(pair);
}

template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t &>(pair);
}

// 2^x by the special function unit: 2 units in the last place, denormal results flushed to 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// d += a b with a [16, 32] row-major, b [32, 8] column-major (as [8, 32]), both of float8_e4m3, d in FP32; sm_89 and
// up. a[0]: row g, columns 4t ... 4t + 3; a[1]: row g + 8; a[2], a[3]: the same rows, columns + 16. b[0]: column g,
// rows 4t ... 4t + 3; b[1]: rows + 16. The lowest byte comes first.
__device__ __forceinline__ void mma_m16n8k32_e4m3(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Either of them: a row of `a` and a column of `b` are 32 bytes of T.
template <typename T>
__device__ __forceinline__ void mma_32_bytes(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (sizeof(T) == 2) {
        mma_m16n8k16<T>(d, a, b);
    } else {
        mma_m16n8k32_e4m3(d, a, b);
    }
}

// Four numbers as float8_e4m3, the first in the lowest byte, rounded to nearest; beyond 448 they become 448.
__device__ __forceinline__ uint32_t pack_e4m3(float first, float second, float third, float fourth) {
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(second), "f"(first));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(fourth), "f"(third));
    return low | static_cast<uint32_t>(high) << 16;
}
