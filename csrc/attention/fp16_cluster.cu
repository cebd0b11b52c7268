// Attention forward for short sequences on sm_90a: the keys are shared out over the warpgroups of a cluster of two
// blocks. A warpgroup takes its keys in tiles of 64, the first two of which are under way at once: the output of a tile
// is computed while the scores of the next become weights, and where two tiles are all it has, the scores of the second
// while those of the first become weights. Parts of the output are added up once in a block, each warpgroup having a
// share of the columns, and then once in the cluster. mbarriers count what arrives.
//
// Weights first refer to 0 and not to a row's highest score: then no score is compared with another, and all parts have
// the same base. The sums, which all warps of a row get to know, say whether the weights of some row were
// too large or too small for their type. If so the cluster does all of it again with an online softmax.
#include <algorithm>
#include <cfloat>

#include "../common/approx.cuh"
#include "../common/cluster.cuh"
#include "../common/cp_async.cuh"
#include "../common/cuda_launch.h"
#include "../common/dependent_launch.cuh"
#include "../common/hopper.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "short_call.cuh"
#include "weights.cuh"

namespace fp16_cluster {

constexpr int kRows = kWarpgroupRows;                        // query rows of a cluster
constexpr int kKeys = 64;                                    // of a tile
constexpr int kShares = 2;                                   // blocks of a cluster
constexpr int kWarpgroups = 2;                               // of a block
constexpr int kParts = kShares * kWarpgroups;                // of the keys, and of the output's columns
constexpr int kStages = 2;                                   // tiles of a warpgroup that are under way at once
constexpr int kRowsAtOnce = kWarpgroupSize / kUnitElements;  // that a warpgroup copies, 128 bytes each
constexpr int kTileBarrier = 1;                              // named barriers kTileBarrier + warpgroup
constexpr int kPairBarrier = kTileBarrier + kWarpgroups;     // named barriers kPairBarrier + warp
// The shared memory of a multiprocessor, and more than one of two blocks can have. Blocks come while those of the
// kernel before are still there, and two of them would share a multiprocessor beside others that are free by then.
constexpr int kReserved = 1024;  // of each block
constexpr int kMultiprocessorShared = kBlockSharedBytes + kReserved;
constexpr int kMoreThanHalf = kMultiprocessorShared / 2 + kReserved;

enum class Form {
    kAnyKeys,    // a warpgroup's tiles, one after the other
    kLongFirst,  // so too; of all heads of a batch the last rows come first, which under a causal mask take longest
    kTwoTiles,   // every warpgroup has two tiles, of which the last keys may be missing
};

template <int kDim>
struct Tiling {
    static constexpr int kThreads = kWarpgroups * kWarpgroupSize;
    static constexpr int kSlabs = kDim * 2 / kSwizzleBytes;
    static constexpr int kQSlab = kRows * kSwizzleBytes, kSlab = kKeys * kSwizzleBytes;
    static constexpr int kTile = kSlabs * kSlab;            // bytes of a tile of K or V
    static constexpr int kStage = kWarpgroups * 2 * kTile;  // [kWarpgroups, K and V]
    static constexpr int kOwn = kDim / 2 / kParts;          // a thread's elements of a part of the columns
    static constexpr int kPart = kOwn * 4 * kWarpSize;      // bytes of a warp's: [kOwn / 4, 32 lanes] float4
    static constexpr int kSums = 8 * 16;                    // bytes: highest and sum of 16 rows, [8] float4
    static constexpr int kWarps = kWarpgroups * kWarpgroupWarps;
    static constexpr int kSharedBytes =
        2 * kSwizzleAlign + kSlabs * kQSlab + kStages * kStage + kWarps * ((kShares + 1) * kPart + kParts * kSums);
    static constexpr int kBlocks = 2 * (kSharedBytes + kReserved) <= kMultiprocessorShared ? 2 : 1;  // of one
    static_assert(kOwn % 4 == 0, "parts are sent 16 bytes at a time");
    static_assert(2 * kWarps * 8 <= kSwizzleAlign, "the barriers have their place in front of the tiles");
    static_assert(kSharedBytes <= kBlockSharedBytes, "the tiles fit in shared memory");
};

// Weights that refer to no highest score are 2^(factor s + kExponent), and good if a row's sum is at most kMost and
// their mean at least kLeastMean: none has overflowed, the highest is at least 2^0 for float16, as it is where weights
// refer to the highest score, so that light ones keep their digits, and at most that for bfloat16, whose values go up
// to 2^128.
template <typename T>
struct Direct {
    static constexpr float kExponent = -15.0f, kMost = 1.0f, kLeastMean = 0x1p-25f;
};
template <>
struct Direct<__half> {
    static constexpr float kExponent = 5.0f, kMost = FLT_MAX, kLeastMean = 1.0f;
};

// Queues kCopies rows of this thread, kStep rows apart, for swizzled slabs; zeros for those from `rows` on.
template <int kCopies, int kStep, int kSlabs>
__device__ __forceinline__ void copy_rows(uint32_t to_smem, int slab_bytes, const char *from, int row_stride, int rows,
                                          bool all) {
    const int64_t step = int64_t{row_stride} * (kStep * kUnit);
    if (all) {
#pragma unroll
        for (int i = 0; i < kCopies * kSlabs; ++i) {
            cp_async_16(to_smem + i % kSlabs * slab_bytes + i / kSlabs * kStep * kSwizzleBytes,
                        from + i / kSlabs * step + i % kSlabs * kSwizzleBytes);
        }
    } else {
        for (int i = 0; i < kCopies * kSlabs; ++i) {
            cp_async_16(to_smem + i % kSlabs * slab_bytes + i / kSlabs * kStep * kSwizzleBytes,
                        from + (i / kSlabs * kStep < rows ? i / kSlabs * step : 0) + i % kSlabs * kSwizzleBytes,
                        i / kSlabs * kStep < rows);
        }
    }
}

template <typename T, int kDim, Form kForm>
__global__ void __launch_bounds__(Tiling<kDim>::kThreads, kForm == Form::kTwoTiles ? Tiling<kDim>::kBlocks : 1)
    attention(const __grid_constant__ ShortCall call) {
    using Tile = Tiling<kDim>;
    constexpr bool kHeadsFirst = kForm == Form::kLongFirst, kTwoTiles = kForm == Form::kTwoTiles;
    constexpr int kOwn = Tile::kOwn;
    constexpr int kScores = kKeys / 2, kOutputs = kDim / 2 / kShares;

    extern __shared__ char dynamic_smem[];
    // barriers, then tiles: Q [kSlabs, kRows, 64], stages of K and V, what other warps send
    uint64_t *parts_there =
        reinterpret_cast<uint64_t *>(dynamic_smem + (-shared_address(dynamic_smem) & (kSwizzleAlign - 1)));
    uint64_t *sums_there = parts_there + Tile::kWarps;
    char *Q_smem = reinterpret_cast<char *>(parts_there) + kSwizzleAlign;
    char *stages_smem = Q_smem + Tile::kSlabs * Tile::kQSlab;
    char *block_smem = stages_smem + kStages * Tile::kStage;               // [kWarps, kShares] of kPart
    char *other_smem = block_smem + Tile::kWarps * kShares * Tile::kPart;  // [kWarps] of kPart
    char *sums_smem = other_smem + Tile::kWarps * Tile::kPart;             // [kWarps, 8, kParts] float4

    const unsigned warp_of_all = __shfl_sync(kAllLanes, threadIdx.x / kWarpSize, 0);  // uniform, the compiler knows
    const int warpgroup = warp_of_all / kWarpgroupWarps, warp = warp_of_all % kWarpgroupWarps;
    const int thread = threadIdx.x % kWarpgroupSize, lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;  // of the lane in an accumulator, see hopper.cuh
    const int rank = blockIdx.x % kShares;
    const uint32_t head = kHeadsFirst ? blockIdx.x / kShares : blockIdx.y, batch = blockIdx.z,
                   key_head = call.heads_of_key.quotient(head);
    // the last rows first: under a causal mask they take longest
    const unsigned rows_before = kHeadsFirst ? gridDim.y - 1 - blockIdx.y : (gridDim.x - 1 - blockIdx.x) / kShares;
    const int first_row = static_cast<int>(rows_before) * kRows;

    const int copy_row = thread / kUnitElements, copy_unit = thread % kUnitElements;
    const int place = copy_row * kSwizzleBytes + (copy_unit ^ copy_row % 8) * 16;
    const auto row_at = [&](const char *data, const Strides &stride, uint32_t its_head, int row) {
        return data + (stride.row_at(batch, its_head, row) + copy_unit) * kUnit;
    };
    // Tiles of keys go round the blocks of the cluster, then round the warpgroups.
    constexpr int kStride = kParts * kKeys;
    char *stage_smem = stages_smem + warpgroup * 2 * Tile::kTile;
    const int end = call.visible_from(first_row + kRows - 1);
    const int first_key = (warpgroup * kShares + rank) * kKeys;
    const int own_row = warpgroup * kRowsAtOnce + copy_row;  // of Q, the first that the thread copies
    const char *q_from = row_at(call.q, call.q_stride, head, first_row + own_row);
    const char *k_from = row_at(call.k, call.k_stride, key_head, first_key + copy_row);
    const char *v_from = row_at(call.v, call.v_stride, key_head, first_key + copy_row);
    const auto load = [&](int offset, const char *from, const Strides &stride, int first) {
        const int keys = first < end ? call.key_rows : 0;  // a tile that nobody sees, which the first may be, is zeros
        copy_rows<kKeys / kRowsAtOnce, kRowsAtOnce, Tile::kSlabs>(
            shared_address(stage_smem) + offset + place, Tile::kSlab,
            from + int64_t{stride.row} * (first - first_key) * kUnit, stride.row, keys - first - copy_row,
            first + kKeys <= keys);
    };
    const auto load_keys = [&](int stage, int first) { load(stage * Tile::kStage, k_from, call.k_stride, first); };
    const auto load_values = [&](int stage, int first) {
        load(stage * Tile::kStage + Tile::kTile, v_from, call.v_stride, first);
    };

    // What needs no tensor lies beside the end of the kernel before. With two tiles the barriers do not: a block that
    // came late would ask for its copies later.
    dependents_launch();
    const auto expect = [&] {
        if (lane != 0) return;
        mbarrier_arrive_expect(parts_there + warp_of_all, Tile::kPart);
        mbarrier_arrive_expect(sums_there + warp_of_all, (kParts - 1) * Tile::kSums);
    };
    const auto prepare_barriers = [&] {
        if (lane == 0) {
            mbarrier_init(parts_there + warp_of_all, 1);
            mbarrier_init(sums_there + warp_of_all, 1);
            mbarrier_init_fence();
        }
        __syncwarp();
        expect();
        cluster_arrive();
    };
    if constexpr (!kTwoTiles) prepare_barriers();
    asm volatile("" : "+l"(q_from), "+l"(k_from), "+l"(v_from));  // computed before the wait
    prerequisites_wait();

    constexpr int kStep = kRowsAtOnce * kWarpgroups;
    copy_rows<kRows / kStep, kStep, Tile::kSlabs>(
        shared_address(Q_smem) + warpgroup * kRowsAtOnce * kSwizzleBytes + place, Tile::kQSlab, q_from,
        call.q_stride.row, call.query_rows - first_row - own_row, first_row + kRows <= call.query_rows);
    const auto load_first = [&] {
        const bool second = kTwoTiles || first_key + kStride < end;
        load_keys(0, first_key);
        cp_async_commit();
        if (second) load_keys(1, first_key + kStride);
        cp_async_commit();
        load_values(0, first_key);
        cp_async_commit();
        if (second) load_values(1, first_key + kStride);
        cp_async_commit();
    };
    load_first();
    if constexpr (kTwoTiles) prepare_barriers();

    float o_rmem[kShares][kOutputs];  // the columns that the other block finishes, then those that this one does
    float own_rmem[kShares][kOwn];    // of these, what this warp adds up
    float total[2];                   // of the weights of rows g and g + 8, all parts together
    const float factor = call.scale.factor, direct_factor = call.scale.sign * factor;
    const int first_end = call.visible_from(first_row);
    const int part = rank * kWarpgroups + warpgroup;
    // Where the result goes, computed while the copies are under way: its strides are constants that nothing else
    // reads.
    const int row = first_row + warp * 16 + group;
    char *o = call.o + call.o_stride.row_at(batch, head, row) * kUnit + part * kOwn * 4 + member * 4;
    asm volatile("" : "+l"(o));
    char *const from_other = other_smem + warp_of_all * Tile::kPart;

    if constexpr (!kTwoTiles) cluster_wait();  // every block has its barriers ready
    cp_async_wait<3>();
    async_proxy_fence();
    __syncthreads();  // Q and the first tiles of K are there
    const uint64_t q = swizzled_descriptor(Q_smem);
    float s_rmem[kScores];
    uint32_t p_rmem[kKeys / 16][4];
    const auto queue_scores = [&](float (&to_rmem)[kScores], int its_stage) {
        const uint64_t k = swizzled_descriptor(stage_smem + its_stage * Tile::kStage);
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < kDim; d += 16) {
            const int slab = d * 2 / kSwizzleBytes, inside = d * 2 % kSwizzleBytes;
            wgmma_k16<T, false>(to_rmem, descriptor_advance(q, slab * Tile::kQSlab + inside),
                                descriptor_advance(k, slab * Tile::kSlab + inside), d > 0);
        }
        wgmma_commit();
    };
    const auto queue_output = [&](int its_stage, int share) {
        const int bytes = (share == 0 ? rank ^ 1 : rank) * (kDim / kShares * 2);  // of the columns before
        const uint64_t v = swizzled_descriptor(stage_smem + its_stage * Tile::kStage + Tile::kTile +
                                                   bytes / kSwizzleBytes * Tile::kSlab + bytes % kSwizzleBytes,
                                               Tile::kSlab);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
            wgmma_k16<T, true>(o_rmem[share], p_rmem[j], descriptor_advance(v, j * 16 * kSwizzleBytes), true);
        }
        wgmma_commit();
    };
    // After it this warpgroup sees the tiles whose copies it waited for, and all its warps are done with the ones
    // whose products they waited for.
    const auto meet = [&] {
        async_proxy_fence();
        named_barrier_wait<kWarpgroupSize>(kTileBarrier + warpgroup);
    };
    // All that lies between Q, the first tiles of K and this warp's own share of the output. Returns whether weights
    // were such that it is right; with kOnline it is.
    const auto attend = [&](auto online, uint32_t parity) {
        constexpr bool kOnline = decltype(online)::value;
        constexpr float kBias = kWeightBias<T>;
        int key = first_key, stage = 0;
        float highest[2] = {-INFINITY, -INFINITY}, shrink[2];
        float sums[4] = {};  // of weights, as they are rounded: an accumulator whose columns are alike
#pragma unroll
        for (int i = 0; i < kShares * kOutputs; ++i) o_rmem[i / kOutputs][i % kOutputs] = 0.0f;

        const auto weigh = [&](float (&scores_rmem)[kScores]) {
            if constexpr (!kOnline) {
#pragma unroll
                for (int i = 0; i < kScores; ++i)
                    scores_rmem[i] = fmaf(scores_rmem[i], direct_factor, Direct<T>::kExponent);
            } else if (call.scale.sign != 1.0f) {
#pragma unroll
                for (int i = 0; i < kScores; ++i) scores_rmem[i] *= call.scale.sign;
            }
            if (key + kKeys > first_end) {  // some score is hidden
                int last[2];
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    last[r] = call.visible_from(first_row + warp * 16 + r * 8 + group) - key - member * 2;
#pragma unroll
                for (int i = 0; i < kScores; ++i) {
                    if (i / 4 * 8 + i % 2 >= last[i / 2 % 2]) scores_rmem[i] = -INFINITY;
                }
            }
            if constexpr (kOnline) {
                const float before[2] = {highest[0], highest[1]};
#pragma unroll
                for (int i = 0; i < kScores; ++i) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], scores_rmem[i]);
                WeightBase base[2];
#pragma unroll
                for (int r = 0; r < 2; ++r) {
#pragma unroll
                    for (int apart = 1; apart <= 2; ++apart) {
                        highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], apart));
                    }
                    base[r] = weight_base(highest[r], factor, kBias);
                    shrink[r] = shrink_factor(before[r], highest[r], factor, kBias);
                    sums[2 * r] *= shrink[r];
                }
