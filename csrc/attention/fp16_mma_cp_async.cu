// Attention forward with mma.sync, whose register layout is documented: the accumulator of Q K^T has the layout of the
// left operand of P V, so scores become weights in registers and never touch memory. A warp owns 16 query rows.
// cp.async fetches the next tile of keys or values while this one is multiplied.
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
constexpr int kRowTiles = 1;                    // 16 query rows each that a warp owns
constexpr int kRows = kWarps * kRowTiles * 16;  // query rows of a block
constexpr int kStages = 2;                      // tiles of keys or of values, in turn: one to work on, one to fill
constexpr int kVector = 8;                      // 16-bit elements of a 16-byte access
constexpr int kMaxRegisters = 120;              // four blocks of a multiprocessor, and the budget of config.yaml

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
    constexpr int kTile = kKeys * kPitch;

    // Lane 4 g + t of a warp holds rows g and g + 8 of accumulators, columns 2 t and 2 t + 1 (common/mma.cuh).
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
    const int64_t row_tiles = (args.query_rows + kRows - 1) / kRows;
    const int64_t first_row = (row_tiles - 1 - blockIdx.x % row_tiles) * kRows;  // under a mask the longest begin
    const int64_t head = blockIdx.x / row_tiles % args.query_heads;
    const int64_t batch = blockIdx.x / row_tiles / args.query_heads;
    const int64_t key_head = head / (args.query_heads / args.key_heads);
    const T *q = static_cast<const T *>(args.q) + batch * args.q_stride.batch + head * args.q_stride.head;
    const T *k = static_cast<const T *>(args.k) + batch * args.k_stride.batch + key_head * args.k_stride.head;
    const T *v = static_cast<const T *>(args.v) + batch * args.v_stride.batch + key_head * args.v_stride.head;
    T *o = static_cast<T *>(args.o) + batch * args.o_stride.batch + head * args.o_stride.head;
    const int64_t warp_row = first_row + warp * kRowTiles * 16;
    const int all_see = visible_end(args, warp_row);                         // keys before it: every row of the warp
    const int none_sees = visible_end(args, warp_row + kRowTiles * 16 - 1);  // keys from it on: no row
    const int block_end = visible_end(args, first_row + kRows - 1);
    const int query_rows = args.query_rows - first_row < kRows ? args.query_rows - first_row : kRows;
    const int key_rows = args.key_rows;

    extern __shared__ __align__(128) unsigned char smem[];
    T *Q_smem = reinterpret_cast<T *>(smem);  // [kRows, kPitch]
    T *KV_smem = Q_smem + kRows * kPitch;     // [kStages, kKeys, kPitch]

    float o_rmem[kRowTiles][kDim / 8][4] = {};
    float highest[kRowTiles][2];     // rows g, g + 8 of each 16
    float total[kRowTiles][2] = {};  // this lane's share of the rows' sums of weights
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) highest[m][0] = highest[m][1] = -INFINITY;

    // Loading: 16 bytes of every few rows are this thread's. Tile 2 i holds keys, tile 2 i + 1 their values.
    const int my_row = threadIdx.x / (kDim / kVector), my_chunk = threadIdx.x % (kDim / kVector);
    const int my_smem = my_row * kPitch + my_chunk * kVector;
    const T *k_next = k + my_row * args.k_stride.row + my_chunk * kVector;
    const T *v_next = v + my_row * args.v_stride.row + my_chunk * kVector;
    const auto fetch = [&](int tile) {
        const int key = tile / 2 * kKeys;
        if (key < block_end) {
            T *to_smem = KV_smem + tile % kStages * kTile + my_smem;
            const T *&next = tile % 2 == 0 ? k_next : v_next;
            const int64_t stride = tile % 2 == 0 ? args.k_stride.row : args.v_stride.row;
            load_tile<kKeys, kDim>(to_smem, next, stride, key_rows - key - my_row, aligned);
            next += kKeys * stride;
        }
        cp_async_commit();  // an empty group too: what is under way is counted in groups
    };
    // Makes a tile readable by all, and fills the place of the one before, which everyone has left.
    const auto enter = [&](int tile) {
        cp_async_wait<kStages - 2>();
        __syncthreads();
        fetch(tile + kStages - 1);
        return KV_smem + tile % kStages * kTile;
    };
    const T *warp_q_smem = Q_smem + warp * kRowTiles * 16 * kPitch;

    load_tile<kRows, kDim>(Q_smem + my_smem, q + (first_row + my_row) * args.q_stride.row + my_chunk * kVector,
                           args.q_stride.row, query_rows - my_row, aligned);
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);

    for (int tile = 0, key = 0; key < block_end; tile += 2, key += kKeys) {
        const T *K_smem = enter(tile);
        float s_rmem[kRowTiles][kKeys / 8][4] = {};
        if (key < none_sees) {
            // S = Q K^T
#pragma unroll 2  // more and registers spill at head_dim 128
            for (int d = 0; d < kDim; d += 16) {
                uint32_t q_rmem[kRowTiles][4];
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m) {
                    const T *from = warp_q_smem + (16 * m + g) * kPitch + d + 2 * t;
                    q_rmem[m][0] = load_pair(from), q_rmem[m][1] = load_pair(from + 8 * kPitch);
                    q_rmem[m][2] = load_pair(from + 8), q_rmem[m][3] = load_pair(from + 8 * kPitch + 8);
                }
#pragma unroll
                for (int n = 0; n < kKeys; n += 8) {
                    const T *from = K_smem + (n + g) * kPitch + d + 2 * t;
                    const uint32_t k_rmem[2] = {load_pair(from), load_pair(from + 8)};
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) mma_m16n8k16<T>(s_rmem[m][n / 8], q_rmem[m], k_rmem);
                }
            }

            float shrink[kRowTiles][2];
            bool unchanged = true;
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
                if (scale.sign != 1.0f) {
#pragma unroll
                    for (int i = 0; i < kKeys / 2; ++i) s_rmem[m][i / 4][i % 4] *= scale.sign;
                }
                if (key + kKeys > all_see) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int64_t row = warp_row + 16 * m + g + i / 2 * 8;
                        const int end = static_cast<int>(visible_end(args, row)) - key - 2 * t - i % 2;
