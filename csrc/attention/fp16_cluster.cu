// Attention forward for short sequences on sm_90a: the keys are shared out over two blocks of a cluster and, in a
// block, over two warpgroups. A warpgroup takes its keys in one pass: all its loads under way at once, all its scores
// in registers. The four parts of the output meet once: each warpgroup of the cluster adds up and stores a quarter of
// the columns, and the others send it theirs, which its mbarrier counts.
#include "../common/approx.cuh"
#include "../common/cluster.cuh"
#include "../common/cp_async.cuh"
#include "../common/cuda_launch.h"
#include "../common/hopper.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "short_call.cuh"
#include "weights.cuh"

namespace fp16_cluster {

constexpr int kParts = 4;                      // of the keys, and of the output's columns
constexpr int kShares = 2;                     // blocks of a cluster
constexpr int kWarpgroups = kParts / kShares;  // of a block
constexpr int kThreads = kWarpgroups * kWarpgroupSize;
constexpr int kRows = kWarpgroupRows;                        // query rows of a cluster
constexpr int kRowsAtOnce = kWarpgroupSize / kUnitElements;  // that a warpgroup copies, 128 bytes each
constexpr int kBarriers = kWarpgroups * kWarpgroupWarps;
constexpr int kWarpgroupBarrier = 1;  // the first of kWarpgroups named barriers
static_assert(kParts == 4, "the four lanes of a row look after one part each");

template <int kDim>
struct Tiling {
    static constexpr int kKeys = kDim == 64 ? 128 : 64;  // of a warpgroup at a time
    static constexpr int kBlocks = kDim == 64 ? 2 : 1;   // of a multiprocessor
    static constexpr int kSlabs = kDim * 2 / kSwizzleBytes;
    static constexpr int kQSlab = kRows * kSwizzleBytes, kSlab = kKeys * kSwizzleBytes;
    static constexpr int kTile = kSlabs * kSlab;            // of K or V
    static constexpr int kStage = kWarpgroups * 2 * kTile;  // [kWarpgroups, K and V]
    static constexpr int kColumns = kDim / kParts;          // of the output that a warpgroup adds up
    static constexpr int kPart = 16 * kColumns * 4;         // bytes of those, 16 rows: [kColumns / 8, 32 lanes] float4
    static constexpr int kStats = 8 * 16;                   // bytes: highest scores and sums of 16 rows, [8] float4
    static constexpr int kExpected = (kParts - 1) * kPart + kParts * kStats;
    static constexpr int kFixed = 2 * kSwizzleAlign + kSlabs * kQSlab + kBarriers * kParts * (kPart + kStats);
    static_assert(kBarriers * 8 <= kSwizzleAlign, "the barriers have their place in front of the tiles");
    static_assert(kKeys % 16 == 0 && kSlab % kSwizzleAlign == 0, "slabs start where the swizzle's pattern starts");
    static_assert(kBarriers * kParts * (kPart + kStats) % kSwizzleAlign == 0, "and so do the tiles behind the parts");
    static_assert(kFixed + 2 * kStage <= kBlockSharedBytes, "two stages fit in shared memory");
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

template <typename T, int kDim>
__global__ void __cluster_dims__(kShares, 1, 1) __launch_bounds__(kThreads, Tiling<kDim>::kBlocks)
    attention(const __grid_constant__ ShortCall call) {
    using Tile = Tiling<kDim>;
    constexpr int kKeys = Tile::kKeys, kScores = kKeys / 2, kOutputs = kDim / 2, kOwn = kOutputs / kParts;
    constexpr float kBias = kWeightBias<T>;

    extern __shared__ char dynamic_smem[];
    // barriers, then tiles: Q [kSlabs, kRows, 64], what other warpgroups send, stages of K and V
    uint64_t *full = reinterpret_cast<uint64_t *>(dynamic_smem + (-shared_address(dynamic_smem) & (kSwizzleAlign - 1)));
    char *Q_smem = reinterpret_cast<char *>(full) + kSwizzleAlign;
    char *part_smem = Q_smem + Tile::kSlabs * Tile::kQSlab;           // [kBarriers, kParts] of kPart bytes
    char *stats_smem = part_smem + kBarriers * kParts * Tile::kPart;  // [kBarriers, kParts] of kStats bytes
    char *stages_smem = stats_smem + kBarriers * kParts * Tile::kStats;

    const int warp_of_all = __shfl_sync(kAllLanes, threadIdx.x / kWarpSize, 0);  // uniform, and the compiler knows
    const int warpgroup = warp_of_all / kWarpgroupWarps, warp = warp_of_all % kWarpgroupWarps;
    const int thread = threadIdx.x % kWarpgroupSize, lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;  // of the lane in an accumulator, see hopper.cuh
    const int rank = blockIdx.x % kShares, part = rank * kWarpgroups + warpgroup;
    const uint32_t head = blockIdx.y, batch = blockIdx.z, key_head = call.heads_of_key.quotient(head);
    // the last rows first: under a causal mask they take longest
    const int first_row = static_cast<int>((gridDim.x - 1 - blockIdx.x) / kShares) * kRows;

    const int copy_row = thread / kUnitElements, copy_unit = thread % kUnitElements;
    const int place = copy_row * kSwizzleBytes + (copy_unit ^ copy_row % 8) * 16;
    const auto row_at = [&](const char *data, const Strides &stride, uint32_t its_head, int row) {
        return data + (stride.row_at(batch, its_head, row) + copy_unit) * kUnit;
    };
    // Tiles of keys go round the blocks of the cluster, then round the warpgroups.
    constexpr int kStride = kParts * kKeys;
    char *stage_smem = stages_smem + warpgroup * 2 * Tile::kTile;
    const auto load = [&](int offset, const char *data, const Strides &stride, int first) {
        copy_rows<kKeys / kRowsAtOnce, kRowsAtOnce, Tile::kSlabs>(
            shared_address(stage_smem) + offset + place, Tile::kSlab, row_at(data, stride, key_head, first + copy_row),
            stride.row, call.key_rows - first - copy_row, first + kKeys <= call.key_rows);
    };
    const int cluster_end = call.visible_from(first_row + kRows - 1);
    int key = (warpgroup * kShares + rank) * kKeys;

    {
        constexpr int kStep = kRowsAtOnce * kWarpgroups;
        const int row = warpgroup * kRowsAtOnce;
        copy_rows<kRows / kStep, kStep, Tile::kSlabs>(
            shared_address(Q_smem) + row * kSwizzleBytes + place, Tile::kQSlab,
            row_at(call.q, call.q_stride, head, first_row + row + copy_row), call.q_stride.row,
            call.query_rows - first_row - row - copy_row, first_row + kRows <= call.query_rows);
    }
    if (key < cluster_end) load(0, call.k, call.k_stride, key);
    cp_async_commit();
    if (lane == 0) {
        mbarrier_init(full + warp_of_all, 1);
        mbarrier_init_fence();
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive_expect(full + warp_of_all, Tile::kExpected);
    cluster_arrive();
    if (key < cluster_end) load(Tile::kTile, call.v, call.v_stride, key);
    cp_async_commit();

    float o_rmem[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o_rmem[i] = 0.0f;
    float highest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of rows g and g + 8; a lane sums its own columns only
    const float factor = call.scale.factor;
    const int first_end = call.visible_from(first_row);

    cp_async_wait<1>();
    async_proxy_fence();
    __syncthreads();  // Q and the first K are there
    for (int stage = 0; key < cluster_end; key += kStride) {
        const bool more = key + kStride < cluster_end;

        // S = Q K^T
        float s_rmem[kScores];
        const uint64_t q = swizzled_descriptor(Q_smem), k = swizzled_descriptor(stage_smem + stage * Tile::kStage);
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < kDim; d += 16) {
            const int slab = d * 2 / kSwizzleBytes, inside = d * 2 % kSwizzleBytes;
            wgmma_k16<T, false>(s_rmem, descriptor_advance(q, slab * Tile::kQSlab + inside),
                                descriptor_advance(k, slab * Tile::kSlab + inside), d > 0);
        }
        wgmma_commit();
        if (more) {  // there are two stages, and the warpgroup is done with the other
            const int offset = (stage ^ 1) * Tile::kStage;
            load(offset, call.k, call.k_stride, key + kStride);
            cp_async_commit();
            load(offset + Tile::kTile, call.v, call.v_stride, key + kStride);
            cp_async_commit();
        }
        wgmma_wait<0>(s_rmem);

        if (call.scale.sign != 1.0f) {
#pragma unroll
            for (int i = 0; i < kScores; ++i) s_rmem[i] *= call.scale.sign;
        }
        if (key + kKeys > first_end) {  // some score is hidden
            int end[2];
#pragma unroll
            for (int r = 0; r < 2; ++r)
                end[r] = call.visible_from(first_row + warp * 16 + r * 8 + group) - key - member * 2;
#pragma unroll
            for (int i = 0; i < kScores; ++i) {
                if (i / 4 * 8 + i % 2 >= end[i / 2 % 2]) s_rmem[i] = -INFINITY;
            }
        }

        // softmax; the weights replace the scores
        const float before[2] = {highest[0], highest[1]};
        float top[4] = {highest[0], highest[0], highest[1], highest[1]};
#pragma unroll
        for (int i = 0; i < kScores; ++i) top[i % 4] = fmaxf(top[i % 4], s_rmem[i]);
        highest[0] = fmaxf(top[0], top[1]), highest[1] = fmaxf(top[2], top[3]);
#pragma unroll
        for (int step = 1; step <= 2; ++step) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], step));
            }
        }
        WeightBase base[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) base[r] = weight_base(highest[r], factor, kBias);
        if (key >= kStride) {
            float shrink[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                shrink[r] = shrink_factor(before[r], highest[r], factor, kBias);
                total[r] *= shrink[r];
            }
#pragma unroll
            for (int i = 0; i < kOutputs; ++i) o_rmem[i] *= shrink[i / 2 % 2];
        }
