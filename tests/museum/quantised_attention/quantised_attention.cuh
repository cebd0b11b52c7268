// Attention on codes on a GPU that is right: a thread a query row. A piece replaces how a code is read or a result
// made.
#pragma once

#include <cuda_fp16.h>

#include "csrc/quantised_attention/launch.h"
#include "museum/gpu.cuh"

constexpr int kDim = 64, kThreads = 64;

struct Steps {
    __device__ float decoded(unsigned char code, float scale) const {
        return static_cast<float>(code - 128) * static_cast<float>(kCodeStep) * scale;
    }
    __device__ __half rounded(float result) const { return __float2half_rn(result); }
};

__device__ __forceinline__ int64_t offset(const Strides3 &stride, int64_t batch, int64_t head, int64_t row) {
    return batch * stride.batch + head * stride.head + row * stride.row;
}

template <class Kind>
__global__ void __launch_bounds__(kThreads) quantised_attention(QuantisedAttentionArgs all, Kind kind) {
    const AttentionArgs &args = all.attention;
    const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t row = index % args.query_rows, head = index / args.query_rows % args.query_heads;
    const int64_t batch = index / args.query_rows / args.query_heads;
    if (batch >= args.batch) return;
    const int64_t key_head = head / (args.query_heads / args.key_heads);
    const unsigned char *q = static_cast<const unsigned char *>(args.q) + offset(args.q_stride, batch, head, row);
    const unsigned char *k = static_cast<const unsigned char *>(args.k) + offset(args.k_stride, batch, key_head, 0);
    const unsigned char *v = static_cast<const unsigned char *>(args.v) + offset(args.v_stride, batch, key_head, 0);
    const float q_scale = all.q_scale[batch * all.q_scale_stride[0] + head * all.q_scale_stride[1]];
    const float k_scale = all.k_scale[batch * all.k_scale_stride[0] + key_head * all.k_scale_stride[1]];
    const float v_scale = all.v_scale[batch * all.v_scale_stride[0] + key_head * all.v_scale_stride[1]];
    const int64_t seen = args.causal ? min(args.key_rows, row + 1 + args.key_rows - args.query_rows) : args.key_rows;

    float highest = -INFINITY, total = 0.0f, sums[kDim] = {};
    for (int64_t key = 0; key < seen; ++key) {
        float score = 0.0f;
        for (int d = 0; d < args.head_dim; ++d) {
            score = fmaf(kind.decoded(q[d], q_scale), kind.decoded(k[key * args.k_stride.row + d], k_scale), score);
        }
        score *= static_cast<float>(args.scale);
        const float top = fmaxf(highest, score), shrink = expf(highest - top), weight = expf(score - top);
        total = total * shrink + weight;
        for (int d = 0; d < args.head_dim; ++d) {
            sums[d] = sums[d] * shrink + weight * kind.decoded(v[key * args.v_stride.row + d], v_scale);
        }
        highest = top;
    }
    __half *o = static_cast<__half *>(args.o) + offset(args.o_stride, batch, head, row);
    for (int d = 0; d < args.head_dim; ++d) o[d] = kind.rounded(total > 0.0f ? sums[d] / total : 0.0f);
}

template <class Kind>
const char *queue(const QuantisedAttentionArgs &all, void *stream, const Kind &kind) {
    const AttentionArgs &args = all.attention;
    if (all.codec != Codec::kSimFp8) return "the museum's kernels take simulated FP8";
    if (args.head_dim > kDim) return "the museum's kernels take head_dim up to 64";
    const int64_t blocks = (args.batch * args.query_heads * args.query_rows + kThreads - 1) / kThreads;
    return launch_kernel("quantised_attention", quantised_attention<Kind>, {blocks, kThreads}, args.placement, stream,
                         all, kind);
}

// Ends a piece: what the binding calls.
#define MUSEUM_LAUNCH(Kind)                                               \
    const char *launch(const QuantisedAttentionArgs &all, void *stream) { \
        return queue(all, stream, Kind{});                                \
    }
