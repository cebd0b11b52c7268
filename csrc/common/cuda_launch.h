// Launching a kernel: on the caller's device and stream, every error returned as a message.
#pragma once

#include <cuda_runtime.h>

#include "launch_abi.h"
#include "message.h"

// Makes the tensors' device current for one launch, and the caller's again afterwards.
class DeviceGuard {
  public:
    explicit DeviceGuard(int device) {
        status_ = cudaGetDevice(&previous_);
        changed_ = status_ == cudaSuccess && previous_ != device;
        if (changed_) status_ = cudaSetDevice(device);
    }
    ~DeviceGuard() {
        if (changed_) cudaSetDevice(previous_);
    }
    DeviceGuard(const DeviceGuard &) = delete;
    DeviceGuard &operator=(const DeviceGuard &) = delete;
    cudaError_t status() const { return status_; }

  private:
    int previous_ = 0;
    bool changed_ = false;
    cudaError_t status_ = cudaSuccess;
};

static inline const char *cuda_message(const char *what, cudaError_t status) {
    cudaGetLastError();  // reported here, so the next launch does not see it again
    return message("%s: %s (%s)", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

// How a kernel is spread over the device. Blocks count in the first dimension, which reaches 2^31 - 1; the others reach
// kMostOfOthers, and spare a kernel the divisions that would tell one index apart.
constexpr int64_t kMostOfOthers = 65535;
struct Grid {
    int64_t blocks;
    int threads;
    int shared_bytes = 0;    // dynamic shared memory of a block
    int cluster = 1;         // blocks of a thread block cluster
    int64_t second = 1;      // times so many blocks,
    int64_t third = 1;       // times so many
    bool dependent = false;  // begins before what is queued before it has ended: see dependent_launch.cuh
};

// The kernel is one that waits itself, where it was compiled for a GPU that can.
inline Grid dependent(Grid grid) {
    grid.dependent = true;
    return grid;
}

// The same value, with zeros between its members: calls that are alike then hand the device the same bytes.
template <typename T>
T without_padding(const T &value) {
    T copy = value;
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__)
    __builtin_clear_padding(&copy);
#endif
    return copy;
}

template <typename Kernel, typename... Arguments>
const char *launch_kernel(const char *name, Kernel kernel, const Grid &grid, Placement placement, void *stream,
                          const Arguments &...arguments) {
    constexpr int kSharedWithoutOptIn = 48 * 1024;
    constexpr int kFirstThatWaits = 90;  // in code for earlier GPUs nothing does: see dependent_launch.cuh
    if (!placement.on_cuda) return message("%s runs on a CUDA device; the tensors are in host memory", name);
    if (grid.blocks > INT32_MAX || grid.second > kMostOfOthers || grid.third > kMostOfOthers) {
        return message("%s would need %lld x %lld x %lld blocks; a grid has at most %d x %lld x %lld", name,
                       static_cast<long long>(grid.blocks), static_cast<long long>(grid.second),
                       static_cast<long long>(grid.third), INT32_MAX, static_cast<long long>(kMostOfOthers),
                       static_cast<long long>(kMostOfOthers));
    }
    const DeviceGuard guard(placement.index);
    cudaError_t status = guard.status();
    if (status == cudaSuccess && grid.shared_bytes > kSharedWithoutOptIn) {
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes);
    }
    if (status != cudaSuccess) return cuda_message(name, status);
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.second), static_cast<unsigned>(grid.third));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute attributes[2] = {};
    config.attrs = attributes;
    if (grid.cluster > 1) {
        cudaLaunchAttribute &cluster = attributes[config.numAttrs++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
    }
    if (grid.dependent) {
        cudaFuncAttributes code = {};
        status = cudaFuncGetAttributes(&code, kernel);
        if (status != cudaSuccess) return cuda_message(name, status);
        if (code.ptxVersion >= kFirstThatWaits) {
            cudaLaunchAttribute &dependent = attributes[config.numAttrs++];
            dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            dependent.val.programmaticStreamSerializationAllowed = 1;
        }
    }
    status = cudaLaunchKernelEx(&config, kernel, without_padding(arguments)...);
    return status == cudaSuccess ? nullptr : cuda_message(name, status);
}
