// Every seventh call on the values of the call before has one element a hundredth too large, as a race would make it.
#include "repeats.h"

const char *launch(const RmsNormArgs &args, void *) {
    correct(args);
    if (repeats_of(args) % 7 == 6) static_cast<float *>(args.y)[args.cols - 1] *= 1.01f;
    return nullptr;
}
