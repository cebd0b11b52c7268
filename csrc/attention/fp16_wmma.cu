// Attention forward with both products on the tensor cores through nvcuda::wmma. A warp owns 16 query rows; its scores
// pass through shared memory, since wmma does not say which lane holds which score. Scores and sums are FP32, the
// weights are rounded to the inputs' type for the second product.
#include <mma.h>

#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/reduce.cuh"
#include "online_softmax.h"

namespace fp16_wmma {

namespace wmma = nvcuda::wmma;

constexpr int kTile = 16;  // side of a wmma tile
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kMaxRegisters = 120;     // four blocks of a multiprocessor, and the budget of config.yaml
constexpr int kRows = kWarps * kTile;  // query rows of a block
constexpr int kVector = 8;             // 16-bit elements of a 16-byte access

// What weights in (0, 1] are multiplied by before rounding. float16 loses digits below 2^-14, so weights use all of its
// range; the factor is a power of two and divided out at the end.
template <typename T>
constexpr float kWeightScale = 1.0f;
template <>
constexpr float kWeightScale<__half> = 32768.0f;

// Copies rows of kDim columns and fills the rows which do not exist with zeros.
template <int kTileRows, int kDim, int kPitch, typename T>
__device__ void load_tile(T *tile_smem,   // [kTileRows, kPitch]
                          const T *from,  // [rows, kDim]
                          int64_t stride, int64_t rows, bool aligned) {
    if (aligned) {
        for (int i = threadIdx.x; i < kTileRows * kDim / kVector; i += kThreads) {
            const int row = i / (kDim / kVector), column = i % (kDim / kVector) * kVector;
            uint4 value = {};
            if (row < rows) value = *reinterpret_cast<const uint4 *>(from + row * stride + column);
            *reinterpret_cast<uint4 *>(tile_smem + row * kPitch + column) = value;
        }
    } else {
        for (int i = threadIdx.x; i < kTileRows * kDim; i += kThreads) {
            const int row = i / kDim, column = i % kDim;
            tile_smem[row * kPitch + column] = row < rows ? from[row * stride + column] : Element<T>::from_float(0.0f);
        }
    }
}

template <typename T, int kDim, int kKeys>
__global__ void __maxnreg__(kMaxRegisters) attention(AttentionArgs args, SoftmaxScale scale, bool aligned) {
    static_assert(kDim % kTile == 0 && kKeys % kTile == 0, "wmma multiplies tiles of 16 x 16");
    static_assert(kDim % kKeys == 0, "the output leaves through the scores' memory, kKeys columns at a time");
    static_assert(kKeys >= 2 * kTile, "a row of scores must hold its weights (half the size) and 16 row factors");
    constexpr int kPitch = kDim + 8;        // 16 bytes more than a multiple of 128: rows start in different banks
    constexpr int kScorePitch = kKeys + 4;  // likewise
    constexpr int kWeightPitch = 2 * kScorePitch;  // weights overwrite their own row of scores
    constexpr int kPart = kKeys / 2;               // scores of a row that one lane handles; two lanes share a row
    using Sum = wmma::fragment<wmma::accumulator, kTile, kTile, kTile, float>;
    using Left = wmma::fragment<wmma::matrix_a, kTile, kTile, kTile, T, wmma::row_major>;
    using RightOfScores = wmma::fragment<wmma::matrix_b, kTile, kTile, kTile, T, wmma::col_major>;
    using RightOfOutput = wmma::fragment<wmma::matrix_b, kTile, kTile, kTile, T, wmma::row_major>;

    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int row = lane % kTile, part = lane / kTile;
    const int64_t row_tiles = (args.query_rows + kRows - 1) / kRows;
    const int64_t first_row = blockIdx.x % row_tiles * kRows;
    const int64_t head = blockIdx.x / row_tiles % args.query_heads;
    const int64_t batch = blockIdx.x / row_tiles / args.query_heads;
    const int64_t key_head = head / (args.query_heads / args.key_heads);
    const T *q = static_cast<const T *>(args.q) + batch * args.q_stride.batch + head * args.q_stride.head;
    const T *k = static_cast<const T *>(args.k) + batch * args.k_stride.batch + key_head * args.k_stride.head;
    const T *v = static_cast<const T *>(args.v) + batch * args.v_stride.batch + key_head * args.v_stride.head;
    T *o = static_cast<T *>(args.o) + batch * args.o_stride.batch + head * args.o_stride.head;
    const int64_t row_end = visible_end(args, first_row + warp * kTile + row);
    const int64_t block_end = visible_end(args, first_row + kRows - 1);

    alignas(128) __shared__ T Q_smem[kRows * kPitch];
    alignas(128) __shared__ T K_smem[kKeys * kPitch];
    alignas(128) __shared__ T V_smem[kKeys * kPitch];
    alignas(128) __shared__ float S_smem[kRows * kScorePitch];
    const T *warp_q_smem = Q_smem + warp * kTile * kPitch;
    float *warp_s_smem = S_smem + warp * kTile * kScorePitch;
    T *warp_p_smem = reinterpret_cast<T *>(warp_s_smem);
    float *factor_smem = warp_s_smem + kPart;  // [kTile, kTile], pitch kScorePitch: beside the weights of the row

    Sum o_rmem[kDim / kTile];
#pragma unroll
    for (int n = 0; n < kDim / kTile; ++n) wmma::fill_fragment(o_rmem[n], 0.0f);
    float total = 0.0f;  // this lane's share of the sum of weights of its row
    float highest = -INFINITY;

    // Multiplies row r of the output by the factor that the two lanes of row r hold.
    const auto scale_rows = [&](float factor) {
#pragma unroll
        for (int i = 0; i < kTile / 2; ++i) factor_smem[row * kScorePitch + part * kTile / 2 + i] = factor;
        __syncwarp();
        Sum factors;
        wmma::load_matrix_sync(factors, factor_smem, kScorePitch, wmma::mem_row_major);
#pragma unroll
        for (int n = 0; n < kDim / kTile; ++n) {
#pragma unroll
            for (int i = 0; i < factors.num_elements; ++i) o_rmem[n].x[i] *= factors.x[i];
        }
    };

    load_tile<kRows, kDim, kPitch>(Q_smem, q + first_row * args.q_stride.row, args.q_stride.row,
                                   args.query_rows - first_row, aligned);
    for (int64_t key = 0; key < block_end; key += kKeys) {
        __syncthreads();  // everyone is done with the previous tile
        load_tile<kKeys, kDim, kPitch>(K_smem, k + key * args.k_stride.row, args.k_stride.row, args.key_rows - key,
                                       aligned);
        load_tile<kKeys, kDim, kPitch>(V_smem, v + key * args.v_stride.row, args.v_stride.row, args.key_rows - key,
                                       aligned);
        __syncthreads();

        // S = Q K^T
        {
            Sum s_rmem[kKeys / kTile];
#pragma unroll
            for (int n = 0; n < kKeys / kTile; ++n) wmma::fill_fragment(s_rmem[n], 0.0f);
#pragma unroll 2  // more and registers spill
            for (int d = 0; d < kDim; d += kTile) {
                Left q_rmem;
                wmma::load_matrix_sync(q_rmem, warp_q_smem + d, kPitch);
#pragma unroll
                for (int n = 0; n < kKeys / kTile; ++n) {
                    RightOfScores k_rmem;
                    wmma::load_matrix_sync(k_rmem, K_smem + n * kTile * kPitch + d, kPitch);
                    wmma::mma_sync(s_rmem[n], q_rmem, k_rmem, s_rmem[n]);
                }
            }
#pragma unroll
            for (int n = 0; n < kKeys / kTile; ++n) {
                wmma::store_matrix_sync(warp_s_smem + n * kTile, s_rmem[n], kScorePitch, wmma::mem_row_major);
            }
        }
        __syncwarp();

        // online softmax: two lanes a row, kPart scores each
        float s_rmem[kPart];
#pragma unroll
        for (int i = 0; i < kPart; i += 4) {
            const float *from = warp_s_smem + row * kScorePitch + part * kPart + i;
            const float4 four = *reinterpret_cast<const float4 *>(from);
            s_rmem[i] = four.x, s_rmem[i + 1] = four.y, s_rmem[i + 2] = four.z, s_rmem[i + 3] = four.w;
        }
        __syncwarp();  // every score is read before weights overwrite them
        const int64_t part_end = row_end - key - part * kPart;
        const float before = highest;
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
            s_rmem[i] = i < part_end ? scale.sign * s_rmem[i] : -INFINITY;
            highest = fmaxf(highest, s_rmem[i]);
        }
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, kTile));
        const float shrink = before == highest ? 1.0f : exp2f((before - highest) * scale.factor);
        total *= shrink;
