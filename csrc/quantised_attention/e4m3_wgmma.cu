// True FP8 attention for sm_90a: fp16_wgmma's ring of tiles and roles, with both products by wgmma on
// float8_e4m3. wgmma wants V by columns, which is a matter of layout that no copy engine settles for bytes: the
// producer's four warps transpose each tile of V while the consumers multiply. The keys of 32 change places in that, so
// that weights, packed where the scores lay, are an operand. The tensor cores keep 14 bits of a sum of 8-bit products:
// a tile's share of the output is a sum of its own, added to the others in FP32.
#include <cuda_fp8.h>

#include <type_traits>

#include "../attention/warpgroup.cuh"
#include "../common/hopper_bytes.cuh"
#include "../common/tensor_map.h"
#include "scales.cuh"

namespace e4m3_wgmma {

constexpr int kConsumers = 2;             // warpgroups
constexpr int kKeys = 128;                // of a tile
constexpr int kStages = 3, kQueries = 2;  // of the rings of keys and values, and of the ring of queries
constexpr int kProducerRegisters = 40;
constexpr int kStep = 32;            // elements of the sum of a wgmma
constexpr int kUnit = 16;            // bytes that a swizzle moves together
constexpr int kCausalL2 = 32 << 20;  // bytes of keys and values that causal items of different length share at a time

template <int kDim>
struct Tiling {
    static constexpr int kRows = kConsumers * kWarpgroupRows;  // query rows of an item
    static constexpr int kThreads = (kConsumers + 1) * kWarpgroupSize;
    // Rows of Q, K and V take 128 bytes whatever head_dim is; the copy engine fills up with zeros, which nobody reads.
    static constexpr int kQBytes = kRows * kSwizzleBytes, kTileBytes = kKeys * kSwizzleBytes;
    static constexpr int kSlabBytes = kDim * kSwizzleBytes;  // 128 keys of transposed V
    static constexpr int kTransposedBytes = (kKeys + kSwizzleBytes - 1) / kSwizzleBytes * kSlabBytes;
    static constexpr int kSharedBytes =
        kQueries * kQBytes + kStages * (2 * kTileBytes + kTransposedBytes) + kSwizzleAlign;
    static constexpr int kShare = (kBlockRegisters / kWarpgroupSize - kProducerRegisters) / kConsumers / 8 * 8;
    static constexpr int kConsumerRegisters = kShare < 240 ? kShare : 240;

