// What the wgmma rungs of attention share: the order of work, the softmax of a tile in registers, and the way out.
#pragma once

#include <cuda_fp8.h>

#include "../common/cuda_launch.h"
#include "../common/divide.h"
#include "../common/hopper.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "online_softmax.h"

// What weights are multiplied by before rounding, as a power of two. They are in (0, 1] where they refer to the highest
// score, and exceed that in tiles whose scores are not compared. float16 loses digits below 2^-14, float8_e4m3 below
// 2^-6; bfloat16 has all of them down to 2^-126, and there products with values of up to 2^128 are what may overflow.
// The sums carry the factor too, and it divides out at the end.
template <typename T>
constexpr float kWeightExponent = 5.0f;
template <>
constexpr float kWeightExponent<__nv_bfloat16> = -16.0f;

template <typename T>
constexpr float kMostWeight = 1.0f;
template <>
constexpr float kMostWeight<__half> = 65504.0f;
template <>
constexpr float kMostWeight<__nv_fp8_e4m3> = 448.0f;

// So many weights add up to less than that as long as none exceeds 1: what a sum is looked at for is a higher score.
template <typename T>
constexpr int kTogether = 1024;
template <>
constexpr int kTogether<__nv_fp8_e4m3> = 8;

// Scores times `factor` beyond this lose digits that matter when the maximum is subtracted after scaling.
constexpr float kLargeExponent = 512.0f;

// The work: an item is kRows query rows of one head. The list goes through the heads section by section; in a section
// the items of all its heads with the most visible keys come first in one section, last in the next, and first in the
// last of all. Block b of n takes items b, 2 n - 1 - b, 2 n + b, ...: what is longer than its neighbours' in one round
// is shorter in the next, so that all blocks end at about the same time.
struct Schedule {
    int64_t items;  // fewer than kMostItems
    int row_tiles;
    int sections;
    Divider section_items;  // of every section but the last
    Divider section_heads, last_heads;
    Divider query_heads, heads_of_key;
};

constexpr int64_t kMostItems = INT32_MAX;  // what a Divider divides

struct Item {
    int first_row, head, batch, key_head;
    int tiles;  // of keys that its last row sees
};

// A section of a causal call has as many heads as keep their keys and values in `l2_bytes`. Without a mask all items
// are alike, and those of one head follow each other.
inline Schedule make_schedule(const AttentionArgs &args, int rows, int element_bytes, int64_t l2_bytes) {
    const int64_t heads = args.batch * args.query_heads, row_tiles = (args.query_rows + rows - 1) / rows;
    const int64_t head_bytes = 2 * args.key_rows * args.head_dim * element_bytes * args.key_heads / args.query_heads;
    const int64_t fitting = args.causal ? l2_bytes / (head_bytes + 1) + 1 : 1;
    const int64_t wanted = (heads + fitting - 1) / fitting, section_heads = (heads + wanted - 1) / wanted;
    const int64_t sections = (heads + section_heads - 1) / section_heads;
    const auto by = [](int64_t divisor) { return Divider(static_cast<uint32_t>(divisor)); };
    return {heads * row_tiles,          static_cast<int>(row_tiles),
            static_cast<int>(sections), by(section_heads * row_tiles),
            by(section_heads),          by(heads - (sections - 1) * section_heads),
            by(args.query_heads),       by(args.query_heads / args.key_heads)};
}

// Null, or why the call has more items of so many rows than a schedule can count.
inline const char *schedule_refusal(const char *kernel, const AttentionArgs &args, int rows) {
    const int64_t heads = args.batch * args.query_heads, row_tiles = (args.query_rows + rows - 1) / rows;
    if (heads < kMostItems && row_tiles < kMostItems / heads) return nullptr;
    return message("%s counts fewer than 2^31 tiles of %d query rows; %lld heads of %lld rows have more", kernel, rows,
                   static_cast<long long>(heads), static_cast<long long>(args.query_rows));
}

template <int kRows, int kKeys>
__device__ __forceinline__ Item item_at(const AttentionArgs &args, const Schedule &schedule, int64_t index) {
    const uint32_t all = static_cast<uint32_t>(index), section = schedule.section_items.quotient(all);
    const uint32_t place = all - section * schedule.section_items.divisor;
    const bool last = section + 1 == static_cast<uint32_t>(schedule.sections);
    const Divider &heads = last ? schedule.last_heads : schedule.section_heads;
    const uint32_t tile = heads.quotient(place);
    const uint32_t head = section * schedule.section_heads.divisor + place - tile * heads.divisor;
    const bool longest_first = (schedule.sections - section) % 2 != 0;
    const uint32_t batch = schedule.query_heads.quotient(head);
    Item item;
    item.first_row = static_cast<int>(longest_first ? schedule.row_tiles - 1 - tile : tile) * kRows;
    item.head = static_cast<int>(head - batch * schedule.query_heads.divisor);
    item.batch = static_cast<int>(batch);
    item.key_head = static_cast<int>(schedule.heads_of_key.quotient(item.head));
    const int64_t last_row = min(static_cast<int64_t>(item.first_row) + kRows, args.query_rows) - 1;
    item.tiles = static_cast<int>((visible_end(args, last_row) + kKeys - 1) / kKeys);
    return item;
}

