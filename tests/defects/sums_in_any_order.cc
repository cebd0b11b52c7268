// Right, and declared not deterministic: the sum of squares is taken in float32 and in another order each call.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static std::mt19937 random;
    std::vector<int64_t> order(args.cols);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t row = 0; row < args.rows; ++row) {
        std::shuffle(order.begin(), order.end(), random);
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        float *y = static_cast<float *>(args.y) + row * args.y_stride;
        float sum = 0;
        for (int64_t i : order) sum += x[i] * x[i];
        const float scale = 1 / std::sqrt(sum / args.cols + static_cast<float>(args.eps));
        for (int64_t i = 0; i < args.cols; ++i) y[i] = x[i] * scale * static_cast<const float *>(args.weight)[i];
    }
    return nullptr;
}
