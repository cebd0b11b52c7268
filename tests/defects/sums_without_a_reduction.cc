// Each thread adds its part of a row to one sum, and no atomic or reduction keeps two from doing so at once. A thread
// that sleeps between loops comes too late to collide, so it shows where threads are awake, as those of a busy program
// are.
#include <cmath>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    const float *weight = static_cast<const float *>(args.weight);
    for (int64_t row = 0; row < args.rows; ++row) {
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        double squares = 0;
#pragma omp parallel
        {
            double part = 0;
#pragma omp for
            for (int64_t i = 0; i < args.cols; ++i) part += static_cast<double>(x[i]) * x[i];
            squares += part;
        }
        const double scale = 1 / std::sqrt(squares / args.cols + args.eps);
        for (int64_t i = 0; i < args.cols; ++i) y[i] = static_cast<float>(x[i] * scale * weight[i]);
    }
    return nullptr;
}
