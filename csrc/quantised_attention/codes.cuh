// What kernels on codes share: their place, and simulated-FP8 codes as fp16 pairs.
#pragma once

#include "../attention/online_softmax.h"
#include "../common/mma.cuh"
#include "scales.cuh"

// Which rows of which head a block computes. Under a causal mask those that see most keys come first.
struct Place {
    int first_row;
    int head;
    int key_head;
    int batch;
};

__device__ inline Place place_of(const AttentionArgs &args, unsigned block, unsigned rows_of_block) {
    const unsigned row_tiles = static_cast<unsigned>((args.query_rows + rows_of_block - 1) / rows_of_block);
    const unsigned query_heads = static_cast<unsigned>(args.query_heads);
    const unsigned group = query_heads / static_cast<unsigned>(args.key_heads);
    const unsigned head = block / row_tiles % query_heads;
    return {static_cast<int>((row_tiles - 1 - block % row_tiles) * rows_of_block), static_cast<int>(head),
            static_cast<int>(head / group), static_cast<int>(block / row_tiles / query_heads)};
}

// blockIdx.x in a way that makes the compiler compute anew what follows from it, where keeping it would cost registers.
__device__ __forceinline__ unsigned block_index_again() {
    unsigned block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

// Two of four codes (the lower two, or the upper) as fp16 u - 128: 0x6400 | u is 1024 + u, and 1152 is taken off.
template <bool kUpper>
__device__ __forceinline__ uint32_t whole_codes(uint32_t four) {
    const uint32_t bits = __byte_perm(four, 0x64646464u, kUpper ? 0x4342 : 0x4140);
    const uint32_t offset = 0x64806480u;
    const __half2 pair = __hsub2(reinterpret_cast<const __half2 &>(bits), reinterpret_cast<const __half2 &>(offset));
    return reinterpret_cast<const uint32_t &>(pair);
}

// The same as fp16 u 2^-24: the code itself is the significand of a subnormal number, which tensor cores take as it is.
template <bool kUpper>
__device__ __forceinline__ uint32_t tiny_codes(uint32_t four) {
    return __byte_perm(four, 0, kUpper ? 0x4342 : 0x4140);
}

// A pair of fp16, times a factor.
__device__ __forceinline__ uint32_t times(uint32_t pair, float factor) {
    const __half2 product = __hmul2(reinterpret_cast<const __half2 &>(pair), __float2half2_rn(factor));
    return reinterpret_cast<const uint32_t &>(product);
}

// Bytes 0 and 1 (or 2 and 3) of a and b as {a, b, a, b}: two columns of two rows, transposed.
template <bool kUpper>
__device__ __forceinline__ uint32_t interleave(uint32_t a, uint32_t b) {
    return __byte_perm(a, b, kUpper ? 0x7362 : 0x5140);
}

// Whether every row of bytes starts on 16 of them.
inline bool rows_on_16_bytes(const void *data, const Strides3 &stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride.batch % 16 == 0 && stride.head % 16 == 0 &&
           stride.row % 16 == 0;
}

// The same for rows of float16.
inline bool half_rows_on_16_bytes(const void *data, const Strides3 &stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride.batch % 8 == 0 && stride.head % 8 == 0 &&
           stride.row % 8 == 0;
}