    static_assert(kDim == 64 || kDim == 128, "a row of codes fits in the 128 bytes that can be swizzled");
    static_assert(kKeys % kStep == 0, "P V sums 32 keys an instruction");
    static_assert(kKeys <= 256 && kRows <= 256, "a box of the copy engine has at most 256 rows");
    static_assert(kStages >= 2, "a tile is loaded before the one in front of it is transposed");
    static_assert(kStages <= kQueries + 1, "else the queries of an item are waited for before values they depend on");
    static_assert(kSharedBytes + 512 <= kBlockSharedBytes, "the rings do not fit in shared memory");
};

// The barriers of a ring that `fillers` arrivals fill and `readers` empty.
struct Handover : Ring<kStages> {
    __device__ __forceinline__ void init(int fillers, int readers) {
        for (int i = 0; i < kStages; ++i) {
            mbarrier_init(&full[i], fillers);
            mbarrier_init(&empty[i], readers);
        }
    }
};

// Transposes a tile, 32 keys a warp at a time. A 16-bit element of ldmatrix is two columns of one key: a lane gets
// columns 2 g and 2 g + 1 of keys 2 t, 2 t + 1, and in the other registers of those keys + 8, + 16 and + 24. So byte
// 16 h + 4 t + 2 c + e of a row of the result is key 16 h + 8 c + 2 t + e: the key whose weight wgmma takes from there.
template <int kDim, int kKeys>
__device__ __forceinline__ void transpose(char *to_smem,          // [kKeys / 128, kDim, 128 keys], swizzled
                                          const char *from_smem,  // [kKeys, 128 bytes], swizzled
                                          int warp, int lane) {
    // Eight rows of a store lie in different banks if their numbers differ in the last three bits: of the even columns
    // the first four go with the last four of the odd ones.
    const int g = lane / 4, i = lane % 8;
    const unsigned first = g < 4 ? 0x6420 : 0x7531, second = g < 4 ? 0x7531 : 0x6420;
    const int column = 2 * i + (i < 4 ? lane / 16 : 1 - lane / 16);  // of 16: what this lane gives the address of
#pragma unroll
    for (int key = 0; key < kKeys; key += kWarpgroupWarps * kStep) {
        const int own = key + warp * kStep;  // this warp's first key
        if (own >= kKeys) break;
        const char *from = from_smem + (own + lane) * kSwizzleBytes;
        const int unit = own % kSwizzleBytes / kUnit + lane / 8 % 2;
        char *to = to_smem + own / kSwizzleBytes * (kDim * kSwizzleBytes) + column * kSwizzleBytes +
                   (unit ^ column % 8) * kUnit;
#pragma unroll
        for (int d = 0; d < kDim / kUnit; ++d) {
            uint32_t pairs[4];
            ldmatrix_x4_transposed(pairs, from + (d ^ lane % 8) * kUnit);
            stmatrix_x4(to + d * kUnit * kSwizzleBytes,
                        {__byte_perm(pairs[0], pairs[1], first), __byte_perm(pairs[2], pairs[3], first),
                         __byte_perm(pairs[0], pairs[1], second), __byte_perm(pairs[2], pairs[3], second)});
        }
    }
}

// S = Q K^T for 64 rows
template <int kDim, int kSize>
__device__ __forceinline__ void queue_scores(float (&s_rmem)[kSize], uint64_t q, uint64_t k) {
#pragma unroll
    for (int d = 0; d < kDim; d += kStep) {
        wgmma_k32_e4m3(s_rmem, descriptor_advance(q, d), descriptor_advance(k, d), d > 0);
    }
    wgmma_commit();
}

// A tile's P V for 64 rows
template <int kDim, int kSize, int kSteps>
__device__ __forceinline__ void queue_share(float (&share_rmem)[kSize], const uint32_t (&p_rmem)[kSteps][4],
                                            uint64_t v) {
    constexpr int kStepsOfSlab = kSwizzleBytes / kStep;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
        const int at = j / kStepsOfSlab * Tiling<kDim>::kSlabBytes + j % kStepsOfSlab * kStep;
        wgmma_k32_e4m3(share_rmem, p_rmem[j], descriptor_advance(v, at), j > 0);
    }
    wgmma_commit();
}

template <int kSize>
__device__ __forceinline__ void add_share(float (&o_rmem)[kSize], const float (&share_rmem)[kSize]) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) o_rmem[i] += share_rmem[i];
}

template <int kSize, int kSteps>
__device__ __forceinline__ void pack_bytes(uint32_t (&p_rmem)[kSteps][4], const float (&s_rmem)[kSize]) {
    static_assert(kSize == 16 * kSteps, "a step takes four 8-column blocks of the accumulator");
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *w = &s_rmem[16 * j + i / 2 * 8 + i % 2 * 2];
            p_rmem[j][i] = pack_e4m3(w[0], w[1], w[4], w[5]);
        }
    }
}

