// RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row, computed by one variant.
#pragma once

#include "../common/launch_abi.h"

struct RmsNormArgs {
    const void *x;       // [rows, cols]
    const void *weight;  // [cols]
    void *y;             // [rows, cols]
    int64_t x_stride;    // elements from row to row
    int64_t y_stride;
    int64_t rows;
    int64_t cols;
    double eps;
    Dtype dtype;
    Placement placement;
};

// Queues the computation on `stream` (a cudaStream_t; ignored by CPU variants). Every size is at least 1.
// Returns null, or why nothing was queued.
KERNELPROOF_HIDDEN const char *launch(const RmsNormArgs &args, void *stream);
