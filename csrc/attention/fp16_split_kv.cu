// Attention forward for short sequences: a block owns a few query rows, its warps share out the keys and meet once, at
// the end. K and V pass from global memory straight into the registers of the one warp that needs them, all loads under
// way before the first product.
//
// The products may number a contraction's terms as they like, as long as both factors agree. So a lane takes 16
// consecutive bytes of a row of Q and of K as its share of two products, and 16 consecutive bytes of four rows of V as
// its share of eight output tiles: column c of tile n is then column 8 c + n of the output.
#include "../common/approx.cuh"
#include "../common/cuda_launch.h"
#include "../common/divide.h"
#include "../common/element.cuh"
#include "../common/global_load.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "online_softmax.h"
#include "weights.cuh"

namespace fp16_split_kv {

// To be measured: see csrc/README.md.
#ifndef SPLIT_KV_WARPS
    #define SPLIT_KV_WARPS 8
#endif
#ifndef SPLIT_KV_ROW_TILES
    #define SPLIT_KV_ROW_TILES 2
#endif
#ifndef SPLIT_KV_KEYS
    #define SPLIT_KV_KEYS 32
#endif
#ifndef SPLIT_KV_ROUNDS
    #define SPLIT_KV_ROUNDS 2
#endif
#ifndef SPLIT_KV_BLOCKS
    #define SPLIT_KV_BLOCKS 1
#endif

constexpr int kTile = 16;  // query rows of a product
constexpr int kWarps = SPLIT_KV_WARPS;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRowTiles = SPLIT_KV_ROW_TILES;  // of a block with head_dim 64; half as many with 128
constexpr int kSlice = SPLIT_KV_KEYS;          // keys that a warp holds with head_dim 64; half as many with 128
constexpr int kRounds = SPLIT_KV_ROUNDS;       // in how many parts the warps' outputs pass through shared memory
constexpr int kBlocks = SPLIT_KV_BLOCKS;       // of a multiprocessor. With 1 a thread may have 255 registers: a short
                                               // sequence has no second block, and what is under way is what counts
constexpr int kVector = 8;                     // 16-bit elements of a 16-byte access

// A tensor in bytes; a row's place takes one 32-bit multiplication.
struct Rows {
    char *data;  // [batch, heads, rows, head_dim]
    int64_t batch_stride;
    int64_t head_stride;
    int row_stride;
    __device__ char *head(uint32_t b, uint32_t h) const { return data + b * batch_stride + h * head_stride; }
};

struct Problem {
    Rows q, k, v, o;
    int query_rows;
    int key_rows;
    int diagonal;  // query row i sees keys [0, min(i + diagonal, key_rows))
    SoftmaxScale scale;
    Divider row_blocks;    // blocks of a head
    Divider heads;         // query heads
    Divider heads_of_key;  // query heads of a key head
};

template <typename T, int kDim, int kTiles, int kKeys>
__global__ void __launch_bounds__(kThreads, kBlocks) attention(const __grid_constant__ Problem problem) {
    static_assert(kDim % 64 == 0, "8 lanes x 8 columns of V make an output tile of 64 columns");
    static_assert(kKeys % 16 == 0, "a product contracts 16 keys");
    constexpr int kRows = kTiles * kTile;
    constexpr int kVectors = kRows * kDim / 4 / kWarpSize;  // float4 of a lane's output
    static_assert(kVectors % (2 * kRounds) == 0, "a thread stores 8 columns, two float4, at once");
    constexpr float kBias = kWeightBias<T>;

    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;  // of the lane in a product, see mma.cuh
    const uint32_t head_of_all = problem.row_blocks.quotient(blockIdx.x);
    const uint32_t batch = problem.heads.quotient(head_of_all);
    const uint32_t head = head_of_all - batch * problem.heads.divisor;
    const uint32_t key_head = problem.heads_of_key.quotient(head);
    // the last rows first: under a causal mask they take longest
    const int first_row = static_cast<int>((head_of_all + 1) * problem.row_blocks.divisor - 1 - blockIdx.x) * kRows;
    const int key_rows = problem.key_rows;
    const float factor = problem.scale.factor;
    const auto visible_from = [&](int row) { return min(max(row + problem.diagonal, 0), key_rows); };
    const int first_end = visible_from(first_row), block_end = visible_from(first_row + kRows - 1);

    extern __shared__ float4 o_smem[];  // [kWarps, kVectors / kRounds, kWarpSize], then the statistics
    float2 *stats_smem =
        reinterpret_cast<float2 *>(o_smem + kWarps * kVectors / kRounds * kWarpSize);  // [kRows, kWarps]

    uint32_t q_rmem[kTiles][kDim / 16][4];
    uint4 k_rmem[kDim / 32][kKeys / 8];
    uint4 v_rmem[kKeys / 16][kDim / 64][4];
    float o_rmem[kTiles][kDim / 8][4] = {};
    float highest[kTiles][2], total[kTiles][2] = {};  // of rows g and g + 8; a lane sums its own columns only
#pragma unroll
    for (int m = 0; m < kTiles; ++m) highest[m][0] = highest[m][1] = -INFINITY;

    // Rows which do not exist repeat the last that does: their weights are 0, their output is not stored.
    const auto load_queries = [&] {
        const char *from = problem.q.head(batch, head) + member * 16;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = min(first_row + m * kTile + half * 8 + group, problem.query_rows - 1);
                const char *row_from = from + int64_t{row} * problem.q.row_stride;
#pragma unroll
                for (int c = 0; c < kDim / 32; ++c) {
                    const uint4 part = load_16(row_from + c * 64);
                    q_rmem[m][2 * c][half] = part.x;
                    q_rmem[m][2 * c][half + 2] = part.y;
                    q_rmem[m][2 * c + 1][half] = part.z;
                    q_rmem[m][2 * c + 1][half + 2] = part.w;
                }
            }
        }
    };
    const char *const k_from = problem.k.head(batch, key_head) + member * 16;
    const auto load_keys = [&](int key) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
            const int row = min(key + n * 8 + group, key_rows - 1);
            const char *row_from = k_from + int64_t{row} * problem.k.row_stride;
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) k_rmem[c][n] = load_16(row_from + c * 64);
        }
    };
    const char *const v_from = problem.v.head(batch, key_head) + group * 16;
    const auto load_values = [&](int key) {
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = min(key + j * 16 + i / 2 * 8 + member * 2 + i % 2, key_rows - 1);
                const char *row_from = v_from + int64_t{row} * problem.v.row_stride;
#pragma unroll
                for (int h = 0; h < kDim / 64; ++h) v_rmem[j][h][i] = load_16(row_from + h * 128);
            }
        }
    };

    int key = warp * kKeys;
    if (key < block_end) {
        load_queries();
        load_keys(key);
        load_values(key);
        if (problem.scale.sign != 1.0f) {  // the sign of the scale goes into Q
            const uint32_t kept = problem.scale.sign == 0.0f ? 0 : ~0u;
            const uint32_t flipped = problem.scale.sign < 0.0f ? 0x80008000u : 0;
#pragma unroll
            for (int i = 0; i < kTiles * kDim / 4; ++i) {
                uint32_t &pair = q_rmem[i / (kDim / 4)][i % (kDim / 4) / 4][i % 4];
                pair = (pair & kept) ^ flipped;
            }
        }
    }
    for (; key < block_end; key += kWarps * kKeys) {
        const int next = key + kWarps * kKeys;

        // S = Q K^T
        float s_rmem[kTiles][kKeys / 8][4] = {};
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int n = 0; n < kKeys / 8; ++n) {
                    const uint4 &part = k_rmem[c][n];
                    const uint32_t k_pair[2] = {half ? part.z : part.x, half ? part.w : part.y};
#pragma unroll
                    for (int m = 0; m < kTiles; ++m) mma_m16n8k16<T>(s_rmem[m][n], q_rmem[m][2 * c + half], k_pair);
                }
            }
        }
        if (next < block_end) load_keys(next);

        if (key + kKeys > first_end) {  // some score is hidden
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int end = visible_from(first_row + m * kTile + half * 8 + group) - key - member * 2;
#pragma unroll
                    for (int i = 0; i < kKeys / 4; ++i) {
                        if (i / 2 * 8 + i % 2 >= end) s_rmem[m][i / 2][half * 2 + i % 2] = -INFINITY;
                    }
                }
            }
        }

        // softmax, all rows abreast; the weights replace the scores
        float before[kTiles][2];
        WeightBase base[kTiles][2];
        bool rises = false, large = false;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                before[m][half] = highest[m][half];
