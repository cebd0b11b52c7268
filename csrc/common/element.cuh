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
};

template <>
struct Element<__nv_bfloat16> {
    using Pair = __nv_bfloat162;
    static __device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
    static __device__ float2 to_float(Pair value) { return __bfloat1622float2(value); }
    static __device__ __nv_bfloat16 from_float(float value) { return __float2bfloat16_rn(value); }
};

template <>
struct Element<float> {
    static __device__ float to_float(float value) { return value; }
    static __device__ float from_float(float value) { return value; }
};
