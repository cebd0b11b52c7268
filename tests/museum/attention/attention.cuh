// Attention on a GPU that is right, cut into the steps that a kernel goes wrong in: a piece replaces one of them.
//
// A block has a tile of 32 query rows of one head and goes over the keys 32 at a time with an online softmax. Scores:
// a lane a key, rows dealt to the warps. Maximum and weights: four threads a row. Sums: a thread a feature, every
// second row. Between those every score passes from one warp to another through shared memory, hence the barriers.
#pragma once

#include <cuda_fp16.h>

#include "csrc/attention/launch.h"
#include "museum/gpu.cuh"

constexpr int kRows = 32, kKeys = 32, kDim = 64, kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize, kRowThreads = kThreads / kRows, kRowStep = kThreads / kDim;

struct Tiles {
    float Q[kRows][kDim + 1];
    float K[kKeys][kDim + 1];
    float V[kKeys][kDim];
    float S[kRows][kKeys + 1];  // scores, then weights
    float shrink[kRows];        // what sums so far are multiplied by, since the maximum rose
    float highest[kRows];
    float total[kRows];
};

// The rows of a block.
struct Block {
    int64_t batch, head, first_row;
};

// Elements from the first to one of a head's rows.
__device__ __forceinline__ int64_t offset(const Strides3 &stride, int64_t batch, int64_t head, int64_t row) {
    return batch * stride.batch + head * stride.head + row * stride.row;
}

struct Steps {
    // Which work there is.
    static int64_t row_tiles(const AttentionArgs &args) { return (args.query_rows + kRows - 1) / kRows; }
    static int64_t heads(const AttentionArgs &args) { return args.query_heads; }
    __device__ int64_t key_head(const AttentionArgs &args, int64_t head) const {
        return head / (args.query_heads / args.key_heads);
    }
    __device__ int64_t first_key(const AttentionArgs &) const { return 0; }
    __device__ int64_t end_key(const AttentionArgs &args) const { return args.key_rows; }
    __device__ bool takes(int) const { return true; }  // a tile, by its number
    __device__ bool sees(const AttentionArgs &args, int64_t row, int64_t key) const {
        return key < end_key(args) && (!args.causal || key <= row + args.key_rows - args.query_rows);
    }

    // Numbers.
    __device__ float key_value(const AttentionArgs &args, const __half *row, int64_t key, int d) const {
        return key < args.key_rows && d < args.head_dim ? __half2float(row[d]) : 0.0f;
    }
    __device__ bool sets_value(const AttentionArgs &, int64_t) const { return true; }  // of a tile, by its key
    __device__ float score(const AttentionArgs &args, const Tiles &tiles, const Block &, int64_t, int row,
                           int key) const {
        float sum = 0.0f;
        for (int d = 0; d < kDim; ++d) sum = fmaf(tiles.Q[row][d], tiles.K[key][d], sum);
        return static_cast<float>(args.scale) * sum;
    }
    __device__ float maximum(float before, float of_tile) const { return fmaxf(before, of_tile); }
    __device__ float weight(float score, float highest) const { return expf(score - highest); }
    __device__ float kept_weight(float weight) const { return weight; }  // for the sums; the total takes it whole
    __device__ float shrunk(float sum, float shrink) const { return sum * shrink; }
    __device__ float sum(float before, float product) const { return before + product; }

    // Barriers: what stands between two steps of the tile of this number.
    __device__ void before_scores(int) const {}
    __device__ void before_maximum(int) const { __syncthreads(); }
    __device__ void before_weights(int) const { __syncwarp(); }
    __device__ void before_sums(int) const { __syncthreads(); }
    __device__ void after_tile(int) const { __syncthreads(); }

    // The result, an element a call, for all rows and features of the tile.
    __device__ bool writes(const AttentionArgs &args, int64_t row, int d) const {
        return row < args.query_rows && d < args.head_dim;
    }
    __device__ __half rounded(float result) const { return __float2half_rn(result); }
    __device__ float quotient(float sum, float total) const { return total > 0.0f ? sum / total : 0.0f; }
    template <class Kind>
    __device__ void finish(const Kind &kind, const AttentionArgs &args, const Block &block, int64_t row, int d,
                           float sum, float total, float) const {
        if (!kind.writes(args, row, d)) return;
        __half *o = static_cast<__half *>(args.o) + offset(args.o_stride, block.batch, block.head, row);
        o[d] = kind.rounded(kind.quotient(sum, total));
    }
};

