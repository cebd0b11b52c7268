// Attention forward with mma.sync, whose register layout is documented: the accumulator of Q K^T has the layout of the
// left operand of P V, so scores become weights in registers and never touch memory. A warp owns 16 query rows.
// cp.async fetches the next tile of keys and values while this one is multiplied.
#include "../common/cp_async.cuh"
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "online_softmax.h"
#include "weights.cuh"

namespace fp16_mma_cp_async {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRowsPerWarp = 16;
constexpr int kRows = kWarps * kRowsPerWarp;  // query rows of a block
constexpr int kStages = 2;                    // tiles of keys and values: one to work on, one to fill
constexpr int kVector = 8;                    // 16-bit elements of a 16-byte access
constexpr int kMaxRegisters = 120;            // four blocks of a multiprocessor, and the budget of config.yaml

// 16 bytes more than a multiple of 128: the fragments' 8 rows start 4 banks apart.
template <int kDim>
constexpr int kPitch = kDim + kVector;

// Queues rows of a tile, zeros for those which do not exist. Complete after cp_async_wait and a barrier. A thread
// copies 16 bytes of every kStep-th row; it gives its own first ones.
template <int kTileRows, int kDim, typename T>
__device__ __forceinline__ void load_tile(T *to_smem,     // [kTileRows, kPitch]
                                          const T *from,  // [rows, kDim]
                                          int64_t stride, int rows, bool aligned) {
    constexpr int kStep = kThreads * kVector / kDim;
    static_assert(kTileRows % kStep == 0, "every thread copies as much as the others");
    if (aligned) {
#pragma unroll
        for (int row = 0; row < kTileRows; row += kStep) {
            cp_async_16(to_smem + row * kPitch<kDim>, from + row * stride, row < rows);
        }
    } else {
#pragma unroll 1
        for (int row = 0; row < kTileRows; row += kStep) {
            for (int i = 0; i < kVector; ++i) {
                to_smem[row * kPitch<kDim> + i] = row < rows ? from[row * stride + i] : Element<T>::from_float(0.0f);
            }
        }
    }
}

// Two neighbouring elements as one register.
template <typename T>
__device__ __forceinline__ uint32_t load_pair(const T *from_smem) {
    return *reinterpret_cast<const uint32_t *>(from_smem);
}

template <typename T, int kDim, int kKeys>
__global__ void __maxnreg__(kMaxRegisters) attention(AttentionArgs args, SoftmaxScale scale, bool aligned) {
    static_assert(kDim % 16 == 0 && kKeys % 16 == 0, "mma multiplies 16 x 16 by 16 x 8");
    constexpr int kPitch = fp16_mma_cp_async::kPitch<kDim>;
    constexpr float kBias = kWeightBias<T>;

    // Lane 4 g + t of a warp holds rows g and g + 8 of accumulators, columns 2 t and 2 t + 1 (common/mma.cuh).
    const int warp = threadIdx.x / kWarpSize, g = threadIdx.x % kWarpSize / 4, t = threadIdx.x % 4;
    const int64_t row_tiles = (args.query_rows + kRows - 1) / kRows;
    const int64_t first_row = (row_tiles - 1 - blockIdx.x % row_tiles) * kRows;  // under a mask the longest begin
    const int64_t head = blockIdx.x / row_tiles % args.query_heads;
    const int64_t batch = blockIdx.x / row_tiles / args.query_heads;
    const int64_t key_head = head / (args.query_heads / args.key_heads);
    const T *q = static_cast<const T *>(args.q) + batch * args.q_stride.batch + head * args.q_stride.head;
    const T *k = static_cast<const T *>(args.k) + batch * args.k_stride.batch + key_head * args.k_stride.head;
    const T *v = static_cast<const T *>(args.v) + batch * args.v_stride.batch + key_head * args.v_stride.head;
    T *o = static_cast<T *>(args.o) + batch * args.o_stride.batch + head * args.o_stride.head;
    const int64_t warp_row = first_row + warp * kRowsPerWarp;
    const int all_see = visible_end(args, warp_row);                       // keys before it: every row of the warp
    const int none_sees = visible_end(args, warp_row + kRowsPerWarp - 1);  // keys from it on: no row
    const int block_end = visible_end(args, first_row + kRows - 1);
    const int query_rows = args.query_rows - first_row < kRows ? args.query_rows - first_row : kRows;
    const int key_rows = args.key_rows;

    extern __shared__ __align__(128) unsigned char smem[];
    T *Q_smem = reinterpret_cast<T *>(smem);        // [kRows, kPitch]
    T *K_smem = Q_smem + kRows * kPitch;            // [kStages, kKeys, kPitch]
    T *V_smem = K_smem + kStages * kKeys * kPitch;  // [kStages, kKeys, kPitch]
    const T *warp_q_smem = Q_smem + (warp * kRowsPerWarp + g) * kPitch + 2 * t;

    float o_rmem[kDim / 8][4] = {};
    float highest[2] = {-INFINITY, -INFINITY};  // rows g, g + 8
    float total[2] = {};                        // this lane's share of the rows' sums of weights

    // Loading: 16 bytes of every few rows are this thread's.
    const int my_row = threadIdx.x / (kDim / kVector), my_column = threadIdx.x % (kDim / kVector) * kVector;
    const int my_smem = my_row * kPitch + my_column;
    const T *k_next = k + my_row * args.k_stride.row + my_column;
    const T *v_next = v + my_row * args.v_stride.row + my_column;
    const auto load_stage = [&](int key) {
        if (key < block_end) {
            const int to = key / kKeys % kStages * kKeys * kPitch + my_smem;
            const int rows = key_rows - key - my_row;
            load_tile<kKeys, kDim>(K_smem + to, k_next, args.k_stride.row, rows, aligned);
            load_tile<kKeys, kDim>(V_smem + to, v_next, args.v_stride.row, rows, aligned);
            k_next += kKeys * args.k_stride.row;
            v_next += kKeys * args.v_stride.row;
        }
        cp_async_commit();  // an empty group too: what is under way is counted in groups
    };

    load_tile<kRows, kDim>(Q_smem + my_smem, q + (first_row + my_row) * args.q_stride.row + my_column,
                           args.q_stride.row, query_rows - my_row, aligned);
    load_stage(0);
    for (int key = 0; key < block_end; key += kKeys) {
        load_stage(key + kKeys);
        cp_async_wait<1>();
        __syncthreads();  // the tile is there for everyone
        const int at = key / kKeys % kStages * kKeys * kPitch;

        if (key < none_sees) {
            // S = Q K^T
            float s_rmem[kKeys / 8][4] = {};
#pragma unroll 2  // more and registers spill at head_dim 128
            for (int d = 0; d < kDim; d += 16) {
                const uint32_t q_rmem[4] = {load_pair(warp_q_smem + d), load_pair(warp_q_smem + d + 8 * kPitch),
                                            load_pair(warp_q_smem + d + 8),
                                            load_pair(warp_q_smem + d + 8 * kPitch + 8)};
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n) {
                    const T *from = K_smem + at + (8 * n + g) * kPitch + d + 2 * t;
                    mma_m16n8k16<T>(s_rmem[n], q_rmem, {load_pair(from), load_pair(from + 8)});
                }
            }

            // online softmax: four lanes a row
            if (scale.sign != 1.0f) {
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n) {
                    for (int i = 0; i < 4; ++i) s_rmem[n][i] *= scale.sign;
                }
            }
            if (key + kKeys > all_see) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int end = static_cast<int>(visible_end(args, warp_row + g + i / 2 * 8)) - key - 2 * t - i % 2;
#pragma unroll
                    for (int n = 0; n < kKeys / 8; ++n) {
                        if (8 * n >= end) s_rmem[n][i] = -INFINITY;
                    }
                }
            }
            float shrink[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float before = highest[r];
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n) {
                    highest[r] = fmaxf(highest[r], fmaxf(s_rmem[n][2 * r], s_rmem[n][2 * r + 1]));
                }
                highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], 1));
                highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], 2));
                shrink[r] = shrink_factor(before, highest[r], scale.factor, kBias);
                total[r] *= shrink[r];
                WeightBase at_highest = weight_base(highest[r], scale.factor, kBias);
                if (at_highest.rest != 0.0f) {
#pragma unroll
                    for (int n = 0; n < kKeys / 8; ++n) {
                        s_rmem[n][2 * r] -= highest[r], s_rmem[n][2 * r + 1] -= highest[r];
                    }
                    at_highest.base = kBias;
                }
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
                    for (int i = 2 * r; i < 2 * r + 2; ++i) {
                        s_rmem[n][i] = exp2_approx(fmaf(s_rmem[n][i], scale.factor, at_highest.base));
                        total[r] += s_rmem[n][i];
                    }
                }
            }
            if (__any_sync(kAllLanes, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) o_rmem[n][i] *= shrink[i / 2];
                }
            }

            // O += P V. The right operand wants two keys in a register, memory has two columns: two words of two keys
            // make two operands, one of the even columns and one of the odd ones.
