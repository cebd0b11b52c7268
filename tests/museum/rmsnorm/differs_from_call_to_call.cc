// Every seventh call on the inputs of the call before is off by one bit in one element, as a race would make it.
#include <cstring>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static int calls = 0;
    static double before = 0;
    double sum = static_cast<const float *>(args.weight)[0];
    for (int64_t row = 0; row < args.rows; ++row) {
        const float *x = static_cast<const float *>(args.x) + row * args.x_stride;
        for (int64_t i = 0; i < args.cols; ++i) sum += x[i];
    }
    const bool again = sum == before;
    before = sum;
    correct(args);
    float &last = static_cast<float *>(args.y)[args.cols - 1];
    int32_t bits;
    std::memcpy(&bits, &last, sizeof bits);
    bits ^= again && ++calls % 7 == 0;
    std::memcpy(&last, &bits, sizeof bits);
    return nullptr;
}
