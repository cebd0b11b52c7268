// RMSNorm, the plain first rung: a block a row, element by element, the row read once for the sum of squares and again
// for the result. Sums are FP32: rows whose sum of squares leaves the range of FP32 (|x| around 1e19, which float16
// cannot hold) are out of reach.
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/reduce.cuh"
#include "launch.h"

namespace naive {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) rmsnorm(RmsNormArgs args) {
    const T *x = static_cast<const T *>(args.x) + blockIdx.x * args.x_stride;  // [cols]
    const T *weight = static_cast<const T *>(args.weight);                     // [cols]
    T *y = static_cast<T *>(args.y) + blockIdx.x * args.y_stride;              // [cols]

    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) {
        const float value = Element<T>::to_float(x[c]);
        squares = fmaf(value, value, squares);
    }
    const float mean = block_sum(squares) / static_cast<float>(args.cols);
    const float inverse = rsqrtf(mean + static_cast<float>(args.eps));
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) {
        y[c] = Element<T>::from_float(Element<T>::to_float(x[c]) * inverse * Element<T>::to_float(weight[c]));
    }
}

template <typename T>
const char *launch_for(const RmsNormArgs &args, void *stream) {
    return launch_kernel("naive", rmsnorm<T>, {args.rows, kThreads}, args.placement, stream, args);
}

}  // namespace naive

const char *launch(const RmsNormArgs &args, void *stream) {
    switch (args.dtype) {
        case Dtype::kFloat32:
            return naive::launch_for<float>(args, stream);
        case Dtype::kFloat16:
            return naive::launch_for<__half>(args, stream);
        case Dtype::kBfloat16:
            return naive::launch_for<__nv_bfloat16>(args, stream);
    }
    return "naive takes float32, float16 or bfloat16";
}