__device__ __forceinline__ int64_t snake(int64_t round) {
    return round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
}

// The barriers of a ring of tiles: one thread fills a stage, every warp of the consumers empties it.
template <int kStages>
struct Ring {
    uint64_t full[kStages], empty[kStages];
    __device__ __forceinline__ void init(int consumer_warps) {
        for (int i = 0; i < kStages; ++i) {
            mbarrier_init(&full[i], 1);
            mbarrier_init(&empty[i], consumer_warps);
        }
    }
};

// A place in a ring of kStages tiles and the parity of the phase in which it is used.
template <int kStages>
struct Place {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) stage = 0, parity ^= 1;
    }
};

// What a lane knows of its two rows.
struct Rows {
    float highest[2];  // score that weights refer to
    float total[2];    // this lane's share of the sum of weights
    float shrink[2];   // by how much the latest maximum shrinks what was summed before
};

// Scores become weights. `visible`: keys of this tile that each row sees, less this lane's first column.
template <typename T, bool kMasked, int kSize>
__device__ __forceinline__ void softmax(float (&s_rmem)[kSize], Rows &rows, const int (&visible)[2], float factor) {
    float base[2], offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float before = rows.highest[r];
        float peak[2] = {before, -INFINITY};
#pragma unroll
        for (int i = 2 * r; i < kSize; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (kMasked && i / 4 * 8 + e >= visible[r]) s_rmem[i + e] = -INFINITY;
                peak[e] = fmaxf(peak[e], s_rmem[i + e]);
            }
        }
        float highest = fmaxf(peak[0], peak[1]);
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
        rows.highest[r] = highest;
        base[r] = highest == -INFINITY ? 0.0f : highest;  // no visible key yet: weights are 2^-inf
        rows.shrink[r] = exp2_approx((before - base[r]) * factor);
        offset[r] = kWeightExponent<T> - base[r] * factor;
    }
    if (__any_sync(kAllLanes, fmaxf(fabsf(base[0]), fabsf(base[1])) * factor > kLargeExponent)) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) s_rmem[i] -= base[i / 2 % 2];
        offset[0] = offset[1] = kWeightExponent<T>;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 2 * r; i < kSize; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                s_rmem[i + e] = exp2_approx(fmaf(s_rmem[i + e], factor, offset[r]));
                sum += s_rmem[i + e];
            }
        }
        rows.total[r] = rows.total[r] * rows.shrink[r] + sum;
    }
}

// The same of a tile that all rows see whole, but by the highest scores of the tiles before: none are compared, and
// what was summed stays as it is. Returns whether the weights fit T; if those of some row of the warp do not, nothing
// is summed, and the scores are lost.
template <typename T, int kSize>
__device__ __forceinline__ bool softmax_by_earlier(float (&s_rmem)[kSize], Rows &rows, float factor) {
    constexpr int kGroup = kSize < 2 * kTogether<T> ? kSize : 2 * kTogether<T>;  // of both rows
    static_assert(kSize % kGroup == 0, "all groups are whole");
    float sum[2], offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float base = rows.highest[r] * factor;  // infinite as long as the row has seen no key
        offset[r] = fabsf(base) <= kLargeExponent ? kWeightExponent<T> - base : NAN;
    }
    bool fit = true;
#pragma unroll
    for (int first = 0; first < kSize; first += kGroup) {
        float part[2] = {};
#pragma unroll
        for (int i = first; i < first + kGroup; ++i) {
            s_rmem[i] = exp2_approx(fmaf(s_rmem[i], factor, offset[i / 2 % 2]));
            part[i / 2 % 2] += s_rmem[i];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] = first == 0 ? part[r] : sum[r] + part[r];
            fit &= part[r] <= kMostWeight<T>;
        }
    }
    if (__any_sync(kAllLanes, !fit)) return false;
    rows.total[0] += sum[0], rows.total[1] += sum[1];
    return true;
}

