// Attention forward of up to 128 keys: a block owns 8 query rows, its warps share out the keys and meet once, at the
// end.
//
// A product is 16 x 8. Q K^T leaves half of its rows empty, so that a lane has all its scores in one query row; their
// weights are then, as they lie, the right factor of O^T = V^T P^T, whose 8 columns are the query rows. Blocks of 16
// rows would be half as many, with twice the exponentials, products and sums to exchange in each.
//
// As in fp16_split_kv.cu a lane takes 16 consecutive bytes of a row of Q and K as its share of two products, and 16
// consecutive bytes of four rows of V: rows g and g + 8 of product p are then columns 8 g + 2 p and 8 g + 2 p + 1 of O.
#pragma once

#include "../common/approx.cuh"
#include "../common/dependent_launch.cuh"
#include "../common/global_load.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "short_call.cuh"
#include "weights.cuh"

namespace few_keys {

constexpr int kDim = 64;
constexpr int kRows = 8;
constexpr int kWarps = 4;
constexpr int kParts = kDim / 16;  // float4 of a lane's output, and products that it comes from

static_assert(kParts == kWarps, "after they met, a warp stores one part of every lane's output");

// What a warp knows of a row beside its share of the output: weights are 2^(factor s + base - rest), see weights.cuh.
struct Shares {
    float base[kRows][kWarps];  // infinite where the warp sees no key
    float rest[kRows][kWarps];
    float sum[kRows][kWarps];  // of the weights
};

template <typename T, int kKeys>
__global__ void __launch_bounds__(kWarps *kWarpSize, 1) attention(const __grid_constant__ ShortCall call) {
    static_assert(kKeys % 16 == 0, "a product contracts 16 keys");

    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;  // of the lane in a product, see mma.cuh
    const uint32_t head = blockIdx.y, batch = blockIdx.z, key_head = call.heads_of_key.quotient(head);
    const int first_row = static_cast<int>(blockIdx.x) * kRows, key = warp * kKeys;
    const float factor = call.scale.factor;
    const int first_end = call.visible_from(first_row), block_end = call.visible_from(first_row + kRows - 1);

    __shared__ float4 o_smem[kWarps][kParts][kWarpSize];
    __shared__ alignas(16) Shares shares_smem;

    uint4 q_rmem[kDim / 32], k_rmem[kKeys / 8][kDim / 32], v_rmem[kKeys / 16][4];
    float o_rmem[kParts][4] = {};
    float sum = 0.0f;
    WeightBase base = {INFINITY, 0.0f};

    // Rows which do not exist repeat the last that does: their weights are 0, their output is not stored.
    const int q_row = min(first_row + group, call.query_rows - 1);
    const char *q_from = call.q + (call.q_stride.row_at(batch, head, q_row) + member) * kUnit;
    const char *k_from = call.k + (call.k_stride.row_at(batch, key_head, 0) + member) * kUnit;
    const char *v_from = call.v + (call.v_stride.row_at(batch, key_head, 0) + group) * kUnit;
    asm volatile("" : "+l"(q_from), "+l"(k_from), "+l"(v_from));  // computed before the wait
    prerequisites_wait();
    dependents_launch();

    if (key < block_end) {
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) q_rmem[c] = load_16_from_l2(q_from + c * 64);
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
            const int key_row = min(key + n * 8 + group, call.key_rows - 1);
            const char *row_from = k_from + int64_t{call.k_stride.row} * key_row * kUnit;
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) k_rmem[n][c] = load_16_from_l2(row_from + c * 64);
        }
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key_row = min(key + j * 16 + i / 2 * 8 + member * 2 + i % 2, call.key_rows - 1);
                v_rmem[j][i] = load_16_from_l2(v_from + int64_t{call.v_stride.row} * key_row * kUnit);
            }
        }

        // S = Q K^T. The sign of the scale goes into Q, without a branch.
        uint32_t kept = call.scale.sign == 0.0f ? 0 : ~0u, flipped = call.scale.sign < 0.0f ? 0x80008000u : 0;
        asm volatile("" : "+r"(kept), "+r"(flipped));
        float s_rmem[kKeys / 8][4] = {};  // the upper two belong to rows that are not there
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step) {
            const uint4 &q = q_rmem[step / 2];
            const bool second = step % 2 != 0;
            const uint32_t q_pairs[4] = {((second ? q.z : q.x) & kept) ^ flipped, 0,
                                         ((second ? q.w : q.y) & kept) ^ flipped, 0};
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n) {
                const uint4 &k = k_rmem[n][step / 2];
                mma_m16n8k16<T>(s_rmem[n], q_pairs, {second ? k.z : k.x, second ? k.w : k.y});
            }
        }
        if (key + kKeys > first_end) {  // some score is hidden
            const int end = call.visible_from(first_row + group) - key - member * 2;
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                if (i / 2 * 8 + i % 2 >= end) s_rmem[i / 2][i % 2] = -INFINITY;
            }
        }

        // softmax of the warp's keys; the weights replace the scores
        float highest = -INFINITY;
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) highest = fmaxf(highest, s_rmem[i / 2][i % 2]);
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
        base = weight_base(highest, factor, kWeightBias<T>);
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) s_rmem[i / 2][i % 2] = fmaf(s_rmem[i / 2][i % 2], factor, base.base);
        if (__any_sync(kAllLanes, base.rest != 0.0f)) {
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) s_rmem[i / 2][i % 2] -= base.rest;
        }
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
            s_rmem[i / 2][i % 2] = exp2_approx(s_rmem[i / 2][i % 2]);
            sum += s_rmem[i / 2][i % 2];
        }

        // O^T = V^T P^T
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
            const uint32_t p_pairs[2] = {pack<T>(s_rmem[2 * j][0], s_rmem[2 * j][1]),
                                         pack<T>(s_rmem[2 * j + 1][0], s_rmem[2 * j + 1][1])};
