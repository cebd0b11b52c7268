// Attention forward for short sequences on sm_90a: the keys are shared out over the blocks of a cluster and, in a
// block, over warpgroups, so that a block reads few keys for many query rows: what limits a short sequence is how fast
// the L2 delivers. A warpgroup takes its keys in one pass: all its loads under way at once, all its scores in
// registers. The parts of the output meet first in the block, then in the block that owns the rows, which is told by
// its mbarrier.
#include "../common/approx.cuh"
#include "../common/cluster.cuh"
#include "../common/cp_async.cuh"
#include "../common/cuda_launch.h"
#include "../common/dependent_launch.cuh"
#include "../common/divide.h"
#include "../common/hopper.cuh"
#include "../common/mma.cuh"
#include "../common/reduce.cuh"
#include "online_softmax.h"
#include "weights.cuh"

namespace fp16_cluster {

// To be measured: see csrc/README.md.
#ifndef CLUSTER_SHARES
    #define CLUSTER_SHARES 2
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

constexpr int kShares = CLUSTER_SHARES;                // blocks of a cluster
constexpr int kBlocks = CLUSTER_BLOCKS;                // of a multiprocessor
constexpr int kWarps = kWarpgroupSize / kWarpSize;     // of a warpgroup; warp w has rows 16 w to 16 w + 15
constexpr int kRows = kWarpgroupRows;                  // query rows of a cluster
constexpr int kOwnedWarps = kWarps / kShares;          // rows of these many warps are a block's to store
constexpr int kVector = 8;                             // 16-bit elements of a 16-byte access
constexpr int kRowsAtOnce = kWarpgroupSize / kVector;  // that a warpgroup copies, 128 bytes each
constexpr int kSharedMost = 227 * 1024;

enum Barrier { kWarpgroupBarrier = 1, kRowBarrier = kWarpgroupBarrier + 4 };

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
    static constexpr int kKeys = kDim == 64 ? CLUSTER_KEYS : 64;  // of a warpgroup at a time
    static constexpr int kSlabs = kDim * 2 / kSwizzleBytes;
    static constexpr int kQSlab = kRows * kSwizzleBytes, kSlab = kKeys * kSwizzleBytes;
    static constexpr int kTile = kSlabs * kSlab;            // of K or V
    static constexpr int kStage = kWarpgroups * 2 * kTile;  // [kWarpgroups, K and V]
    static constexpr int kColumns = kDim / kWarpgroups;     // of the output that a warp adds up for its rows
    static constexpr int kPart = 16 * kColumns * 4;         // bytes of those: [kColumns / 8, 32 lanes] float4
    static constexpr int kHandedOver = (kWarpgroups - 1) * kWarps * kWarpgroups;  // parts between warpgroups
    static constexpr int kParts = (kShares - 1) * kOwnedWarps * kWarpgroups;      // parts from other blocks
    static constexpr int kFixed = kSwizzleAlign + kSlabs * kQSlab + (kHandedOver + kParts) * kPart +
                                  (kParts + kWarpgroups * kWarps) * 16 * 8 + kOwnedWarps * kWarpgroups * 8;
    static_assert(kKeys % 16 == 0 && kSlab % kSwizzleAlign == 0, "slabs start where the swizzle's pattern starts");
    static_assert(kColumns % 8 == 0, "a warp adds up whole blocks of 8 columns");
};
static_assert(kShares == 1 || kShares == 2 || kShares == 4, "a block owns the rows of whole warps");