#pragma unroll
            for (int j = 0; j < kKeys; j += 16) {
                const float (*s)[4] = &s_rmem[j / 8];
                const uint32_t p_rmem[4] = {pack<T>(s[0][0], s[0][1]), pack<T>(s[0][2], s[0][3]),
                                            pack<T>(s[1][0], s[1][1]), pack<T>(s[1][2], s[1][3])};
#pragma unroll
                for (int n = 0; n < kDim / 8; n += 2) {
                    const T *from = V_smem + at + (j + 2 * t) * kPitch + 8 * n + 2 * g;
                    const uint32_t low[2] = {load_pair(from), load_pair(from + kPitch)};
                    const uint32_t high[2] = {load_pair(from + 8 * kPitch), load_pair(from + 9 * kPitch)};
                    mma_m16n8k16<T>(o_rmem[n], p_rmem,
                                    {__byte_perm(low[0], low[1], 0x5410), __byte_perm(high[0], high[1], 0x5410)});
                    mma_m16n8k16<T>(o_rmem[n + 1], p_rmem,
                                    {__byte_perm(low[0], low[1], 0x7632), __byte_perm(high[0], high[1], 0x7632)});
                }
            }
        }
        __syncthreads();  // everyone is done with the tile: the next one but one may overwrite it
    }
    cp_async_wait<0>();  // a block that sees no key has fetched its queries for nothing

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int64_t row = warp_row + g + 8 * r;
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
        const float inverse = total[r] > 0.0f ? 1.0f / total[r] : 0.0f;  // no visible key: zeros
        if (row >= args.query_rows) continue;
