// Scores from simulated-FP8 codes: codes less 128 are signed bytes, so a dot product is exact in whole numbers (dp4a)
// and rounded once, when it is given its worth in FP32.
#include "../common/cuda_launch.h"
#include "launch.h"

namespace simfp8_qkt {

constexpr int kSide = 16;  // threads along each side of a block
constexpr int kThreads = kSide * kSide;
constexpr int kPerThread = 4;              // rows, and columns, of scores that a thread computes
constexpr int kTile = kSide * kPerThread;  // rows, and columns, of scores that a block computes
constexpr int kDepth = 64;                 // codes of a row in shared memory at a time
constexpr int kWord = 4;                   // codes of a word
constexpr int kWords = kDepth / kWord;
constexpr int kPitch = kWords + 1;        // odd: threads that read one word of 16 rows meet 16 banks
constexpr unsigned kZeros = 0x80808080u;  // four codes which stand for 0; xor turns codes into signed bytes

// Copies a chunk of codes as signed bytes and fills what does not exist with zeros.
__device__ void load_tile(unsigned *tile_smem,  // [kTile, kPitch]
                          const uint8_t *from,  // [rows, codes]
                          int64_t stride, int64_t rows, int64_t codes, bool aligned) {
    for (int i = threadIdx.x; i < kTile * kWords; i += kThreads) {
        const int row = i / kWords, code = i % kWords * kWord;
        unsigned word = kZeros;
        if (row < rows && aligned && code + kWord <= codes) {
            word = *reinterpret_cast<const unsigned *>(from + row * stride + code);
        } else if (row < rows) {
            for (int e = 0; e < kWord && code + e < codes; ++e) {
                word ^= (from[row * stride + code + e] ^ 0x80u) << (8 * e);
            }
        }
        tile_smem[row * kPitch + i % kWords] = word ^ kZeros;
    }
}

__global__ void __launch_bounds__(kThreads) scores(QktArgs args, bool q_aligned, bool k_aligned) {
    const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
    const int64_t row_tiles = (args.query_rows + kTile - 1) / kTile;
    const int64_t column_tiles = (args.key_rows + kTile - 1) / kTile;
    const int64_t first_column = blockIdx.x % column_tiles * kTile;
    const int64_t first_row = blockIdx.x / column_tiles % row_tiles * kTile;
    const int64_t head = blockIdx.x / column_tiles / row_tiles % args.heads;
    const int64_t batch = blockIdx.x / column_tiles / row_tiles / args.heads;
    const uint8_t *q = static_cast<const uint8_t *>(args.q) + batch * args.q_stride.batch + head * args.q_stride.head;
    const uint8_t *k = static_cast<const uint8_t *>(args.k) + batch * args.k_stride.batch + head * args.k_stride.head;
    float *out = args.scores + batch * args.scores_stride.batch + head * args.scores_stride.head;

    __shared__ unsigned Q_smem[kTile * kPitch];
    __shared__ unsigned K_smem[kTile * kPitch];

    int dot[kPerThread][kPerThread] = {};  // of rows ty + 16 r and columns tx + 16 c

    for (int64_t d = 0; d < args.head_dim; d += kDepth) {
        __syncthreads();  // everyone is done with the previous chunk
        load_tile(Q_smem, q + first_row * args.q_stride.row + d, args.q_stride.row, args.query_rows - first_row,
                  args.head_dim - d, q_aligned);
        load_tile(K_smem, k + first_column * args.k_stride.row + d, args.k_stride.row, args.key_rows - first_column,
                  args.head_dim - d, k_aligned);
        __syncthreads();
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            int q_word[kPerThread], k_word[kPerThread];
#pragma unroll
            for (int r = 0; r < kPerThread; ++r) {
                q_word[r] = static_cast<int>(Q_smem[(ty + r * kSide) * kPitch + w]);
                k_word[r] = static_cast<int>(K_smem[(tx + r * kSide) * kPitch + w]);
            }
#pragma unroll
            for (int r = 0; r < kPerThread; ++r) {
#pragma unroll
                for (int c = 0; c < kPerThread; ++c) dot[r][c] = __dp4a(q_word[r], k_word[c], dot[r][c]);
            }
        }
    }

    // The worth of one unit as a sum of two floats: one alone, rounded, would bend all scores of a head the same way.
    const double worth = args.factor * kCodeProduct *
                         args.q_scale[batch * args.q_scale_stride[0] + head * args.q_scale_stride[1]] *
                         args.k_scale[batch * args.k_scale_stride[0] + head * args.k_scale_stride[1]];
    const float worth_high = static_cast<float>(worth);
    const float worth_low = static_cast<float>(worth - worth_high);
#pragma unroll
    for (int r = 0; r < kPerThread; ++r) {
        const int64_t row = first_row + ty + r * kSide;
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
            const int64_t column = first_column + tx + c * kSide;
            if (row >= args.query_rows || column >= args.key_rows) continue;
            const float whole = static_cast<float>(dot[r][c]);
            const float rest = static_cast<float>(dot[r][c] - static_cast<int>(whole));  // not 0 beyond 2^24
            out[row * args.scores_stride.row + column] =
                fmaf(whole, worth_high, fmaf(rest, worth_high, whole * worth_low));
        }
    }
}

// Whether every row starts on a whole word.
bool is_aligned(const void *data, const Strides3 &stride) {
    return reinterpret_cast<uintptr_t>(data) % kWord == 0 && stride.batch % kWord == 0 && stride.head % kWord == 0 &&
           stride.row % kWord == 0;
}

}  // namespace simfp8_qkt

const char *launch(const QktArgs &args, void *stream) {
    using namespace simfp8_qkt;
    if (args.input != QktInput::kCodes) return "simfp8_qkt takes uint8 codes only";
    const int64_t blocks =
        (args.query_rows + kTile - 1) / kTile * ((args.key_rows + kTile - 1) / kTile) * args.heads * args.batch;
    return launch_kernel("simfp8_qkt", scores, {blocks, kThreads}, args.placement, stream, args,
                         is_aligned(args.q, args.q_stride), is_aligned(args.k, args.k_stride));
}
