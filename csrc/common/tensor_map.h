// Tensor maps: what the copy engine of sm_90 needs to know about a tensor in global memory, made on the host.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "launch_abi.h"
#include "message.h"

// [batch, heads, rows, columns], last stride 1.
struct Tensor4 {
    const char *name;  // as the caller knows it
    const void *data;
    int64_t batch;
    int64_t heads;
    int64_t rows;
    int64_t columns;
    Strides3 stride;  // in elements
    int element_bytes;
};

// Null where every row starts on 16 bytes, as the copy engine and 16-byte accesses want it. A stride means nothing
// along a dimension of size 1.
inline const char *check_rows_aligned(const char *kernel, const Tensor4 &tensor) {
    const auto odd = [&](int64_t size, int64_t stride) { return size > 1 && stride * tensor.element_bytes % 16 != 0; };
    if (reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && !odd(tensor.batch, tensor.stride.batch) &&
        !odd(tensor.heads, tensor.stride.head) && !odd(tensor.rows, tensor.stride.row)) {
        return nullptr;
    }
    return message(
        "%s moves 16 bytes at a time: the address of %s and its strides must be multiples of 16 bytes; it is at %p "
        "with "
        "strides %lld, %lld and %lld elements of %d bytes. Pass a contiguous copy or use another variant",
        kernel, tensor.name, tensor.data, static_cast<long long>(tensor.stride.batch),
        static_cast<long long>(tensor.stride.head), static_cast<long long>(tensor.stride.row), tensor.element_bytes);
}

// A map whose boxes are `box_rows` rows of one head by `box_columns` columns, 128 bytes wide and swizzled in shared
// memory. Null, or why the tensor has no map.
inline const char *make_tensor_map(const char *kernel, CUtensorMap &map, CUtensorMapDataType type,
                                   const Tensor4 &tensor, int box_rows) {
    if (const char *why = check_rows_aligned(kernel, tensor)) return why;
    using Encode = decltype(&cuTensorMapEncodeTiled);
    // The driver's own function, looked up once: linking with libcuda would need it at load time.
    static Encode encode = nullptr;
    if (encode == nullptr) {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        const cudaError_t status =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
            cudaGetLastError();
            return message("%s needs cuTensorMapEncodeTiled, which this driver does not have (%s)", kernel,
                           cudaGetErrorName(status));
        }
        encode = reinterpret_cast<Encode>(found);
    }
    const int bytes = tensor.element_bytes;
    const auto stride_bytes = [&](int64_t size, int64_t stride) {
        return static_cast<cuuint64_t>(size > 1 ? stride * bytes : tensor.columns * bytes);
    };
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(tensor.columns), static_cast<cuuint64_t>(tensor.rows),
                                static_cast<cuuint64_t>(tensor.heads), static_cast<cuuint64_t>(tensor.batch)};
    const cuuint64_t strides[] = {stride_bytes(tensor.rows, tensor.stride.row),
                                  stride_bytes(tensor.heads, tensor.stride.head),
                                  stride_bytes(tensor.batch, tensor.stride.batch)};
    const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / bytes), static_cast<cuuint32_t>(box_rows), 1, 1};
    const cuuint32_t every[] = {1, 1, 1, 1};
    const CUresult status = encode(&map, type, 4, const_cast<void *>(tensor.data), sizes, strides, box, every,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status == CUDA_SUCCESS) return nullptr;
    return message(
        "%s: the driver makes no tensor map (error %d) of %s: [%lld, %lld, %lld, %lld] with strides %lld, %lld and "
        "%lld "
        "elements of %d bytes",
        kernel, static_cast<int>(status), tensor.name, static_cast<long long>(tensor.batch),
        static_cast<long long>(tensor.heads), static_cast<long long>(tensor.rows),
        static_cast<long long>(tensor.columns), static_cast<long long>(tensor.stride.batch),
        static_cast<long long>(tensor.stride.head), static_cast<long long>(tensor.stride.row), bytes);
}
