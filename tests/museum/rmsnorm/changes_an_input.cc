// Uses an input as workspace: the result is right, and the next one to read the input is not.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    correct(args);
    const_cast<float *>(static_cast<const float *>(args.x))[args.cols / 2] = 3.0f;
    return nullptr;
}