#pragma unroll
        for (int n = 0; n < kDim / 8; n += 2) {
            // even columns of 16 are in accumulator n, odd ones in n + 1: a lane has four in a row
            const float *even = &o_rmem[n][2 * r], *odd = &o_rmem[n + 1][2 * r];
            const uint2 four = {pack<T>(even[0] * inverse, odd[0] * inverse),
                                pack<T>(even[1] * inverse, odd[1] * inverse)};
            T *to = o + row * args.o_stride.row + 8 * n + 4 * t;
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
    const bool aligned = is_aligned(args.q, args.q_stride) && is_aligned(args.k, args.k_stride) &&
                         is_aligned(args.v, args.v_stride) && is_aligned(args.o, args.o_stride);
    const int64_t blocks = (args.query_rows + kRows - 1) / kRows * args.query_heads * args.batch;
    constexpr int kSharedBytes = (kRows + 2 * kStages * kKeys) * kPitch<kDim> * sizeof(T);
    return launch_kernel("fp16_mma_cp_async", attention<T, kDim, kKeys>, {blocks, kThreads, kSharedBytes},
                         args.placement, stream, args, SoftmaxScale(args.scale), aligned);
}

// At head_dim 128 the output takes twice the registers, which leaves them for 32 keys.
template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    return args.head_dim == 64 ? launch_for<T, 64, 64>(args, stream) : launch_for<T, 128, 32>(args, stream);
}

}  // namespace fp16_mma_cp_async

const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_mma_cp_async takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.key_rows > INT32_MAX / 2) return "fp16_mma_cp_async counts keys in 32 bits: at most 2^30 of them";
    if (args.dtype == Dtype::kFloat16) return fp16_mma_cp_async::launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return fp16_mma_cp_async::launch_for<__nv_bfloat16>(args, stream);
    return "fp16_mma_cp_async takes float16 or bfloat16, not float32";
}
