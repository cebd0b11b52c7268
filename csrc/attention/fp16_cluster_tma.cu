// Attention forward for short sequences on sm_90a: a cluster has a few tiles of 64 query rows times a few shares of the
// keys, a block for each. Blocks with the same keys fetch a part each and the copy engine hands it to all of them: what
// limits a short sequence is how fast the L2 delivers. In a block, warpgroups share out the keys once more; a
// warpgroup has all its keys and values under way at once. The parts of the output meet first in the block, then in the
// block that owns the rows, which is told by its mbarrier.
#include "../common/approx.cuh"
#include "../common/cluster.cuh"
#include "../common/cuda_launch.h"
#include "../common/dependent_launch.cuh"
#include "../common/divide.h"
#include "../common/hopper.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "../common/tensor_map.h"
#include "online_softmax.h"
#include "weights.cuh"

namespace fp16_cluster_tma {

// To be measured: see csrc/README.md.
#ifndef CLUSTER_SHARES
    #define CLUSTER_SHARES 2
#endif
#ifndef CLUSTER_ROW_TILES
    #define CLUSTER_ROW_TILES 2
#endif
#ifndef CLUSTER_WARPGROUPS
    #define CLUSTER_WARPGROUPS 2
#endif
#ifndef CLUSTER_KEYS
    #define CLUSTER_KEYS 128
#endif
#ifndef CLUSTER_BLOCKS
    #define CLUSTER_BLOCKS 1
#endif
#ifndef CLUSTER_MULTICAST_K
    #define CLUSTER_MULTICAST_K 1
#endif

constexpr int kShares = CLUSTER_SHARES;             // of the keys
constexpr int kRowTiles = CLUSTER_ROW_TILES;        // of a cluster; rank = share + kShares * row tile
constexpr int kCluster = kShares * kRowTiles;       // blocks
constexpr int kBlocks = CLUSTER_BLOCKS;             // of a multiprocessor
constexpr int kWarps = kWarpgroupSize / kWarpSize;  // of a warpgroup; warp w has rows 16 w to 16 w + 15
constexpr int kRows = kWarpgroupRows;               // query rows of a block
constexpr int kOwnedWarps = kWarps / kShares;       // rows of these many warps are a block's to store
constexpr int kKeys = 64;                           // of a step: one product, one barrier
constexpr int kColumnsAtOnce = kSwizzleBytes / 2;   // that the copy engine brings
constexpr bool kMulticastK = kRowTiles > 1 && CLUSTER_MULTICAST_K != 0, kMulticastV = kRowTiles > 1;
constexpr int kStatsBytes = 16 * sizeof(float2);  // highest score and sum of a warp's rows
constexpr int kSharedMost = 227 * 1024;
static_assert(kShares == 1 || kShares == 2 || kShares == 4, "a block owns the rows of whole warps");
static_assert(kCluster <= 8, "a cluster of more than 8 blocks is not portable");
static_assert(kKeys / kRowTiles % 8 == 0, "a swizzled box has whole groups of 8 rows");

enum Barrier { kWarpgroupBarrier = 1, kRowBarrier = kWarpgroupBarrier + 4 };

struct Problem {
    char *o;                         // [batch, query_heads, query_rows, head_dim]
    int64_t o_batch, o_head, o_row;  // bytes
    int query_rows;
    int key_rows;
    int diagonal;  // query row i sees keys [0, min(i + diagonal, key_rows))
    int stages;
    SoftmaxScale scale;
    Divider row_blocks;    // clusters of a head
    Divider heads;         // query heads
    Divider heads_of_key;  // query heads of a key head
};

template <int kDim>
struct Tiling {
    static constexpr int kWarpgroups = kDim == 64 || CLUSTER_WARPGROUPS == 1 ? CLUSTER_WARPGROUPS : 2;
    static constexpr int kThreads = kWarpgroups * kWarpgroupSize;
    static constexpr int kSteps = kDim == 64 ? CLUSTER_KEYS / kKeys : 1;  // that a warpgroup has under way
    static constexpr int kSlabs = kDim / kColumnsAtOnce;
    static constexpr int kQSlab = kRows * kSwizzleBytes, kSlab = kKeys * kSwizzleBytes;
    static constexpr int kStep = kSlabs * kSlab;                     // bytes of K, and of V
    static constexpr int kStage = kWarpgroups * 2 * kSteps * kStep;  // [kWarpgroups, K and V, kSteps]
    static constexpr int kColumns = kDim / kWarpgroups;              // of the output that a warp adds up for its rows
    static constexpr int kPart = 16 * kColumns * 4;                  // bytes of those: [kColumns / 8, 32] float4
    static constexpr int kHandedOver = (kWarpgroups - 1) * kWarps * kWarpgroups;  // parts between warpgroups
    static constexpr int kReceived = (kShares - 1) * kOwnedWarps * kWarpgroups;   // parts from other blocks
    static constexpr int kBarriers = 1 + 2 * kWarpgroups * (2 * kSteps + 1) + kOwnedWarps * kWarpgroups;
    static constexpr int kFixed = kSwizzleAlign + kSlabs * kQSlab + (kHandedOver + kReceived) * kPart +
                                  (kReceived + kWarpgroups * kWarps) * kStatsBytes + kBarriers * 8;
    static_assert(kSteps >= 1 && kColumns % 8 == 0, "a warp adds up whole blocks of 8 columns");
};

template <typename T, int kDim>
__global__ void __launch_bounds__(Tiling<kDim>::kThreads, kBlocks)
    attention(const __grid_constant__ Problem problem,
              const __grid_constant__ CUtensorMap q_map,  // [batch, query_heads, query_rows, kDim]
              const __grid_constant__ CUtensorMap k_map,  // [batch, key_heads, key_rows, kDim]
              const __grid_constant__ CUtensorMap v_map) {
    using Tile = Tiling<kDim>;
    constexpr int kWarpgroups = Tile::kWarpgroups, kSteps = Tile::kSteps;
    constexpr int kScores = kKeys / 2, kOutputs = kDim / 2, kOwn = kOutputs / kWarpgroups;
    constexpr float kBias = kWeightBias<T>;

    const int warp_of_all = __shfl_sync(kAllLanes, threadIdx.x / kWarpSize, 0);  // uniform, and the compiler knows
    const int warpgroup = warp_of_all / kWarps, warp = warp_of_all % kWarps;
    const int lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;  // of the lane in an accumulator, see hopper.cuh
    const bool leader = warp == 0 && lane == 0;     // feeds its warpgroup
    const int share = blockIdx.x % kShares, row_tile = blockIdx.x / kShares % kRowTiles;

    extern __shared__ char dynamic_smem[];
    char *Q_smem = dynamic_smem + (-shared_address(dynamic_smem) & (kSwizzleAlign - 1));  // [kSlabs, kRows, 64]
    char *stage_smem = Q_smem + Tile::kSlabs * Tile::kQSlab + warpgroup * 2 * kSteps * Tile::kStep;
    char *handed_smem = Q_smem + Tile::kSlabs * Tile::kQSlab + problem.stages * Tile::kStage;
    char *received_smem = handed_smem + Tile::kHandedOver * Tile::kPart;
    float2 *received_stats_smem = reinterpret_cast<float2 *>(received_smem + Tile::kReceived * Tile::kPart);
    float2 *stats_smem = received_stats_smem + Tile::kReceived * 16;  // [kWarpgroups, kRows]
    uint64_t *q_full = reinterpret_cast<uint64_t *>(stats_smem + kWarpgroups * kRows);
    uint64_t *k_full = q_full + 1;                         // [2 stages, kWarpgroups, kSteps]
    uint64_t *v_full = k_full + 2 * kWarpgroups * kSteps;  // [2 stages, kWarpgroups, kSteps]
    uint64_t *empty = v_full + 2 * kWarpgroups * kSteps;   // [2 stages, kWarpgroups]
    uint64_t *part_full = empty + 2 * kWarpgroups;         // [kOwnedWarps, kWarpgroups]

    static_assert(Tile::kBarriers <= Tile::kThreads, "a thread initialises one barrier");
    if (threadIdx.x < Tile::kBarriers) {
        uint64_t *barrier = q_full + threadIdx.x;
        mbarrier_init(barrier, barrier >= empty && barrier < part_full ? kRowTiles : 1);
        if (kShares > 1 && barrier >= part_full) {
            mbarrier_arrive_expect(barrier, (kShares - 1) * (Tile::kPart + kStatsBytes));
        }
        mbarrier_init_fence();
    }
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&q_map);
        tensor_map_prefetch(&k_map);
        tensor_map_prefetch(&v_map);
    }
    __syncwarp();
    if (kCluster > 1) cluster_arrive();
    if (kCluster == 1 || !kMulticastK) __syncthreads();

    let_next_kernel_start();

    const uint32_t tile_of_all = blockIdx.x / kCluster;
    const uint32_t head_of_all = problem.row_blocks.quotient(tile_of_all);
    const int batch = static_cast<int>(problem.heads.quotient(head_of_all));
    const int head = static_cast<int>(head_of_all - batch * problem.heads.divisor);
    const int key_head = static_cast<int>(problem.heads_of_key.quotient(head));
    // the last rows first: under a causal mask they take longest
    const int cluster_row =
        static_cast<int>((head_of_all + 1) * problem.row_blocks.divisor - 1 - tile_of_all) * (kRowTiles * kRows);
    const int first_row = cluster_row + row_tile * kRows;
    const int key_rows = problem.key_rows;
    const float factor = problem.scale.factor;
    const auto visible_from = [&](int row) { return min(max(row + problem.diagonal, 0), key_rows); };
    const int first_end = visible_from(first_row), cluster_end = visible_from(cluster_row + kRowTiles * kRows - 1);

    // One step of K or V: the whole of it, or the share of it that this block hands to all with the same keys.
    const auto copy = [&](char *to_smem, const CUtensorMap *map, uint64_t *full, int key, bool multicast) {
        mbarrier_arrive_expect(full, Tile::kStep);
        constexpr int kBoxRows = kKeys / kRowTiles;
        constexpr uint32_t kSameKeys = kRowTiles == 1   ? 1
                                       : kRowTiles == 2 ? 1 | 1 << kShares
                                                        : 1 | 1 << kShares | 1 << 2 * kShares | 1 << 3 * kShares;
#pragma unroll
        for (int slab = 0; slab < Tile::kSlabs; ++slab) {
            char *slab_smem = to_smem + slab * Tile::kSlab;
            if (multicast) {
                cluster_tensor_copy_4d(slab_smem + row_tile * kBoxRows * kSwizzleBytes, map, full,
                                       slab * kColumnsAtOnce, key + row_tile * kBoxRows, key_head, batch,
                                       static_cast<uint16_t>(kSameKeys << share));
            } else {
#pragma unroll
                for (int box = 0; box < kRowTiles; ++box) {
                    tensor_copy_4d(slab_smem + box * kBoxRows * kSwizzleBytes, map, full, slab * kColumnsAtOnce,
                                   key + box * kBoxRows, key_head, batch);
                }
            }
        }
    };
    const auto copy_k = [&](int stage, int key) {
        for (int step = 0; step < kSteps; ++step) {
            copy(stage_smem + stage * Tile::kStage + step * Tile::kStep, &k_map,
                 k_full + (stage * kWarpgroups + warpgroup) * kSteps + step, key + step * kKeys, kMulticastK);
        }
    };
    const auto copy_v = [&](int stage, int key) {
        for (int step = 0; step < kSteps; ++step) {
            copy(stage_smem + stage * Tile::kStage + (kSteps + step) * Tile::kStep, &v_map,
                 v_full + (stage * kWarpgroups + warpgroup) * kSteps + step, key + step * kKeys, kMulticastV);
        }
    };
    // Tiles of keys go round the blocks of the cluster, then round the warpgroups.
    constexpr int kStride = kShares * kWarpgroups * kSteps * kKeys;
    const int first_key = (warpgroup * kShares + share) * kSteps * kKeys;
    wait_for_kernels_before();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(q_full, Tile::kSlabs * Tile::kQSlab);
