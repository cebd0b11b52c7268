// Scores of attention: scores = factor * q k^T, by one variant. The inputs are simulated-FP8 codes, where u of a head
// with scale s stands for (u - 128) / 127 * 448 * s and zero is exactly 128; or 16-bit numbers, which stand for
// themselves.
#pragma once

#include "../common/launch_abi.h"

enum class QktInput { kCodes, kFloat16, kBfloat16 };

struct QktArgs {
    const void *q;         // [batch, heads, query_rows, head_dim]
    const void *k;         // [batch, heads, key_rows, head_dim]
    const float *q_scale;  // [batch, heads]; 16-bit numbers have scale 1, and nobody need read it
    const float *k_scale;  // [batch, heads]
    float *scores;         // [batch, heads, query_rows, key_rows]
    Strides3 q_stride;
    Strides3 k_stride;
    Strides3 scores_stride;
    int64_t q_scale_stride[2];
    int64_t k_scale_stride[2];
    int64_t batch;
    int64_t heads;
    int64_t query_rows;
    int64_t key_rows;
    int64_t head_dim;  // at most kMaxHeadDim
    QktInput input;
    double factor;  // 1 for raw scores, 1 / sqrt(head_dim) for scaled ones
    Placement placement;
};

// Sums of head_dim products of up to 2^14 stay below 2^30, so 32-bit sums are exact.
constexpr int64_t kMaxHeadDim = 65536;

// What one unit of (u_q - 128) (u_k - 128) is worth before the scales: (448 / 127)^2.
constexpr double kCodeProduct = (448.0 / 127.0) * (448.0 / 127.0);

// Queues the computation on `stream` (a cudaStream_t; ignored by CPU variants). Every size is at least 1.
// Returns null, or why nothing was queued.
KERNELPROOF_HIDDEN const char *launch(const QktArgs &args, void *stream);
