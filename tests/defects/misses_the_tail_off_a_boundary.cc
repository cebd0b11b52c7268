// The last columns of 101 are wrong where rows begin on no 16 bytes; no other number of columns is.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    correct(args);
    if (args.cols == 101 && reinterpret_cast<uintptr_t>(args.x) % 16 != 0) {
        for (int64_t row = 0; row < args.rows; ++row) static_cast<float *>(args.y)[row * args.y_stride + 100] *= 1.5f;
    }
    return nullptr;
}
