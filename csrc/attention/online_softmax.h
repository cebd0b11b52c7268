// What every CUDA attention kernel asks about masks and scale.
#pragma once

#include <cfloat>
#include <cmath>

#include "launch.h"

#ifdef __CUDACC__
    #define KERNELPROOF_HOST_DEVICE __host__ __device__
#else
    #define KERNELPROOF_HOST_DEVICE
#endif

// softmax(scale s) = 2^(factor (sign s - max(sign s))), normalised: the maximum is taken before scaling, so a factor of
// any size leaves the highest weight at exactly 1.
struct SoftmaxScale {
    explicit SoftmaxScale(double scale)
        : sign(scale == 0  ? 0.0f
               : scale < 0 ? -1.0f
                           : 1.0f),
          factor(scale == 0 ? 1.0f : static_cast<float>(std::fabs(scale) * 1.4426950408889634)) {}
    float sign;
    float factor;
};

// The softmax's scale, its factor neither 0 nor infinite: a hidden score times it is -inf, no difference times it NaN.
inline SoftmaxScale finite_scale(double scale) {
    SoftmaxScale result(scale);
    result.factor = std::fmin(std::fmax(result.factor, FLT_MIN), FLT_MAX);
    return result;
}

// Query row i sees keys [0, visible_end).
KERNELPROOF_HOST_DEVICE inline int64_t visible_end(const AttentionArgs &args, int64_t i) {
    if (!args.causal) return args.key_rows;
    const int64_t end = i + args.key_rows - args.query_rows + 1;
    return end < 0 ? 0 : end < args.key_rows ? end : args.key_rows;
}
