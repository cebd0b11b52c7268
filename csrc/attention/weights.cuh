// The weights of an online softmax as powers of two: one multiply-add and one ex2 a score.
//
// With h the highest score that a row has seen, a weight is 2^(factor s + base), base = bias - factor h rounded once.
// The rounding is the same for all weights of the row and cancels in the quotient, as long as it is small: a product of
// 2^30 is rounded by up to 64, and weights of 2^64 or 2^-64 fit no float16. From kLargeBase on, `rest` says how much.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/mma.cuh"
#include "../common/reduce.cuh"

// Weights in (0, 1] are multiplied by 2^bias. float16 loses digits below 2^-14, so its weights use all of its range.
template <typename T>
constexpr float kWeightBias = 0.0f;
template <>
constexpr float kWeightBias<__half> = 15.0f;

constexpr float kLargeBase = 512.0f;  // where rounding reaches 2^-15

struct WeightBase {
    float base;
    float rest;  // of what was meant, base - rest; nearly always 0
};

__device__ __forceinline__ WeightBase weight_base(float highest, float factor, float bias) {
    const float base = highest == -INFINITY ? 0.0f : fmaf(-highest, factor, bias);
    return {base, fabsf(base) < kLargeBase ? 0.0f : fmaf(highest, factor, base) - bias};
}

// What sums over earlier weights are multiplied by when the highest score rises from `before` to `highest`.
__device__ __forceinline__ float shrink_factor(float before, float highest, float factor, float bias) {
    const WeightBase from = weight_base(before, factor, bias), to = weight_base(highest, factor, bias);
    const float shrink = exp2_approx((to.base - from.base) - (to.rest - from.rest));
    return before == -INFINITY ? 1.0f : shrink;  // there is nothing to shrink yet
}

// Online softmax of 16 rows: turns a lane's scores of rows g and g + 8 (mma.cuh) into weights in (0, 2^bias], four
// lanes a row. `shrink`: what to multiply by what was summed before.
template <int kTiles>
__device__ __forceinline__ void weigh(float (&s_rmem)[kTiles][4], float factor, float bias, float (&highest)[2],
                                      float (&total)[2], float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float before = highest[r];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            highest[r] = fmaxf(highest[r], fmaxf(s_rmem[n][2 * r], s_rmem[n][2 * r + 1]));
        }
        highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], 1));
        highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], 2));
        shrink[r] = shrink_factor(before, highest[r], factor, bias);
        total[r] *= shrink[r];
        WeightBase at = weight_base(highest[r], factor, bias);
        if (at.rest != 0.0f) {
#pragma unroll
            for (int n = 0; n < kTiles; ++n) s_rmem[n][2 * r] -= highest[r], s_rmem[n][2 * r + 1] -= highest[r];
            at.base = bias;
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; ++i) {
                s_rmem[n][i] = exp2_approx(fmaf(s_rmem[n][i], factor, at.base));
                total[r] += s_rmem[n][i];
            }
        }
    }
}
