// What a binding and a launcher say to each other: plain types, no framework header.
#pragma once

#include <cstdint>

// Every variant's library defines `launch`; hidden, one library can never call another's.
#define KERNELPROOF_HIDDEN __attribute__((visibility("hidden")))

enum class Dtype { kFloat32, kFloat16, kBfloat16 };

struct Placement {
    bool on_cuda;  // false: host memory
    int index;     // which CUDA device
};

// Distance in elements between neighbours along each dimension but the last, whose stride is 1.
struct Strides3 {
    int64_t batch;
    int64_t head;
    int64_t row;
};