#pragma unroll
        for (int slab = 0; slab < Tile::kSlabs; ++slab) {
            tensor_copy_4d(Q_smem + slab * Tile::kQSlab, &q_map, q_full, slab * kColumnsAtOnce, first_row, head, batch);
        }
    }
    if (!kMulticastK && leader && first_key < cluster_end) copy_k(0, first_key);
    if (kRowTiles > 1) cluster_wait();  // every block has its barriers ready
    if (leader && first_key < cluster_end) {
        if (kMulticastK) copy_k(0, first_key);
        copy_v(0, first_key);
    }

    float o_rmem[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o_rmem[i] = 0.0f;
    float highest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of rows g and g + 8; a lane sums its own columns only
    const int row_ends[2] = {visible_from(first_row + warp * 16 + group),
                             visible_from(first_row + warp * 16 + 8 + group)};

    mbarrier_wait(q_full, 0);
    int round = 0;
    for (int key = first_key; key < cluster_end; key += kStride, ++round) {
        const int stage = round % 2, next = key + kStride;
        const uint32_t parity = round / 2 % 2;
        if (leader && next < cluster_end) {
            if (round > 0) mbarrier_wait(empty + (1 - stage) * kWarpgroups + warpgroup, (round - 1) / 2 % 2);
            copy_k(1 - stage, next);
            copy_v(1 - stage, next);
        }
        __syncwarp();

        // S = Q K^T, all steps
        float s_rmem[kSteps][kScores];
        const uint64_t q = swizzled_descriptor(Q_smem), k = swizzled_descriptor(stage_smem + stage * Tile::kStage);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            mbarrier_wait(k_full + (stage * kWarpgroups + warpgroup) * kSteps + step, parity);
            wgmma_fence();
#pragma unroll
            for (int d = 0; d < kDim; d += 16) {
                const int slab = d / kColumnsAtOnce, inside = d % kColumnsAtOnce * 2;
                wgmma_k16<T, false>(s_rmem[step], descriptor_advance(q, slab * Tile::kQSlab + inside),
                                    descriptor_advance(k, step * Tile::kStep + slab * Tile::kSlab + inside), d > 0);
            }
            wgmma_commit();
        }

        uint32_t p_rmem[kSteps][kKeys / 16][4];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            float (&score)[kScores] = s_rmem[step];
            // under way: the scores of later steps, and the output of the step before
            if (step == 0) {
                wgmma_wait<kSteps - 1>(score);
            } else {
                wgmma_wait<1>(score);
            }
            if (problem.scale.sign != 1.0f) {
#pragma unroll
                for (int i = 0; i < kScores; ++i) score[i] *= problem.scale.sign;
            }
            if (key + (step + 1) * kKeys > first_end) {  // some score is hidden
#pragma unroll
                for (int i = 0; i < kScores; ++i) {
                    const int end = row_ends[i / 2 % 2] - key - step * kKeys - member * 2;
                    if (i / 4 * 8 + i % 2 >= end) score[i] = -INFINITY;
                }
            }

            // softmax; the weights replace the scores
            const float before[2] = {highest[0], highest[1]};
#pragma unroll
            for (int i = 0; i < kScores; ++i) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], score[i]);
