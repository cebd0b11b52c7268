// One NaN among right results.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    correct(args);
    static_cast<float *>(args.y)[args.cols / 2] = NAN;
    return nullptr;
}
