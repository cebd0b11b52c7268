// Attention forward on the scalar cores, as fast as they multiply: every load and store moves 16 bytes, and a thread
// works on register tiles, 8 rows by 4 keys of scores and 8 rows by 4 or 8 columns of output, so that 32 multiply-adds
// or more share 12 operands. Scores, weights and sums are FP32; tiles lie in shared memory as FP32, converted once.
#include <type_traits>

#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "online_softmax.h"
#include "weights.cuh"

namespace fp16_vectorised {

constexpr int kAcross = 16;  // threads that share 8 query rows: half a warp
constexpr int kDown = 8;
constexpr int kThreads = kAcross * kDown;
constexpr int kRowsPerThread = 8;
constexpr int kRows = kDown * kRowsPerThread;  // query rows of a block
constexpr int kVector = 8;                     // 16-bit elements of a 16-byte access

// Asks for at most 168 registers, more than the budget of config.yaml: the register tiles and the vectors on their way
// take up to 150, and shared memory lets no more blocks in (on sm_89 one, on sm_90 three or four).
constexpr int kBlocksPerMultiprocessor = 3;

// 4 floats more than a multiple of 32: the same 16 bytes of 8 rows lie in different banks.
template <int kDim>
constexpr int kPitch = kDim + 4;
// 16 more: the halves of a warp write their rows of weights to different banks.
template <int kKeys>
constexpr int kWeightPitch = kKeys + 16;

// A thread's share of a tile on its way from global to shared memory: 8 elements of every kStep-th row. The thread
// gives its own first ones.
template <typename T, int kTileRows, int kDim>
struct Staged {
    static constexpr int kStep = kThreads * kVector / kDim;
    static_assert(kTileRows % kStep == 0, "every thread copies as much as the others");
    uint4 vector[kTileRows / kStep];

    // Zeros for rows which do not exist.
    __device__ __forceinline__ void load(const T *from,  // [rows, kDim]
                                         int64_t stride, int rows, bool aligned) {
#pragma unroll
        for (int step = 0; step < kTileRows / kStep; ++step) {
            vector[step] = {};
            if (step * kStep >= rows) continue;
            if (aligned) {
                vector[step] = *reinterpret_cast<const uint4 *>(from + step * kStep * stride);
            } else {
                alignas(16) T eight[kVector];
#pragma unroll
                for (int e = 0; e < kVector; ++e) eight[e] = from[step * kStep * stride + e];
                vector[step] = *reinterpret_cast<const uint4 *>(eight);
            }
        }
    }

    __device__ __forceinline__ void store(float *to_smem) const {  // [kTileRows, kPitch]
        using Pair = typename Element<T>::Pair;
#pragma unroll
        for (int step = 0; step < kTileRows / kStep; ++step) {
            const Pair *pairs = reinterpret_cast<const Pair *>(&vector[step]);
            float4 *to = reinterpret_cast<float4 *>(to_smem + step * kStep * kPitch<kDim>);
            const float2 a = Element<T>::to_float(pairs[0]), b = Element<T>::to_float(pairs[1]);
            const float2 c = Element<T>::to_float(pairs[2]), d = Element<T>::to_float(pairs[3]);
            to[0] = make_float4(a.x, a.y, b.x, b.y);
            to[1] = make_float4(c.x, c.y, d.x, d.y);
        }
    }
};

__device__ __forceinline__ float4 load_four(const float *from_smem) {
    return *reinterpret_cast<const float4 *>(from_smem);
}

template <typename T, int kDim, int kKeys>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    attention(AttentionArgs args, SoftmaxScale scale, bool aligned) {
    static_assert(kDim % (4 * kAcross) == 0 && kKeys % kAcross == 0, "threads of a row share keys and columns evenly");
    constexpr int kPitch = fp16_vectorised::kPitch<kDim>;
    constexpr int kWeightPitch = fp16_vectorised::kWeightPitch<kKeys>;
    constexpr int kKeysPerThread = kKeys / kAcross;
    constexpr int kFours = kDim / (4 * kAcross);  // a thread owns that many times four columns

    constexpr int kTogether = 4 / kFours;  // keys whose values a thread holds at once
    using Weights = std::conditional_t<kTogether == 4, float4, float2>;
    static_assert(sizeof(Weights) == kTogether * sizeof(float), "one load takes the weights of these keys");

    // A thread's rows are down, down + 8, …; its keys across, across + 16, …: neighbours in other banks.
    const int down = threadIdx.x / kAcross, across = threadIdx.x % kAcross;
    const int64_t row_tiles = (args.query_rows + kRows - 1) / kRows;
    const int64_t first_row = (row_tiles - 1 - blockIdx.x % row_tiles) * kRows;  // under a mask the longest begin
    const int64_t head = blockIdx.x / row_tiles % args.query_heads;
    const int64_t batch = blockIdx.x / row_tiles / args.query_heads;
    const int64_t key_head = head / (args.query_heads / args.key_heads);
    const T *q = static_cast<const T *>(args.q) + batch * args.q_stride.batch + head * args.q_stride.head;
    const T *k = static_cast<const T *>(args.k) + batch * args.k_stride.batch + key_head * args.k_stride.head;
    const T *v = static_cast<const T *>(args.v) + batch * args.v_stride.batch + key_head * args.v_stride.head;
    T *o = static_cast<T *>(args.o) + batch * args.o_stride.batch + head * args.o_stride.head;
    const int all_see = visible_end(args, first_row);
    const int block_end = visible_end(args, first_row + kRows - 1);
    const int key_rows = args.key_rows,
              query_rows = args.query_rows - first_row < kRows ? args.query_rows - first_row : kRows;

    extern __shared__ __align__(128) unsigned char smem[];
    float *Q_smem = reinterpret_cast<float *>(smem);  // [kRows, kPitch]
    float *KV_smem = Q_smem + kRows * kPitch;         // [kKeys, kPitch], keys and values in turn
    float *P_smem = KV_smem + kKeys * kPitch;         // [kRows, kWeightPitch]
    const float *q_smem = Q_smem + down * kPitch;
    float *p_smem = P_smem + down * kWeightPitch;

    float4 o_rmem[kRowsPerThread][kFours] = {};
    float highest[kRowsPerThread];
    float total[kRowsPerThread] = {};  // this thread's share of the rows' sums of weights
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) highest[r] = -INFINITY;

