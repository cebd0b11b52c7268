// Writes through a null pointer where the number of rows is odd.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    if (args.rows % 2 == 1) *static_cast<volatile float *>(nullptr) = args.eps;
    return correct(args);
}
