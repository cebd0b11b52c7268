// Attention forward for sm_90a: the tensor copy engine brings the tiles, wgmma multiplies them out of shared memory,
// and warpgroups have roles. One thread feeds a ring of key and value tiles; each consumer warpgroup owns 64 query rows
// and keeps its scores, weights and sums in registers. While a warpgroup turns scores into weights, its own product of
// the previous weights with V runs, and the other warpgroups' products run: they take turns to queue theirs.
#include <type_traits>

#include "../common/dependent_launch.cuh"
#include "../common/tensor_map.h"
#include "warpgroup.cuh"

namespace fp16_wgmma {

constexpr const char *kName = "fp16_wgmma";
constexpr int kStages = 2, kQueries = 2;     // of the rings of keys and values, and of the ring of queries
constexpr int kColumns = kSwizzleBytes / 2;  // 16-bit columns of a slab, the widest tile that can be swizzled
constexpr int kTurnBarrier = 1;              // named barriers kTurnBarrier + consumer, then one for each consumer alone
constexpr int kProducerRegisters = 24;
constexpr int64_t kSectionBytes = 32 << 20;  // keys and values that causal items of very different length share

template <int kDim, int kConsumers>
struct Tiling {
    // Of a tile. Two consumers at head_dim 64 have registers for more, which makes up for waiting for each other.
    static constexpr int kKeys = kDim == 64 && kConsumers == 2 ? 192 : 128;
    static constexpr int kFewKeys = kKeys == 192 ? 128 : kKeys;  // of the first tile, where no row sees more of it
    static constexpr int kRows = kConsumers * kWarpgroupRows;    // query rows of an item
    static constexpr int kThreads = (kConsumers + 1) * kWarpgroupSize;
    static constexpr int kSlabs = kDim / kColumns;
    static constexpr int kQBytes = kRows * kDim * 2, kTileBytes = kKeys * kDim * 2;  // of K or V
    static constexpr int kSharedBytes = kQueries * kQBytes + 2 * kStages * kTileBytes + kSwizzleAlign;
    static constexpr int kBlocks = kConsumers == 1 ? 2 : 1;  // a multiprocessor can hold; bounds the registers
    static constexpr int kShare =
        (kBlockRegisters / kBlocks / kWarpgroupSize - kProducerRegisters) / kConsumers / 8 * 8;
    static constexpr int kConsumerRegisters = kShare < 240 ? kShare : 240;

    static_assert(kDim % kColumns == 0, "a row is a whole number of 128-byte slabs");
    static_assert(kKeys % 16 == 0, "P V sums 16 keys an instruction");
    static_assert(kKeys * kSwizzleBytes % kSwizzleAlign == 0, "slabs start where the swizzle's pattern starts");
    static_assert(kKeys <= 256 && kRows <= 256, "a box of the copy engine has at most 256 rows");
    static_assert(kConsumers >= 1 && kConsumers <= 3, "more than three accumulators do not fit in the registers");
    static_assert(kStages >= 2, "K of the next tile is loaded before V of this one");
    static_assert(kSharedBytes + 256 <= kBlockSharedBytes, "the rings do not fit in shared memory");
};

// S = Q K^T for 64 rows
template <typename T, int kDim, int kRows, int kKeys, int kSize>
__device__ __forceinline__ void queue_scores(float (&s_rmem)[kSize],  // of the tile's first 2 kSize keys
                                             uint64_t q, uint64_t k) {
    constexpr int kQSlab = kRows * kSwizzleBytes, kKSlab = kKeys * kSwizzleBytes;
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
        const int inside = d % kColumns * 2;
        wgmma_k16<T, false>(s_rmem, descriptor_advance(q, d / kColumns * kQSlab + inside),
                            descriptor_advance(k, d / kColumns * kKSlab + inside), d > 0);
    }
    wgmma_commit();
}

// O += P V for 64 rows
template <typename T, int kSize, int kSteps>
__device__ __forceinline__ void queue_output(float (&o_rmem)[kSize], const uint32_t (&p_rmem)[kSteps][4], uint64_t v) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
        wgmma_k16<T, true>(o_rmem, p_rmem[j], descriptor_advance(v, j * 16 * kSwizzleBytes), true);
    }
    wgmma_commit();
}

