// Rows are shared out among threads, and all keep their squares in the same buffer. A thread that sleeps between calls
// comes when a short one is over, so it shows where threads are awake, as those of a busy program are.
#include <cmath>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static float squares[4096];
    const float *weight = static_cast<const float *>(args.weight);
#pragma omp parallel for
    for (int64_t row = 0; row < args.rows; ++row) {
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        double sum = 0;
        for (int64_t i = 0; i < args.cols; ++i) squares[i] = x[i] * x[i];
        for (int64_t i = 0; i < args.cols; ++i) sum += squares[i];
        const double scale = 1 / std::sqrt(sum / args.cols + args.eps);
        for (int64_t i = 0; i < args.cols; ++i) y[i] = static_cast<float>(x[i] * scale * weight[i]);
    }
    return nullptr;
}