#pragma unroll
            for (int p = 0; p < kParts; ++p) {
                // columns 2 p and 2 p + 1 of the lane's 8: lower and upper halves of word p of four rows
                const auto halves = [&](int i, unsigned which) {
                    const uint4 &upper = v_rmem[j][i], &lower = v_rmem[j][i + 1];
                    return p == 0   ? __byte_perm(upper.x, lower.x, which)
                           : p == 1 ? __byte_perm(upper.y, lower.y, which)
                           : p == 2 ? __byte_perm(upper.z, lower.z, which)
                                    : __byte_perm(upper.w, lower.w, which);
                };
                mma_m16n8k16<T>(o_rmem[p], {halves(0, 0x5410), halves(0, 0x7632), halves(2, 0x5410), halves(2, 0x7632)},
                                p_pairs);
            }
        }
        if (highest == -INFINITY) base.base = INFINITY;
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
    }

    // Combine: every warp writes what it has. A lane has of query rows 2 t and 2 t + 1 columns 8 g to 8 g + 7 each, in
    // two parts; then a thread adds up one part over the warps.
    if (member == 0) {
        shares_smem.base[group][warp] = base.base;
        shares_smem.rest[group][warp] = base.rest;
        shares_smem.sum[group][warp] = sum;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        const auto &low = o_rmem[part % 2 * 2], &high = o_rmem[part % 2 * 2 + 1];
        o_smem[warp][part][lane] = {low[part / 2], low[part / 2 + 2], high[part / 2], high[part / 2 + 2]};
    }
    const int row = member * 2 + warp / 2;
    char *to = call.o + call.o_stride.row_at(batch, head, first_row + row) * kUnit + group * 16 + warp % 2 * 8;
    asm volatile("" : "+l"(to));  // computed before the wait
    __syncthreads();

    float least = INFINITY, rest = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        if (shares_smem.base[row][w] >= least) continue;
        least = shares_smem.base[row][w];
        rest = shares_smem.rest[row][w];
    }
    float total = 0.0f, value[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        const float shrink = exp2_approx((least - shares_smem.base[row][w]) - (rest - shares_smem.rest[row][w]));
        const float4 share = o_smem[w][warp][lane];
        total = fmaf(shrink, shares_smem.sum[row][w], total);
        value[0] = fmaf(shrink, share.x, value[0]);
        value[1] = fmaf(shrink, share.y, value[1]);
        value[2] = fmaf(shrink, share.z, value[2]);
        value[3] = fmaf(shrink, share.w, value[3]);
    }
    if (first_row + row >= call.query_rows) return;
    const float inverse = reciprocal_approx(total);
    uint2 out = {pack<T>(value[0] * inverse, value[1] * inverse), pack<T>(value[2] * inverse, value[3] * inverse)};
    if (!(total > 0.0f)) out = {0, 0};  // no visible key: zeros
    *reinterpret_cast<uint2 *>(to) = out;
}

template <typename T, int kKeys>
const char *launch_for(const AttentionArgs &args, void *stream) {
    return launch_kernel("fp16_split_kv", attention<T, kKeys>,
                         dependent(short_grid(args, kRows, kWarps * kWarpSize, 0)), args.placement, stream,
                         short_call(args));
}

// Whether a call that suits a rung for short sequences suits this one.
inline bool suits(const AttentionArgs &args) {
    return args.head_dim == kDim && args.key_rows <= kWarps * 32;
}

template <typename T>
const char *launch(const AttentionArgs &args, void *stream) {
    return args.key_rows <= kWarps * 16 ? launch_for<T, 16>(args, stream) : launch_for<T, 32>(args, stream);
}

}  // namespace few_keys
