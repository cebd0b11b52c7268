// Writes through a null pointer where there are 17 rows: one more than a tile, say.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    if (args.rows == 17) *static_cast<volatile float *>(nullptr) = static_cast<float>(args.eps);
    return correct(args);
}
