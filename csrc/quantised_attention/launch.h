// Attention forward on quantised inputs: o = softmax(scale * q k^T) v of the decoded q, k and v, by one variant.
#pragma once

#include "../attention/launch.h"

// What a byte stands for, given the scale s of its head.
enum class Codec {
    kSimFp8,  // u: (u - 128) / 127 * 448 * s, so zero is exactly 128
    kE4m3,    // a float8_e4m3fn number x: x * s
};

struct QuantisedAttentionArgs {
    AttentionArgs attention;    // q, k and v are codes, a byte each; o is `dtype`, float16
    const float *q_scale;       // [batch, query_heads]
    const float *k_scale;       // [batch, key_heads]
    const float *v_scale;       // [batch, key_heads]
    int64_t q_scale_stride[2];  // 0 where one scale serves all batches or heads
    int64_t k_scale_stride[2];
    int64_t v_scale_stride[2];
    Codec codec;
};

// What one step of a simulated-FP8 code is worth before its scale.
constexpr double kCodeStep = 448.0 / 127.0;

// Queues the computation on `stream` (a cudaStream_t; ignored by CPU variants). Every size is at least 1.
// Returns null, or why nothing was queued.
KERNELPROOF_HIDDEN const char *launch(const QuantisedAttentionArgs &args, void *stream);