#pragma unroll
            for (int lanes = 1; lanes <= 2; ++lanes) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], lanes));
                }
            }
            WeightBase base[2];
            float shrink[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                base[r] = weight_base(highest[r], factor, kBias);
                shrink[r] = shrink_factor(before[r], highest[r], factor, kBias);
                total[r] *= shrink[r];
            }
#pragma unroll
            for (int i = 0; i < kScores; ++i) score[i] = fmaf(score[i], factor, base[i / 2 % 2].base);
            if (__any_sync(kAllLanes, base[0].rest != 0.0f || base[1].rest != 0.0f)) {
#pragma unroll
                for (int i = 0; i < kScores; ++i) score[i] -= base[i / 2 % 2].rest;
            }
#pragma unroll
            for (int i = 0; i < kScores; ++i) {
                score[i] = exp2_approx(score[i]);
                total[i / 2 % 2] += score[i];
            }
#pragma unroll
            for (int i = 0; i < kScores; i += 2) p_rmem[step][i / 8][i / 2 % 4] = pack<T>(score[i], score[i + 1]);

            // O += P V
            mbarrier_wait(v_full + (stage * kWarpgroups + warpgroup) * kSteps + step, parity);
            const uint64_t v =
                swizzled_descriptor(stage_smem + stage * Tile::kStage + (kSteps + step) * Tile::kStep, Tile::kSlab);
            if (step > 0) wgmma_wait<0>(o_rmem);
            if (step > 0 || round > 0) {
#pragma unroll
                for (int i = 0; i < kOutputs; ++i) o_rmem[i] *= shrink[i / 2 % 2];
            }
            pin(o_rmem);
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
                wgmma_k16<T, true>(o_rmem, p_rmem[step][j], descriptor_advance(v, j * 16 * kSwizzleBytes), true);
            }
            wgmma_commit();
        }
        wgmma_wait<0>(o_rmem);
        if (next + kStride < cluster_end) {  // this stage will be filled again
            named_barrier_wait<kWarpgroupSize>(kWarpgroupBarrier + warpgroup);
            if (warp == 0 && lane < kRowTiles) {
                cluster_mbarrier_arrive(
                    cluster_address(empty + stage * kWarpgroups + warpgroup, share + kShares * lane));
            }
            __syncwarp();
        }
    }

    // Combine in the block: of its rows, each warpgroup adds up its own columns.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
        if (member == 0) stats_smem[warpgroup * kRows + warp * 16 + r * 8 + group] = {highest[r], total[r]};
    }
    float own_rmem[kOwn];
    const auto handed = [&](int from, int to) {
        const int part = (from * (kWarpgroups - 1) + (to < from ? to : to - 1)) * kWarps + warp;
        return reinterpret_cast<float4 *>(handed_smem + part * Tile::kPart) + lane;
    };