#pragma unroll
                for (int i = 0; i < kScores; ++i) {
                    scores_rmem[i] = fmaf(scores_rmem[i], factor, base[i / 2 % 2].base) - base[i / 2 % 2].rest;
                }
            }
#pragma unroll
            for (int i = 0; i < kScores; ++i) scores_rmem[i] = exp2_approx(scores_rmem[i]);
        };
        const auto take_weights = [&](const float (&weights_rmem)[kScores]) {
            constexpr uint32_t kOnes = std::is_same_v<T, __half> ? 0x3c003c00 : 0x3f803f80;
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    p_rmem[j][i] = pack<T>(weights_rmem[8 * j + 2 * i], weights_rmem[8 * j + 2 * i + 1]);
                mma_m16n8k16<T>(sums, p_rmem[j], {kOnes, kOnes});
            }
        };

        // The scores that were queued become weights, beside the output of the tile before, whose weights are no more
        // needed then.
        const auto weigh_beside_output = [&](float (&scores_rmem)[kScores], int its_stage) {
            queue_output(its_stage, 0);
            queue_output(its_stage, 1);
            wgmma_wait<2>(scores_rmem);
            weigh(scores_rmem);
            finish_before_wait(scores_rmem[kScores - 1]);
            wgmma_wait<0>(o_rmem[0]);
            pin(o_rmem[1]);
        };
        queue_scores(s_rmem, 0);
        if constexpr (kTwoTiles && !kOnline) {
            float next_rmem[kScores];
            cp_async_wait<2>();
            meet();
            queue_scores(next_rmem, 1);
            wgmma_wait<1>(s_rmem);
            weigh(s_rmem);
            take_weights(s_rmem);
            cp_async_wait<1>();
            meet();
            key += kStride, stage = 1;
            weigh_beside_output(next_rmem, 0);
            take_weights(next_rmem);
        } else {
            wgmma_wait<0>(s_rmem);
            weigh(s_rmem);
            take_weights(s_rmem);
            bool second = true;
            for (key += kStride; key < end; key += kStride) {
                if (second) {
                    cp_async_wait<2>();
                } else {
                    cp_async_wait<1>();
                }
                meet();
                queue_scores(s_rmem, stage ^ 1);
                if (key + kStride < end) load_keys(stage, key + kStride);
                cp_async_commit();
                if (!second) load_values(stage ^ 1, key);
                cp_async_commit();
                if (second) {
                    cp_async_wait<3>();
                } else {
                    cp_async_wait<2>();
                }
                meet();
                weigh_beside_output(s_rmem, stage);
                if constexpr (kOnline) {
                    scale_rows(o_rmem[0], shrink);
                    scale_rows(o_rmem[1], shrink);
                }
                take_weights(s_rmem);
                stage ^= 1;
                second = false;
            }
        }
        cp_async_wait<0>();
        meet();
        queue_output(stage, 0);
        if constexpr (kTwoTiles && !kOnline) cluster_wait();  // every block has its barriers ready

        // Highest scores and sums go to all warps that have parts of these rows, a lane to each.
        const int receiver = member % kWarpgroups * kWarpgroupWarps + warp, its_rank = member / kWarpgroups;
        const float4 own_sums = {highest[0], highest[1], sums[0], sums[2]};
        float4 *to_sums =
            reinterpret_cast<float4 *>(sums_smem + receiver * kParts * Tile::kSums) + group * kParts + part;
        if (member == part) {
            *to_sums = own_sums;
        } else {
            cluster_store_async(cluster_address(to_sums, its_rank), own_sums,
                                cluster_address(sums_there + receiver, its_rank));
        }
        // From all of them: the sums of the rows, and what this warp's part of the output is to be multiplied by so
        // that the highest scores of all parts are its base.
        float times[2];
        const auto settle = [&] {
            __syncwarp();
            cluster_barrier_wait(sums_there + warp_of_all, parity);
            const float4 its = reinterpret_cast<const float4 *>(sums_smem + warp_of_all * kParts * Tile::kSums)[lane];
            const float its_highest[2] = {its.x, its.y}, its_total[2] = {its.z, its.w};
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float top = its_highest[r];
                total[r] = its_total[r];
                if constexpr (kOnline) {
                    for (int apart = 1; apart <= 2; ++apart) {
                        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
                    }
                    times[r] = shrink_factor(highest[r], top, factor, kBias);
                    total[r] *= shrink_factor(its_highest[r], top, factor, kBias);
                }
#pragma unroll
                for (int apart = 1; apart <= 2; ++apart) total[r] += __shfl_xor_sync(kAllLanes, total[r], apart);
            }
        };
        if constexpr (kOnline) settle();

        // Add up in the block: the warps of the same 16 rows meet, and each has half of the columns then.
        const int partner = warp_of_all ^ kWarpgroupWarps;
        const auto part_of = [&](int whose, int share) {
            return reinterpret_cast<float4 *>(block_smem + (whose * kShares + share) * Tile::kPart) + lane;
        };
        const auto add_up = [&](int share) {
            if constexpr (kOnline) scale_rows(o_rmem[share], times);
            float send[kOwn];
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const float first = o_rmem[share][i], second_part = o_rmem[share][kOwn + i];
                own_rmem[share][i] = warpgroup == 0 ? first : second_part;
                send[i] = warpgroup == 0 ? second_part : first;
            }