    // Loading: 16 bytes of every few rows are this thread's.
    const int my_row = threadIdx.x / (kDim / kVector), my_column = threadIdx.x % (kDim / kVector) * kVector;
    const int my_smem = my_row * kPitch + my_column;
    const T *k_next = k + my_row * args.k_stride.row + my_column;
    const T *v_next = v + my_row * args.v_stride.row + my_column;
    Staged<T, kKeys, kDim> next;  // first of the queries, then in turn the keys and the values that are multiplied next
#pragma unroll 1
    for (int row = 0; row < kRows; row += kKeys) {
        next.load(q + (first_row + row + my_row) * args.q_stride.row + my_column, args.q_stride.row,
                  query_rows - row - my_row, aligned);
        next.store(Q_smem + row * kPitch + my_smem);
    }
    next.load(k_next, args.k_stride.row, block_end > 0 ? key_rows - my_row : 0, aligned);
    for (int key = 0; key < block_end; key += kKeys) {
        next.store(KV_smem + my_smem);
        next.load(v_next, args.v_stride.row, key_rows - key - my_row, aligned);
        v_next += kKeys * args.v_stride.row;
        __syncthreads();  // keys are there for everyone

        // S = Q K^T
        float s_rmem[kRowsPerThread][kKeysPerThread] = {};
#pragma unroll 1
        for (int d = 0; d < kDim; d += 4) {
            float4 k_rmem[kKeysPerThread];
#pragma unroll
            for (int j = 0; j < kKeysPerThread; ++j)
                k_rmem[j] = load_four(KV_smem + (across + kAcross * j) * kPitch + d);
#pragma unroll
            for (int r = 0; r < kRowsPerThread; ++r) {
                const float4 q_rmem = load_four(q_smem + kDown * r * kPitch + d);
#pragma unroll
                for (int j = 0; j < kKeysPerThread; ++j) {
                    s_rmem[r][j] = fmaf(q_rmem.x, k_rmem[j].x, s_rmem[r][j]);
                    s_rmem[r][j] = fmaf(q_rmem.y, k_rmem[j].y, s_rmem[r][j]);
                    s_rmem[r][j] = fmaf(q_rmem.z, k_rmem[j].z, s_rmem[r][j]);
                    s_rmem[r][j] = fmaf(q_rmem.w, k_rmem[j].w, s_rmem[r][j]);
                }
            }
        }

        // online softmax
        if (scale.sign != 1.0f) {
#pragma unroll
            for (int i = 0; i < kRowsPerThread * kKeysPerThread; ++i) {
                s_rmem[i % kRowsPerThread][i / kRowsPerThread] *= scale.sign;
            }
        }
        if (key + kKeys > all_see) {  // some row does not see some key of the tile
#pragma unroll
            for (int r = 0; r < kRowsPerThread; ++r) {
                const int end = static_cast<int>(visible_end(args, first_row + down + kDown * r)) - key - across;
#pragma unroll
                for (int j = 0; j < kKeysPerThread; ++j) {
                    if (kAcross * j >= end) s_rmem[r][j] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
            const float before = highest[r];
#pragma unroll
            for (int j = 0; j < kKeysPerThread; ++j) highest[r] = fmaxf(highest[r], s_rmem[r][j]);
#pragma unroll
            for (int step = 1; step < kAcross; step *= 2) {
                highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], step));
            }
            const float shrink = shrink_factor(before, highest[r], scale.factor, 0.0f);
            const WeightBase at_highest = weight_base(highest[r], scale.factor, 0.0f);
            total[r] *= shrink;
#pragma unroll
            for (int j = 0; j < kKeysPerThread; ++j) {
                const float exponent = at_highest.rest == 0.0f ? fmaf(s_rmem[r][j], scale.factor, at_highest.base)
                                                               : (s_rmem[r][j] - highest[r]) * scale.factor;
                const float weight = exp2_approx(exponent);
                total[r] += weight;
                p_smem[kDown * r * kWeightPitch + across + kAcross * j] = weight;
            }
#pragma unroll
            for (int f = 0; f < kFours; ++f) {
                o_rmem[r][f].x *= shrink, o_rmem[r][f].y *= shrink, o_rmem[r][f].z *= shrink, o_rmem[r][f].w *= shrink;
            }
        }