#pragma unroll
        for (int i = 0; i < kPart; i += kVector) {
            alignas(16) T weights[kVector];
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
                const float weight = i + e < part_end ? exp2f((s_rmem[i + e] - highest) * scale.factor) : 0.0f;
                total += weight;
                weights[e] = Element<T>::from_float(weight * kWeightScale<T>);
            }
            T *to = warp_p_smem + row * kWeightPitch + part * kPart + i;
            *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(weights);
        }
        if (__any_sync(kAllLanes, shrink != 1.0f)) scale_rows(shrink);
        __syncwarp();

        // O += P V
#pragma unroll 1  // more and registers spill
        for (int j = 0; j < kKeys; j += kTile) {
            Left p_rmem;
            wmma::load_matrix_sync(p_rmem, warp_p_smem + j, kWeightPitch);
#pragma unroll
            for (int n = 0; n < kDim / kTile; ++n) {
                RightOfOutput v_rmem;
                wmma::load_matrix_sync(v_rmem, V_smem + j * kPitch + n * kTile, kPitch);
                wmma::mma_sync(o_rmem[n], p_rmem, v_rmem, o_rmem[n]);
            }
        }
    }

    total += __shfl_xor_sync(kAllLanes, total, kTile);
    __syncwarp();
    scale_rows(total > 0.0f ? 1.0f / (total * kWeightScale<T>) : 0.0f);  // no visible key: zeros
    const int64_t warp_row = first_row + warp * kTile;