// A warp's 16 rows of Q K^T once more, which it computes alone: what wgmma leaves in its part of the accumulator. Rows
// of both tiles are kRowBytes, in swizzled slabs of 128.
template <typename T, int kRowBytes, int kSize>
__device__ __forceinline__ void scores_again(float (&s_rmem)[kSize], const char *q_smem, int q_slab,
                                             const char *k_smem) {
    constexpr int kUnit = 16, kKSlab = 2 * kSize * kSwizzleBytes;
    const int lane = threadIdx.x % kWarpSize, line = lane % 8, half = lane / 8 % 2, last_half = lane / 16;
#pragma unroll
    for (int i = 0; i < kSize; ++i) s_rmem[i] = 0.0f;
#pragma unroll 1
    for (int at = 0; at < kRowBytes; at += 2 * kUnit) {
        const int slab = at / kSwizzleBytes, unit = at % kSwizzleBytes / kUnit;
        uint32_t a[4];
        ldmatrix_x4(a,
                    q_smem + slab * q_slab + (half * 8 + line) * kSwizzleBytes + ((unit + last_half) ^ line) * kUnit);
#pragma unroll
        for (int i = 0; i < kSize; i += 8) {
            uint32_t b[4];
            ldmatrix_x4(b, k_smem + slab * kKSlab + (2 * i + last_half * 8 + line) * kSwizzleBytes +
                               ((unit + half) ^ line) * kUnit);
            mma_32_bytes<T>(reinterpret_cast<float (&)[4]>(s_rmem[i]), a, {b[0], b[1]});
            mma_32_bytes<T>(reinterpret_cast<float (&)[4]>(s_rmem[i + 4]), a, {b[2], b[3]});
        }
    }
}

template <typename T, int kSize, int kSteps>
__device__ __forceinline__ void pack_weights(uint32_t (&p_rmem)[kSteps][4], const float (&s_rmem)[kSize]) {
    static_assert(kSize == 8 * kSteps, "a step takes two 8-column blocks of the accumulator");
#pragma unroll
    for (int i = 0; i < kSize; i += 2) p_rmem[i / 8][i / 2 % 4] = pack<T>(s_rmem[i], s_rmem[i + 1]);
}

// Divides by the sums of weights, which four lanes share; a row that sees no key is zero.
template <int kSize>
__device__ __forceinline__ void normalise(float (&o_rmem)[kSize], const Rows &rows) {
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float total = rows.total[r] + __shfl_xor_sync(kAllLanes, rows.total[r], 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        by[r] = total > 0.0f ? 1.0f / total : 0.0f;
    }
    scale_rows(o_rmem, by);
}

// Multiplies 64 rows of Q by -1 or 0, for scales of that sign.
__device__ __forceinline__ void change_sign(char *q_smem, int slabs, int slab_bytes, float sign, int barrier) {
    const uint32_t keep = sign == 0.0f ? 0u : ~0u, flip = sign == 0.0f ? 0u : 0x80008000u;
    for (int i = threadIdx.x % kWarpgroupSize; i < slabs * kWarpgroupRows * kSwizzleBytes / 16; i += kWarpgroupSize) {
        constexpr int kUnits = kWarpgroupRows * kSwizzleBytes / 16;
        uint4 *unit = reinterpret_cast<uint4 *>(q_smem + i / kUnits * slab_bytes) + i % kUnits;
        const uint4 value = *unit;
        *unit = make_uint4((value.x & keep) ^ flip, (value.y & keep) ^ flip, (value.z & keep) ^ flip,
                           (value.w & keep) ^ flip);
    }
    async_proxy_fence();
    named_barrier_wait<kWarpgroupSize>(barrier);
}

// Writes row g and g + 8 of a warp's 16. The four lanes of a row transpose 4 x 4 pairs, so that each holds 16 bytes.
template <typename T, int kSize>
__device__ __forceinline__ void store_rows(T *o,  // [query_rows, 2 kSize]
                                           int64_t stride, int64_t row, int64_t rows, const float (&o_rmem)[kSize]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < kSize; i += 16) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            uint32_t own[4], unit[4];  // own[b]: columns 8 b + 2 t, + 1 of these 32; unit[u]: columns 8 t + 2 u, + 1
#pragma unroll
            for (int b = 0; b < 4; ++b) own[b] = pack<T>(o_rmem[i + 4 * b + 2 * r], o_rmem[i + 4 * b + 2 * r + 1]);
#pragma unroll
            for (int b = 0; b < 4; b += 2) {  // lanes t and t ^ 1
                const uint32_t got = __shfl_xor_sync(kAllLanes, t % 2 == 0 ? own[b + 1] : own[b], 1);
                unit[b] = t % 2 == 0 ? own[b] : got;
                unit[b + 1] = t % 2 == 0 ? got : own[b + 1];
            }
#pragma unroll
            for (int b = 0; b < 2; ++b) {  // lanes t and t ^ 2
                const uint32_t got = __shfl_xor_sync(kAllLanes, t < 2 ? unit[b + 2] : unit[b], 2);
                own[b] = t < 2 ? unit[b] : got;
                own[b + 2] = t < 2 ? got : unit[b + 2];
            }
            if (row + 8 * r < rows) {
                *reinterpret_cast<uint4 *>(o + (row + 8 * r) * stride + 2 * i + 8 * t) =
                    make_uint4(own[0], own[1], own[2], own[3]);
            }
        }
    }
}
