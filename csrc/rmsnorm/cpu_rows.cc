// RMSNorm on a CPU: a row at a time, summed in double and rounded once.
#include <cmath>

#include "launch.h"

const char *launch(const RmsNormArgs &args, void *) {
    if (args.placement.on_cuda) return "cpu_rows runs in host memory; the tensors are on a CUDA device";
    if (args.dtype != Dtype::kFloat32) return "cpu_rows takes float32 only";
    const float *weight = static_cast<const float *>(args.weight);
#pragma omp parallel for
    for (int64_t row = 0; row < args.rows; ++row) {
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        double squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t c = 0; c < args.cols; ++c) squares += static_cast<double>(x[c]) * x[c];
        const double inverse = 1.0 / std::sqrt(squares / args.cols + args.eps);
#pragma omp simd
        for (int64_t c = 0; c < args.cols; ++c) y[c] = static_cast<float>(x[c] * inverse * weight[c]);
    }
    return nullptr;
}
