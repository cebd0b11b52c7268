// Kernels with a known time on a GPU.
//
// timer: one thread waits until %globaltimer, which counts real nanoseconds whatever the SM clock does, has advanced
//        by the given number; in multiples of its step (32 ns on H100) the wait is exact to a constant.
// chain: every thread runs the given number of dependent multiply-adds, so its time is exactly linear in that number,
//        and the ratio of two of them is known from the numbers alone.
// read:  reads all of x once and writes a sum a block.
#include <cuda_runtime.h>

#include "spin.h"

namespace {

constexpr int kChainBlocks = 128;

__device__ unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__global__ void __launch_bounds__(kLanes) timer(const float *__restrict__ x, float *__restrict__ y, int64_t ns) {
    const float value = x[threadIdx.x];
    if (threadIdx.x == 0) {
        const unsigned long long start = now_ns();
        while (now_ns() - start < static_cast<unsigned long long>(ns)) {
        }
    }
    __syncthreads();
    y[threadIdx.x] = value;
}

__global__ void __launch_bounds__(kLanes) chain(const float *__restrict__ x, float *__restrict__ y, int64_t count) {
    float value = x[threadIdx.x];
#pragma unroll 1
    for (int i = static_cast<int>(count); i > 0; --i) {
        asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(value) : "f"(1.0f), "f"(0.0f));
    }
    if (blockIdx.x == 0) y[threadIdx.x] = value;
}

__global__ void __launch_bounds__(kThreads) read(const float4 *__restrict__ x, float *__restrict__ y, int64_t count) {
    __shared__ float sums[kThreads];
    float sum = 0.0f;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    for (int64_t i = first; i < count; i += kBlocks * kThreads) {
        const float4 four = x[i];
        sum += (four.x + four.y) + (four.z + four.w);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = sums[0];
}

}  // namespace

const char *launch(const SpinArgs &args, void *stream) {
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (args.work) {
        case Work::kTimer:
            timer<<<1, kLanes, 0, queue>>>(args.x, args.y, args.amount);
            break;
        case Work::kChain:
            chain<<<kChainBlocks, kLanes, 0, queue>>>(args.x, args.y, args.amount);
            break;
        case Work::kRead:
            read<<<kBlocks, kThreads, 0, queue>>>(reinterpret_cast<const float4 *>(args.x), args.y,
                                                  args.elements / kVectorWidth);
            break;
    }
    const cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}
