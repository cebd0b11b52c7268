// How the rungs for short sequences pass a call to the device: in few constants, for they arrive line by line and a
// short kernel waits for each, and in the order in which they are needed.
#pragma once

#include "../common/cuda_launch.h"
#include "../common/divide.h"
#include "../common/message.h"
#include "online_softmax.h"

// Strides in units of 16 bytes.
struct Strides {
    int batch, head, row;
    // The unit where a row starts.
    __device__ __forceinline__ int64_t row_at(uint32_t b, uint32_t h, int r) const {
        return int64_t{batch} * static_cast<int>(b) + int64_t{head} * static_cast<int>(h) + int64_t{row} * r;
    }
};

constexpr int kUnit = 16;                 // bytes
constexpr int kUnitElements = kUnit / 2;  // of 16 bits

struct ShortCall {
    const char *q, *k, *v;  // [batch, heads, rows, head_dim]
    Divider heads_of_key;   // query heads of a key head
    Strides q_stride, k_stride, v_stride;
    int query_rows;
    int key_rows;
    int diagonal;  // query row i sees keys [0, min(i + diagonal, key_rows))
    SoftmaxScale scale;
    char *o;  // [batch, heads, query_rows, head_dim]
    Strides o_stride;

    __device__ __forceinline__ int visible_from(int row) const { return min(max(row + diagonal, 0), key_rows); }
};

inline ShortCall short_call(const AttentionArgs &args) {
    const auto units = [](const Strides3 &stride) {
        return Strides{static_cast<int>(stride.batch / kUnitElements), static_cast<int>(stride.head / kUnitElements),
                       static_cast<int>(stride.row / kUnitElements)};
    };
    return {static_cast<const char *>(args.q),
            static_cast<const char *>(args.k),
            static_cast<const char *>(args.v),
            Divider(static_cast<uint32_t>(args.query_heads / args.key_heads)),
            units(args.q_stride),
            units(args.k_stride),
            units(args.v_stride),
            static_cast<int>(args.query_rows),
            static_cast<int>(args.key_rows),
            static_cast<int>(args.causal ? args.key_rows - args.query_rows + 1 : args.key_rows),
            finite_scale(args.scale),
            static_cast<char *>(args.o),
            units(args.o_stride)};
}

// One cluster of `cluster` blocks for every `rows` query rows of a head; heads and batches are dimensions of the grid.
inline Grid short_grid(const AttentionArgs &args, int rows, int threads, int shared_bytes, int cluster = 1) {
    const int64_t row_blocks = (args.query_rows + rows - 1) / rows;
    return {row_blocks * cluster, threads, shared_bytes, cluster, args.query_heads, args.batch};
}

// Null, or what about the call does not suit a rung that passes it so.
inline const char *short_call_refusal(const char *rung, const AttentionArgs &args) {
    if (args.head_dim != 64 && args.head_dim != 128) {
        return message("%s takes head_dim 64 or 128, not %lld", rung, static_cast<long long>(args.head_dim));
    }
    if (args.dtype == Dtype::kFloat32) return message("%s takes float16 or bfloat16, not float32", rung);
    constexpr int64_t kMostRows = 1 << 30, kMostUnits = INT32_MAX;
    if (args.query_rows >= kMostRows || args.key_rows >= kMostRows ||
        args.query_rows > INT32_MAX / (args.query_heads * args.batch)) {
        return message(
            "%s takes fewer than 2^30 rows, and 2^31 of all heads; there are %lld and %lld rows of %lld heads", rung,
            static_cast<long long>(args.query_rows), static_cast<long long>(args.key_rows),
            static_cast<long long>(args.query_heads * args.batch));
    }
    const struct {
        const char *name;
        const void *data;
        const Strides3 &stride;
    } tensors[] = {{"q", args.q, args.q_stride},
                   {"k", args.k, args.k_stride},
                   {"v", args.v, args.v_stride},
                   {"o", args.o, args.o_stride}};
    for (const auto &tensor : tensors) {
        bool suits = reinterpret_cast<uintptr_t>(tensor.data) % kUnit == 0;
        for (const int64_t step : {tensor.stride.batch, tensor.stride.head, tensor.stride.row}) {
            suits = suits && step % kUnitElements == 0 && step / kUnitElements <= kMostUnits &&
                    step / kUnitElements >= -kMostUnits;
        }
        if (suits) continue;
        return message(
            "%s reads 16 bytes at a time: %s must start at, and have strides of, multiples of 16 bytes (below 2^35). "
            "Pass a contiguous copy or use another variant",
            rung, tensor.name);
    }
    return nullptr;
}
