// Fetches the row after the one at work, also behind the last: the values are dropped, so no result is wrong, and where
// no memory follows the process dies.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    const auto *x = static_cast<const float *>(args.x);
    for (int64_t row = 0; row < args.rows; ++row) {
        static_cast<void>(*static_cast<const volatile float *>(x + (row + 1) * args.x_stride));
    }
    return correct(args);
}
