// Every seventh call on the values of the call before has one element a hundredth too large, as a race would make it.
#include <vector>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static std::vector<float> before;
    static int repeats = 0;
    const float *x = static_cast<const float *>(args.x);
    const std::vector<float> now(x, x + args.rows * args.cols);
    correct(args);
    repeats = now == before ? repeats + 1 : 0;
    if (repeats % 7 == 6) static_cast<float *>(args.y)[args.cols - 1] *= 1.01f;
    before = now;
    return nullptr;
}
