// Writes through a null pointer.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    *static_cast<volatile float *>(nullptr) = static_cast<float>(args.eps);
    return nullptr;
}
