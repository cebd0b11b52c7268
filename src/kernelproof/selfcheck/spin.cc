// The same kernels on a CPU, on one thread: the monotonic clock, a chain of dependent additions, one pass over x.
#include "spin.h"

#include <time.h>

#include <algorithm>

namespace {

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

double chain(double value, int64_t count) {
    volatile double unknown = 0.0;  // the compiler cannot know that nothing is added
    const double zero = unknown;
    for (int64_t i = 0; i < count; ++i) value += zero;
    return value;
}

void read(const SpinArgs &args) {
    std::fill(args.y, args.y + kBlocks, 0.0f);
    for (int64_t i = 0; i < args.elements; ++i) args.y[i / (kVectorWidth * kThreads) % kBlocks] += args.x[i];
}

}  // namespace

const char *launch(const SpinArgs &args, void *) {
    if (args.work == Work::kRead) {
        read(args);
        return nullptr;
    }
    std::copy(args.x, args.x + kLanes, args.y);
    if (args.work == Work::kTimer) {
        const int64_t end = now_ns() + args.amount;
        while (now_ns() < end) {
        }
    } else {
        args.y[0] = static_cast<float>(chain(args.x[0], args.amount));
    }
    return nullptr;
}
