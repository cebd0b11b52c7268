// No fault: what the others are held against.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    return correct(args);
}