#pragma unroll
    for (int first_column = 0; first_column < kDim; first_column += kKeys) {
        __syncwarp();
#pragma unroll
        for (int n = 0; n < kKeys / kTile; ++n) {
            wmma::store_matrix_sync(warp_s_smem + n * kTile, o_rmem[first_column / kTile + n], kScorePitch,
                                    wmma::mem_row_major);
        }
        __syncwarp();
        for (int i = lane; i < kTile * kKeys / kVector; i += kWarpSize) {
            const int out_row = i / (kKeys / kVector), column = i % (kKeys / kVector) * kVector;
            if (warp_row + out_row >= args.query_rows) continue;
            alignas(16) T values[kVector];
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
                values[e] = Element<T>::from_float(warp_s_smem[out_row * kScorePitch + column + e]);
            }
            T *to = o + (warp_row + out_row) * args.o_stride.row + first_column + column;
            if (aligned) {
                *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(values);
            } else {
#pragma unroll
                for (int e = 0; e < kVector; ++e) to[e] = values[e];
            }
        }
    }
}

// Whether every row starts on 16 bytes.
bool is_aligned(const void *data, const Strides3 &stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride.batch % kVector == 0 && stride.head % kVector == 0 &&
           stride.row % kVector == 0;
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    // A tile of 32 keys at head_dim 128 keeps shared memory below the 48 KiB that need no opt-in.
    const auto kernel = args.head_dim == 64 ? attention<T, 64, 64> : attention<T, 128, 32>;
    const bool aligned = is_aligned(args.q, args.q_stride) && is_aligned(args.k, args.k_stride) &&
                         is_aligned(args.v, args.v_stride) && is_aligned(args.o, args.o_stride);
    const int64_t blocks = (args.query_rows + kRows - 1) / kRows * args.query_heads * args.batch;
    return launch_kernel("fp16_wmma", kernel, {blocks, kThreads}, args.placement, stream, args,
                         SoftmaxScale(args.scale), aligned);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_wmma takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_wmma takes float16 or bfloat16, not float32";
}

}  // namespace fp16_wmma

KERNELPROOF_LAUNCH(fp16_wmma)
