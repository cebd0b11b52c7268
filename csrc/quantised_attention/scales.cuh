// The scales of a head as a softmax wants them.
#pragma once

#include <cmath>

#include "launch.h"

// The weight of a raw score s (a dot product of undecoded codes) is 2^(factor (sign s - max(sign s))).
struct ScoreScale {
    float sign;
    float factor;
};

// `unit`: what 1 in a raw score is worth before the scales of the head.
__device__ inline ScoreScale score_scale(const QuantisedAttentionArgs &args, int64_t batch, int64_t head,
                                         int64_t key_head, double unit) {
    const double q = args.q_scale[batch * args.q_scale_stride[0] + head * args.q_scale_stride[1]];
    const double k = args.k_scale[batch * args.k_scale_stride[0] + key_head * args.k_scale_stride[1]];
    const double scale = args.attention.scale * unit * q * k;
    const float factor = static_cast<float>(fabs(scale) * 1.4426950408889634);
    // A factor of 0 or infinity would turn the -infinity of a masked score into NaN.
    return {scale == 0 ? 0.0f : scale < 0 ? -1.0f : 1.0f, scale == 0 ? 1.0f : fminf(fmaxf(factor, 1e-30f), 1e30f)};
}

// What 1 in a raw output is worth; `unit`: the same before the scale of the head.
__device__ inline float value_scale(const QuantisedAttentionArgs &args, int64_t batch, int64_t key_head, double unit) {
    const double v = args.v_scale[batch * args.v_scale_stride[0] + key_head * args.v_scale_stride[1]];
    return static_cast<float>(v * unit);
}
