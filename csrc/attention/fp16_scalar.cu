// Attention forward, the plain first rung: flash attention on the scalar cores. A warp owns a few query rows; for the
// scores a lane owns one key of the tile, for the output a few columns. Scores, weights and sums are FP32.
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/reduce.cuh"
#include "online_softmax.h"

namespace fp16_scalar {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kBlocksPerMultiprocessor = 5;  // asks the compiler for at most 102 registers a thread
constexpr int kRowsPerWarp = 4;
constexpr int kRows = kWarps * kRowsPerWarp;  // query rows of a block
constexpr int kKeys = kWarpSize;              // keys of a tile: one a lane

// Copies `rows` rows of head_dim columns and fills the rest of the tile with zeros. Element by element: any alignment.
template <int kTileRows, int kDim, int kPitch, typename T>
__device__ void load_tile(T *tile_smem,   // [kTileRows, kPitch]
                          const T *from,  // [rows, head_dim]
                          int64_t stride, int64_t rows, int64_t head_dim) {
    for (int i = threadIdx.x; i < kTileRows * kDim; i += kThreads) {
        const int row = i / kDim, column = i % kDim;
        const bool inside = row < rows && column < head_dim;
        tile_smem[row * kPitch + column] = inside ? from[row * stride + column] : Element<T>::from_float(0.0f);
    }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    attention(AttentionArgs args, SoftmaxScale scale) {
    using Pair = typename Element<T>::Pair;
    static_assert(kDim % (2 * kWarpSize) == 0, "each lane owns whole pairs of output columns");
    constexpr int kPairs = kDim / (2 * kWarpSize);
    constexpr int kPitch = kDim + 2;  // an odd number of words: lanes that read one column of 32 rows meet 32 banks

    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int64_t row_tiles = (args.query_rows + kRows - 1) / kRows;
    const int64_t first_row = blockIdx.x % row_tiles * kRows;
    const int64_t head = blockIdx.x / row_tiles % args.query_heads;
    const int64_t batch = blockIdx.x / row_tiles / args.query_heads;
    const int64_t key_head = head / (args.query_heads / args.key_heads);
    const T *q = static_cast<const T *>(args.q) + batch * args.q_stride.batch + head * args.q_stride.head;
    const T *k = static_cast<const T *>(args.k) + batch * args.k_stride.batch + key_head * args.k_stride.head;
    const T *v = static_cast<const T *>(args.v) + batch * args.v_stride.batch + key_head * args.v_stride.head;
    T *o = static_cast<T *>(args.o) + batch * args.o_stride.batch + head * args.o_stride.head;

    alignas(16) __shared__ T Q_smem[kRows * kPitch];
    alignas(16) __shared__ T K_smem[kKeys * kPitch];
    alignas(16) __shared__ T V_smem[kKeys * kPitch];

    float o_rmem[kRowsPerWarp][kPairs][2] = {};
    float total[kRowsPerWarp] = {};  // this lane's share of the sum of weights
    float highest[kRowsPerWarp];
    int64_t row_end[kRowsPerWarp];
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
        highest[r] = -INFINITY;
        row_end[r] = visible_end(args, first_row + warp * kRowsPerWarp + r);
    }

    load_tile<kRows, kDim, kPitch>(Q_smem, q + first_row * args.q_stride.row, args.q_stride.row,
                                   args.query_rows - first_row, args.head_dim);
    const int64_t block_end = visible_end(args, first_row + kRows - 1);
    for (int64_t key = 0; key < block_end; key += kKeys) {
        __syncthreads();  // everyone is done with the previous tile
        load_tile<kKeys, kDim, kPitch>(K_smem, k + key * args.k_stride.row, args.k_stride.row, args.key_rows - key,
                                       args.head_dim);
        load_tile<kKeys, kDim, kPitch>(V_smem, v + key * args.v_stride.row, args.v_stride.row, args.key_rows - key,
                                       args.head_dim);
        __syncthreads();

        // S = Q K^T: lane j against key j
        float weight[kRowsPerWarp] = {};
#pragma unroll 8
        for (int d = 0; d < kDim; d += 2) {
            const float2 k_pair = Element<T>::to_float(*reinterpret_cast<const Pair *>(&K_smem[lane * kPitch + d]));
#pragma unroll
            for (int r = 0; r < kRowsPerWarp; ++r) {
                const T *q_row = &Q_smem[(warp * kRowsPerWarp + r) * kPitch];
                const float2 q_pair = Element<T>::to_float(*reinterpret_cast<const Pair *>(&q_row[d]));
                weight[r] = fmaf(q_pair.x, k_pair.x, fmaf(q_pair.y, k_pair.y, weight[r]));
            }
        }

        // online softmax
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const bool visible = key + lane < row_end[r];
            const float score = visible ? scale.sign * weight[r] : -INFINITY;
            const float before = highest[r];
            highest[r] = fmaxf(before, warp_max(score));
            weight[r] = visible ? exp2f((score - highest[r]) * scale.factor) : 0.0f;
            const float shrink = before == highest[r] ? 1.0f : exp2f((before - highest[r]) * scale.factor);
            total[r] = total[r] * shrink + weight[r];
#pragma unroll
            for (int p = 0; p < kPairs; ++p) {
                o_rmem[r][p][0] *= shrink;
                o_rmem[r][p][1] *= shrink;
            }
        }

        // O += P V: lane l owns columns 2 l and 2 l + 1 of every 64
#pragma unroll 4
        for (int j = 0; j < kKeys; ++j) {
            float2 v_pair[kPairs];
#pragma unroll
            for (int p = 0; p < kPairs; ++p) {
                const T *from = &V_smem[j * kPitch + 2 * (lane + p * kWarpSize)];
                v_pair[p] = Element<T>::to_float(*reinterpret_cast<const Pair *>(from));
            }
#pragma unroll
            for (int r = 0; r < kRowsPerWarp; ++r) {
                const float of_key = __shfl_sync(kAllLanes, weight[r], j);
#pragma unroll
                for (int p = 0; p < kPairs; ++p) {
                    o_rmem[r][p][0] = fmaf(of_key, v_pair[p].x, o_rmem[r][p][0]);
                    o_rmem[r][p][1] = fmaf(of_key, v_pair[p].y, o_rmem[r][p][1]);
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
        const int64_t row = first_row + warp * kRowsPerWarp + r;
        const float sum = warp_sum(total[r]);
        const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;  // no visible key: zeros
        if (row >= args.query_rows) continue;
#pragma unroll
        for (int c = 0; c < 2 * kPairs; ++c) {
            const int column = 2 * (lane + c / 2 * kWarpSize) + c % 2;
            if (column < args.head_dim) {
                o[row * args.o_stride.row + column] = Element<T>::from_float(o_rmem[r][c / 2][c % 2] * inverse);
            }
        }
    }
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    const auto kernel = args.head_dim <= 64    ? attention<T, 64>
                        : args.head_dim <= 128 ? attention<T, 128>
                                               : attention<T, 256>;
    const int64_t blocks = (args.query_rows + kRows - 1) / kRows * args.query_heads * args.batch;
    return launch_kernel("fp16_scalar", kernel, {blocks, kThreads}, args.placement, stream, args,
                         SoftmaxScale(args.scale));
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim > 256) {
        return message("fp16_scalar takes head_dim up to 256, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_scalar takes float16 or bfloat16, not float32";
}

}  // namespace fp16_scalar

KERNELPROOF_LAUNCH(fp16_scalar)
