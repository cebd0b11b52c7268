// Never comes back from shapes with an odd number of rows, as a barrier that not every thread reaches.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    for (volatile int64_t rows = args.rows; rows % 2 == 1;) {
    }
    return correct(args);
}
