// What the binding and every kernel of this operator agree on: plain types, so that a kernel compiles in a second.
#pragma once

#include <cstdint>

enum class Dtype { kFloat32, kFloat16 };

struct Args {
    const void *x;  // [count], contiguous
    void *y;        // [count], contiguous
    int64_t count;
    Dtype dtype;
};

// Queues the computation on `stream` (a cudaStream_t; a CPU kernel ignores it) and returns null, or says why it cannot.
// Hidden, so that one variant's library can never call another's.
__attribute__((visibility("hidden"))) const char *launch(const Args &args, void *stream);
