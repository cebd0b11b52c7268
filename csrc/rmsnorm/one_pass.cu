// RMSNorm that reads a row once: a block holds the row in registers between the sum of squares and the result. Rows
// that are too long or badly aligned for 16-byte accesses are read twice. Sums are FP32, as in naive.cu.
#include "../common/cuda_launch.h"
#include "../common/element.cuh"
#include "../common/reduce.cuh"
#include "launch.h"

namespace one_pass {

constexpr int kMaxThreads = 512;
constexpr int kMaxVectors = 4;  // 16-byte vectors of a row that a thread holds
constexpr int kVectorBytes = 16;
constexpr int kMinThreads = 128;  // a shorter row is shared by as many as it has vectors

// To be measured: rows that a block takes in turn, each asked for before the one ahead of it is summed; what is told to
// be first to leave the caches: loads (1), stores (2).
#ifndef ONE_PASS_ROWS
    #define ONE_PASS_ROWS 1
#endif
#ifndef ONE_PASS_HINTS
    #define ONE_PASS_HINTS 1
#endif
#ifndef ONE_PASS_REGISTERS
    #define ONE_PASS_REGISTERS (ONE_PASS_ROWS == 1 ? 56 : 80)
#endif
constexpr int kRows = ONE_PASS_ROWS;
constexpr int kMaxRegisters = ONE_PASS_REGISTERS;  // nine blocks of 128 threads share a multiprocessor

template <typename T>
union Vector {
    static constexpr int kWidth = kVectorBytes / sizeof(T);
    uint4 bits;
    typename Element<T>::Pair pair[kWidth / 2];
    __device__ Vector() : bits() {}
};

// Asks for the vectors of a row that this thread holds.
template <typename T>
__device__ void load_row(Vector<T> (&row_rmem)[kMaxVectors],
                         const T *row,  // [cols]
                         int vectors) {
    const uint4 *from = reinterpret_cast<const uint4 *>(row);
#pragma unroll
    for (int n = 0; n < kMaxVectors; ++n) {
        const int i = threadIdx.x + n * blockDim.x;
        if (i < vectors) row_rmem[n].bits = (ONE_PASS_HINTS & 1) ? __ldcs(&from[i]) : from[i];
    }
}

template <typename T>
__device__ float inverse_rms(float squares, const RmsNormArgs &args) {
    return rsqrtf(squares / static_cast<float>(args.cols) + static_cast<float>(args.eps));
}

template <typename T>
__global__ void __maxnreg__(kMaxRegisters) in_registers(RmsNormArgs args) {
    constexpr int kWidth = Vector<T>::kWidth;
    const T *x = static_cast<const T *>(args.x);                    // [rows, cols]
    const uint4 *weight = static_cast<const uint4 *>(args.weight);  // [vectors]
    T *y = static_cast<T *>(args.y);                                // [rows, cols]
    const int vectors = static_cast<int>(args.cols / kWidth);
    // Two rows take turns: a warp may write its sum of the next row while another still reads those of this one.
    __shared__ float sum_smem[2][kMaxThreads / kWarpSize];

    Vector<T> row_rmem[kMaxVectors], next_rmem[kMaxVectors], weight_rmem[kMaxVectors];
    const int64_t first = int64_t{blockIdx.x} * kRows;
    load_row(next_rmem, x + first * args.x_stride, vectors);
#pragma unroll 1
    for (int turn = 0; turn < kRows && first + turn < args.rows; ++turn) {
        const int64_t row = first + turn;
#pragma unroll
        for (int n = 0; n < kMaxVectors; ++n) row_rmem[n].bits = next_rmem[n].bits;
        if (turn + 1 < kRows && row + 1 < args.rows) load_row(next_rmem, x + (row + 1) * args.x_stride, vectors);
        // Every row's weights are the same, and in the L1 cache; held in registers they would cost those of a row.
#pragma unroll
        for (int n = 0; n < kMaxVectors; ++n) {
            const int i = threadIdx.x + n * blockDim.x;
            if (i < vectors) weight_rmem[n].bits = weight[i];
        }

        float squares = 0.0f;
#pragma unroll
        for (int n = 0; n < kMaxVectors; ++n) {
#pragma unroll
            for (int p = 0; p < kWidth / 2; ++p) {
                const float2 value = Element<T>::to_float(row_rmem[n].pair[p]);
                squares = fmaf(value.x, value.x, fmaf(value.y, value.y, squares));
            }
        }
        const float inverse = inverse_rms<T>(block_sum(squares, sum_smem[turn % 2]), args);

        uint4 *to = reinterpret_cast<uint4 *>(y + row * args.y_stride);
#pragma unroll
        for (int n = 0; n < kMaxVectors; ++n) {
            const int i = threadIdx.x + n * blockDim.x;
#pragma unroll
            for (int p = 0; p < kWidth / 2; ++p) {
                const float2 value = Element<T>::to_float(row_rmem[n].pair[p]);
                const float2 scale = Element<T>::to_float(weight_rmem[n].pair[p]);
                const float2 scaled = {value.x * inverse * scale.x, value.y * inverse * scale.y};
                row_rmem[n].pair[p] = Element<T>::from_float(scaled);
            }
            if (i >= vectors) continue;
            if (ONE_PASS_HINTS & 2) {
                __stcs(&to[i], row_rmem[n].bits);
            } else {
                to[i] = row_rmem[n].bits;
            }
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) read_twice(RmsNormArgs args) {
    const T *x = static_cast<const T *>(args.x) + blockIdx.x * args.x_stride;  // [cols]
    const T *weight = static_cast<const T *>(args.weight);                     // [cols]
    T *y = static_cast<T *>(args.y) + blockIdx.x * args.y_stride;              // [cols]

    float squares = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x) {
        const float value = Element<T>::to_float(x[c]);
        squares = fmaf(value, value, squares);
    }
    const float inverse = inverse_rms<T>(block_sum(squares), args);
    for (int64_t c = threadIdx.x; c < args.cols; c += blockDim.x) {
        y[c] = Element<T>::from_float(Element<T>::to_float(x[c]) * inverse * Element<T>::to_float(weight[c]));
    }
}

bool on_vector(const void *data) {
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

template <typename T>
const char *launch_for(const RmsNormArgs &args, void *stream) {
    constexpr int kWidth = Vector<T>::kWidth;
    const bool aligned = on_vector(args.x) && on_vector(args.weight) && on_vector(args.y) &&
                         args.x_stride % kWidth == 0 && args.y_stride % kWidth == 0 && args.cols % kWidth == 0;
    const int64_t vectors = args.cols / kWidth;
    if (!aligned || vectors > kMaxThreads * kMaxVectors) {
        return launch_kernel("one_pass", read_twice<T>, {args.rows, kMaxThreads}, args.placement, stream, args);
    }
    const int64_t least = vectors < kMinThreads ? vectors : kMinThreads, needed = divide_up(vectors, kMaxVectors);
    const int threads = static_cast<int>(divide_up(least > needed ? least : needed, kWarpSize)) * kWarpSize;
    return launch_kernel("one_pass", in_registers<T>, {divide_up(args.rows, kRows), threads}, args.placement, stream,
                         args);
}

}  // namespace one_pass

const char *launch(const RmsNormArgs &args, void *stream) {
    switch (args.dtype) {
        case Dtype::kFloat32:
            return one_pass::launch_for<float>(args, stream);
        case Dtype::kFloat16:
            return one_pass::launch_for<__half>(args, stream);
        case Dtype::kBfloat16:
            return one_pass::launch_for<__nv_bfloat16>(args, stream);
    }
    return "one_pass takes float32, float16 or bfloat16";
}
