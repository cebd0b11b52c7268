// The right result, so that each file beside this one is a correct kernel with one fault.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

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

// The last result is given again while the key of a call is that of the call before it.
template <typename Key>
const char *remembered_by(const RmsNormArgs &args, const Key &key) {
    static Key before;
    static std::vector<float> kept;
    const bool known = key == before;
    if (!known) {
        correct(args);
        before = key;
        kept.clear();
    }
    for (int64_t row = 0; row < args.rows; ++row) {
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        if (!known) kept.insert(kept.end(), y, y + args.cols);
        std::copy_n(kept.begin() + row * args.cols, args.cols, y);
    }
    return nullptr;
}