#pragma unroll
        for (int i = 0; i < kScores; ++i) s_rmem[i] = fmaf(s_rmem[i], factor, base[i / 2 % 2].base);
        if (__any_sync(kAllLanes, base[0].rest != 0.0f || base[1].rest != 0.0f)) {
#pragma unroll
            for (int i = 0; i < kScores; ++i) s_rmem[i] -= base[i / 2 % 2].rest;
        }
        uint32_t p_rmem[kKeys / 16][4];
#pragma unroll
        for (int i = 0; i < kScores; i += 2) {
#pragma unroll
            for (int e = i; e < i + 2; ++e) {
                s_rmem[e] = exp2_approx(s_rmem[e]);
                total[e / 2 % 2] += s_rmem[e];
            }
            p_rmem[i / 8][i / 2 % 4] = pack<T>(s_rmem[i], s_rmem[i + 1]);
        }

        // O += P V
        if (more) {
            cp_async_wait<2>();
        } else {
            cp_async_wait<0>();
        }
        async_proxy_fence();
        named_barrier_wait<kWarpgroupSize>(kWarpgroupBarrier + warpgroup);
        const uint64_t v = swizzled_descriptor(stage_smem + stage * Tile::kStage + Tile::kTile, Tile::kSlab);
        pin(o_rmem);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
            wgmma_k16<T, true>(o_rmem, p_rmem[j], descriptor_advance(v, j * 16 * kSwizzleBytes), true);
        }
        wgmma_commit();
        wgmma_wait<0>(o_rmem);
        if (more) {  // the next K is there, and every warp is done with this stage
            cp_async_wait<1>();
            async_proxy_fence();
            named_barrier_wait<kWarpgroupSize>(kWarpgroupBarrier + warpgroup);
            stage ^= 1;
        }
    }

    // Combine in the cluster. What warps of the same rows send each other lies at (warpgroup * 4 + warp, sender).
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
    }
    const auto slot = [&](int warpgroup_of_it, int sender) {
        return (warpgroup_of_it * kWarpgroupWarps + warp) * kParts + sender;
    };
    const auto barrier_of = [&](int receiver) {
        return cluster_address(full + receiver % kWarpgroups * kWarpgroupWarps + warp, receiver / kWarpgroups);
    };
    cluster_wait();  // every block has its barriers ready
    cluster_store_async(cluster_address(stats_smem + slot(member % kWarpgroups, part) * Tile::kStats + group * 16,
                                        member / kWarpgroups),
                        float4{highest[0], total[0], highest[1], total[1]}, barrier_of(member));
    float own_rmem[kOwn];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
        if (p == part) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) own_rmem[i] = o_rmem[p * kOwn + i];
        } else {
            const uint32_t to =
                cluster_address(part_smem + slot(p % kWarpgroups, part) * Tile::kPart + lane * 16, p / kWarpgroups);
            const uint32_t arrival = barrier_of(p);
#pragma unroll
            for (int i = 0; i < kOwn; i += 4) {
                const float *from = &o_rmem[p * kOwn + i];
                cluster_store_async(to + i / 4 * kWarpSize * 16, float4{from[0], from[1], from[2], from[3]}, arrival);
            }
        }
    }
    const int row = first_row + warp * 16 + group;
    char *o = call.o + call.o_stride.row_at(batch, head, row) * kUnit + part * Tile::kColumns * 2 + member * 4;
    const int64_t o_8_rows = int64_t{call.o_stride.row} * (8 * kUnit);
    cluster_barrier_wait(full + warp_of_all, 0);

    // A lane looks after the sums of one part, then its four tell each other by what to multiply.
    const float4 stats =
        *reinterpret_cast<const float4 *>(stats_smem + slot(warpgroup, member) * Tile::kStats + group * 16);
    const float its_highest[2] = {stats.x, stats.z}, its_total[2] = {stats.y, stats.w};
    float times[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float top = fmaxf(its_highest[r], __shfl_xor_sync(kAllLanes, its_highest[r], 1));
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
        const float shrink = shrink_factor(its_highest[r], top, factor, kBias);
        float sum = its_total[r] * shrink;
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        times[r] = sum > 0.0f ? shrink * reciprocal_approx(sum) : 0.0f;  // no visible key: zeros
    }
