// Attention forward as in fp16_mma_cp_async, with shared memory rearranged: ldmatrix lays out four fragments at a time
// and transposes values on the way, from rows without padding whose 16-byte chunks are permuted. On large inputs a warp
// owns 32 query rows: each fragment of keys and values that it reads serves two multiplications.
#include "../common/cp_async.cuh"
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "../common/swizzle.cuh"
#include "online_softmax.h"
#include "weights.cuh"

namespace fp16_swizzled {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = 64;   // of a tile
constexpr int kVector = 8;  // 16-bit elements of a 16-byte access

// Tiles of keys or values, in turn: one to work on, the other to fill. Three were slower on an H200: by 4 to 6 % at
// head_dim 64; at 128 the budget of shared memory holds three of 32 keys only, 16 to 27 % slower than two of 64.
constexpr int kStages = 2;

template <int kRowTiles>
constexpr int kRows = kWarps * kRowTiles * 16;  // query rows of a block

// 32 rows a warp take 200 registers and more, beyond the budget of config.yaml: 64 or 128 for the output, as many as
// keys for scores. They halve what is read from shared memory, whose bandwidth is the limit of 16 rows.
template <int kRowTiles>
constexpr int kBlocksPerMultiprocessor = kRowTiles == 1 ? 3 : 2;

// Queues rows of a tile, zeros for those which do not exist. Complete after cp_async_wait and a barrier. A thread
// copies 16 bytes of every kStep-th row; it gives its own first ones.
template <int kTileRows, int kDim, typename T>
__device__ __forceinline__ void load_tile(T *to_smem,     // [kTileRows, kDim]
                                          const T *from,  // [rows, kDim]
                                          int64_t stride, int rows, bool aligned) {
    constexpr int kStep = kThreads * kVector / kDim;
    static_assert(kTileRows % kStep == 0, "every thread copies as much as the others");
    static_assert(kStep % 8 == 0, "a thread's rows are permuted alike");
    if (aligned) {
#pragma unroll
        for (int row = 0; row < kTileRows; row += kStep) {
            cp_async_16(to_smem + row * kDim, from + row * stride, row < rows);
        }
    } else {
#pragma unroll 1
        for (int row = 0; row < kTileRows; row += kStep) {
            for (int i = 0; i < kVector; ++i) {
                to_smem[row * kDim + i] = row < rows ? from[row * stride + i] : Element<T>::from_float(0.0f);
            }
        }
    }
}

template <typename T, int kDim, int kRowTiles>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor<kRowTiles>)
    attention(AttentionArgs args, SoftmaxScale scale, bool aligned) {
    static_assert(kDim % 16 == 0 && kKeys % 16 == 0, "mma multiplies 16 x 16 by 16 x 8");
    static_assert(kStages >= 2, "a tile is filled while another one is read");
    constexpr int kRows = fp16_swizzled::kRows<kRowTiles>;
    constexpr int kTile = kKeys * kDim;
    constexpr bool kHoldQueries = kDim == 64;  // in registers: there are enough

    // Lane 4 g + t of a warp holds rows g and g + 8 of accumulators, columns 2 t and 2 t + 1 (common/mma.cuh).
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
    // The launcher has counted the blocks in 32 bits, so quotients fit as well, and divisions are short.
    const int row_tiles = (args.query_rows + kRows - 1) / kRows, query_heads = args.query_heads, block = blockIdx.x;
    const int first_row = (row_tiles - 1 - block % row_tiles) * kRows;  // under a mask the longest begin
    int place = block / row_tiles;                                      // of the head among those of all batches
    const int head = place % query_heads, batch = place / query_heads;
    const int key_head = head / (query_heads / static_cast<int>(args.key_heads));
    const T *q = static_cast<const T *>(args.q) + batch * args.q_stride.batch + head * args.q_stride.head;
    const T *k = static_cast<const T *>(args.k) + batch * args.k_stride.batch + key_head * args.k_stride.head;
    const T *v = static_cast<const T *>(args.v) + batch * args.v_stride.batch + key_head * args.v_stride.head;
    const int warp_row = first_row + warp * kRowTiles * 16;
    const int all_see = visible_end(args, warp_row);                         // keys before it: every row of the warp
    const int none_sees = visible_end(args, warp_row + kRowTiles * 16 - 1);  // keys from it on: no row
    const int block_end = visible_end(args, first_row + kRows - 1);
    const int query_rows = args.query_rows - first_row < kRows ? args.query_rows - first_row : kRows;
    const int key_rows = args.key_rows;

    extern __shared__ __align__(128) unsigned char smem[];
    T *Q_smem = reinterpret_cast<T *>(smem);  // [kRows, kDim]
    T *KV_smem = Q_smem + kRows * kDim;       // [kStages, kKeys, kDim]

    float o_rmem[kRowTiles][kDim / 8][4] = {};
    float highest[kRowTiles][2];     // rows g, g + 8 of each 16
    float total[kRowTiles][2] = {};  // this lane's share of the rows' sums of weights
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) highest[m][0] = highest[m][1] = -INFINITY;

    // Loading: 16 bytes of every few rows are this thread's. Tile 2 i holds keys, tile 2 i + 1 their values.
    const int my_row = threadIdx.x / (kDim / kVector), my_chunk = threadIdx.x % (kDim / kVector);
    const int my_smem = swizzled<kDim>(my_row, my_chunk);
    const auto fetch = [&](int tile) {
        const int key = tile / 2 * kKeys;
        if (key < block_end) {
            const T *from = tile % 2 == 0 ? k : v;
            const int64_t stride = tile % 2 == 0 ? args.k_stride.row : args.v_stride.row;
            load_tile<kKeys, kDim>(KV_smem + tile % kStages * kTile + my_smem,
                                   from + (key + my_row) * stride + my_chunk * kVector, stride, key_rows - key - my_row,
                                   aligned);
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
    // Whose address this lane gives to ldmatrix. The four matrices of a 16 x 16 operand are, of Q and V, rows 0-7 and
    // 8-15 of the first 8 columns, then of the others; of K, both columns of rows 0-7, then of 8-15.
    // Pairs of chunks further on are an exclusive or away.
    int at_q = swizzled<kDim>(lane % 16, lane / 16);
    int at_k = swizzled<kDim>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    // Else the compiler would keep every chunk's address in a register from one product to the next, and spill.
    const auto forget = [&] { asm volatile("" : "+r"(at_q), "+r"(at_k)); };
    const T *warp_q_smem = Q_smem + warp * kRowTiles * 16 * kDim;

    load_tile<kRows, kDim>(Q_smem + my_smem, q + (first_row + my_row) * args.q_stride.row + my_chunk * kVector,
                           args.q_stride.row, query_rows - my_row, aligned);
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);

    uint32_t q_rmem[kRowTiles][kHoldQueries ? kDim / 16 : 1][4];
    const auto load_queries = [&](int m, int d) {
        const T *from = warp_q_smem + 16 * m * kDim + (at_q ^ d);
        ldmatrix_x4(q_rmem[m][kHoldQueries ? d / 16 : 0], from);
    };
    if (kHoldQueries) {
        cp_async_wait<kStages - 2>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kRowTiles * kDim / 16; ++i) load_queries(i % kRowTiles, i / kRowTiles * 16);
    }

    for (int tile = 0, key = 0; key < block_end; tile += 2, key += kKeys) {
        forget();
        const T *K_smem = enter(tile);
        float s_rmem[kRowTiles][kKeys / 8][4] = {};
        if (key < none_sees) {
            // S = Q K^T
#pragma unroll
            for (int d = 0; d < kDim; d += 16) {
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m) {
                    if (!kHoldQueries) load_queries(m, d);
                }
#pragma unroll
                for (int n = 0; n < kKeys; n += 16) {
                    uint32_t k_rmem[4];
                    ldmatrix_x4(k_rmem, K_smem + n * kDim + (at_k ^ d));
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) {
                        const uint32_t (&q_left)[4] = q_rmem[m][kHoldQueries ? d / 16 : 0];
                        mma_m16n8k16<T>(s_rmem[m][n / 8], q_left, {k_rmem[0], k_rmem[1]});
                        mma_m16n8k16<T>(s_rmem[m][n / 8 + 1], q_left, {k_rmem[2], k_rmem[3]});
                    }
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
                        const int row = warp_row + 16 * m + g + i / 2 * 8;
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

        forget();
        const T *V_smem = enter(tile + 1);
        if (key < none_sees) {
            // O += P V
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
                    uint32_t v_rmem[4];
                    ldmatrix_x4_transposed(v_rmem, V_smem + j * kDim + (at_q ^ n));
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) {
                        mma_m16n8k16<T>(o_rmem[m][n / 8], p_rmem[m], {v_rmem[0], v_rmem[1]});
                        mma_m16n8k16<T>(o_rmem[m][n / 8 + 1], p_rmem[m], {v_rmem[2], v_rmem[3]});
                    }
                }
            }
        }
    }
    asm volatile("" : "+r"(place));  // so that the head and the batch do not stay in registers until here
    T *o =
        static_cast<T *>(args.o) + place / query_heads * args.o_stride.batch + place % query_heads * args.o_stride.head;
    cp_async_wait<0>();  // a block that sees no key has fetched its queries for nothing