#pragma unroll
    for (int w = 0; w < kWarpgroups; ++w) {
        if (w == warpgroup) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) own_rmem[i] = o_rmem[w * kOwn + i];
        } else {
            float4 *to = handed(warpgroup, w);
#pragma unroll
            for (int i = 0; i < kOwn; i += 4) {
                const float *from = &o_rmem[w * kOwn + i];
                to[i / 4 * kWarpSize] = {from[0], from[1], from[2], from[3]};
            }
        }
    }
    // Adds what others have: highest scores and sums of rows g and g + 8, and an accumulator of the own columns.
    const auto add = [&](const float2 *stats, const float4 *other_smem) {
        float keep[2], take[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float2 other = stats[r * 8];
            const float top = fmaxf(highest[r], other.x);
            keep[r] = shrink_factor(highest[r], top, factor, kBias);
            take[r] = shrink_factor(other.x, top, factor, kBias);
            total[r] = total[r] * keep[r] + other.y * take[r];
            highest[r] = top;
        }
#pragma unroll
        for (int i = 0; i < kOwn; i += 4) {
            const float4 four = other_smem[i / 4 * kWarpSize];
            own_rmem[i] = fmaf(own_rmem[i], keep[0], four.x * take[0]);
            own_rmem[i + 1] = fmaf(own_rmem[i + 1], keep[0], four.y * take[0]);
            own_rmem[i + 2] = fmaf(own_rmem[i + 2], keep[1], four.z * take[1]);
            own_rmem[i + 3] = fmaf(own_rmem[i + 3], keep[1], four.w * take[1]);
        }
    };
    if (kWarpgroups > 1) {
        named_barrier_wait<kWarpgroups * kWarpSize>(kRowBarrier + warp);
#pragma unroll
        for (int w = 0; w < kWarpgroups; ++w) {
            if (w != warpgroup) add(stats_smem + w * kRows + warp * 16 + group, handed(w, warpgroup));
        }
    }

    // Combine in the cluster: each block stores the rows of kOwnedWarps warps.
    if (kShares > 1) {
        const int owner = warp / kOwnedWarps, owned = warp % kOwnedWarps;
        const auto part_of = [&](int sender) { return (sender * kOwnedWarps + owned) * kWarpgroups + warpgroup; };
        const auto received = [&](int part) {
            return reinterpret_cast<float4 *>(received_smem + part * Tile::kPart) + lane;
        };
        uint64_t *full = part_full + owned * kWarpgroups + warpgroup;
        if (kRowTiles == 1) cluster_wait();  // the owner has its barriers ready
        if (owner != share) {
            const int rank = owner + kShares * row_tile;
            const int part = part_of(share < owner ? share : share - 1);  // senders are counted without the owner
            const uint32_t arrival = cluster_address(full, rank), to = cluster_address(received(part), rank);
#pragma unroll
            for (int i = 0; i < kOwn; i += 4) {
                const float4 four = {own_rmem[i], own_rmem[i + 1], own_rmem[i + 2], own_rmem[i + 3]};
                cluster_store_async(to + i / 4 * kWarpSize * sizeof(float4), four, arrival);
            }
            if (member < 2) {
                const float2 stats = {member == 0 ? highest[0] : highest[1], member == 0 ? total[0] : total[1]};
                cluster_store_async(cluster_address(received_stats_smem + part * 16 + member * 8 + group, rank), stats,
                                    arrival);
            }
            return;
        }
        cluster_barrier_wait(full, 0);
#pragma unroll
        for (int sender = 0; sender < kShares - 1; ++sender) {
            add(received_stats_smem + part_of(sender) * 16 + group, received(part_of(sender)));
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = first_row + warp * 16 + r * 8 + group;
        if (row >= problem.query_rows) continue;
        const float inverse = total[r] > 0.0f ? reciprocal_approx(total[r]) : 0.0f;  // no visible key: zeros
        char *to = problem.o + batch * problem.o_batch + head * problem.o_head + row * problem.o_row;
#pragma unroll
        for (int i = 2 * r; i < kOwn; i += 4) {
            const int column = warpgroup * Tile::kColumns + i / 4 * 8 + member * 2;
            *reinterpret_cast<uint32_t *>(to + column * 2) = pack<T>(own_rmem[i] * inverse, own_rmem[i + 1] * inverse);
        }
    }
}