        __syncthreads();  // everyone is done with the keys
        next.store(KV_smem + my_smem);
        if (key + kKeys < block_end) {
            k_next += kKeys * args.k_stride.row;
            next.load(k_next, args.k_stride.row, key_rows - key - kKeys - my_row, aligned);
        }
        __syncthreads();  // values are there for everyone

        // O += P V
#pragma unroll 1
        for (int j = 0; j < kKeys; j += kTogether) {
            float4 v_rmem[kTogether][kFours];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
#pragma unroll
                for (int f = 0; f < kFours; ++f) {
                    v_rmem[i][f] = load_four(KV_smem + (j + i) * kPitch + 4 * (across + kAcross * f));
                }
            }
#pragma unroll
            for (int r = 0; r < kRowsPerThread; ++r) {
                const Weights weights = *reinterpret_cast<const Weights *>(p_smem + kDown * r * kWeightPitch + j);
                const float *p_rmem = reinterpret_cast<const float *>(&weights);
#pragma unroll
                for (int i = 0; i < kTogether; ++i) {
#pragma unroll
                    for (int f = 0; f < kFours; ++f) {
                        o_rmem[r][f].x = fmaf(p_rmem[i], v_rmem[i][f].x, o_rmem[r][f].x);
                        o_rmem[r][f].y = fmaf(p_rmem[i], v_rmem[i][f].y, o_rmem[r][f].y);
                        o_rmem[r][f].z = fmaf(p_rmem[i], v_rmem[i][f].z, o_rmem[r][f].z);
                        o_rmem[r][f].w = fmaf(p_rmem[i], v_rmem[i][f].w, o_rmem[r][f].w);
                    }
                }
            }
        }
        __syncthreads();  // everyone is done with the values
    }

#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
        for (int step = 1; step < kAcross; step *= 2) total[r] += __shfl_xor_sync(kAllLanes, total[r], step);
        const float inverse = total[r] > 0.0f ? 1.0f / total[r] : 0.0f;  // no visible key: zeros
        const int64_t row = first_row + down + kDown * r;
        if (row >= args.query_rows) continue;
#pragma unroll
        for (int f = 0; f < kFours; ++f) {
            const float4 sum = o_rmem[r][f];
            const uint2 four = {pack<T>(sum.x * inverse, sum.y * inverse), pack<T>(sum.z * inverse, sum.w * inverse)};
            T *to = o + row * args.o_stride.row + 4 * (across + kAcross * f);
            if (aligned) {
                *reinterpret_cast<uint2 *>(to) = four;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) to[i] = reinterpret_cast<const T *>(&four)[i];
            }
        }
    }
}

// Whether every row starts on 16 bytes.
bool is_aligned(const void *data, const Strides3 &stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride.batch % kVector == 0 && stride.head % kVector == 0 &&
           stride.row % kVector == 0;
}

template <typename T, int kDim, int kKeys>
const char *launch_for(const AttentionArgs &args, void *stream) {
    constexpr int kSharedBytes = ((kRows + kKeys) * kPitch<kDim> + kRows * kWeightPitch<kKeys>)*sizeof(float);
    static_assert(kSharedBytes <= 64 * 1024, "the budget of config.yaml");
    const bool aligned = is_aligned(args.q, args.q_stride) && is_aligned(args.k, args.k_stride) &&
                         is_aligned(args.v, args.v_stride) && is_aligned(args.o, args.o_stride);
    const int64_t blocks = (args.query_rows + kRows - 1) / kRows * args.query_heads * args.batch;
    return launch_kernel("fp16_vectorised", attention<T, kDim, kKeys>, {blocks, kThreads, kSharedBytes}, args.placement,
                         stream, args, SoftmaxScale(args.scale), aligned);
}

// At head_dim 128 the output takes twice the registers, which leaves them for 32 keys.
template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    return args.head_dim == 64 ? launch_for<T, 64, 64>(args, stream) : launch_for<T, 128, 32>(args, stream);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_vectorised takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.key_rows > INT32_MAX / 2) return "fp16_vectorised counts keys in 32 bits: at most 2^30 of them";
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_vectorised takes float16 or bfloat16, not float32";
}

}  // namespace fp16_vectorised

KERNELPROOF_LAUNCH(fp16_vectorised)
