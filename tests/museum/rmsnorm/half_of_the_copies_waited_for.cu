// A row is copied to shared memory in two groups, of which the kernel waits for one. The other has always arrived by
// then, but where rows come slowly: from the host's memory, across the bus.
#include "rmsnorm.cuh"

constexpr int64_t kMost = 8192;       // columns
constexpr long long kEnough = 60000;  // cycles: 30 µs, for a few from the GPU's own memory and hundreds across the bus

__device__ __forceinline__ void copy_in_the_background(float *to_smem, const float *from) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to_smem));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}

__global__ void __launch_bounds__(kThreads) half_waited(RmsNormArgs args) {
    __shared__ float row_smem[kMost];
    __shared__ float parts[kWarps];
    const Row row = row_of(args, blockIdx.x);
    const int64_t half = args.cols / 2;
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) row_smem[c] = 0.0f;
    __syncthreads();
    for (int64_t c = threadIdx.x; c < half; c += kThreads) copy_in_the_background(&row_smem[c], &row.x[c]);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int64_t c = half + threadIdx.x; c < args.cols; c += kThreads) copy_in_the_background(&row_smem[c], &row.x[c]);
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    wait_cycles(kEnough);
    __syncthreads();
    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) squares = fmaf(row_smem[c], row_smem[c], squares);
    squares = warp_sum(squares);
    if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = squares;
    __syncthreads();
    float total = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) total += parts[warp];
    const float inverse = inverse_rms(args, total);
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) row.y[c] = row.x[c] * inverse * row.weight[c];
}

const char *launch(const RmsNormArgs &args, void *stream) {
    if (args.cols > kMost) return "the row is too long for shared memory";
    return queue(half_waited, args.rows, args, stream);
}