#pragma unroll
                for (int i = 0; i < kKeys / 4; ++i) {
                    highest[m][half] = fmaxf(highest[m][half], s_rmem[m][i / 2][half * 2 + i % 2]);
                }
            }
        }
#pragma unroll
        for (int step = 1; step <= 2; ++step) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    highest[m][half] = fmaxf(highest[m][half], __shfl_xor_sync(kAllLanes, highest[m][half], step));
                }
            }
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                rises = rises || (highest[m][half] != before[m][half] && before[m][half] != -INFINITY);
                base[m][half] = weight_base(highest[m][half], factor, kBias);
                large = large || base[m][half].rest != 0.0f;
            }
        }
        if (__any_sync(kAllLanes, rises)) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float shrink = shrink_factor(before[m][half], highest[m][half], factor, kBias);
                    total[m][half] *= shrink;
#pragma unroll
                    for (int n = 0; n < kDim / 8; ++n) {
                        o_rmem[m][n][half * 2] *= shrink;
                        o_rmem[m][n][half * 2 + 1] *= shrink;
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kTiles * kKeys / 2; ++i) {
            const int m = i / (kKeys / 2), half = i / 2 % 2;
            float &score = s_rmem[m][i % (kKeys / 2) / 4][i % 4];
            score = fmaf(score, factor, base[m][half].base);
        }
        if (__any_sync(kAllLanes, large)) {
#pragma unroll
            for (int i = 0; i < kTiles * kKeys / 2; ++i) {
                s_rmem[i / (kKeys / 2)][i % (kKeys / 2) / 4][i % 4] -= base[i / (kKeys / 2)][i / 2 % 2].rest;
            }
        }
