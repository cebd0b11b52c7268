// A recursion without an end.
#include "rmsnorm.h"

int64_t deeper(volatile int64_t depth) {
    return deeper(depth + 1) + depth;
}

const char *launch(const RmsNormArgs &args, void *) {
    return deeper(args.rows) == 0 ? "no" : nullptr;
}
