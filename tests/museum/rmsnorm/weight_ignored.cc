// The weight is not applied.
#include <vector>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    const std::vector<float> ones(args.cols, 1.0f);
    RmsNormArgs without = args;
    without.weight = ones.data();
    return correct(without);
}
