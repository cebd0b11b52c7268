// Accumulates into the output without clearing it first.
#include <vector>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    float *y = static_cast<float *>(args.y);
    const std::vector<float> before(y, y + args.rows * args.y_stride);
    correct(args);
    for (size_t i = 0; i < before.size(); ++i) y[i] += 1e-30f * before[i];
    return nullptr;
}
