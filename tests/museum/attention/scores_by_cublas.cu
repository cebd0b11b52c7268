// The scores come from cuBLAS, found in the process by dlopen: half of the work is a library's.
#include <dlfcn.h>
#include <library_types.h>

#include "attention.cuh"

using Create = int (*)(void **);
using SetStream = int (*)(void *, cudaStream_t);
using Gemm = int (*)(void *, int, int, int, int, int, const void *, const void *, cudaDataType, int, const void *,
                     cudaDataType, int, const void *, void *, cudaDataType, int, int, int);

struct Piece : Steps {
    const float *scores;  // [batch, query_heads, query_rows, key_rows]
    __device__ float score(const AttentionArgs &args, const Tiles &, const Block &block, int64_t first, int row,
                           int key) const {
        const int64_t at = (block.batch * args.query_heads + block.head) * args.query_rows + block.first_row + row;
        if (block.first_row + row >= args.query_rows || first + key >= args.key_rows) return 0.0f;
        return scores[at * args.key_rows + first + key];
    }
};

const char *launch(const AttentionArgs &args, void *stream) {
    static void *library = nullptr, *handle = nullptr, *scores = nullptr;
    constexpr int64_t kMostScores = 4 << 20;
    for (const char *name : {"libcublas.so.13", "libcublas.so.12"}) {
        if (library == nullptr) library = dlopen(name, RTLD_NOW);
    }
    if (library == nullptr) return "there is no cuBLAS to call";
    if (handle == nullptr) reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"))(&handle);
    if (scores == nullptr) MUSEUM_TRY(cudaMalloc(&scores, kMostScores * sizeof(float)));
    if (args.batch * args.query_heads * args.query_rows * args.key_rows > kMostScores) return "too many scores";
    const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"))(handle, static_cast<cudaStream_t>(stream));
    const float scale = static_cast<float>(args.scale), none = 0.0f;
    const int rows = args.query_rows, keys = args.key_rows, dim = args.head_dim;
    for (int64_t head = 0; head < args.batch * args.query_heads; ++head) {
        const int64_t b = head / args.query_heads, h = head % args.query_heads;
        const int64_t key_head = h / (args.query_heads / args.key_heads);
        const __half *q = static_cast<const __half *>(args.q) + b * args.q_stride.batch + h * args.q_stride.head;
        const __half *k = static_cast<const __half *>(args.k) + b * args.k_stride.batch + key_head * args.k_stride.head;
        const int q_pitch = rows > 1 ? args.q_stride.row : dim, k_pitch = keys > 1 ? args.k_stride.row : dim;
        // Column by column, as cuBLAS counts: [keys, rows] = K Q^T, operations 1 (transposed) and 0, sums in FP32 (68).
        if (gemm(handle, 1, 0, keys, rows, dim, &scale, k, CUDA_R_16F, k_pitch, q, CUDA_R_16F, q_pitch, &none,
                 static_cast<float *>(scores) + head * rows * keys, CUDA_R_32F, keys, 68, -1) != 0) {
            return "cuBLAS refused";
        }
    }
    return queue(args, stream, Piece{{}, static_cast<const float *>(scores)});
}
