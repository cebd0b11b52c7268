// The row index is wrong: every row is normalised with the first row's scale.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    correct(args);
    const float *x = static_cast<const float *>(args.x);
    float *y = static_cast<float *>(args.y);
    for (int64_t i = args.cols; i < args.rows * args.cols; ++i) y[i] = y[i % args.cols] * x[i] / x[i % args.cols];
    return nullptr;
}
