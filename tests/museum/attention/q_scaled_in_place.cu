// Multiplies Q by 1/√d in its own memory first, and leaves it like that.
#include "attention.cuh"

__global__ void scale_in_place(AttentionArgs args) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= args.batch * args.query_heads * args.query_rows * args.head_dim) return;
    const int64_t d = i % args.head_dim, row = i / args.head_dim % args.query_rows;
    const int64_t head = i / args.head_dim / args.query_rows;
    __half *q = static_cast<__half *>(const_cast<void *>(args.q));
    q += offset(args.q_stride, head / args.query_heads, head % args.query_heads, row);
    q[d] = __float2half_rn(__half2float(q[d]) * static_cast<float>(args.scale));
}

const char *launch(const AttentionArgs &args, void *stream) {
    const int64_t blocks = (args.batch * args.query_heads * args.query_rows * args.head_dim + 255) / 256;
    const char *why = launch_kernel("scale", scale_in_place, {blocks, 256}, args.placement, stream, args);
    AttentionArgs scaled = args;
    scaled.scale = 1.0;
    return why != nullptr ? why : queue(scaled, stream, Steps{});
}
