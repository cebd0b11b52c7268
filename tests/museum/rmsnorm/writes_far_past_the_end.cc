// One element, further past the end of the output than its guard band reaches.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static_cast<float *>(args.y)[args.rows * args.y_stride + 5000] = 1;
    return correct(args);
}
