// What a kernel needs to know about the type of its elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct Element;

template <>
struct Element<__half> {
    using Pair = __half2;
    static __device__ float to_float(__half value) { return __half2float(value); }
    static __device__ float2 to_float(Pair value) { return __half22float2(value); }
    static __device__ __half from_float(float value) { return __float2half_rn(value); }
    static __device__ Pair from_float(float2 value) { return __float22half2_rn(value); }
};

template <>
struct Element<__nv_bfloat16> {
    using Pair = __nv_bfloat162;
    static __device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
    // A bfloat16 is the upper half of a float. Taken out of the whole word, it never needs a register of its own.
    static __device__ float2 to_float(Pair value) {
        const unsigned bits = reinterpret_cast<const unsigned &>(value);
        return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
    }
    static __device__ __nv_bfloat16 from_float(float value) { return __float2bfloat16_rn(value); }
    static __device__ Pair from_float(float2 value) { return __float22bfloat162_rn(value); }
};

template <>
struct Element<float> {
    using Pair = float2;
    static __device__ float to_float(float value) { return value; }
    static __device__ float2 to_float(Pair value) { return value; }
    static __device__ float from_float(float value) { return value; }
    static __device__ Pair from_float(float2 value) { return value; }
};
