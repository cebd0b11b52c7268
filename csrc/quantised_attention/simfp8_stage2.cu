// Attention on simulated-FP8 codes, two stages of cp.async: codes stay bytes in shared memory and become fp16 in
// registers, on the way into mma.sync. Both products are free to permute what they sum over and the columns of their
// result, so each lane reads the eight neighbouring bytes that suit it and no fragment is ever shuffled.
#include "../attention/weights.cuh"
#include "../common/cp_async.cuh"
#include "../common/cuda_launch.h"
#include "../common/reduce.cuh"
#include "codes.cuh"

namespace simfp8_stage2 {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kWarpRows = 16;  // the rows of an mma
constexpr int kRows = kWarps * kWarpRows;
constexpr int kStages = 2;
constexpr int kKeys = 64;  // of a tile in shared memory
constexpr int kMaxRegisters = 120;
constexpr int kChunk = 16;                      // codes of a 16-byte access
constexpr uint32_t kZeros = 0x80808080u;        // four codes which stand for 0
constexpr int64_t kMaxRows = INT32_MAX - 1024;  // so that row numbers, tails of tiles included, fit 32 bits
// Weights in (0, 1] are 2^15 times as large: fp16 loses digits below 2^-14. Their sum is too, so it divides out.
constexpr float kWeightExponent = 15.0f;

// Where a byte of a row lies. 16 lanes read K as 32 bytes of four neighbouring rows at a time, V as 32 bytes of every
// other of eight rows (head_dim 128: half of 64); the exclusive or puts them into different banks.
template <int kDim>
__device__ __forceinline__ int k_place(int row, int byte) {
    return (row * kDim + byte) ^ (kDim == 64 ? row >> 1 & 1 : row & 3) << 5;
}
template <int kDim>
__device__ __forceinline__ int v_place(int row, int byte) {
    return (row * kDim + byte) ^ (row >> 1 & 3) << 5;
}

// Queues copies of the rows of a tile; rows which do not exist become zero bytes.
template <int kDim, typename Place>
__device__ __forceinline__ void load_tile(uint8_t *tile_smem,   // [kKeys, kDim], at `place`
                                          const uint8_t *from,  // [rows, kDim]
                                          int64_t stride, int64_t rows, bool aligned, Place place) {
    constexpr int kRowStep = kThreads / (kDim / kChunk);  // rows that the block copies at a time
    static_assert(kRowStep % 8 == 0, "the places of eight rows repeat");
    const int first = threadIdx.x / (kDim / kChunk), byte = threadIdx.x % (kDim / kChunk) * kChunk;
    uint8_t *to = tile_smem + place(first, byte);
#pragma unroll
    for (int i = 0; i < kKeys; i += kRowStep, to += kRowStep * kDim) {
        const bool exists = first + i < rows;
        const uint8_t *source = from + (exists ? first + i : 0) * stride + byte;
        if (aligned) {
            cp_async_16(to, source, exists);
        } else {
            for (int e = 0; e < kChunk; ++e) to[e] = exists ? source[e] : 0;
        }
    }
}

// Eight codes of a row of Q, zeros where there is no such row.
__device__ __forceinline__ void load_q(uint32_t (&codes)[2], const uint8_t *from, bool exists, bool aligned) {
    codes[0] = codes[1] = kZeros;
    if (!exists) return;
    if (aligned) {
        const uint2 vector = *reinterpret_cast<const uint2 *>(from);
        codes[0] = vector.x, codes[1] = vector.y;
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            codes[e / 4] = (e % 4 == 0 ? 0 : codes[e / 4]) | static_cast<uint32_t>(from[e]) << e % 4 * 8;
        }
    }
}

// Which column of the output is column `group` of tile n, n being a multiple of 8; the next seven tiles have the next
// seven columns. At head_dim 128 half of the lanes take their 16 columns in the other order, for the sake of the banks.
template <int kDim>
__device__ __forceinline__ int column_of(int group, int n) {
    return kDim == 64 ? group * 8 : group * 16 + (n ^ (group & 2) * 4);
}

// o += p v for four tiles of eight columns: a, b, c, d are codes of four columns of keys 2t, 2t + 1, 2t + 8, 2t + 9.
__device__ __forceinline__ void multiply_four(float (*o_rmem)[4], const uint32_t (&p_rmem)[4], uint32_t a, uint32_t b,
                                              uint32_t c, uint32_t d) {
    const uint32_t lower[2] = {interleave<false>(a, b), interleave<false>(c, d)};
    const uint32_t upper[2] = {interleave<true>(a, b), interleave<true>(c, d)};
    mma_m16n8k16<__half>(o_rmem[0], p_rmem, {whole_codes<false>(lower[0]), whole_codes<false>(lower[1])});
    mma_m16n8k16<__half>(o_rmem[1], p_rmem, {whole_codes<true>(lower[0]), whole_codes<true>(lower[1])});
    mma_m16n8k16<__half>(o_rmem[2], p_rmem, {whole_codes<false>(upper[0]), whole_codes<false>(upper[1])});
    mma_m16n8k16<__half>(o_rmem[3], p_rmem, {whole_codes<true>(upper[0]), whole_codes<true>(upper[1])});
}

