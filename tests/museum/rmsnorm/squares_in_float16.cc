// The squares are summed in float16: beyond 65504 the sum is infinite, and the result 0.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    for (int64_t row = 0; row < args.rows; ++row) {
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        const float *weight = static_cast<const float *>(args.weight);
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        _Float16 sum = 0;
        for (int64_t i = 0; i < args.cols; ++i) sum += static_cast<_Float16>(x[i] * x[i]);
        const double scale = 1 / std::sqrt(static_cast<double>(sum) / args.cols + args.eps);
        for (int64_t i = 0; i < args.cols; ++i) y[i] = static_cast<float>(x[i] * scale * weight[i]);
    }
    return nullptr;
}