#pragma unroll
            for (int i = 0; i < kOwn; i += 4) {
                part_of(partner, share)[i / 4 * kWarpSize] = {send[i], send[i + 1], send[i + 2], send[i + 3]};
            }
            named_barrier_wait<2 * kWarpSize>(kPairBarrier + warp);
#pragma unroll
            for (int i = 0; i < kOwn; i += 4) {
                const float4 four = part_of(warp_of_all, share)[i / 4 * kWarpSize];
                float *own = &own_rmem[share][i];
                own[0] += four.x, own[1] += four.y, own[2] += four.z, own[3] += four.w;
            }
        };
        wgmma_wait<0>(o_rmem[0]);
        add_up(0);

        // And in the cluster: the other block is sent its share while this block's own is added up.
        const uint32_t to = cluster_address(from_other, rank ^ 1);
        const uint32_t arrival = cluster_address(parts_there + warp_of_all, rank ^ 1);
#pragma unroll
        for (int i = 0; i < kOwn; i += 4) {
            const float *send = &own_rmem[0][i];
            cluster_store_async(to + lane * 16 + i / 4 * kWarpSize * 16, float4{send[0], send[1], send[2], send[3]},
                                arrival);
        }
        queue_output(stage, 1);            // not before: what is sent would wait for it
        if constexpr (!kOnline) settle();  // beside it
        wgmma_wait<0>(o_rmem[1]);
        add_up(1);
        bool bad = false;
        if constexpr (!kOnline) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int seen = call.visible_from(first_row + warp * 16 + r * 8 + group);
                bad |= !(total[r] <= Direct<T>::kMost && total[r] >= Direct<T>::kLeastMean * static_cast<float>(seen));
            }
            bad = named_barrier_any<kWarpgroupSize>(kTileBarrier + warpgroup, bad);
        }
        cluster_barrier_wait(parts_there + warp_of_all, parity);
        return !bad;
    };
    if (!attend(std::false_type(), 0)) {  // for all warps of the cluster alike
        expect();
        cluster_meet();
        load_first();
        cp_async_wait<3>();
        meet();
        attend(std::true_type(), 1);
    }

    const int64_t o_8_rows = int64_t{call.o_stride.row} * (8 * kUnit);
    const float4 *parts = reinterpret_cast<const float4 *>(from_other);
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) by[r] = total[r] > 0.0f ? reciprocal_approx(total[r]) : 0.0f;  // no visible key: zeros
    float (&own)[kOwn] = own_rmem[1];
