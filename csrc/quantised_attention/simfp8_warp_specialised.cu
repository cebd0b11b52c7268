// Attention on simulated-FP8 codes, warps specialised: NUM_PRODUCER_WARPS producers read codes, decode them and fill a
// ring of fp16 tiles, consumers do nothing but multiply. Each code is decoded once a block, not once a warp.
#include "../common/cuda_launch.h"
#include "../common/mbarrier.cuh"
#include "../common/reduce.cuh"
#include "../common/swizzle.cuh"
#include "codes.cuh"

#ifndef NUM_PRODUCER_WARPS
    #define NUM_PRODUCER_WARPS 1
#endif

namespace simfp8_warp_specialised {

static_assert(NUM_PRODUCER_WARPS == 1 || NUM_PRODUCER_WARPS == 2, "a tile is shared out among one or two warps");

constexpr int kConsumerWarps = 4;
constexpr int kProducerWarps = NUM_PRODUCER_WARPS;
constexpr int kProducers = kProducerWarps * kWarpSize;
constexpr int kThreads = kConsumerWarps * kWarpSize + kProducers;
constexpr int kWarpRows = 16;  // the rows of an mma
constexpr int kRows = kConsumerWarps * kWarpRows;
constexpr int kStages = 4;
static_assert((kStages & (kStages - 1)) == 0, "stage and parity are bits of the tile's number");
constexpr int kMaxRegisters = 120;
constexpr int kChunk = 16;                      // codes of a 16-byte access; as fp16 they are two
constexpr uint32_t kZeros = 0x80808080u;        // four codes which stand for 0
constexpr int64_t kMaxRows = INT32_MAX - 1024;  // so that row numbers, tails of tiles included, fit 32 bits
// Weights in (0, 1] are 2^15 times as large: fp16 loses digits below 2^-14. Their sum is too, so it divides out.
constexpr float kWeightExponent = 15.0f;

template <int kDim, int kKeys>
struct Shared {
    __half k[kStages][kKeys * kDim];  // [kKeys, kDim], swizzled
    __half v[kStages][kKeys * kDim];  // [kKeys, kDim], swizzled
    __half q[kRows * kDim];           // [kRows, kDim], swizzled
    uint64_t full[kStages];
    uint64_t empty[kStages];
};

// 16 codes of a row, zeros where there is no such row.
__device__ __forceinline__ uint4 load_codes(const uint8_t *from, bool exists) {
    return exists ? *reinterpret_cast<const uint4 *>(from) : make_uint4(kZeros, kZeros, kZeros, kZeros);
}

// Decodes chunk `chunk` of a row into a tile, times a sign where there is one.
template <int kDim, bool kSigned = false>
__device__ __forceinline__ void store_codes(__half *tile_smem, int row, int chunk, uint4 codes, float sign = 1.0f) {
    const auto pair = [&](uint32_t decoded) { return kSigned ? times(decoded, sign) : decoded; };
    const auto eight = [&](uint32_t first, uint32_t second) {
        return make_uint4(pair(whole_codes<false>(first)), pair(whole_codes<true>(first)),
                          pair(whole_codes<false>(second)), pair(whole_codes<true>(second)));
    };
    *reinterpret_cast<uint4 *>(tile_smem + swizzled<kDim>(row, chunk * 2)) = eight(codes.x, codes.y);
    *reinterpret_cast<uint4 *>(tile_smem + swizzled<kDim>(row, chunk * 2 + 1)) = eight(codes.z, codes.w);
}

template <int kDim, int kKeys>
__global__ void __maxnreg__(kMaxRegisters) attention(QuantisedAttentionArgs quantised) {
    static_assert(kKeys % 16 == 0, "P V sums over 16 keys at a time");
    constexpr int kTiles = kDim / 8;  // of 8 columns of the output
    constexpr int kRowChunks = kDim / kChunk;
    const AttentionArgs &args = quantised.attention;
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const Place place = place_of(args, blockIdx.x, kRows);
    const auto at = [&](const void *data, const Strides3 &stride, int64_t h) {
        return static_cast<const uint8_t *>(data) + place.batch * stride.batch + h * stride.head;
    };
    const auto end_of = [&](int i) { return static_cast<int>(visible_end(args, i)); };
    const int block_end = end_of(place.first_row + kRows - 1);

    extern __shared__ __align__(128) unsigned char memory_smem[];
    auto &smem = *reinterpret_cast<Shared<kDim, kKeys> *>(memory_smem);

    if (threadIdx.x < kStages) {
        // Every thread arrives for itself: racecheck cannot see that a warp's first lane speaks for all.
        barrier_init(&smem.full[threadIdx.x], kProducers);
        barrier_init(&smem.empty[threadIdx.x], kConsumerWarps * kWarpSize);
    }
    __syncthreads();

    if (warp >= kConsumerWarps) {
        constexpr int kRowStep = kProducers / kRowChunks;  // rows that the producers bring at a time
        constexpr int kShare = kKeys / kRowStep;           // chunks of K, and of V, that a thread brings
        static_assert(kShare * kRowStep == kKeys, "producers share a tile evenly");
        const int producer = threadIdx.x - kConsumerWarps * kWarpSize;
        const int first = producer / kRowChunks, chunk = producer % kRowChunks;
        const uint8_t *k = at(args.k, args.k_stride, place.key_head) + first * args.k_stride.row + chunk * kChunk;
        const uint8_t *v = at(args.v, args.v_stride, place.key_head) + first * args.v_stride.row + chunk * kChunk;
        int rows = static_cast<int>(args.key_rows) - first;  // that there are from this thread's first on
        uint4 k_rmem[kShare], v_rmem[kShare];
        const auto load_next = [&] {
#pragma unroll
            for (int i = 0; i < kShare; ++i) {
                k_rmem[i] = load_codes(k, i * kRowStep < rows);
                v_rmem[i] = load_codes(v, i * kRowStep < rows);
                k += kRowStep * args.k_stride.row;
                v += kRowStep * args.v_stride.row;
            }
            rows -= kKeys;
        };
        if (block_end > 0) load_next();
        for (int tile = 0; tile * kKeys < block_end; ++tile) {
            const int stage = tile % kStages, parity = tile / kStages % 2;
            barrier_wait(&smem.empty[stage], parity ^ 1);
#pragma unroll
            for (int i = 0; i < kShare; ++i) {
                store_codes<kDim>(smem.k[stage], first + i * kRowStep, chunk, k_rmem[i]);
                store_codes<kDim>(smem.v[stage], first + i * kRowStep, chunk, v_rmem[i]);
            }
            barrier_arrive(&smem.full[stage]);
            if ((tile + 1) * kKeys < block_end) load_next();  // on their way while the ring is full
        }
    } else {
        const int group = lane / 4, member = lane % 4;
        const int warp_row = place.first_row + warp * kWarpRows;
        const int one_sees = end_of(warp_row + kWarpRows - 1);
        const ScoreScale scale = score_scale(quantised, place.batch, place.head, place.key_head, kCodeStep * kCodeStep);
        const uint8_t *q = at(args.q, args.q_stride, place.head);
        __half *q_smem = smem.q + warp * kWarpRows * kDim;
#pragma unroll
        for (int i = lane; i < kWarpRows * kRowChunks; i += kWarpSize) {
            const int64_t row = warp_row + i / kRowChunks;
            const uint8_t *from = q + row * args.q_stride.row + i % kRowChunks * kChunk;
            const uint4 codes = load_codes(from, row < args.query_rows);
            store_codes<kDim, true>(q_smem, i / kRowChunks, i % kRowChunks, codes, scale.sign);
        }
        __syncwarp();

        float o_rmem[kTiles][4] = {};
        float total[2] = {};
        float highest[2] = {-INFINITY, -INFINITY};  // of factor times score, less kWeightExponent
        // Where this lane's row of the first matrices lies, as ldmatrix takes them: for 8 rows and 32 columns, and for
        // 16 rows and 16 columns. Others are an exclusive or with the column away.
        const int wide = swizzled<kDim>(lane % 8, lane / 8), tall = swizzled<kDim>(lane % 16, lane / 16);
        for (int tile = 0; tile * kKeys < block_end; ++tile) {
            const int stage = tile % kStages, parity = tile / kStages % 2, key = tile * kKeys;
            barrier_wait(&smem.full[stage], parity);
            if (key < one_sees) {
                // S = Q K^T
                float s_rmem[kKeys / 8][4] = {};
#pragma unroll
                for (int c = 0; c < kDim; c += 32) {
                    uint32_t q_rmem[2][4];
                    ldmatrix_x4(q_rmem[0], q_smem + (tall ^ c));
                    ldmatrix_x4(q_rmem[1], q_smem + (tall ^ (c + 16)));
#pragma unroll
                    for (int n = 0; n < kKeys / 8; ++n) {
                        uint32_t k_rmem[4];
                        ldmatrix_x4(k_rmem, smem.k[stage] + n * 8 * kDim + (wide ^ c));
                        mma_m16n8k16<__half>(s_rmem[n], q_rmem[0], {k_rmem[0], k_rmem[1]});
                        mma_m16n8k16<__half>(s_rmem[n], q_rmem[1], {k_rmem[2], k_rmem[3]});
                    }
                }
                if (key + kKeys > end_of(warp_row)) {
                    const int row_end[2] = {end_of(warp_row + group), end_of(warp_row + group + 8)};
#pragma unroll
                    for (int i = 0; i < kKeys / 2; ++i) {
                        const int column = i / 4 * 8 + member * 2 + i % 2;
                        if (key + column >= row_end[i % 4 / 2]) s_rmem[i / 4][i % 4] = -INFINITY;
                    }
                }

                // online softmax: a quad holds a row
                float shrink[2], offset[2];
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    float most = -INFINITY;
#pragma unroll
                    for (int n = 0; n < kKeys / 8; ++n) {
                        most = fmaxf(most, fmaxf(s_rmem[n][2 * r], s_rmem[n][2 * r + 1]));
                    }
                    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
                    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
                    // Rounded up, so that no weight exceeds its due and overflows fp16, however large the scores.
                    const float now = fmaxf(highest[r], __fmaf_ru(most, scale.factor, -kWeightExponent));
                    offset[r] = now == -INFINITY ? 0.0f : now;
                    shrink[r] = exp2_approx(highest[r] - offset[r]);
                    highest[r] = now;
                    total[r] *= shrink[r];
                }
                if (__any_sync(kAllLanes, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                    for (int n = 0; n < kTiles; ++n) {
                        o_rmem[n][0] *= shrink[0], o_rmem[n][1] *= shrink[0];
                        o_rmem[n][2] *= shrink[1], o_rmem[n][3] *= shrink[1];
                    }
                }
#pragma unroll
                for (int i = 0; i < kKeys / 2; ++i) {
                    const float weight = exp2_approx(fmaf(s_rmem[i / 4][i % 4], scale.factor, -offset[i % 4 / 2]));
                    total[i % 4 / 2] += weight;
                    s_rmem[i / 4][i % 4] = weight;
                }

                // O += P V
#pragma unroll
                for (int j = 0; j < kKeys; j += 16) {
                    const float (&left)[4] = s_rmem[j / 8], (&right)[4] = s_rmem[j / 8 + 1];
                    const uint32_t p_rmem[4] = {pack<__half>(left[0], left[1]), pack<__half>(left[2], left[3]),
                                                pack<__half>(right[0], right[1]), pack<__half>(right[2], right[3])};
#pragma unroll
                    for (int n = 0; n < kTiles; n += 2) {
                        uint32_t v_rmem[4];
                        ldmatrix_x4_transposed(v_rmem, smem.v[stage] + j * kDim + (tall ^ (n * 8)));
                        mma_m16n8k16<__half>(o_rmem[n], p_rmem, {v_rmem[0], v_rmem[1]});
                        mma_m16n8k16<__half>(o_rmem[n + 1], p_rmem, {v_rmem[2], v_rmem[3]});
                    }
                }
            }
            barrier_arrive(&smem.empty[stage]);
        }

        const Place again = place_of(args, block_index_again(), kRows);
        const float value = value_scale(quantised, again.batch, again.key_head, kCodeStep);
        __half *o = static_cast<__half *>(args.o) + again.batch * args.o_stride.batch + again.head * args.o_stride.head;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
            total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
            const int64_t row = warp_row + group + 8 * r;
            if (row >= args.query_rows) continue;
            // No visible key gives zeros; so do scores beyond 2^27, whose rounded maximum leaves no weight.
            const float inverse = total[r] > 1e-30f ? value / total[r] : 0.0f;
            __half *to = o + row * args.o_stride.row + member * 2;
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                const uint32_t pair = pack<__half>(o_rmem[n][2 * r] * inverse, o_rmem[n][2 * r + 1] * inverse);
                *reinterpret_cast<uint32_t *>(to + n * 8) = pair;
            }
        }
    }
}

}  // namespace simfp8_warp_specialised

