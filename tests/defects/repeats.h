// How many calls before this one, without a break, were on its values.
#pragma once

#include <vector>

#include "rmsnorm.h"

inline int repeats_of(const RmsNormArgs &args) {
    static std::vector<float> before;
    static int repeats = 0;
    const float *x = static_cast<const float *>(args.x);
    const std::vector<float> now(x, x + args.rows * args.cols);
    repeats = now == before ? repeats + 1 : 0;
    before = now;
    return repeats;
}