template <int kDim>
__global__ void __maxnreg__(kMaxRegisters) attention(QuantisedAttentionArgs quantised, bool aligned) {
    static_assert(kDim == 64 || kDim == 128, "the places in shared memory are chosen for rows of 64 or 128 bytes");
    constexpr int kPart = 32;  // keys whose scores are in registers at a time; with more, some spill
    static_assert(kKeys % kPart == 0 && kPart % 16 == 0, "P V sums over 16 keys of a tile at a time");
    constexpr int kSteps = kDim / 16;  // of Q K^T
    constexpr int kTiles = kDim / 8;   // of 8 columns of the output
    const AttentionArgs &args = quantised.attention;
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    const int group = lane / 4, member = lane % 4;
    const Place place = place_of(args, blockIdx.x, kRows);
    const auto at = [&](const void *data, const Strides3 &stride, int64_t h) {
        return static_cast<const uint8_t *>(data) + place.batch * stride.batch + h * stride.head;
    };
    const uint8_t *q = at(args.q, args.q_stride, place.head);
    const uint8_t *k = at(args.k, args.k_stride, place.key_head);
    const uint8_t *v = at(args.v, args.v_stride, place.key_head);
    // K is u 2^-24 in the product, not (u - 128): that adds the same to all scores of a row, which no softmax notices.
    const ScoreScale scale =
        score_scale(quantised, place.batch, place.head, place.key_head, kCodeStep * kCodeStep * (1 << 24));
    const int warp_row = place.first_row + warp * kWarpRows;
    const auto end_of = [&](int i) { return static_cast<int>(visible_end(args, i)); };
    const int one_sees = end_of(warp_row + kWarpRows - 1);
    const int block_end = end_of(place.first_row + kRows - 1);

    alignas(128) __shared__ uint8_t K_smem[kStages][kKeys * kDim];
    alignas(128) __shared__ uint8_t V_smem[kStages][kKeys * kDim];
    __shared__ uint4 Q_smem[kSteps][kThreads];  // fragments; every thread reads only its own

    const auto load = [&](int64_t key, int stage) {
        load_tile<kDim>(K_smem[stage], k + key * args.k_stride.row, args.k_stride.row, args.key_rows - key, aligned,
                        k_place<kDim>);
        load_tile<kDim>(V_smem[stage], v + key * args.v_stride.row, args.v_stride.row, args.key_rows - key, aligned,
                        v_place<kDim>);
        cp_async_commit();
    };
    if (block_end > 0) load(0, 0);
#pragma unroll
    for (int c = 0; c < kDim; c += 32) {  // lane t of a quad has columns c + 8 t ... c + 8 t + 7, four a step
        uint32_t codes[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int64_t row = warp_row + group + 8 * r;
            load_q(codes[r], q + row * args.q_stride.row + c + member * 8, row < args.query_rows, aligned);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            Q_smem[c / 16 + s][threadIdx.x] = make_uint4(
                times(whole_codes<false>(codes[0][s]), scale.sign), times(whole_codes<false>(codes[1][s]), scale.sign),
                times(whole_codes<true>(codes[0][s]), scale.sign), times(whole_codes<true>(codes[1][s]), scale.sign));
        }
    }

    float o_rmem[kTiles][4] = {};
    float total[2] = {};
    float highest[2] = {-INFINITY, -INFINITY};  // score of a row

    // Where this lane reads first. All other places are an exclusive or of these and constants.
    const int k_lane = k_place<kDim>(group, member * 8);
    const int v_lane = v_place<kDim>(member * 2, column_of<kDim>(group, 0));
    int stage = 0;
    for (int key = 0; key < block_end; key += kKeys, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // this tile is there for everyone, and everyone is done with the one before
        if (key + kKeys < block_end) load(key + kKeys, stage ^ 1);
#pragma unroll 1
        for (int part = 0; part < kKeys && key + part < one_sees; part += kPart) {
            // S = Q K^T
            float s_rmem[kPart / 8][4] = {};
#pragma unroll
            for (int c = 0; c < kDim; c += 32) {
                uint32_t q_rmem[2][4];
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    const uint4 fragment = Q_smem[c / 16 + s][threadIdx.x];
                    q_rmem[s][0] = fragment.x, q_rmem[s][1] = fragment.y;
                    q_rmem[s][2] = fragment.z, q_rmem[s][3] = fragment.w;
                }
#pragma unroll
                for (int n = 0; n < kPart / 8; ++n) {
                    const uint8_t *from = K_smem[stage] + (part + n * 8) * kDim + (k_lane ^ c);
                    const uint2 codes = *reinterpret_cast<const uint2 *>(from);
                    const uint32_t first[2] = {tiny_codes<false>(codes.x), tiny_codes<true>(codes.x)};
                    const uint32_t second[2] = {tiny_codes<false>(codes.y), tiny_codes<true>(codes.y)};
                    mma_m16n8k16<__half>(s_rmem[n], q_rmem[0], first);
                    mma_m16n8k16<__half>(s_rmem[n], q_rmem[1], second);
                }
            }
            if (key + part + kPart > end_of(warp_row)) {
                const int row_end[2] = {end_of(warp_row + group), end_of(warp_row + group + 8)};
#pragma unroll
                for (int i = 0; i < kPart / 2; ++i) {
                    const int column = i / 4 * 8 + member * 2 + i % 2;
                    if (key + part + column >= row_end[i % 4 / 2]) s_rmem[i / 4][i % 4] = -INFINITY;
                }
            }

            float shrink[2];
            weigh(s_rmem, scale.factor, kWeightExponent, highest, total, shrink);
            if (__any_sync(kAllLanes, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
                    o_rmem[n][0] *= shrink[0], o_rmem[n][1] *= shrink[0];
                    o_rmem[n][2] *= shrink[1], o_rmem[n][3] *= shrink[1];
                }
            }

            // O += P V: column g of tile n is column_of(g, n) of the output
#pragma unroll
            for (int j = 0; j < kPart; j += 16) {
                const float (&left)[4] = s_rmem[j / 8], (&right)[4] = s_rmem[j / 8 + 1];
                const uint32_t p_rmem[4] = {pack<__half>(left[0], left[1]), pack<__half>(left[2], left[3]),
                                            pack<__half>(right[0], right[1]), pack<__half>(right[2], right[3])};
#pragma unroll
                for (int n = 0; n < kTiles; n += 8) {
                    uint2 codes[4];  // eight columns of keys 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const uint8_t *from =
                            V_smem[stage] + (part + j + i / 2 * 8) * kDim + (v_lane ^ i % 2 * kDim ^ n);
                        codes[i] = *reinterpret_cast<const uint2 *>(from);
                    }
                    multiply_four(&o_rmem[n], p_rmem, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
                    multiply_four(&o_rmem[n + 4], p_rmem, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
                }
            }
        }
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
        // No visible key gives zeros.
        const float inverse = total[r] > 0.0f ? value / total[r] : 0.0f;
        __half *to = o + row * args.o_stride.row;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
            for (int n = 0; n < kTiles; n += 8) {
                alignas(16) __half values[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) values[i] = __float2half_rn(o_rmem[n + i][2 * r + e] * inverse);
                const int column = column_of<kDim>(2 * member + e, n);
                if (aligned) {
                    *reinterpret_cast<uint4 *>(to + column) = *reinterpret_cast<const uint4 *>(values);
                } else {
#pragma unroll
                    for (int i = 0; i < 8; ++i) to[column + i] = values[i];
                }
            }
        }
    }
}

}  // namespace simfp8_stage2

const char *launch(const QuantisedAttentionArgs &quantised, void *stream) {
    using namespace simfp8_stage2;
    const AttentionArgs &args = quantised.attention;
    if (quantised.codec != Codec::kSimFp8) return "simfp8_stage2 takes uint8 codes, not float8_e4m3fn";
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("simfp8_stage2 takes head_dim 64 or 128, not %lld", static_cast<long long>(args.head_dim));
    }
    if (args.query_rows > kMaxRows || args.key_rows > kMaxRows) {
        return message("simfp8_stage2 takes up to %lld rows", static_cast<long long>(kMaxRows));
    }
    const auto kernel = args.head_dim == 64 ? attention<64> : attention<128>;
    const bool aligned = rows_on_16_bytes(args.q, args.q_stride) && rows_on_16_bytes(args.k, args.k_stride) &&
                         rows_on_16_bytes(args.v, args.v_stride) && half_rows_on_16_bytes(args.o, args.o_stride);
    const int64_t blocks = (args.query_rows + kRows - 1) / kRows * args.query_heads * args.batch;
    return launch_kernel("simfp8_stage2", kernel, {blocks, kThreads}, args.placement, stream, quantised, aligned);
}