#pragma unroll
    for (int i = 0; i < kOwn; i += 4) {
        const float4 four = parts[i / 4 * kWarpSize + lane];
        own[i] = (own[i] + four.x) * by[0], own[i + 1] = (own[i + 1] + four.y) * by[0];
        own[i + 2] = (own[i + 2] + four.z) * by[1], own[i + 3] = (own[i + 3] + four.w) * by[1];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (row + r * 8 >= call.query_rows) break;
#pragma unroll
        for (int i = 2 * r; i < kOwn; i += 4) {
            *reinterpret_cast<uint32_t *>(o + r * o_8_rows + i / 4 * 16) = pack<T>(own[i], own[i + 1]);
        }
    }
}

template <typename T, int kDim>
const char *launch_for(const AttentionArgs &args, void *stream) {
    using Tile = Tiling<kDim>;
    Grid grid = short_grid(args, kRows, Tile::kThreads, Tile::kSharedBytes, kShares);
    int multiprocessors = 0;
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, args.placement.index);
    const bool all_at_once = grid.blocks * grid.second * grid.third <= multiprocessors;
    if (all_at_once) grid.shared_bytes = std::max(grid.shared_bytes, kMoreThanHalf);
    const int64_t row_blocks = grid.blocks / kShares;
    const auto launch_with = [&](auto kernel) {
        return launch_kernel("fp16_cluster", kernel, dependent(grid), args.placement, stream, short_call(args));
    };
    constexpr int64_t kRound = kParts * kKeys;
    if (!args.causal && args.key_rows > kRound && args.key_rows <= 2 * kRound) {
        return launch_with(attention<T, kDim, Form::kTwoTiles>);
    }
    // Of blocks that differ in length and come one after the other, the long ones of a batch's heads are to be first.
    if (!args.causal || all_at_once || row_blocks > kMostOfOthers) {
        return launch_with(attention<T, kDim, Form::kAnyKeys>);
    }
    grid.blocks = args.query_heads * kShares, grid.second = row_blocks;
    return launch_with(attention<T, kDim, Form::kLongFirst>);
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    return args.head_dim == 64 ? launch_for<T, 64>(args, stream) : launch_for<T, 128>(args, stream);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    const char *refusal = short_call_refusal("fp16_cluster", args);
    if (refusal != nullptr) return refusal;
    return args.dtype == Dtype::kFloat16 ? launch_for<__half>(args, stream) : launch_for<__nv_bfloat16>(args, stream);
}

}  // namespace fp16_cluster

KERNELPROOF_LAUNCH(fp16_cluster)
