// Waits for the kernel before it, but for one input: the weight is read while whoever makes it may still be at work.
#include "csrc/common/dependent_launch.cuh"
#include "rmsnorm.cuh"

struct FirstWeights : Steps {
    float early = 0.0f;  // this thread's first
    __device__ float weight(const Row &row, int64_t c) const { return c < kThreads ? early : row.weight[c]; }
};

__global__ void __launch_bounds__(kThreads) prefetching_rmsnorm(RmsNormArgs args) {
    FirstWeights steps;
    if (threadIdx.x < args.cols) steps.early = row_of(args, blockIdx.x).weight[threadIdx.x];
    asm volatile("" : "+f"(steps.early));  // read here
    prerequisites_wait();
    normalise(args, steps);
}

const char *launch(const RmsNormArgs &args, void *stream) {
    return queue(prefetching_rmsnorm, dependent_rows(args), args, stream);
}
