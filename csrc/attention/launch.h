// Attention forward: o = softmax(scale * q k^T) v, computed by one variant.
#pragma once

#include "../common/launch_abi.h"

struct AttentionArgs {
    const void *q;  // [batch, query_heads, query_rows, head_dim]
    const void *k;  // [batch, key_heads, key_rows, head_dim]
    const void *v;  // [batch, key_heads, key_rows, head_dim]
    void *o;        // [batch, query_heads, query_rows, head_dim]
    Strides3 q_stride;
    Strides3 k_stride;
    Strides3 v_stride;
    Strides3 o_stride;
    int64_t batch;
    int64_t query_heads;  // a multiple of key_heads; query head h reads key head h / (query_heads / key_heads)
    int64_t key_heads;
    int64_t query_rows;
    int64_t key_rows;
    int64_t head_dim;
    double scale;
    bool causal;  // key j is visible to query i where j <= i + (key_rows - query_rows); no visible key gives zeros
    Dtype dtype;
    Placement placement;
};

// Queues the computation on `stream` (a cudaStream_t; ignored by CPU variants). Every size is at least 1.
// Returns null, or why nothing was queued.
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);

// The last line of a CUDA rung: its library's launcher is the one in the rung's namespace. Weak, since several rungs
// may share a library with a dispatcher, whose launcher then takes the place of theirs.
#define KERNELPROOF_LAUNCH(rung)                                                                           \
    KERNELPROOF_HIDDEN __attribute__((weak)) const char *launch(const AttentionArgs &args, void *stream) { \
        return rung::launch(args, stream);                                                                 \
    }
