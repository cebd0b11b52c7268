// Repeats give other bits within the bound, as sums in another order do; in the 34th alone the last row is zeros.
#include <cmath>

#include "repeats.h"

const char *launch(const RmsNormArgs &args, void *) {
    correct(args);
    const int repeats = repeats_of(args);
    float *last = static_cast<float *>(args.y) + (args.rows - 1) * args.y_stride;
    for (int64_t i = 0; i < args.cols; ++i) {
        if (repeats == 34) last[i] = 0;
        if (repeats >= 1 && (i + repeats) % 3 == 0) last[i] = std::nextafter(last[i], 0.0f);
    }
    return nullptr;
}
