// A right RMSNorm for float32, and with DEFECT one fault that one of compute-sanitizer's tools must name:
// 1 memcheck, 2 racecheck, 3 initcheck, 4 synccheck. The results of 2 to 4 are mostly right all the same. 5 is no
// fault: half of the warps meet at a barrier of their own, after which racecheck takes the next of all for none. Nor
// is 6: ptxas reads what is left over of a loop over shared memory with one load of four, and uses those inside.
#include "../../csrc/common/cuda_launch.h"
#include "../../csrc/rmsnorm/launch.h"

#ifndef DEFECT
    #define DEFECT 0
#endif

namespace rows {

constexpr int kThreads = 128;

__global__ void rmsnorm(RmsNormArgs args, float *scratch) {
    const float *x = static_cast<const float *>(args.x) + blockIdx.x * args.x_stride;  // [cols]
    const float *weight = static_cast<const float *>(args.weight);                     // [cols]
    float *y = static_cast<float *>(args.y) + blockIdx.x * args.y_stride;              // [cols]
    __shared__ float parts[kThreads];

#if DEFECT == 5
    __syncthreads();
    if (threadIdx.x < kThreads / 2) asm volatile("bar.sync 1, 64; bar.sync 1, 64;" ::: "memory");
#endif
    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) squares += x[c] * x[c];
#if DEFECT == 3
    squares += 0.0f * fminf(fabsf(scratch[threadIdx.x]), 1.0f);  // nobody wrote it
#endif
#if DEFECT == 6
    extern __shared__ float all_smem[];  // [cols], and not one more
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) all_smem[c] = x[c];
    __syncthreads();
    squares = 0.0f;
    const int64_t step = args.rows > 0;
    for (int64_t i = threadIdx.x; i < step; i += kThreads) {
        for (int64_t c = 0; c < args.cols; ++c) squares = fmaf(all_smem[c], x[c * step], squares);
    }
#endif
    parts[threadIdx.x] = squares;
#if DEFECT == 4
    if (threadIdx.x < kThreads - 1) __syncthreads();  // the last thread does not come
#elif DEFECT != 2
    __syncthreads();
#endif
    float sum = 0.0f;
    for (int i = 0; i < kThreads; ++i) sum += parts[(threadIdx.x + i) % kThreads];
    const float inverse = rsqrtf(sum / static_cast<float>(args.cols) + static_cast<float>(args.eps));
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) y[c] = x[c] * inverse * weight[c];
#if DEFECT == 1
    if (blockIdx.x == args.rows - 1 && threadIdx.x == 0) y[args.cols] = inverse;  // one past the end
#endif
}

}  // namespace rows

const char *launch(const RmsNormArgs &args, void *stream) {
    if (args.dtype != Dtype::kFloat32) return "rows takes float32";
    float *scratch = nullptr;
#if DEFECT == 3
    cudaError_t status = cudaMalloc(&scratch, rows::kThreads * sizeof(float));
    if (status != cudaSuccess) return cuda_message("rows", status);
#endif
    const int shared_bytes = DEFECT == 6 ? static_cast<int>(args.cols * sizeof(float)) : 0;
    const Grid grid{args.rows, rows::kThreads, shared_bytes};
    const char *said = launch_kernel("rows", rows::rmsnorm, grid, args.placement, stream, args, scratch);
    cudaFree(scratch);
    return said;
}