#pragma unroll
                        for (int n = 0; n < kKeys / 8; ++n) {
                            if (8 * n >= end) s_rmem[m][n][i] = -INFINITY;
                        }
                    }
                }
                weigh(s_rmem[m], scale.factor, kWeightBias<T>, highest[m], total[m], shrink[m]);
                unchanged = unchanged && shrink[m][0] == 1.0f && shrink[m][1] == 1.0f;
            }
            if (__any_sync(kAllLanes, !unchanged)) {
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
                    for (int i = 0; i < kDim / 2; ++i) o_rmem[m][i / 4][i % 4] *= shrink[m][i % 4 / 2];
                }
            }
        }

        const T *V_smem = enter(tile + 1);
        if (key < none_sees) {
            // O += P V. The right operand wants two keys in a register, memory has two columns: two words of two keys
            // make two operands, one of the even columns of 16 and one of the odd ones.
#pragma unroll
            for (int j = 0; j < kKeys; j += 16) {
                uint32_t p_rmem[kRowTiles][4];
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m) {
                    const float (*s)[4] = &s_rmem[m][j / 8];
                    p_rmem[m][0] = pack<T>(s[0][0], s[0][1]), p_rmem[m][1] = pack<T>(s[0][2], s[0][3]);
                    p_rmem[m][2] = pack<T>(s[1][0], s[1][1]), p_rmem[m][3] = pack<T>(s[1][2], s[1][3]);
                }
#pragma unroll
                for (int n = 0; n < kDim; n += 16) {
                    const T *from = V_smem + (j + 2 * t) * kPitch + n + 2 * g;
                    const uint32_t low[2] = {load_pair(from), load_pair(from + kPitch)};
                    const uint32_t high[2] = {load_pair(from + 8 * kPitch), load_pair(from + 9 * kPitch)};
                    const uint32_t v_rmem[4] = {
                        __byte_perm(low[0], low[1], 0x5410), __byte_perm(high[0], high[1], 0x5410),
                        __byte_perm(low[0], low[1], 0x7632), __byte_perm(high[0], high[1], 0x7632)};
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) {
                        mma_m16n8k16<T>(o_rmem[m][n / 8], p_rmem[m], {v_rmem[0], v_rmem[1]});
                        mma_m16n8k16<T>(o_rmem[m][n / 8 + 1], p_rmem[m], {v_rmem[2], v_rmem[3]});
                    }
                }
            }
        }
    }
    cp_async_wait<0>();  // a block that sees no key has fetched its queries for nothing

#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int m = i / 2, r = i % 2;
        const int64_t row = warp_row + 16 * m + g + 8 * r;
        float sum = total[m][r];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;  // no visible key: zeros
        if (row >= args.query_rows) continue;
#pragma unroll
        for (int n = 0; n < kDim / 8; n += 2) {
            // even columns of 16 are in accumulator n, odd ones in n + 1: a lane has four in a row
            const float *even = &o_rmem[m][n][2 * r], *odd = &o_rmem[m][n + 1][2 * r];
            const uint2 four = {pack<T>(even[0] * inverse, odd[0] * inverse),
                                pack<T>(even[1] * inverse, odd[1] * inverse)};
            T *to = o + row * args.o_stride.row + 8 * n + 4 * t;
            if (aligned) {
                *reinterpret_cast<uint2 *>(to) = four;
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) to[e] = reinterpret_cast<const T *>(&four)[e];
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
    constexpr int kSharedBytes = (kRows + kStages * kKeys) * kPitch<kDim> * sizeof(T);
    const bool aligned = is_aligned(args.q, args.q_stride) && is_aligned(args.k, args.k_stride) &&
                         is_aligned(args.v, args.v_stride) && is_aligned(args.o, args.o_stride);
    const int64_t blocks = (args.query_rows + kRows - 1) / kRows * args.query_heads * args.batch;
    return launch_kernel("fp16_mma_cp_async", attention<T, kDim, kKeys>, {blocks, kThreads, kSharedBytes},
                         args.placement, stream, args, SoftmaxScale(args.scale), aligned);
}

// At head_dim 128 the output takes twice the registers, which leaves them for 32 keys.
template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    return args.head_dim == 64 ? launch_for<T, 64, 64>(args, stream) : launch_for<T, 128, 32>(args, stream);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_mma_cp_async takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.key_rows > INT32_MAX / 2) return "fp16_mma_cp_async counts keys in 32 bits: at most 2^30 of them";
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_mma_cp_async takes float16 or bfloat16, not float32";
}

}  // namespace fp16_mma_cp_async

KERNELPROOF_LAUNCH(fp16_mma_cp_async)