template <int kDim>
__global__ void __launch_bounds__(Tiling<kDim>::kThreads, 1)
    attention(const __grid_constant__ QuantisedAttentionArgs quantised, const Schedule schedule,
              const __grid_constant__ CUtensorMap q_map,  // [batch, query_heads, query_rows, kDim]
              const __grid_constant__ CUtensorMap k_map,  // [batch, key_heads, key_rows, kDim]
              const __grid_constant__ CUtensorMap v_map) {
    using T = __nv_fp8_e4m3;
    using Tile = Tiling<kDim>;
    constexpr int kRows = Tile::kRows;
    const AttentionArgs &args = quantised.attention;

    const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarpSize, 0);  // uniform, and the compiler knows
    const int lane = threadIdx.x % kWarpSize;
    const int consumer = warp / kWarpgroupWarps - 1;  // -1: the producer

    extern __shared__ char dynamic_smem[];
    char *Q_smem = dynamic_smem + (-shared_address(dynamic_smem) & (kSwizzleAlign - 1));  // [kQueries, kRows, 128]
    char *K_smem = Q_smem + kQueries * Tile::kQBytes;                                     // [kStages, kKeys, 128]
    char *V_smem = K_smem + kStages * Tile::kTileBytes;                                   // [kStages, kKeys, 128]
    char *Vt_smem = V_smem + kStages * Tile::kTileBytes;  // [kStages, kKeys / 128, kDim, 128 keys]
    __shared__ Ring<kQueries> q_ring;
    __shared__ Handover k_ring, v_ring, vt_ring;

    if (threadIdx.x == 0) {
        for (const CUtensorMap *map : {&q_map, &k_map, &v_map}) tensor_map_prefetch(map);
        q_ring.init(kConsumers * kWarpgroupWarps);
        k_ring.init(1, kConsumers * kWarpgroupWarps);
        v_ring.init(1, kWarpgroupWarps);
        vt_ring.init(kWarpgroupWarps, kConsumers * kWarpgroupWarps);
        mbarrier_init_fence();
    }
    __syncthreads();

    if (consumer < 0) {
        registers_release<kProducerRegisters>();
        const bool leader = warp == 0 && lane == 0;
        Place<kQueries> q_at;
        Place<kStages> load_at, at;
        Item item = {};
        int64_t round = 0;
        int tile = -1;    // of `item`, the next to load; from the diagonal down
        int waiting = 0;  // tiles that are loaded and not transposed
        const auto load = [&](char *to_smem, int rows, const CUtensorMap *map, uint64_t *full, int row, int head) {
            mbarrier_arrive_expect(full, rows * kSwizzleBytes);
            tensor_copy_4d(to_smem, map, full, 0, row, head, item.batch);
        };
        while (true) {
            while (tile < 0 && snake(round) < schedule.items) {
                item = item_at<kRows, kKeys>(args, schedule, snake(round++));
                tile = item.tiles - 1;
                if (tile < 0) continue;
                if (leader) {
                    mbarrier_wait(&q_ring.empty[q_at.stage], q_at.parity ^ 1);
                    load(Q_smem + q_at.stage * Tile::kQBytes, kRows, &q_map, &q_ring.full[q_at.stage], item.first_row,
                         item.head);
                }
                q_at.advance();
            }
            if (tile >= 0) {
                if (leader) {
                    const int stage = load_at.stage, place = stage * Tile::kTileBytes;
                    mbarrier_wait(&k_ring.empty[stage], load_at.parity ^ 1);
                    load(K_smem + place, kKeys, &k_map, &k_ring.full[stage], tile * kKeys, item.key_head);
                    mbarrier_wait(&v_ring.empty[stage], load_at.parity ^ 1);
                    load(V_smem + place, kKeys, &v_map, &v_ring.full[stage], tile * kKeys, item.key_head);
                }
                load_at.advance();
                --tile;
                if (++waiting < kStages) continue;
            }
            if (waiting == 0) break;
            __syncwarp();
            mbarrier_wait(&v_ring.full[at.stage], at.parity);
            mbarrier_wait(&vt_ring.empty[at.stage], at.parity ^ 1);
            transpose<kDim, kKeys>(Vt_smem + at.stage * Tile::kTransposedBytes, V_smem + at.stage * Tile::kTileBytes,
                                   warp, lane);
            async_proxy_fence();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&vt_ring.full[at.stage]), mbarrier_arrive(&v_ring.empty[at.stage]);
            at.advance();
            --waiting;
        }
    } else {
        registers_claim<Tile::kConsumerRegisters>();
        const uint64_t k = swizzled_descriptor(K_smem), v = swizzled_descriptor(Vt_smem);
        const char *own_q_smem = Q_smem + consumer * kWarpgroupRows * kSwizzleBytes;
        const uint64_t own_q = swizzled_descriptor(own_q_smem);
        const int own_row = consumer * kWarpgroupRows + warp % kWarpgroupWarps * 16 + lane / 4;

        const auto release = [&](uint64_t *empty) {
            __syncwarp();  // no lane may still wait for the phase that this ends
            if (lane == 0) mbarrier_arrive(empty);
        };

        Place<kQueries> q_at;
        Place<kStages> k_at, v_at;
        for (int64_t round = 0; snake(round) < schedule.items; ++round) {
            const Item item = item_at<kRows, kKeys>(args, schedule, snake(round));
            ScoreScale scale = {1.0f, 1.0f};
            float value = 0.0f;  // what 1 in a sum of values is worth
            const auto end_of = [&](int i) { return static_cast<int>(visible_end(args, i)); };
            const int row = item.first_row + own_row, first_row = item.first_row + consumer * kWarpgroupRows;
            const int last_row = static_cast<int>(min(int64_t{first_row} + kWarpgroupRows, args.query_rows)) - 1;
            const int ends[2] = {end_of(row), end_of(row + 8)};
            // Of the tiles of keys, all rows of this warpgroup see the first `whole_tiles`, none those from `tiles` on.
            const int tiles = first_row > last_row ? 0 : (end_of(last_row) + kKeys - 1) / kKeys;
            const int whole_tiles = end_of(first_row) / kKeys;

            float o_rmem[kDim / 2], share_rmem[kDim / 2], s_rmem[kKeys / 2];
            uint32_t p_rmem[kKeys / kStep][4];
            Rows rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
            for (int i = 0; i < kDim / 2; ++i) o_rmem[i] = 0.0f;
            const auto weigh = [&](auto masked, int tile) {
                int visible[2];
#pragma unroll
                for (int r = 0; r < 2; ++r) visible[r] = min(ends[r] - tile * kKeys, kKeys) - lane % 4 * 2;
                if (scale.sign != 1.0f) scale_rows(s_rmem, {scale.sign, scale.sign});
                softmax<T, decltype(masked)::value>(s_rmem, rows, visible, scale.factor);
            };

            if (item.tiles > 0) mbarrier_wait(&q_ring.full[q_at.stage], q_at.parity);
            const uint64_t q = descriptor_advance(own_q, q_at.stage * Tile::kQBytes);
            // Before any values are waited for: the producer waits for this before it transposes them.
            if (tiles == 0 && item.tiles > 0) release(&q_ring.empty[q_at.stage]);
            for (int tile = item.tiles - 1; tile >= tiles; --tile) {  // seen by other warpgroups only
                mbarrier_wait(&k_ring.full[k_at.stage], k_at.parity);
                release(&k_ring.empty[k_at.stage]);
                k_at.advance();
                mbarrier_wait(&vt_ring.full[v_at.stage], v_at.parity);
                release(&vt_ring.empty[v_at.stage]);
                v_at.advance();
            }
            if (tiles > 0) {
                int tile = tiles - 1;
                mbarrier_wait(&k_ring.full[k_at.stage], k_at.parity);
                wgmma_fence();
                queue_scores<kDim>(s_rmem, q, descriptor_advance(k, k_at.stage * Tile::kTileBytes));
                scale = score_scale(quantised, item.batch, item.head, item.key_head, 1.0);  // while they are computed
                value = value_scale(quantised, item.batch, item.key_head, 1.0);
                wgmma_wait<0>(s_rmem);
                if (tile == 0) release(&q_ring.empty[q_at.stage]);
                release(&k_ring.empty[k_at.stage]);
                k_at.advance();
                if (tile < whole_tiles) {
                    weigh(std::false_type(), tile);
                } else {
                    weigh(std::true_type(), tile);
                }
                pack_bytes(p_rmem, s_rmem);

                // The scores of a tile are queued before the share of the tile before, so that the softmax of the one
                // hides the product of the other.
                const auto end_share = [&] {
                    wgmma_wait<0>(share_rmem);
                    release(&vt_ring.empty[v_at.stage]);
                    v_at.advance();
                };
                const auto release_scored = [&] {
                    if (tile == 0) release(&q_ring.empty[q_at.stage]);
                    release(&k_ring.empty[k_at.stage]);
                    k_at.advance();
                };
                const auto step = [&](auto masked) {
                    mbarrier_wait(&k_ring.full[k_at.stage], k_at.parity);
                    mbarrier_wait(&vt_ring.full[v_at.stage], v_at.parity);
                    wgmma_fence();
                    queue_scores<kDim>(s_rmem, q, descriptor_advance(k, k_at.stage * Tile::kTileBytes));
                    queue_share<kDim>(share_rmem, p_rmem, descriptor_advance(v, v_at.stage * Tile::kTransposedBytes));
                    wgmma_wait<1>(s_rmem);
                    if constexpr (decltype(masked)::value) {
                        release_scored();
                        weigh(masked, tile);
                        finish_before_wait(fmaxf(rows.total[0], rows.total[1]));
                        end_share();
                        add_share(o_rmem, share_rmem);
                        scale_rows(o_rmem, rows.shrink);
                    } else {
                        if (scale.sign != 1.0f) scale_rows(s_rmem, {scale.sign, scale.sign});
                        const bool fit = softmax_by_earlier<T>(s_rmem, rows, scale.factor);
                        // All lanes have come to the vote, so none still waits for the phase that this ends.
                        if (fit && lane == 0) mbarrier_arrive(&k_ring.empty[k_at.stage]);
                        end_share();  // here, for all warps of a warpgroup have to wait in one place
                        if (fit) {    // the share is added in both branches: in front of them, ptxas spills registers
                            if (tile == 0) release(&q_ring.empty[q_at.stage]);
                            k_at.advance();
                            add_share(o_rmem, share_rmem);
                        } else {  // rare, and then most likely not again in this item
                            add_share(o_rmem, share_rmem);
                            scores_again<T, kDim>(
                                s_rmem,
                                own_q_smem + q_at.stage * Tile::kQBytes + warp % kWarpgroupWarps * 16 * kSwizzleBytes,
                                0, K_smem + k_at.stage * Tile::kTileBytes);
                            release_scored();
                            weigh(masked, tile);
                            scale_rows(o_rmem, rows.shrink);
                        }
                    }
                    pack_bytes(p_rmem, s_rmem);
                };
                while (--tile >= whole_tiles) step(std::true_type());
                for (; tile >= 0; --tile) step(std::false_type());

                mbarrier_wait(&vt_ring.full[v_at.stage], v_at.parity);
                wgmma_fence();
                queue_share<kDim>(share_rmem, p_rmem, descriptor_advance(v, v_at.stage * Tile::kTransposedBytes));
                end_share();
                add_share(o_rmem, share_rmem);
            }
            if (item.tiles > 0) q_at.advance();
            normalise(o_rmem, rows);
            // Rounded weights can add up to 1/16 more than their sum: a result near the end of fp16 may not become
            // infinite by that.
#pragma unroll
            for (int i = 0; i < kDim / 2; ++i) o_rmem[i] = fminf(fmaxf(o_rmem[i] * value, -65504.0f), 65504.0f);
            __half *o =
                static_cast<__half *>(args.o) + item.batch * args.o_stride.batch + item.head * args.o_stride.head;
            store_rows(o, args.o_stride.row, row, args.query_rows, o_rmem);
        }
    }
}

