// Attention in two halves of the keys, which leave what they have in a workspace, and a second kernel that puts the
// halves together. Every call writes all of the workspace that is read.
#pragma once

#include "attention.cuh"

constexpr int kHalves = 2, kPartial = kDim + 2;  // of a row: its sums, its total, its highest score

__host__ __device__ inline int64_t rows_of(const AttentionArgs &args) {
    return args.batch * args.query_heads * args.query_rows;
}

struct Half : Steps {
    int half;
    float *workspace;  // [halves, rows, kPartial]

    __device__ int64_t middle(const AttentionArgs &args) const {
        return (args.key_rows / kHalves + kKeys - 1) / kKeys * kKeys;
    }
    __device__ int64_t first_key(const AttentionArgs &args) const { return half == 0 ? 0 : middle(args); }
    __device__ int64_t end_key(const AttentionArgs &args) const {
        return half == 0 ? min(middle(args), args.key_rows) : args.key_rows;
    }
    __device__ bool sees(const AttentionArgs &args, int64_t row, int64_t key) const {
        return key < end_key(args) && Steps::sees(args, row, key);
    }
    __device__ float *partial(const AttentionArgs &args, const Block &block, int64_t row) const {
        const int64_t head = block.batch * args.query_heads + block.head;
        return workspace + (half * rows_of(args) + head * args.query_rows + row) * kPartial;
    }
    template <class Kind>
    __device__ void finish(const Kind &kind, const AttentionArgs &args, const Block &block, int64_t row, int d,
                           float sum, float total, float highest) const {
        if (row >= args.query_rows) return;
        float *to = kind.partial(args, block, row);
        to[d] = sum;
        if (d == 0) to[kDim] = total;
        if (d == 0) to[kDim + 1] = highest;
    }
};

// A thread an element of the output.
static __global__ void join(AttentionArgs args, const float *workspace) {
    const int64_t element = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t index = element / args.head_dim, d = element % args.head_dim;
    if (index >= rows_of(args)) return;
    float sum = 0.0f, total = 0.0f, top = -INFINITY;
    for (int half = 0; half < kHalves; ++half) {
        top = fmaxf(top, workspace[(half * rows_of(args) + index) * kPartial + kDim + 1]);
    }
    for (int half = 0; half < kHalves && top != -INFINITY; ++half) {
        const float *from = workspace + (half * rows_of(args) + index) * kPartial;
        const float shrink = expf(from[kDim + 1] - top);
        sum += from[d] * shrink;
        total += from[kDim] * shrink;
    }
    const int64_t row = index % args.query_rows, head = index / args.query_rows;
    __half *o = static_cast<__half *>(args.o);
    o[offset(args.o_stride, head / args.query_heads, head % args.query_heads, row) + d] =
        __float2half_rn(total > 0.0f ? sum / total : 0.0f);
}

static inline const char *queue_join(const AttentionArgs &args, void *stream, const float *workspace) {
    constexpr int kJoinThreads = 256;
    const int64_t blocks = (rows_of(args) * args.head_dim + kJoinThreads - 1) / kJoinThreads;
    return launch_kernel("join", join, {blocks, kJoinThreads}, args.placement, stream, args, workspace);
}

static inline size_t workspace_bytes(const AttentionArgs &args) {
    return static_cast<size_t>(kHalves * rows_of(args)) * kPartial * sizeof(float);
}

// Null where there is no memory. It grows in calls outside of a graph's capture, as the first call of a shape is.
static inline float *workspace_for(const AttentionArgs &args) {
    static float *kept = nullptr;
    static size_t kept_bytes = 0;
    const size_t bytes = workspace_bytes(args);
    if (bytes <= kept_bytes) return kept;
    if (kept != nullptr) cudaFree(kept);
    if (cudaMalloc(&kept, bytes) != cudaSuccess) kept = nullptr;
    kept_bytes = kept != nullptr ? bytes : 0;
    return kept;
}
