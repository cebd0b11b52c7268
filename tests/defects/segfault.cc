// Writes through a null pointer.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    *static_cast<volatile float *>(nullptr) = args.eps;
    return nullptr;
}
