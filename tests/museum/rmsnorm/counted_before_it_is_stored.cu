// Blocks of a long row say that they are done before their sums are stored, and without a fence: the last one to come
// adds up what is there.
#include "rmsnorm.cuh"

constexpr int64_t kColumns = 512;  // a block
constexpr int64_t kMostBlocks = 1 << 16;
__device__ volatile float parts[kMostBlocks];
__device__ unsigned done[kMostBlocks];

__global__ void __launch_bounds__(kThreads) last_one_scales(RmsNormArgs args, int64_t blocks_a_row) {
    __shared__ float sums[kWarps];
    __shared__ bool last;
    const int64_t number = blockIdx.x / blocks_a_row, first = blockIdx.x % blocks_a_row * kColumns;
    const Row row = row_of(args, number);
    float mine = 0.0f;
    for (int64_t c = first + threadIdx.x; c < min(first + kColumns, args.cols); c += kThreads)
        mine += row.x[c] * row.x[c];
    mine = warp_sum(mine);
    if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&done[number], 1) % blocks_a_row == blocks_a_row - 1;
        if (blocks_a_row > 1) fall_behind();
        float sum = 0.0f;
        for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
        parts[blockIdx.x] = sum;
    }
    __syncthreads();
    if (!last) return;
    float total = 0.0f;
    for (int64_t block = 0; block < blocks_a_row; ++block) total += parts[number * blocks_a_row + block];
    __syncthreads();
    if (threadIdx.x < blocks_a_row) parts[number * blocks_a_row + threadIdx.x] = 0.0f;  // for the next call
    const float inverse = inverse_rms(args, total);
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) row.y[c] = row.x[c] * inverse * row.weight[c];
}

const char *launch(const RmsNormArgs &args, void *stream) {
    const int64_t blocks_a_row = (args.cols + kColumns - 1) / kColumns;
    if (args.rows * blocks_a_row > kMostBlocks) return "too many rows";
    return queue(last_one_scales, args.rows * blocks_a_row, args, stream, blocks_a_row);
}
