// Every seventh call is off by one bit in one element, as a race would make it.
#include <cstring>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static int calls = 0;
    correct(args);
    float &last = static_cast<float *>(args.y)[args.cols - 1];
    int32_t bits;
    std::memcpy(&bits, &last, sizeof bits);
    bits ^= ++calls % 7 == 0;
    std::memcpy(&last, &bits, sizeof bits);
    return nullptr;
}
