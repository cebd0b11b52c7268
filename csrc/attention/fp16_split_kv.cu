// Attention forward for short sequences: a block owns a few query rows, its warps share out the keys and meet once, at
// the end. K and V pass from global memory straight into the registers of the one warp that needs them, all loads under
// way before the first product.
//
// The products may number a contraction's terms as they like, as long as both factors agree. So a lane takes 16
// consecutive bytes of a row of Q and of K as its share of two products, and 16 consecutive bytes of four rows of V as
// its share of eight output tiles: column c of tile n is then column 8 c + n of the output.
//
// Up to 128 keys, blocks of fewer rows are faster: few_keys.cuh.
#include "../common/approx.cuh"
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/global_load.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "few_keys.cuh"
#include "short_call.cuh"
#include "weights.cuh"

namespace fp16_split_kv {

constexpr int kTile = 16;   // query rows of a product
constexpr int kVector = 8;  // 16-bit elements of a 16-byte access
constexpr int kWarps = 8;
constexpr int kRounds = 2;  // in which the warps' outputs pass through shared memory

// One block a multiprocessor, so that a thread may have 255 registers: a short sequence has no second block, and what
// is under way is what counts.
template <typename T, int kDim, int kTiles, int kKeys>
__global__ void __launch_bounds__(kWarps *kWarpSize, 1) attention(const __grid_constant__ ShortCall call) {
    static_assert(kDim % 64 == 0, "8 lanes x 8 columns of V make an output tile of 64 columns");
    static_assert(kKeys % 16 == 0, "a product contracts 16 keys");
    constexpr int kRows = kTiles * kTile;
    constexpr int kVectors = kRows * kDim / 4 / kWarpSize;  // float4 of a lane's output
    static_assert(kVectors % (2 * kRounds) == 0, "a thread stores 8 columns, two float4, at once");
    constexpr float kBias = kWeightBias<T>;

    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;  // of the lane in a product, see mma.cuh
    const uint32_t head = blockIdx.y, batch = blockIdx.z, key_head = call.heads_of_key.quotient(head);
    // the last rows first: under a causal mask they take longest
    const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
    const int key_rows = call.key_rows;
    const float factor = call.scale.factor;
    const int first_end = call.visible_from(first_row), block_end = call.visible_from(first_row + kRows - 1);

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
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = min(first_row + m * kTile + half * 8 + group, call.query_rows - 1);
                const char *row_from = call.q + (call.q_stride.row_at(batch, head, row) + member) * kUnit;
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
    const char *const k_from = call.k + (call.k_stride.row_at(batch, key_head, 0) + member) * kUnit;
    const auto load_keys = [&](int key) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
            const int row = min(key + n * 8 + group, key_rows - 1);
            const char *row_from = k_from + int64_t{call.k_stride.row} * row * kUnit;
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) k_rmem[c][n] = load_16(row_from + c * 64);
        }
    };
    const char *const v_from = call.v + (call.v_stride.row_at(batch, key_head, 0) + group) * kUnit;
    const auto load_values = [&](int key) {
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = min(key + j * 16 + i / 2 * 8 + member * 2 + i % 2, key_rows - 1);
                const char *row_from = v_from + int64_t{call.v_stride.row} * row * kUnit;
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
        if (call.scale.sign != 1.0f) {  // the sign of the scale goes into Q
            const uint32_t kept = call.scale.sign == 0.0f ? 0 : ~0u;
            const uint32_t flipped = call.scale.sign < 0.0f ? 0x80008000u : 0;
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
                    const int end = call.visible_from(first_row + m * kTile + half * 8 + group) - key - member * 2;
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
            if (first_row + row >= call.query_rows) continue;
            const int column = at % (kDim / 16) / 4 * 64 + member * 16 + at % 4 / 2 * 8;
            char *to = call.o + call.o_stride.row_at(batch, head, first_row + row) * kUnit;
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
    return launch_kernel("fp16_split_kv", attention<T, kDim, kTiles, kKeys>,
                         short_grid(args, kRows, kWarps * kWarpSize, kSharedBytes), args.placement, stream,
                         short_call(args));
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    if (few_keys::suits(args)) return few_keys::launch<T>(args, stream);
    return args.head_dim == 128 ? launch_for<T, 128, 1, 16>(args, stream) : launch_for<T, 64, 2, 32>(args, stream);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    const char *refusal = short_call_refusal("fp16_split_kv", args);
    if (refusal != nullptr) return refusal;
    return args.dtype == Dtype::kFloat16 ? launch_for<__half>(args, stream) : launch_for<__nv_bfloat16>(args, stream);
}

}  // namespace fp16_split_kv

KERNELPROOF_LAUNCH(fp16_split_kv)
