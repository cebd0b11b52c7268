// No fault: tiles in dynamic shared memory, more of it than a kernel gets without asking.
#include "attention.cuh"

constexpr int kSharedBytes = 64 * 1024;
static_assert(sizeof(Tiles) < kSharedBytes, "the tiles must fit");

__global__ void __launch_bounds__(kThreads) attention_dynamic(AttentionArgs args, int64_t row_tiles) {
    extern __shared__ char dynamic_smem[];
    attend(args, Steps{}, *reinterpret_cast<Tiles *>(dynamic_smem), row_tiles, args.query_heads);
}

const char *launch(const AttentionArgs &args, void *stream) {
    if (const char *why = refused(args)) return why;
    const int64_t row_tiles = Steps::row_tiles(args);
    return launch_kernel("attention_dynamic", attention_dynamic,
                         {row_tiles * args.query_heads * args.batch, kThreads, kSharedBytes}, args.placement, stream,
                         args, row_tiles);
}