#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int m = i / 2, r = i % 2;
        const int row = warp_row + 16 * m + g + 8 * r;
        float sum = total[m][r];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;  // no visible key: zeros
        if (row >= args.query_rows) continue;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
            const uint32_t two = pack<T>(o_rmem[m][n][2 * r] * inverse, o_rmem[m][n][2 * r + 1] * inverse);
            T *to = o + row * args.o_stride.row + 8 * n + 2 * t;
            if (aligned) {
                *reinterpret_cast<uint32_t *>(to) = two;
            } else {
                to[0] = reinterpret_cast<const T *>(&two)[0], to[1] = reinterpret_cast<const T *>(&two)[1];
            }
        }
    }
}

// Whether every row starts on 16 bytes.
bool is_aligned(const void *data, const Strides3 &stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride.batch % kVector == 0 && stride.head % kVector == 0 &&
           stride.row % kVector == 0;
}

template <typename T, int kDim, int kRowTiles>
const char *launch_tiles(const AttentionArgs &args, void *stream) {
    constexpr int kSharedBytes = (kRows<kRowTiles> + kStages * kKeys) * kDim * sizeof(T);
    static_assert(kSharedBytes <= 64 * 1024, "the budget of config.yaml");
    const bool aligned = is_aligned(args.q, args.q_stride) && is_aligned(args.k, args.k_stride) &&
                         is_aligned(args.v, args.v_stride) && is_aligned(args.o, args.o_stride);
    const int64_t blocks = (args.query_rows + kRows<kRowTiles> - 1) / kRows<kRowTiles> * args.query_heads * args.batch;
    return launch_kernel("fp16_swizzled", attention<T, kDim, kRowTiles>, {blocks, kThreads, kSharedBytes},
                         args.placement, stream, args, SoftmaxScale(args.scale), aligned);
}

// 16 rows a warp where 32 would leave multiprocessors idle.
template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    if (args.head_dim == 128) return launch_tiles<T, 128, 2>(args, stream);
    int multiprocessors = 0;
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, args.placement.index);
    const int64_t blocks = (args.query_rows + kRows<2> - 1) / kRows<2> * args.query_heads * args.batch;
    return blocks < multiprocessors ? launch_tiles<T, 64, 1>(args, stream) : launch_tiles<T, 64, 2>(args, stream);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_swizzled takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.key_rows > INT32_MAX / 2 || args.query_rows > INT32_MAX / 2) {
        return "fp16_swizzled counts rows in 32 bits: at most 2^30 of them";
    }
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_swizzled takes float16 or bfloat16, not float32";
}

}  // namespace fp16_swizzled

KERNELPROOF_LAUNCH(fp16_swizzled)