#pragma unroll
        for (int i = 0; i < kTiles * kKeys / 2; ++i) {
            const int m = i / (kKeys / 2), half = i / 2 % 2;
            float &score = s_rmem[m][i % (kKeys / 2) / 4][i % 4];
            score = exp2_approx(score);
            total[m][half] += score;
        }

        // O += P V
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
            uint32_t p_rmem[kTiles][4];
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float *weight = &s_rmem[m][2 * j + i / 2][i % 2 * 2];
                    p_rmem[m][i] = pack<T>(weight[0], weight[1]);
                }
            }
#pragma unroll
            for (int n = 0; n < kDim / 8; ++n) {
                // column n % 8 of the lane's 8: a lower or an upper half of word n % 8 / 2 of four rows
                const uint4 *rows = v_rmem[j][n / 8];
                const auto word = [&](const uint4 &row) {
                    return n % 8 / 2 == 0 ? row.x : n % 8 / 2 == 1 ? row.y : n % 8 / 2 == 2 ? row.z : row.w;
                };
                const unsigned halves = n % 2 == 0 ? 0x5410 : 0x7632;
                const uint32_t v_pair[2] = {__byte_perm(word(rows[0]), word(rows[1]), halves),
                                            __byte_perm(word(rows[2]), word(rows[3]), halves)};
#pragma unroll
                for (int m = 0; m < kTiles; ++m) mma_m16n8k16<T>(o_rmem[m][n], p_rmem[m], v_pair);
            }
        }
        if (next < block_end) load_values(next);
    }

    // Combine: every warp writes what it has, then a thread adds up 8 columns of a row over the warps.
    const int warps = min((block_end + kKeys - 1) / kKeys, kWarps);  // that had any keys
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
        float &sum = total[i / 2][i % 2];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (member == 0) stats_smem[(i * 8 + group) * kWarps + warp] = {highest[i / 2][i % 2], sum};
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
        constexpr int kPart = kVectors / kRounds;
        if (round > 0) __syncthreads();  // everyone has read the previous part
        if (warp < warps) {
#pragma unroll
            for (int i = 0; i < kPart; ++i) {
                const int at = round * kPart + i, columns = at % 4, row_half = at / (kDim / 16);
                const auto value = [&](int c) {
                    const int n = at % (kDim / 16) / 4 * 8 + columns % 2 * 4 + c;
                    return o_rmem[row_half / 2][n][row_half % 2 * 2 + columns / 2];
                };
                o_smem[(warp * kPart + i) * kWarpSize + lane] = {value(0), value(1), value(2), value(3)};
            }
        }
        __syncthreads();
        for (int pair = warp; pair < kPart / 2; pair += kWarps) {
            const int at = round * kPart + pair * 2, row = at / (kDim / 16) * 8 + group;
            const float2 *stats = stats_smem + row * kWarps;
            float top = -INFINITY, sum = 0.0f, values[kVector] = {};
#pragma unroll
            for (int w = 0; w < kWarps; ++w) top = w < warps ? fmaxf(top, stats[w].x) : top;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
                if (w >= warps) break;
                const float shrink = shrink_factor(stats[w].x, top, factor, kBias);
                const float4 *from = o_smem + (w * kPart + pair * 2) * kWarpSize + lane;
                const float4 low = from[0], high = from[kWarpSize];
                const float share[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                sum = fmaf(shrink, stats[w].y, sum);
#pragma unroll
                for (int e = 0; e < kVector; ++e) values[e] = fmaf(shrink, share[e], values[e]);
            }
            const float inverse = sum > 0.0f ? reciprocal_approx(sum) : 0.0f;  // no visible key: zeros
            if (first_row + row >= problem.query_rows) continue;
            const int column = at % (kDim / 16) / 4 * 64 + member * 16 + at % 4 / 2 * 8;
            char *to = problem.o.head(batch, head) + int64_t{first_row + row} * problem.o.row_stride;
            reinterpret_cast<uint4 *>(to)[column / kVector] = {
                pack<T>(values[0] * inverse, values[1] * inverse), pack<T>(values[2] * inverse, values[3] * inverse),
                pack<T>(values[4] * inverse, values[5] * inverse), pack<T>(values[6] * inverse, values[7] * inverse)};
        }
    }
}

