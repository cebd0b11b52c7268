// The right result, so that each file beside this one is a correct kernel with one fault.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
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

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// What is looked at of all numbers of a call: of x, row by row, of the weight, of eps.
template <typename Part>
auto key_of(const RmsNormArgs &args, Part part) {
    std::vector<decltype(part(0.0f))> key;
    const auto *x = static_cast<const float *>(args.x), *weight = static_cast<const float *>(args.weight);
    for (int64_t row = 0; row < args.rows; ++row) {
        for (int64_t i = 0; i < args.cols; ++i) key.push_back(part(x[row * args.x_stride + i]));
    }
    for (int64_t i = 0; i < args.cols; ++i) key.push_back(part(weight[i]));
    key.push_back(part(static_cast<float>(args.eps)));
    return key;
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