const char *launch(const QuantisedAttentionArgs &quantised, void *stream) {
    using namespace simfp8_warp_specialised;
    const AttentionArgs &args = quantised.attention;
    if (quantised.codec != Codec::kSimFp8) return "simfp8_warp_specialised takes uint8 codes, not float8_e4m3fn";
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("simfp8_warp_specialised takes head_dim 64 or 128, not %lld",
                       static_cast<long long>(args.head_dim));
    }
    if (args.query_rows > kMaxRows || args.key_rows > kMaxRows) {
        return message("simfp8_warp_specialised takes up to %lld rows", static_cast<long long>(kMaxRows));
    }
    if (!rows_on_16_bytes(args.q, args.q_stride) || !rows_on_16_bytes(args.k, args.k_stride) ||
        !rows_on_16_bytes(args.v, args.v_stride) || !half_rows_on_16_bytes(args.o, args.o_stride)) {
        return "simfp8_warp_specialised takes rows that start on 16 bytes; simfp8_stage2 takes any";
    }
    const bool narrow = args.head_dim == 64;
    // With twice as many keys a tile, registers spill.
    const auto kernel = narrow ? attention<64, 32> : attention<128, 16>;
    const int shared_bytes = narrow ? sizeof(Shared<64, 32>) : sizeof(Shared<128, 16>);
    const int64_t blocks = (args.query_rows + kRows - 1) / kRows * args.query_heads * args.batch;
    return launch_kernel("simfp8_warp_specialised", kernel, {blocks, kThreads, shared_bytes}, args.placement, stream,
                         quantised);
}