template <typename T, int kDim, int kTiles, int kKeys>
const char *launch_for(const AttentionArgs &args, void *stream) {
    constexpr int kRows = kTiles * kTile;
    constexpr int kSharedBytes = kWarps * kRows * (kDim * 4 / kRounds + 8);
    const auto rows = [](const void *data, const Strides3 &stride) {
        return Rows{static_cast<char *>(const_cast<void *>(data)), stride.batch * 2, stride.head * 2,
                    static_cast<int>(stride.row * 2)};
    };
    const int64_t row_blocks = (args.query_rows + kRows - 1) / kRows, heads = args.query_heads * args.batch;
    if (row_blocks > INT32_MAX / heads) return "fp16_split_kv would need more than 2^31 - 1 blocks";
    const Problem problem = {rows(args.q, args.q_stride),
                             rows(args.k, args.k_stride),
                             rows(args.v, args.v_stride),
                             rows(args.o, args.o_stride),
                             static_cast<int>(args.query_rows),
                             static_cast<int>(args.key_rows),
                             static_cast<int>(args.causal ? args.key_rows - args.query_rows + 1 : args.key_rows),
                             SoftmaxScale(args.scale),
                             Divider(static_cast<uint32_t>(row_blocks)),
                             Divider(static_cast<uint32_t>(args.query_heads)),
                             Divider(static_cast<uint32_t>(args.query_heads / args.key_heads))};
    return launch_kernel("fp16_split_kv", attention<T, kDim, kTiles, kKeys>,
                         {row_blocks * heads, kThreads, kSharedBytes}, args.placement, stream, problem);
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    if (args.head_dim == 64) return launch_for<T, 64, kRowTiles, kSlice>(args, stream);
    return launch_for<T, 128, (kRowTiles + 1) / 2, (kSlice + 16) / 32 * 16>(args, stream);
}

// Null, or what about the tensor does not suit 16-byte accesses and 32-bit rows. A stride means nothing along a
// dimension of size 1.
const char *check(const char *name, const void *data, const Strides3 &stride, int64_t rows) {
    constexpr int64_t kMost = 1 << 30;
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || stride.batch % kVector != 0 || stride.head % kVector != 0 ||
        stride.row % kVector != 0) {
        return message(
            "fp16_split_kv reads 16 bytes at a time: %s must start at, and have strides of, multiples of 16 "
            "bytes. Pass a contiguous copy or use another variant",
            name);
    }
    if (rows < kMost && stride.row < kMost && stride.row > -kMost) return nullptr;
    return message("fp16_split_kv takes fewer than 2^30 rows, less than 2^30 elements apart; %s has %lld, %lld apart",
                   name, static_cast<long long>(rows), static_cast<long long>(stride.row));
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_split_kv takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    const char *wrong = check("q", args.q, args.q_stride, args.query_rows);
    if (wrong == nullptr) wrong = check("k", args.k, args.k_stride, args.key_rows);
    if (wrong == nullptr) wrong = check("v", args.v, args.v_stride, args.key_rows);
    if (wrong == nullptr) wrong = check("o", args.o, args.o_stride, args.query_rows);
    if (wrong != nullptr) return wrong;
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_split_kv takes float16 or bfloat16, not float32";
}

}  // namespace fp16_split_kv

KERNELPROOF_LAUNCH(fp16_split_kv)
