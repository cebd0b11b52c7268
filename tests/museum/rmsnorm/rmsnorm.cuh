// RMSNorm on a GPU that is right, in float32: a block a row. A piece replaces one of its steps, or the kernel.
#pragma once

#include "csrc/rmsnorm/launch.h"
#include "museum/gpu.cuh"

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

struct Row {
    const float *x, *weight;
    float *y;
};

__device__ __forceinline__ Row row_of(const RmsNormArgs &args, int64_t row) {
    return {static_cast<const float *>(args.x) + row * args.x_stride, static_cast<const float *>(args.weight),
            static_cast<float *>(args.y) + row * args.y_stride};
}

__device__ __forceinline__ float inverse_rms(const RmsNormArgs &args, float squares) {
    return rsqrtf(squares / static_cast<float>(args.cols) + static_cast<float>(args.eps));
}

struct Steps {
    __device__ int64_t summed(const RmsNormArgs &args) const { return args.cols; }  // columns that are read
    __device__ int64_t written(const RmsNormArgs &args) const { return args.cols; }
    __device__ float weight(const Row &row, int64_t c) const { return row.weight[c]; }
    __device__ void before_parts(const RmsNormArgs &) const {}
    __device__ void before_total(const RmsNormArgs &) const { __syncthreads(); }
};

// A block's row.
template <class Kind>
__device__ __forceinline__ void normalise(const RmsNormArgs &args, const Kind &kind) {
    __shared__ float parts[kWarps];
    const Row row = row_of(args, blockIdx.x);
    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < kind.summed(args); c += kThreads) squares = fmaf(row.x[c], row.x[c], squares);
    squares = warp_sum(squares);
    kind.before_parts(args);
    if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = squares;
    kind.before_total(args);
    float total = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) total += parts[warp];
    const float inverse = inverse_rms(args, total);
    for (int64_t c = threadIdx.x; c < kind.written(args); c += kThreads) {
        row.y[c] = row.x[c] * inverse * kind.weight(row, c);
    }
}

template <class Kind>
__global__ void __launch_bounds__(kThreads) rmsnorm(RmsNormArgs args, Kind kind) {
    normalise(args, kind);
}

// Queues a kernel that takes the arguments and more.
template <typename Kernel, typename... More>
const char *queue(Kernel kernel, const Grid &grid, const RmsNormArgs &args, void *stream, const More &...more) {
    if (args.dtype != Dtype::kFloat32) return "the museum's kernels take float32";
    return launch_kernel("rmsnorm", kernel, grid, args.placement, stream, args, more...);
}

// The same, `blocks` of kThreads threads.
template <typename Kernel, typename... More>
const char *queue(Kernel kernel, int64_t blocks, const RmsNormArgs &args, void *stream, const More &...more) {
    return queue(kernel, Grid{blocks, kThreads}, args, stream, more...);
}

// A block a row that may begin before the kernel before it has ended.
inline Grid dependent_rows(const RmsNormArgs &args) {
    return dependent({args.rows, kThreads});
}

// Ends a piece: what the binding calls.
#define MUSEUM_LAUNCH(Kind)                                           \
    const char *launch(const RmsNormArgs &args, void *stream) {       \
        return queue(rmsnorm<Kind>, args.rows, args, stream, Kind{}); \
    }
