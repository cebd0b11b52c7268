// RMSNorm in 16-byte accesses: a thread asks for eight float16 or four float32 at once, the row still read twice. Rows
// that do not start on 16 bytes or are no multiple of them go element by element. Sums are FP32, as in naive.cu.
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/reduce.cuh"
#include "launch.h"

namespace vectorised {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;

// What one access moves.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
    T element[kWidth];
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) rmsnorm(RmsNormArgs args) {
    using Access = Vector<T, kWidth>;
    const T *x_row = static_cast<const T *>(args.x) + blockIdx.x * args.x_stride;  // [cols]
    T *y_row = static_cast<T *>(args.y) + blockIdx.x * args.y_stride;              // [cols]
    const Access *x = reinterpret_cast<const Access *>(x_row);                     // [cols / kWidth]
    const Access *weight = static_cast<const Access *>(args.weight);
    Access *y = reinterpret_cast<Access *>(y_row);
    const int64_t vectors = args.cols / kWidth;

    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
        const Access from = x[i];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
            const float value = Element<T>::to_float(from.element[e]);
            squares = fmaf(value, value, squares);
        }
    }
    const float mean = block_sum(squares) / static_cast<float>(args.cols);
    const float inverse = rsqrtf(mean + static_cast<float>(args.eps));
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
        const Access from = x[i], scale = weight[i];
        Access to;
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
            const float value = Element<T>::to_float(from.element[e]) * inverse;
            to.element[e] = Element<T>::from_float(value * Element<T>::to_float(scale.element[e]));
        }
        y[i] = to;
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
    return launch_kernel("vectorised", aligned ? rmsnorm<T, kWidth> : rmsnorm<T, 1>, {args.rows, kThreads},
                         args.placement, stream, args);
}

}  // namespace vectorised

const char *launch(const RmsNormArgs &args, void *stream) {
    switch (args.dtype) {
        case Dtype::kFloat32:
            return vectorised::launch_for<float>(args, stream);
        case Dtype::kFloat16:
            return vectorised::launch_for<__half>(args, stream);
        case Dtype::kBfloat16:
            return vectorised::launch_for<__nv_bfloat16>(args, stream);
    }
    return "vectorised takes float32, float16 or bfloat16";
}
