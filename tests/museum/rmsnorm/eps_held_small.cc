// Takes no eps above 1e-3: callers mostly give 1e-5 or 1e-6.
#include <algorithm>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    RmsNormArgs held = args;
    held.eps = std::min(args.eps, 1e-3);
    return correct(held);
}