#pragma unroll
    for (int other = 0; other < kParts; ++other) {
        const int p = (part + other) % kParts;
        const float by[2] = {__shfl_sync(kAllLanes, times[0], group * 4 + p),
                             __shfl_sync(kAllLanes, times[1], group * 4 + p)};
        const float4 *from_smem = reinterpret_cast<const float4 *>(part_smem + slot(warpgroup, p) * Tile::kPart) + lane;
#pragma unroll
        for (int i = 0; i < kOwn; i += 4) {
            if (other == 0) {
#pragma unroll
                for (int e = i; e < i + 4; ++e) own_rmem[e] *= by[e / 2 % 2];
            } else {
                const float4 four = from_smem[i / 4 * kWarpSize];
                own_rmem[i] = fmaf(four.x, by[0], own_rmem[i]);
                own_rmem[i + 1] = fmaf(four.y, by[0], own_rmem[i + 1]);
                own_rmem[i + 2] = fmaf(four.z, by[1], own_rmem[i + 2]);
                own_rmem[i + 3] = fmaf(four.w, by[1], own_rmem[i + 3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (row + r * 8 >= call.query_rows) break;
#pragma unroll
        for (int i = 2 * r; i < kOwn; i += 4) {
            *reinterpret_cast<uint32_t *>(o + r * o_8_rows + i / 4 * 16) = pack<T>(own_rmem[i], own_rmem[i + 1]);
        }
    }
}

template <typename T, int kDim>
const char *launch_for(const AttentionArgs &args, void *stream) {
    using Tile = Tiling<kDim>;
    const int stages = args.key_rows > kParts * Tile::kKeys ? 2 : 1;
    return launch_kernel("fp16_cluster", attention<T, kDim>,
                         short_grid(args, kRows, kThreads, Tile::kFixed + stages * Tile::kStage, kShares),
                         args.placement, stream, short_call(args));
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
