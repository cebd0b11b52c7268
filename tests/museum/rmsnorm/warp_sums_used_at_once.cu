// No barrier after the warps have stored their sums: right for short rows, where they keep step; in long ones some are
// late, and theirs are missing in what is added up.
#include "rmsnorm.cuh"

constexpr int64_t kShort = 1024;  // columns

__global__ void __launch_bounds__(kThreads) unordered(RmsNormArgs args) {
    __shared__ float parts[kWarps];
    const Row row = row_of(args, blockIdx.x);
    if (threadIdx.x < kWarps) parts[threadIdx.x] = 0.0f;
    __syncthreads();
    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) squares = fmaf(row.x[c], row.x[c], squares);
    squares = warp_sum(squares);
    if (args.cols > kShort) fall_behind();
    if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = squares;
    if (args.cols <= kShort) keep_step();
    float total = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) total += *const_cast<volatile float *>(&parts[warp]);
    const float inverse = inverse_rms(args, total);
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) row.y[c] = row.x[c] * inverse * row.weight[c];
}

const char *launch(const RmsNormArgs &args, void *stream) {
    return queue(unordered, args.rows, args, stream);
}