template <typename T, int kDim>
__global__ void __launch_bounds__(Tiling<kDim>::kThreads, kBlocks) attention(const __grid_constant__ Problem problem) {
    using Tile = Tiling<kDim>;
    constexpr int kWarpgroups = Tile::kWarpgroups, kKeys = Tile::kKeys, kScores = kKeys / 2, kOutputs = kDim / 2,
                  kOwn = kOutputs / kWarpgroups;
    constexpr float kBias = kWeightBias<T>;

    const int warp_of_all = __shfl_sync(kAllLanes, threadIdx.x / kWarpSize, 0);  // uniform, and the compiler knows
    const int warpgroup = warp_of_all / kWarps, warp = warp_of_all % kWarps;
    const int thread = threadIdx.x % kWarpgroupSize, lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;  // of the lane in an accumulator, see hopper.cuh
    const int rank = blockIdx.x % kShares;
    const uint32_t tile_of_all = blockIdx.x / kShares;
    const uint32_t head_of_all = problem.row_blocks.quotient(tile_of_all);
    const uint32_t batch = problem.heads.quotient(head_of_all);
    const uint32_t head = head_of_all - batch * problem.heads.divisor;
    const uint32_t key_head = problem.heads_of_key.quotient(head);
    // the last rows first: under a causal mask they take longest
    const int first_row = static_cast<int>((head_of_all + 1) * problem.row_blocks.divisor - 1 - tile_of_all) * kRows;
    const int key_rows = problem.key_rows;
    const float factor = problem.scale.factor;
    const auto visible_from = [&](int row) { return min(max(row + problem.diagonal, 0), key_rows); };
    const int first_end = visible_from(first_row), cluster_end = visible_from(first_row + kRows - 1);

    extern __shared__ char dynamic_smem[];
    char *Q_smem = dynamic_smem + (-shared_address(dynamic_smem) & (kSwizzleAlign - 1));  // [kSlabs, kRows, 64]
    char *stage_smem = Q_smem + Tile::kSlabs * Tile::kQSlab + warpgroup * 2 * Tile::kTile;
    char *handed_smem = Q_smem + Tile::kSlabs * Tile::kQSlab + problem.stages * Tile::kStage;
    char *part_smem = handed_smem + Tile::kHandedOver * Tile::kPart;
    // parts of rows from the other blocks, [kShares - 1, kOwnedWarps, kWarpgroups], highest score and sum of each row
    // in them, [.., 16], the same for this block's warpgroups, [kWarpgroups, kRows], and who has received
    float2 *received_smem = reinterpret_cast<float2 *>(part_smem + Tile::kParts * Tile::kPart);
    float2 *stats_smem = received_smem + Tile::kParts * 16;
    uint64_t *full = reinterpret_cast<uint64_t *>(stats_smem + kWarpgroups * kRows);  // [kOwnedWarps, kWarpgroups]

    if (kShares > 1) {
        if (threadIdx.x < kOwnedWarps * kWarpgroups) {
            mbarrier_init(full + threadIdx.x, 1);
            mbarrier_arrive_expect(full + threadIdx.x, (kShares - 1) * (Tile::kPart + 16 * sizeof(float2)));
            mbarrier_init_fence();
        }
        __syncwarp();
        cluster_arrive();
    }
    let_next_kernel_start();
    wait_for_kernels_before();

    // Copies rows of 128 bytes into a swizzled slab: 8 lanes a row.
    const int copy_row = thread / kVector, copy_unit = thread % kVector;
    const auto copy_rows = [&](char *slab_smem, const char *from, int stride, int first, int rows, int rows_at_once,
                               int row) {
        char *to = slab_smem + row * kSwizzleBytes + (copy_unit ^ row % 8) * 16;
        const char *row_from = from + int64_t{first + row} * stride + copy_unit * 16;
        return [=](int i, int count) {
            const bool exists = first + row + i * rows_at_once < count;
            cp_async_16(to + i * rows_at_once * kSwizzleBytes,
                        exists ? row_from + int64_t{i} * rows_at_once * stride : from, exists);
        };
    };
    // Tiles of keys go round the blocks of the cluster, then round the warpgroups.
    const auto load = [&](int offset, const Rows &rows, const char *head_from, int first) {
#pragma unroll
        for (int slab = 0; slab < Tile::kSlabs; ++slab) {
            const auto copy = copy_rows(stage_smem + offset + slab * Tile::kSlab, head_from + slab * kSwizzleBytes,
                                        rows.row_stride, first, kKeys, kRowsAtOnce, copy_row);
#pragma unroll
            for (int i = 0; i < kKeys / kRowsAtOnce; ++i) copy(i, key_rows);
        }
        cp_async_commit();
    };
    const char *k_from = problem.k.head(batch, key_head), *v_from = problem.v.head(batch, key_head);
    constexpr int kStride = kShares * kWarpgroups * kKeys;
    int key = (warpgroup * kShares + rank) * kKeys;

    {
        const char *q_from = problem.q.head(batch, head);
#pragma unroll
        for (int slab = 0; slab < Tile::kSlabs; ++slab) {
            const auto copy =
                copy_rows(Q_smem + slab * Tile::kQSlab, q_from + slab * kSwizzleBytes, problem.q.row_stride, first_row,
                          kRows, kRowsAtOnce * kWarpgroups, copy_row + warpgroup * kRowsAtOnce);
#pragma unroll
            for (int i = 0; i < kRows / kRowsAtOnce / kWarpgroups; ++i) copy(i, problem.query_rows);
        }
        cp_async_commit();
    }
    if (key < cluster_end) {
        load(0, problem.k, k_from, key);
        load(Tile::kTile, problem.v, v_from, key);
    }

    float o_rmem[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o_rmem[i] = 0.0f;
    float highest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of rows g and g + 8; a lane sums its own columns only

    if (key < cluster_end) {
        cp_async_wait<2>();
    } else {
        cp_async_wait<0>();
    }
    async_proxy_fence();
    __syncthreads();  // Q is there

    for (int stage = 0; key < cluster_end; key += kStride) {
        const int next = key + kStride, next_stage = (stage + 1) % problem.stages;
        if (next < cluster_end) {  // there are two stages, and the warpgroup is done with the other
            load(next_stage * Tile::kStage, problem.k, k_from, next);
            load(next_stage * Tile::kStage + Tile::kTile, problem.v, v_from, next);
            cp_async_wait<3>();
        } else {
            cp_async_wait<1>();
        }
        async_proxy_fence();
        named_barrier_wait<kWarpgroupSize>(kWarpgroupBarrier + warpgroup);

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
        wgmma_wait<0>(s_rmem);

        if (problem.scale.sign != 1.0f) {
#pragma unroll
            for (int i = 0; i < kScores; ++i) s_rmem[i] *= problem.scale.sign;
        }
        if (key + kKeys > first_end) {  // some score is hidden
#pragma unroll
            for (int i = 0; i < kScores; ++i) {
                const int row = first_row + warp * 16 + i / 2 % 2 * 8 + group;
                if (i / 4 * 8 + i % 2 >= visible_from(row) - key - member * 2) s_rmem[i] = -INFINITY;
            }
        }

        // softmax; the weights replace the scores
        float before[2] = {highest[0], highest[1]};
#pragma unroll
        for (int i = 0; i < kScores; ++i) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], s_rmem[i]);
#pragma unroll
        for (int step = 1; step <= 2; ++step) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                highest[r] = fmaxf(highest[r], __shfl_xor_sync(kAllLanes, highest[r], step));
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
        if (key >= kStride) {
#pragma unroll
            for (int i = 0; i < kOutputs; ++i) o_rmem[i] *= shrink[i / 2 % 2];
        }
#pragma unroll
        for (int i = 0; i < kScores; ++i) s_rmem[i] = fmaf(s_rmem[i], factor, base[i / 2 % 2].base);
        if (__any_sync(kAllLanes, base[0].rest != 0.0f || base[1].rest != 0.0f)) {
#pragma unroll
            for (int i = 0; i < kScores; ++i) s_rmem[i] -= base[i / 2 % 2].rest;
        }
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            s_rmem[i] = exp2_approx(s_rmem[i]);
            total[i / 2 % 2] += s_rmem[i];
        }
        uint32_t p_rmem[kKeys / 16][4];