template <int kDim>
const char *launch_for(const QuantisedAttentionArgs &quantised, void *stream) {
    using Tile = Tiling<kDim>;
    constexpr const char *kName = "e4m3_wgmma";
    constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const AttentionArgs &args = quantised.attention;
    if (args.query_rows > INT32_MAX - 256 || args.key_rows > INT32_MAX - 256) {
        return "e4m3_wgmma takes fewer than 2^31 - 256 rows";
    }
    const Tensor4 q{"q", args.q, args.batch, args.query_heads, args.query_rows, kDim, args.q_stride, 1};
    const Tensor4 k{"k", args.k, args.batch, args.key_heads, args.key_rows, kDim, args.k_stride, 1};
    const Tensor4 v{"v", args.v, args.batch, args.key_heads, args.key_rows, kDim, args.v_stride, 1};
    const Tensor4 o{"o", args.o, args.batch, args.query_heads, args.query_rows, kDim, args.o_stride, 2};
    CUtensorMap q_map, k_map, v_map;
    if (const char *why = schedule_refusal(kName, args, Tile::kRows)) return why;
    if (const char *why = check_rows_aligned(kName, o)) return why;
    if (const char *why = make_tensor_map(kName, q_map, kType, q, Tile::kRows)) return why;
    if (const char *why = make_tensor_map(kName, k_map, kType, k, kKeys)) return why;
    if (const char *why = make_tensor_map(kName, v_map, kType, v, kKeys)) return why;

    const Schedule schedule = make_schedule(args, Tile::kRows, 1, kCausalL2);
    int multiprocessors = 0;
    const cudaError_t status =
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, args.placement.index);
    if (status != cudaSuccess) return cuda_message(kName, status);
    const int64_t blocks = schedule.items < multiprocessors ? schedule.items : multiprocessors;
    return launch_kernel(kName, attention<kDim>, {blocks, Tile::kThreads, Tile::kSharedBytes}, args.placement, stream,
                         quantised, schedule, q_map, k_map, v_map);
}

}  // namespace e4m3_wgmma

const char *launch(const QuantisedAttentionArgs &quantised, void *stream) {
    const AttentionArgs &args = quantised.attention;
    if (!args.placement.on_cuda) return "e4m3_wgmma runs on a CUDA device; the tensors are in host memory";
    if (quantised.codec != Codec::kE4m3) return "e4m3_wgmma takes float8_e4m3fn, not uint8 codes";
    if (args.head_dim == 64) return e4m3_wgmma::launch_for<64>(quantised, stream);
    if (args.head_dim == 128) return e4m3_wgmma::launch_for<128>(quantised, stream);
    return message("e4m3_wgmma takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
}