template <class Kind>
__device__ void attend(const AttentionArgs &args, const Kind &kind, Tiles &tiles, int64_t row_tiles, int64_t heads) {
    const Block block{blockIdx.x / row_tiles / heads, blockIdx.x / row_tiles % heads, blockIdx.x % row_tiles * kRows};
    const int64_t key_head = kind.key_head(args, block.head);
    const __half *q = static_cast<const __half *>(args.q) + offset(args.q_stride, block.batch, block.head, 0);
    const __half *k = static_cast<const __half *>(args.k) + offset(args.k_stride, block.batch, key_head, 0);
    const __half *v = static_cast<const __half *>(args.v) + offset(args.v_stride, block.batch, key_head, 0);
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int my_row = threadIdx.x / kRowThreads, my_part = threadIdx.x % kRowThreads;  // of scores and weights
    const int my_feature = threadIdx.x % kDim, my_first_row = threadIdx.x / kDim;       // of sums
    float highest = -INFINITY, total = 0.0f, sums[kRows / kRowStep] = {};

    for (int i = threadIdx.x; i < kRows * kDim; i += kThreads) {
        const int64_t row = block.first_row + i / kDim;
        const bool exists = row < args.query_rows && i % kDim < args.head_dim;
        tiles.Q[i / kDim][i % kDim] = exists ? __half2float(q[row * args.q_stride.row + i % kDim]) : 0.0f;
    }
    int number = 0;
    for (int64_t first = kind.first_key(args); first < kind.end_key(args); first += kKeys, ++number) {
        if (!kind.takes(number)) continue;
        for (int i = threadIdx.x; i < kKeys * kDim; i += kThreads) {
            const int64_t key = first + i / kDim;
            tiles.K[i / kDim][i % kDim] = kind.key_value(args, k + key * args.k_stride.row, key, i % kDim);
            if (kind.sets_value(args, key)) {
                tiles.V[i / kDim][i % kDim] = kind.key_value(args, v + key * args.v_stride.row, key, i % kDim);
            }
        }
        __syncthreads();

        kind.before_scores(number);
        for (int row = warp; row < kRows; row += kWarps) {
            tiles.S[row][lane] = kind.score(args, tiles, block, first, row, lane);
        }
        kind.before_maximum(number);

        const int64_t row = block.first_row + my_row;
        float of_tile = -INFINITY;
        for (int key = 0; key < kKeys; ++key) {
            if (kind.sees(args, row, first + key)) of_tile = fmaxf(of_tile, tiles.S[my_row][key]);
        }
        const float top = kind.maximum(highest, of_tile);
        const float shrink = top == -INFINITY ? 1.0f : kind.weight(highest, top);
        kind.before_weights(number);  // the row's other threads have seen the scores
        total *= shrink;
        for (int key = my_part; key < kKeys; key += kRowThreads) {
            const bool seen = kind.sees(args, row, first + key);
            const float weight = seen ? kind.weight(tiles.S[my_row][key], top) : 0.0f;
            total += weight;
            tiles.S[my_row][key] = kind.kept_weight(weight);
        }
        if (my_part == 0) tiles.shrink[my_row] = shrink;
        highest = top;
        kind.before_sums(number);

#pragma unroll
        for (int i = 0; i < kRows / kRowStep; ++i) {
            const int other = my_first_row + i * kRowStep;
            float sum = kind.shrunk(sums[i], tiles.shrink[other]);
            for (int key = 0; key < kKeys; ++key) {
                sum = kind.sum(sum, tiles.S[other][key] * tiles.V[key][my_feature]);
            }
            sums[i] = sum;
        }
        kind.after_tile(number);
    }

    for (int step = 1; step < kRowThreads; step *= 2) total += __shfl_xor_sync(kAllLanes, total, step);
    if (my_part == 0) tiles.total[my_row] = total;
    if (my_part == 0) tiles.highest[my_row] = highest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRows / kRowStep; ++i) {
        const int row = my_first_row + i * kRowStep;
        kind.finish(kind, args, block, block.first_row + row, my_feature, sums[i], tiles.total[row],
                    tiles.highest[row]);
    }
}

template <class Kind>
__global__ void __launch_bounds__(kThreads) attention(AttentionArgs args, Kind kind, int64_t row_tiles, int64_t heads) {
    __shared__ Tiles tiles;
    attend(args, kind, tiles, row_tiles, heads);
}

static inline const char *refused(const AttentionArgs &args) {
    if (args.dtype != Dtype::kFloat16) return "the museum's kernels take float16";
    return args.head_dim > kDim ? "the museum's kernels take head_dim up to 64" : nullptr;
}

// Queues the kernel with these steps.
template <class Kind>
const char *queue(const AttentionArgs &args, void *stream, const Kind &kind) {
    if (const char *why = refused(args)) return why;
    const int64_t row_tiles = kind.row_tiles(args), heads = kind.heads(args);
    return launch_kernel("attention", attention<Kind>, {row_tiles * heads * args.batch, kThreads}, args.placement,
                         stream, args, kind, row_tiles, heads);
}

// Ends a piece: what the binding calls.
#define MUSEUM_LAUNCH(Kind)                                       \
    const char *launch(const AttentionArgs &args, void *stream) { \
        return queue(args, stream, Kind{});                       \
    }
