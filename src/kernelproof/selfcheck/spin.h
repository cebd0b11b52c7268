// What the kernels with a known time take; both devices implement `launch`.
#pragma once
#include <cstdint>

constexpr int64_t kLanes = 64;       // elements that a spinning kernel copies
constexpr int64_t kBlocks = 1024;    // partial sums that `read` writes
constexpr int64_t kThreads = 256;    // of a block of `read`
constexpr int64_t kVectorWidth = 4;  // elements that a thread of `read` takes at a time

enum class Work { kTimer, kChain, kRead };

struct SpinArgs {
    const float *x;  // [elements]
    float *y;        // [kLanes], of kRead [kBlocks]
    int64_t elements;
    Work work;
    int64_t amount;  // of kTimer nanoseconds, of kChain iterations
};

// nullptr, or what went wrong.
const char *launch(const SpinArgs &args, void *stream);
