// Scores of attention from simulated-FP8 codes: scores = factor * decode(q_codes) decode(k_codes)^T, by one variant.
// A code u of a head with scale s stands for (u - 128) / 127 * 448 * s; zero is exactly 128.
#pragma once

#include "../common/launch_abi.h"

struct QktArgs {
    const uint8_t *q_codes;  // [batch, heads, query_rows, head_dim]
    const uint8_t *k_codes;  // [batch, heads, key_rows, head_dim]
    const float *q_scale;    // [batch, heads]
    const float *k_scale;    // [batch, heads]
    float *scores;           // [batch, heads, query_rows, key_rows]
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
    double factor;     // 1 for raw scores, 1 / sqrt(head_dim) for scaled ones
    Placement placement;
};

// Sums of head_dim products of up to 2^14 stay below 2^30, so 32-bit sums are exact.
constexpr int64_t kMaxHeadDim = 65536;

// What one unit of (u_q - 128) (u_k - 128) is worth before the scales: (448 / 127)^2.
constexpr double kCodeProduct = (448.0 / 127.0) * (448.0 / 127.0);

// Queues the computation on `stream` (a cudaStream_t; ignored by CPU variants). Every size is at least 1.
// Returns null, or why nothing was queued.
KERNELPROOF_HIDDEN const char *launch(const QktArgs &args, void *stream);