template <typename T, int kDim>
const char *launch_for(const AttentionArgs &args, void *stream) {
    using Tile = Tiling<kDim>;
    constexpr int64_t kMost = 1 << 30;
    constexpr const char *kName = "fp16_cluster_tma";
    static_assert(Tile::kFixed + 2 * Tile::kStage <= kSharedMost, "two stages do not fit in shared memory");
    if (args.query_rows >= kMost || args.key_rows >= kMost) return "fp16_cluster_tma takes fewer than 2^30 rows";
    const int64_t row_blocks = (args.query_rows + kRowTiles * kRows - 1) / (kRowTiles * kRows);
    const int64_t clusters = row_blocks * args.query_heads * args.batch;
    if (row_blocks > INT32_MAX / kCluster / (args.query_heads * args.batch)) {
        return "fp16_cluster_tma would need more than 2^31 - 1 blocks";
    }
    const Tensor4 q = {"q", args.q, args.batch, args.query_heads, args.query_rows, kDim, args.q_stride, 2};
    const Tensor4 k = {"k", args.k, args.batch, args.key_heads, args.key_rows, kDim, args.k_stride, 2};
    const Tensor4 v = {"v", args.v, args.batch, args.key_heads, args.key_rows, kDim, args.v_stride, 2};
    const Tensor4 o = {"o", args.o, args.batch, args.query_heads, args.query_rows, kDim, args.o_stride, 2};
    for (const Tensor4 *tensor : {&q, &k, &v, &o}) {
        if (const char *wrong = check_rows_aligned(kName, *tensor)) return wrong;
    }
    constexpr CUtensorMapDataType kType =
        std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUtensorMap q_map, k_map, v_map;
    const char *wrong = make_tensor_map(kName, q_map, kType, q, kRows);
    if (wrong == nullptr) wrong = make_tensor_map(kName, k_map, kType, k, kKeys / kRowTiles);
    if (wrong == nullptr) wrong = make_tensor_map(kName, v_map, kType, v, kKeys / kRowTiles);
    if (wrong != nullptr) return wrong;

    const int stages = args.key_rows > kShares * Tile::kWarpgroups * Tile::kSteps * kKeys ? 2 : 1;
    const Problem problem = {static_cast<char *>(args.o),
                             args.o_stride.batch * 2,
                             args.o_stride.head * 2,
                             args.o_stride.row * 2,
                             static_cast<int>(args.query_rows),
                             static_cast<int>(args.key_rows),
                             static_cast<int>(args.causal ? args.key_rows - args.query_rows + 1 : args.key_rows),
                             stages,
                             SoftmaxScale(args.scale),
                             Divider(static_cast<uint32_t>(row_blocks)),
                             Divider(static_cast<uint32_t>(args.query_heads)),
                             Divider(static_cast<uint32_t>(args.query_heads / args.key_heads))};
    return launch_kernel(kName, attention<T, kDim>,
                         {clusters * kCluster, Tile::kThreads, Tile::kFixed + stages * Tile::kStage, kCluster},
                         args.placement, stream, problem, q_map, k_map, v_map);
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    return args.head_dim == 64 ? launch_for<T, 64>(args, stream) : launch_for<T, 128>(args, stream);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_cluster_tma takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_cluster_tma takes float16 or bfloat16, not float32";
}

}  // namespace fp16_cluster_tma

KERNELPROOF_LAUNCH(fp16_cluster_tma)
