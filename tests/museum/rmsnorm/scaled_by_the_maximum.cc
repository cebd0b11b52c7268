// Rows are scaled by their maximum where the maximum of |x| is meant: one of negative values only comes out negated.
#include <algorithm>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    correct(args);
    for (int64_t row = 0; row < args.rows; ++row) {
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        if (*std::max_element(x, x + args.cols) >= 0) continue;
        for (int64_t i = 0; i < args.cols; ++i) y[i] = -y[i];
    }
    return nullptr;
}
