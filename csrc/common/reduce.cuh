// Sums and maxima over the lanes of a warp and the warps of a block.
#pragma once

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
}

static __device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
    return value;
}

// The sum over a block of whole warps, in every thread. Called once a kernel: its shared memory is not reused.
static __device__ __forceinline__ float block_sum(float value) {
    __shared__ float warp_smem[kWarpSize];
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    value = warp_sum(value);
    if (lane == 0) warp_smem[warp] = value;
    __syncthreads();
    return warp_sum(lane < blockDim.x / kWarpSize ? warp_smem[lane] : 0.0f);
}
