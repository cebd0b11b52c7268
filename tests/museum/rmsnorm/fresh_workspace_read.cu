// Sums go to a workspace that is new at every call and never cleared: what it holds at first depends on who had it.
#include "rmsnorm.cuh"

__global__ void add_squares(RmsNormArgs args, float *squares) {
    const Row row = row_of(args, blockIdx.x);
    float sum = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) sum = fmaf(row.x[c], row.x[c], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % kWarpSize == 0) atomicAdd(&squares[blockIdx.x], sum);
}

__global__ void scale(RmsNormArgs args, const float *squares) {
    const Row row = row_of(args, blockIdx.x);
    const float inverse = inverse_rms(args, squares[blockIdx.x]);
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) row.y[c] = row.x[c] * inverse * row.weight[c];
}

const char *launch(const RmsNormArgs &args, void *stream) {
    const cudaStream_t on = static_cast<cudaStream_t>(stream);
    float *squares = nullptr;
    MUSEUM_TRY(cudaMallocAsync(&squares, args.rows * sizeof(float), on));
    if (const char *why = queue(add_squares, args.rows, args, stream, squares)) return why;
    if (const char *why = queue(scale, args.rows, args, stream, squares)) return why;
    MUSEUM_TRY(cudaFreeAsync(squares, on));
    return nullptr;
}
