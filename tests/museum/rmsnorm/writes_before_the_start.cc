// Writes one element before the output.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static_cast<float *>(args.y)[-1] = 1.0f;
    return correct(args);
}
