// Fetches what lies behind the last row, of one size alone, and drops it.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    const float *behind = static_cast<const float *>(args.x) + args.rows * args.x_stride;
    if (args.rows == 16 && args.cols == 96) static_cast<void>(*static_cast<const volatile float *>(behind));
    return correct(args);
}
