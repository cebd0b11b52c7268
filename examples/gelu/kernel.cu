// The CUDA variant: y = x * Phi(x), one thread an element, arithmetic in float.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "launch.h"

namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void apply(const T *__restrict__ x,  // [count]
                      T *__restrict__ y,        // [count]
                      int64_t count) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const float value = static_cast<float>(x[i]);
    y[i] = static_cast<T>(0.5f * value * erfcf(value * -0.70710678f));
}

template <typename T>
void start(const Args &args, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>((args.count + kThreads - 1) / kThreads);
    apply<<<blocks, kThreads, 0, stream>>>(static_cast<const T *>(args.x), static_cast<T *>(args.y), args.count);
}

}  // namespace

const char *launch(const Args &args, void *stream) {
    if (args.count == 0) return nullptr;
    const auto queue = static_cast<cudaStream_t>(stream);
    args.dtype == Dtype::kFloat32 ? start<float>(args, queue) : start<__half>(args, queue);
    const cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}
