// RMSNorm that reads a row once: a block holds the row in registers between the sum of squares and the result. Rows
// that are too long or badly aligned for 16-byte accesses are read twice. Sums are FP32, as in naive.cu.
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/reduce.cuh"
#include "launch.h"

namespace one_pass {

constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;  // 16-byte vectors of a row that a thread holds
constexpr int kVectorBytes = 16;
constexpr int kMinThreads = 128;   // a shorter row is shared by as many as it has vectors
constexpr int kMaxRegisters = 56;  // nine blocks of 128 threads share a multiprocessor: 72 KiB on their way to it

template <typename T>
union Vector {
    static constexpr int kWidth = kVectorBytes / sizeof(T);
    uint4 bits;
    typename Element<T>::Pair pair[kWidth / 2];
    __device__ Vector() : bits() {}
};

template <typename T>
__device__ float inverse_rms(float squares, const RmsNormArgs &args) {
    return rsqrtf(squares / static_cast<float>(args.cols) + static_cast<float>(args.eps));
}

template <typename T>
__global__ void __maxnreg__(kMaxRegisters) in_registers(RmsNormArgs args) {
    constexpr int kWidth = Vector<T>::kWidth;
    const T *x_row = static_cast<const T *>(args.x) + blockIdx.x * args.x_stride;  // [cols]
    T *y_row = static_cast<T *>(args.y) + blockIdx.x * args.y_stride;              // [cols]
    const uint4 *x = reinterpret_cast<const uint4 *>(x_row);                       // [vectors]
    const uint4 *weight = static_cast<const uint4 *>(args.weight);                 // [vectors]
    uint4 *y = reinterpret_cast<uint4 *>(y_row);                                   // [vectors]
    const int vectors = static_cast<int>(args.cols / kWidth);

    Vector<T> row_rmem[kMaxVectors], weight_rmem[kMaxVectors];
#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
        const int i = threadIdx.x + n * blockDim.x;
        if (i < vectors) row_rmem[n].bits = __ldcs(&x[i]);  // read once: the first to leave the caches
    }
#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
        const int i = threadIdx.x + n * blockDim.x;
        if (i < vectors) weight_rmem[n].bits = weight[i];
    }

    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
#pragma unroll
        for (int p = 0; p < kWidth / 2; ++p) {
            const float2 value = Element<T>::to_float(row_rmem[n].pair[p]);
            squares = fmaf(value.x, value.x, fmaf(value.y, value.y, squares));
        }
    }
    const float inverse = inverse_rms<T>(block_sum(squares), args);

#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
        const int i = threadIdx.x + n * blockDim.x;
#pragma unroll
        for (int p = 0; p < kWidth / 2; ++p) {
            const float2 value = Element<T>::to_float(row_rmem[n].pair[p]);
            const float2 scale = Element<T>::to_float(weight_rmem[n].pair[p]);
            const float2 scaled = {value.x * inverse * scale.x, value.y * inverse * scale.y};
            row_rmem[n].pair[p] = Element<T>::from_float(scaled);
        }
        if (i < vectors) y[i] = row_rmem[n].bits;
    }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) read_twice(RmsNormArgs args) {
    const T *x = static_cast<const T *>(args.x) + blockIdx.x * args.x_stride;  // [cols]
    const T *weight = static_cast<const T *>(args.weight);                     // [cols]
    T *y = static_cast<T *>(args.y) + blockIdx.x * args.y_stride;              // [cols]

    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x) {
        const float value = Element<T>::to_float(x[c]);
        squares = fmaf(value, value, squares);
    }
    const float inverse = inverse_rms<T>(block_sum(squares), args);
    for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x) {
        y[c] = Element<T>::from_float(Element<T>::to_float(x[c]) * inverse * Element<T>::to_float(weight[c]));
    }
}

bool on_vector(const void *data) {
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

template <typename T>
const char *launch_for(const RmsNormArgs &args, void *stream) {
    constexpr int kWidth = Vector<T>::kWidth;
    const bool aligned = on_vector(args.x) && on_vector(args.weight) && on_vector(args.y) &&
                         args.x_stride % kWidth == 0 && args.y_stride % kWidth == 0 && args.cols % kWidth == 0;
    const int64_t vectors = args.cols / kWidth;
    if (!aligned || vectors > kMaxThreads * kMaxVectors) {
        return launch_kernel("one_pass", read_twice<T>, {args.rows, kMaxThreads}, args.placement, stream, args);
    }
    const int64_t least = vectors < kMinThreads ? vectors : kMinThreads, needed = divide_up(vectors, kMaxVectors);
    const int threads = static_cast<int>(divide_up(least > needed ? least : needed, kWarpSize)) * kWarpSize;
    return launch_kernel("one_pass", in_registers<T>, {args.rows, threads}, args.placement, stream, args);
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
