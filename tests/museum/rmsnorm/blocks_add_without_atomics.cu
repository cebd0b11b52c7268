// Long rows are summed by several blocks, which add to one number in device memory without atomics: sums get lost.
#include "rmsnorm.cuh"

constexpr int64_t kColumns = 1024;  // a block
constexpr int64_t kMostRows = 1 << 16;
__device__ volatile float squares[kMostRows];

__global__ void clear(RmsNormArgs args) {
    for (int64_t row = threadIdx.x; row < args.rows; row += kThreads) squares[row] = 0.0f;
}

__global__ void add_squares(RmsNormArgs args, int64_t blocks_a_row) {
    __shared__ float sum;
    const int64_t number = blockIdx.x / blocks_a_row, first = blockIdx.x % blocks_a_row * kColumns;
    const Row row = row_of(args, number);
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    float mine = 0.0f;
    for (int64_t c = first + threadIdx.x; c < min(first + kColumns, args.cols); c += kThreads)
        mine += row.x[c] * row.x[c];
    atomicAdd(&sum, mine);
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (blocks_a_row > 1) fall_behind();
    squares[number] = squares[number] + sum;
}

__global__ void scale(RmsNormArgs args) {
    const Row row = row_of(args, blockIdx.x);
    const float inverse = inverse_rms(args, squares[blockIdx.x]);
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) row.y[c] = row.x[c] * inverse * row.weight[c];
}

const char *launch(const RmsNormArgs &args, void *stream) {
    if (args.rows > kMostRows) return "too many rows";
    const int64_t blocks_a_row = (args.cols + kColumns - 1) / kColumns;
    if (const char *why = queue(clear, 1, args, stream)) return why;
    if (const char *why = queue(add_squares, args.rows * blocks_a_row, args, stream, blocks_a_row)) return why;
    return queue(scale, args.rows, args, stream);
}