template <typename T, int kDim, int kConsumers, bool kCausal>
__global__ void __launch_bounds__(Tiling<kDim, kConsumers>::kThreads, Tiling<kDim, kConsumers>::kBlocks)
    attention(const __grid_constant__ AttentionArgs args, const SoftmaxScale scale, const Schedule schedule,
              const __grid_constant__ CUtensorMap q_map,  // [batch, query_heads, query_rows, kDim]
              const __grid_constant__ CUtensorMap k_map,  // [batch, key_heads, key_rows, kDim]
              const __grid_constant__ CUtensorMap v_map) {
    using Tile = Tiling<kDim, kConsumers>;
    constexpr int kRows = Tile::kRows, kKeys = Tile::kKeys;
    constexpr int kQSlabBytes = kRows * kSwizzleBytes, kSlabBytes = kKeys * kSwizzleBytes;

    const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarpSize, 0);  // uniform, and the compiler knows
    const int lane = threadIdx.x % kWarpSize;
    const int consumer = warp / kWarpgroupWarps - 1;  // -1: the producer

    extern __shared__ char dynamic_smem[];
    char *Q_smem =
        dynamic_smem + (-shared_address(dynamic_smem) & (kSwizzleAlign - 1));  // [kQueries, kSlabs, kRows, 64]
    char *K_smem = Q_smem + kQueries * Tile::kQBytes;                          // [kStages, kSlabs, kKeys, 64]
    char *V_smem = K_smem + kStages * Tile::kTileBytes;                        // [kStages, kSlabs, kKeys, 64]
    __shared__ Ring<kQueries> q_ring;
    __shared__ Ring<kStages> k_ring, v_ring;

    if (threadIdx.x == 0) {
        for (const CUtensorMap *map : {&q_map, &k_map, &v_map}) tensor_map_prefetch(map);
        q_ring.init(kConsumers * kWarpgroupWarps);
        k_ring.init(kConsumers * kWarpgroupWarps);
        v_ring.init(kConsumers * kWarpgroupWarps);
        mbarrier_init_fence();
    }
    __syncthreads();

    if (consumer < 0) {
        registers_release<kProducerRegisters>();
        if (warp != 0 || lane != 0) return;
        // The first item is found before the wait for what was queued before. The consumers need not wait: what they
        // read has been loaded, and they write once that is there.
        Item item = item_at<kRows, kKeys>(args, schedule, snake(0));
        prerequisites_wait();
        dependents_launch();
        const auto load = [](char *to_smem, int rows, const CUtensorMap *map, uint64_t *full, int row, int head,
                             int batch) {
            mbarrier_arrive_expect(full, rows * kDim * 2);
            for (int slab = 0; slab < Tile::kSlabs; ++slab) {
                tensor_copy_4d(to_smem + slab * rows * kSwizzleBytes, map, full, slab * kColumns, row, head, batch);
            }
        };
        Place<kQueries> q_at;
        Place<kStages> k_at, v_at;
        for (int round = 0; snake(round) < schedule.items; ++round) {
            if (round > 0) item = item_at<kRows, kKeys>(args, schedule, snake(round));
            mbarrier_wait(&q_ring.empty[q_at.stage], q_at.parity ^ 1);
            load(Q_smem + q_at.stage * Tile::kQBytes, kRows, &q_map, &q_ring.full[q_at.stage], item.first_row,
                 item.head, item.batch);
            q_at.advance();
            for (int tile = item.tiles - 1; tile >= -1; --tile) {  // from the diagonal down; V one tile behind K
                if (tile >= 0) {
                    mbarrier_wait(&k_ring.empty[k_at.stage], k_at.parity ^ 1);
                    load(K_smem + k_at.stage * Tile::kTileBytes, kKeys, &k_map, &k_ring.full[k_at.stage], tile * kKeys,
                         item.key_head, item.batch);
                    k_at.advance();
                }
                if (tile + 1 < item.tiles) {
                    mbarrier_wait(&v_ring.empty[v_at.stage], v_at.parity ^ 1);
                    load(V_smem + v_at.stage * Tile::kTileBytes, kKeys, &v_map, &v_ring.full[v_at.stage],
                         (tile + 1) * kKeys, item.key_head, item.batch);
                    v_at.advance();
                }
            }
        }
    } else {
        registers_claim<Tile::kConsumerRegisters>();
        const uint64_t k = swizzled_descriptor(K_smem), v = swizzled_descriptor(V_smem, kSlabBytes);
        const int own_row = consumer * kWarpgroupRows + warp % kWarpgroupWarps * 16 + lane / 4;

        const auto take_turn = [&] {
            if (kConsumers > 1) named_barrier_wait<2 * kWarpgroupSize>(kTurnBarrier + consumer);
        };
        const auto pass_turn = [&] {
            const int next = consumer + 1 == kConsumers ? 0 : consumer + 1;
            if (kConsumers > 1) named_barrier_arrive<2 * kWarpgroupSize>(kTurnBarrier + next);
        };
        const auto release = [&](uint64_t *empty) {
            __syncwarp();  // no lane may still wait for the phase that this ends
            if (lane == 0) mbarrier_arrive(empty);
        };
        if (consumer == kConsumers - 1) pass_turn();  // the first consumer begins

        Place<kQueries> q_at;
        Place<kStages> k_at, v_at;
        for (int round = 0; snake(round) < schedule.items; ++round) {
            const Item item = item_at<kRows, kKeys>(args, schedule, snake(round));
            const int row = item.first_row + own_row, first_row = item.first_row + consumer * kWarpgroupRows;
            const int last_row = min(first_row + kWarpgroupRows, static_cast<int>(args.query_rows)) - 1;
            const auto end_of = [&](int its_row) {
                return static_cast<int>(kCausal ? visible_end(args, its_row) : args.key_rows);
            };
            const int ends[2] = {end_of(row), end_of(row + 8)};
            // Of the tiles of keys, all rows of this warpgroup see the first `whole_tiles`, none those from `tiles` on.
            const int tiles = first_row > last_row ? 0 : (end_of(last_row) + kKeys - 1) / kKeys;
            const int whole_tiles = end_of(first_row) / kKeys;

            float o_rmem[kDim / 2], s_rmem[kKeys / 2];
            uint32_t p_rmem[kKeys / 16][4];
            Rows rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
            for (int i = 0; i < kDim / 2; ++i) o_rmem[i] = 0.0f;
            int visible[2];
            const auto look_at = [&](int tile) {
#pragma unroll
                for (int r = 0; r < 2; ++r) visible[r] = min(ends[r] - tile * kKeys, kKeys) - lane % 4 * 2;
            };

            mbarrier_wait(&q_ring.full[q_at.stage], q_at.parity);
            char *own_q_smem = Q_smem + q_at.stage * Tile::kQBytes + consumer * kWarpgroupRows * kSwizzleBytes;
            const uint64_t q = swizzled_descriptor(own_q_smem);
            if (scale.sign != 1.0f) {
                change_sign(own_q_smem, Tile::kSlabs, kQSlabBytes, scale.sign, kTurnBarrier + kConsumers + consumer);
            }
            for (int tile = item.tiles - 1; tile >= tiles; --tile) {  // seen by other warpgroups only
                mbarrier_wait(&k_ring.full[k_at.stage], k_at.parity);
                release(&k_ring.empty[k_at.stage]);
                k_at.advance();
                mbarrier_wait(&v_ring.full[v_at.stage], v_at.parity);
                release(&v_ring.empty[v_at.stage]);
                v_at.advance();
                if (tile > 0) take_turn(), pass_turn();
            }
            if (tiles == 0) release(&q_ring.empty[q_at.stage]);
            int tile = tiles - 1;
            if (tiles > 0) {
                mbarrier_wait(&k_ring.full[k_at.stage], k_at.parity);
                const auto begin = [&](auto keys, auto masked) {  // with so many of the tile's keys
                    constexpr int kSome = decltype(keys)::value;
                    auto &some_s_rmem = reinterpret_cast<float (&)[kSome / 2]>(s_rmem);
                    wgmma_fence();
                    queue_scores<T, kDim, kRows, kKeys>(some_s_rmem, q,
                                                        descriptor_advance(k, k_at.stage * Tile::kTileBytes));
                    wgmma_wait<0>(some_s_rmem);
                    if (tile == 0) release(&q_ring.empty[q_at.stage]);
                    release(&k_ring.empty[k_at.stage]);
                    k_at.advance();
                    look_at(tile);
                    softmax<T, decltype(masked)::value>(some_s_rmem, rows, visible, scale.factor);
                    pack_weights<T>(reinterpret_cast<uint32_t (&)[kSome / 16][4]>(p_rmem), some_s_rmem);
#pragma unroll
                    for (int j = kSome / 16; j < kKeys / 16; ++j) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) p_rmem[j][i] = 0;
                    }
                };
                // Two forms each, since code is fetched while it runs: without a mask the few keys are nearly always
                // seen by all rows.
                constexpr int kFewKeys = Tile::kFewKeys;
                const int seen = end_of(last_row) - tile * kKeys;
                if (kCausal ? kFewKeys < kKeys && seen <= kFewKeys : seen == kFewKeys) {
                    begin(std::integral_constant<int, kFewKeys>(), std::bool_constant<kCausal>());
                } else {
                    begin(std::integral_constant<int, kKeys>(), std::true_type());
                }

                // The scores of a tile are queued before the output of the tile before, so that the softmax of the one
                // hides the product of the other.
                const auto step = [&](auto masked) {
                    mbarrier_wait(&k_ring.full[k_at.stage], k_at.parity);
                    mbarrier_wait(&v_ring.full[v_at.stage], v_at.parity);
                    take_turn();
                    wgmma_fence();
                    queue_scores<T, kDim, kRows, kKeys>(s_rmem, q,
                                                        descriptor_advance(k, k_at.stage * Tile::kTileBytes));
                    queue_output<T>(o_rmem, p_rmem, descriptor_advance(v, v_at.stage * Tile::kTileBytes));
                    pass_turn();
                    wgmma_wait<1>(s_rmem);
                    if constexpr (decltype(masked)::value) {
                        look_at(tile);
                        softmax<T, true>(s_rmem, rows, visible, scale.factor);
                        wgmma_wait<0>(o_rmem);
                        scale_rows(o_rmem, rows.shrink);
                        release(&k_ring.empty[k_at.stage]);
                    } else {
                        const bool fit = softmax_by_earlier<T>(s_rmem, rows, scale.factor);
                        // All lanes have come to the vote, so none still waits for the phase that this ends.
                        if (fit && lane == 0) mbarrier_arrive(&k_ring.empty[k_at.stage]);
                        wgmma_wait<0>(o_rmem);  // here, for all warps of a warpgroup have to wait in one place
                        if (!fit) {             // rare, and then most likely not again in this item
                            scores_again<T, 2 * kDim>(s_rmem, own_q_smem + warp % kWarpgroupWarps * 16 * kSwizzleBytes,
                                                      kQSlabBytes, K_smem + k_at.stage * Tile::kTileBytes);
                            release(&k_ring.empty[k_at.stage]);
                            softmax<T, false>(s_rmem, rows, visible, scale.factor);
                            scale_rows(o_rmem, rows.shrink);
                        }
                    }
                    pack_weights<T>(p_rmem, s_rmem);
                    if (tile == 0) release(&q_ring.empty[q_at.stage]);
                    k_at.advance();
                    release(&v_ring.empty[v_at.stage]);
                    v_at.advance();
                };
                --tile;
                if constexpr (kCausal) {
                    for (; tile >= whole_tiles; --tile) step(std::true_type());
                }
                for (; tile >= 0; --tile) step(std::false_type());
            }
            q_at.advance();
            if (tiles > 0) {
                mbarrier_wait(&v_ring.full[v_at.stage], v_at.parity);
                wgmma_fence();
                queue_output<T>(o_rmem, p_rmem, descriptor_advance(v, v_at.stage * Tile::kTileBytes));
                wgmma_wait<0>(o_rmem);
                release(&v_ring.empty[v_at.stage]);
                v_at.advance();
            }
            normalise(o_rmem, rows);
            T *o = static_cast<T *>(args.o) + item.batch * args.o_stride.batch + item.head * args.o_stride.head;
            store_rows(o, args.o_stride.row, row, args.query_rows, o_rmem);
        }
    }
}

