// RMSNorm that reads a row once: a block holds the row in registers between the sum of squares and the result. Rows
// that are too long or badly aligned for 16-byte accesses are read twice. Sums are FP32: rows whose sum of squares
// leaves the range of FP32 (|x| around 1e19, which float16 cannot hold) are out of reach.
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/reduce.cuh"
#include "launch.h"

namespace one_pass {

constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;  // 16-byte vectors of a row that a thread holds
constexpr int kVectorBytes = 16;

template <typename T>
__device__ float inverse_rms(float squares, const RmsNormArgs &args) {
    return rsqrtf(block_sum(squares) / static_cast<float>(args.cols) + static_cast<float>(args.eps));
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) in_registers(RmsNormArgs args) {
    constexpr int kWidth = kVectorBytes / sizeof(T);
    union Vector {
        uint4 bits;
        T element[kWidth];
        __device__ Vector() : bits() {}
    };
    const Vector *x = reinterpret_cast<const Vector *>(static_cast<const T *>(args.x) + blockIdx.x * args.x_stride);
    const Vector *weight = static_cast<const Vector *>(args.weight);
    Vector *y = reinterpret_cast<Vector *>(static_cast<T *>(args.y) + blockIdx.x * args.y_stride);
    const int vectors = static_cast<int>(args.cols / kWidth);

    Vector row_rmem[kMaxVectors];
    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
        const int i = threadIdx.x + n * blockDim.x;
        if (i < vectors) row_rmem[n].bits = x[i].bits;
    }
#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
            const float value = Element<T>::to_float(row_rmem[n].element[e]);
            squares = fmaf(value, value, squares);
        }
    }
    const float inverse = inverse_rms<T>(squares, args);
#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
        const int i = threadIdx.x + n * blockDim.x;
        if (i >= vectors) continue;
        Vector scale;
        scale.bits = weight[i].bits;
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
            const float value = Element<T>::to_float(row_rmem[n].element[e]) * inverse;
            row_rmem[n].element[e] = Element<T>::from_float(value * Element<T>::to_float(scale.element[e]));
        }
        y[i].bits = row_rmem[n].bits;
    }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) read_twice(RmsNormArgs args) {
    const T *x = static_cast<const T *>(args.x) + blockIdx.x * args.x_stride;
    const T *weight = static_cast<const T *>(args.weight);
    T *y = static_cast<T *>(args.y) + blockIdx.x * args.y_stride;

    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x) {
        const float value = Element<T>::to_float(x[c]);
        squares = fmaf(value, value, squares);
    }
    const float inverse = inverse_rms<T>(squares, args);
    for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x) {
        y[c] = Element<T>::from_float(Element<T>::to_float(x[c]) * inverse * Element<T>::to_float(weight[c]));
    }
}

bool on_vector(const void *data) {
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

template <typename T>
const char *launch_for(const RmsNormArgs &args, void *stream) {
    constexpr int kWidth = kVectorBytes / sizeof(T);
    const bool aligned = on_vector(args.x) && on_vector(args.weight) && on_vector(args.y) &&
                         args.x_stride % kWidth == 0 && args.y_stride % kWidth == 0 && args.cols % kWidth == 0;
    const bool fits = args.cols <= int64_t{kMaxThreads} * kMaxVectors * kWidth;
    const int64_t work = aligned && fits ? args.cols / kWidth : args.cols;  // what the threads of a block share
    const int threads =
        work >= kMaxThreads ? kMaxThreads : static_cast<int>((work + kWarpSize - 1) / kWarpSize * kWarpSize);
    return launch_kernel("one_pass", aligned && fits ? in_registers<T> : read_twice<T>, {args.rows, threads},
                         args.placement, stream, args);
}

}  // namespace one_pass

const char *launch(const RmsNormArgs &args, void *stream) {
    switch (args.dtype) {
        case Dtype::kFloat32:
            return one_pass::launch_for<float>(args, stream);
        case Dtype::kFloat16:
            return one_pass::launch_for<__half>(args, stream);
        case Dtype::kBfloat16:
            return one_pass::launch_for<__nv_bfloat16>(args, stream);
    }
    return "one_pass takes float32, float16 or bfloat16";
}
