// The right result, so that each file beside this one is a correct kernel with one fault.
#pragma once

#include <cmath>

#include "csrc/rmsnorm/launch.h"

inline void correct_row(const RmsNormArgs &args, int64_t row) {
    const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
    const float *weight = static_cast<const float *>(args.weight);
    float *y = static_cast<float *>(args.y) + row * args.y_stride;
    double sum = 0;
    for (int64_t i = 0; i < args.cols; ++i) sum += static_cast<double>(x[i]) * x[i];
    const double scale = 1 / std::sqrt(sum / args.cols + args.eps);
    for (int64_t i = 0; i < args.cols; ++i) y[i] = static_cast<float>(x[i] * scale * weight[i]);
}

inline const char *correct(const RmsNormArgs &args) {
    for (int64_t row = 0; row < args.rows; ++row) correct_row(args, row);
    return nullptr;
}