template <typename T, int kDim, int kConsumers>
const char *launch_for(const AttentionArgs &args, int multiprocessors, void *stream) {
    using Tile = Tiling<kDim, kConsumers>;
    constexpr CUtensorMapDataType kType =
        std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const Tensor4 q{"q", args.q, args.batch, args.query_heads, args.query_rows, kDim, args.q_stride, 2};
    const Tensor4 k{"k", args.k, args.batch, args.key_heads, args.key_rows, kDim, args.k_stride, 2};
    const Tensor4 v{"v", args.v, args.batch, args.key_heads, args.key_rows, kDim, args.v_stride, 2};
    const Tensor4 o{"o", args.o, args.batch, args.query_heads, args.query_rows, kDim, args.o_stride, 2};
    CUtensorMap q_map, k_map, v_map;
    if (const char *why = schedule_refusal(kName, args, Tile::kRows)) return why;
    if (const char *why = check_rows_aligned(kName, o)) return why;
    if (const char *why = make_tensor_map(kName, q_map, kType, q, Tile::kRows)) return why;
    if (const char *why = make_tensor_map(kName, k_map, kType, k, Tile::kKeys)) return why;
    if (const char *why = make_tensor_map(kName, v_map, kType, v, Tile::kKeys)) return why;
    const Schedule schedule = make_schedule(args, Tile::kRows, 2, kSectionBytes);
    // Under a mask one block takes a long item and then a short one, and a second one beside it would only delay it.
    const int64_t most = multiprocessors * (args.causal ? 1 : Tile::kBlocks);
    const int64_t blocks = schedule.items < most ? schedule.items : most;
    return launch_kernel(kName,
                         args.causal ? attention<T, kDim, kConsumers, true> : attention<T, kDim, kConsumers, false>,
                         dependent({blocks, Tile::kThreads, Tile::kSharedBytes}), args.placement, stream, args,
                         finite_scale(args.scale), schedule, q_map, k_map, v_map);
}

