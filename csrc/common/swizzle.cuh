// Where a tile's elements lie in shared memory so that no access pattern meets one bank twice, without padding.
#pragma once

// The first of 8 elements of 16 bits in a tile of rows of kDim: chunk c of a row lies where chunk c ^ (row % 8) would.
// Eight rows at one chunk (a matrix of ldmatrix) and eight chunks of a row (a copy) each fill 128 bytes of banks.
template <int kDim>
__device__ __forceinline__ int swizzled(int row, int chunk) {
    static_assert(kDim % 64 == 0, "a row has to have all 8 chunks");
    return row * kDim + (chunk ^ (row % 8)) * 8;
}
