// Division by a number that the host knows and the device does not: a multiplication and a shift instead of a division.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
    #define KERNELPROOF_DEVICE __device__ __forceinline__
#else
    #define KERNELPROOF_DEVICE inline
#endif

// n / divisor for n < 2^31: with 2^(shift - 1) < divisor <= 2^shift, the factor 2^32 + magic is 2^(32 + shift) /
// divisor rounded up, which is too large by less than 1 part in 2^32 (Granlund and Montgomery, 1994).
struct Divider {
    explicit Divider(uint32_t divisor) : magic(0), shift(0), divisor(divisor) {
        while ((uint64_t{1} << shift) < divisor) ++shift;
        magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
    }
    KERNELPROOF_DEVICE uint32_t quotient(uint32_t n) const {
        const uint32_t high = static_cast<uint32_t>((uint64_t{n} * magic) >> 32);
        return (high + n) >> shift;
    }
    KERNELPROOF_DEVICE uint32_t remainder(uint32_t n) const { return n - quotient(n) * divisor; }
    uint32_t magic;
    uint32_t shift;
    uint32_t divisor;
};
