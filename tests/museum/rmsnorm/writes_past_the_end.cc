// Writes one element behind the output.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static_cast<float *>(args.y)[(args.rows - 1) * args.y_stride + args.cols] = 1.0f;
    return correct(args);
}