#pragma unroll
        for (int i = 0; i < kScores; i += 2) p_rmem[i / 8][i / 2 % 4] = pack<T>(s_rmem[i], s_rmem[i + 1]);

        // O += P V
        if (next < cluster_end) {
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
        stage = next_stage;
        if (next + kStride < cluster_end) {  // every warp is done with this stage
            named_barrier_wait<kWarpgroupSize>(kWarpgroupBarrier + warpgroup);
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
    // Adds what others have: `other` highest scores and sums of rows g and g + 8, and an accumulator of own columns.
    const auto add = [&](const float2(&other)[2], const float4 *other_smem) {
        float keep[2], take[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float top = fmaxf(highest[r], other[r].x);
            keep[r] = shrink_factor(highest[r], top, factor, kBias);
            take[r] = shrink_factor(other[r].x, top, factor, kBias);
            total[r] = total[r] * keep[r] + other[r].y * take[r];
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
            if (w == warpgroup) continue;
            const float2 *stats = stats_smem + w * kRows + warp * 16 + group;
            add({stats[0], stats[8]}, handed(w, warpgroup));
        }
    }

    // Combine in the cluster: each block stores the rows of kOwnedWarps warps.
    const int owner = warp / kOwnedWarps, owned = warp % kOwnedWarps;
    const auto part_of = [&](int sender) { return (sender * kOwnedWarps + owned) * kWarpgroups + warpgroup; };
    const auto of_part = [&](int part) { return reinterpret_cast<float4 *>(part_smem + part * Tile::kPart) + lane; };
    if (kShares > 1) {
        cluster_wait();  // every block has its barriers ready
        if (owner != rank) {
            const int part = part_of(rank < owner ? rank : rank - 1);  // senders are counted without the owner
            const uint32_t arrival = cluster_address(full + owned * kWarpgroups + warpgroup, owner);
            const uint32_t to = cluster_address(of_part(part), owner);
#pragma unroll
            for (int i = 0; i < kOwn; i += 4) {
                const float4 four = {own_rmem[i], own_rmem[i + 1], own_rmem[i + 2], own_rmem[i + 3]};
                cluster_store_async(to + i / 4 * kWarpSize * sizeof(float4), four, arrival);
            }
            if (member < 2) {
                const float2 stats = {member == 0 ? highest[0] : highest[1], member == 0 ? total[0] : total[1]};
                cluster_store_async(cluster_address(received_smem + part * 16 + member * 8 + group, owner), stats,
                                    arrival);
            }
            return;
        }
        cluster_barrier_wait(full + owned * kWarpgroups + warpgroup, 0);
#pragma unroll
        for (int sender = 0; sender < kShares - 1; ++sender) {
            const float2 *stats = received_smem + part_of(sender) * 16 + group;
            add({stats[0], stats[8]}, of_part(part_of(sender)));
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = first_row + warp * 16 + r * 8 + group;
        if (row >= problem.query_rows) continue;
        const float inverse = total[r] > 0.0f ? reciprocal_approx(total[r]) : 0.0f;  // no visible key: zeros
        char *to = problem.o.head(batch, head) + int64_t{row} * problem.o.row_stride;
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
    const auto rows = [](const void *data, const Strides3 &stride) {
        return Rows{static_cast<char *>(const_cast<void *>(data)), stride.batch * 2, stride.head * 2,
                    static_cast<int>(stride.row * 2)};
    };
    const int64_t row_blocks = (args.query_rows + kRows - 1) / kRows, heads = args.query_heads * args.batch;
    if (row_blocks > INT32_MAX / heads / kShares) return "fp16_cluster would need more than 2^31 - 1 blocks";
    const int stages = args.key_rows > kShares * Tile::kWarpgroups * Tile::kKeys ? 2 : 1;
    const int shared_bytes = Tile::kFixed + stages * Tile::kStage;
    static_assert(Tile::kFixed + 2 * Tile::kStage + 1024 <= kSharedMost, "two stages do not fit in shared memory");
    const Problem problem = {rows(args.q, args.q_stride),
                             rows(args.k, args.k_stride),
                             rows(args.v, args.v_stride),
                             rows(args.o, args.o_stride),
                             static_cast<int>(args.query_rows),
                             static_cast<int>(args.key_rows),
                             static_cast<int>(args.causal ? args.key_rows - args.query_rows + 1 : args.key_rows),
                             stages,
                             SoftmaxScale(args.scale),
                             Divider(static_cast<uint32_t>(row_blocks)),
                             Divider(static_cast<uint32_t>(args.query_heads)),
                             Divider(static_cast<uint32_t>(args.query_heads / args.key_heads))};
    return launch_kernel("fp16_cluster", attention<T, kDim>,
                         {row_blocks * heads * kShares, Tile::kThreads, shared_bytes, kShares}, args.placement, stream,
                         problem);
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    return args.head_dim == 64 ? launch_for<T, 64>(args, stream) : launch_for<T, 128>(args, stream);
}

// Null, or what about the tensor does not suit 16-byte accesses and 32-bit rows.
const char *check(const char *name, const void *data, const Strides3 &stride, int64_t rows) {
    constexpr int64_t kMost = 1 << 30;
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || stride.batch % kVector != 0 || stride.head % kVector != 0 ||
        stride.row % kVector != 0) {
        return message(
            "fp16_cluster reads 16 bytes at a time: %s must start at, and have strides of, multiples of 16 bytes. Pass "
            "a contiguous copy or use another variant",
            name);
    }
    if (rows < kMost && stride.row < kMost && stride.row > -kMost) return nullptr;
    return message("fp16_cluster takes fewer than 2^30 rows, less than 2^30 elements apart; %s has %lld, %lld apart",
                   name, static_cast<long long>(rows), static_cast<long long>(stride.row));
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_cluster takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    const char *wrong = check("q", args.q, args.q_stride, args.query_rows);
    if (wrong == nullptr) wrong = check("k", args.k, args.k_stride, args.key_rows);
    if (wrong == nullptr) wrong = check("v", args.v, args.v_stride, args.key_rows);
    if (wrong == nullptr) wrong = check("o", args.o, args.o_stride, args.query_rows);
    if (wrong != nullptr) return wrong;
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_cluster takes float16 or bfloat16, not float32";
}

}  // namespace fp16_cluster

KERNELPROOF_LAUNCH(fp16_cluster)