// How long the busiest multiprocessor works if a block has so many consumers: for every 128 keys, in units of 10 ns, on
// an H200. The more share a tile the better, as long as there is an item for every multiprocessor. Without a mask one
// consumer has a second block beside it once there are more items than multiprocessors: neither waits for a turn.
double duration(const AttentionArgs &args, int consumers, int multiprocessors) {
    constexpr double kAlone[] = {88, 116, 152}, kTwoBlocks = 114;
    const int64_t rows = consumers * kWarpgroupRows;
    const int64_t items = args.batch * args.query_heads * ((args.query_rows + rows - 1) / rows);
    const double least = visible_end(args, 0), most = visible_end(args, args.query_rows - 1);
    const double rounds = static_cast<double>(items) / multiprocessors, tile = kAlone[consumers - 1];
    // items of one length come in whole rounds; long and short ones make up for each other
    if (args.causal) return tile * std::fmax(most, rounds * (least + most) / 2);
    return most * (consumers == 1 && rounds > 1 ? kTwoBlocks * std::ceil(rounds / 2) : tile * std::ceil(rounds));
}

template <typename T>
const char *launch_for(const AttentionArgs &args, void *stream) {
    int multiprocessors = 0;
    const cudaError_t status =
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, args.placement.index);
    if (status != cudaSuccess) return cuda_message(kName, status);
    if (args.head_dim == 128) return launch_for<T, 128, 2>(args, multiprocessors, stream);
    int consumers = 1;
    for (int more = 2; more <= 3; ++more) {
        if (duration(args, more, multiprocessors) <= duration(args, consumers, multiprocessors)) consumers = more;
    }
    return consumers == 1   ? launch_for<T, 64, 1>(args, multiprocessors, stream)
           : consumers == 2 ? launch_for<T, 64, 2>(args, multiprocessors, stream)
                            : launch_for<T, 64, 3>(args, multiprocessors, stream);
}

KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream) {
    if (!args.placement.on_cuda) return "fp16_wgmma runs on a CUDA device; the tensors are in host memory";
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("fp16_wgmma takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.query_rows > INT32_MAX - 256 || args.key_rows > INT32_MAX - 256) {
        return "fp16_wgmma takes fewer than 2^31 - 256 rows";
    }
    if (args.dtype == Dtype::kFloat16) return launch_for<__half>(args, stream);
    if (args.dtype == Dtype::kBfloat16) return launch_for<__nv_bfloat16>(args, stream);
    return "fp16_wgmma takes float16 or bfloat16, not float32";
}

}  // namespace fp16_wgmma

KERNELPROOF_LAUNCH(fp16_wgmma)
