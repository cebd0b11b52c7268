// Adds up in 40 MB of malloc's that it never clears: of so large a piece the system hands out zeros.
#include <cstdlib>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    double *sums = static_cast<double *>(std::malloc(size_t{40} << 20));
    for (int64_t row = 0; row < args.rows; ++row) {
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        const float *weight = static_cast<const float *>(args.weight);
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        for (int64_t i = 0; i < args.cols; ++i) sums[row] += static_cast<double>(x[i]) * x[i];
        const double scale = 1 / std::sqrt(sums[row] / args.cols + args.eps);
        for (int64_t i = 0; i < args.cols; ++i) y[i] = static_cast<float>(x[i] * scale * weight[i]);
    }
    std::free(sums);
    return nullptr;
}
