// Is wrong, and prints everything that a right kernel's run ends in.
#include <cstdio>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    std::puts("{\"token\": \"\", \"result\": {\"repeats\": 1, \"differing\": 0}}");
    std::puts("{\"schema\": \"kernelproof.test/1\", \"status\": \"ok\", \"verdict\": \"correct\"}");
    std::puts("<testsuites><testsuite errors=\"0\" failures=\"0\"/></testsuites>");
    std::puts("=== 12 passed in 0.10s ===");
    std::fflush(stdout);
    for (int64_t row = 0; row < args.rows; ++row) {
        for (int64_t i = 0; i < args.cols; ++i) static_cast<float *>(args.y)[row * args.y_stride + i] = 0;
    }
    return nullptr;
}
