// Attention forward as a user would call it: the rung that was fastest where it was measured nearest to this call, or
// the next where that one does not take it. choices.h says which were measured where.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdlib>

#include "../common/message.h"
#include "choices.h"

namespace attention {

// Sizes count in factors of two; a size is at most some forty of them away from another.
constexpr double kPerFactorOfHeadDim = 100.0;
constexpr double kForOtherMask = 1e4;
constexpr double kPerCapability = 1e5;

double factors_of_two(int64_t measured, int64_t wanted) {
    return std::fabs(std::log2(static_cast<double>(measured) / static_cast<double>(wanted)));
}

// The choice that was measured nearest. Another GPU is further away than another mask, that further than another
// head_dim, and that further than any number of rows. The rows of all heads together are what a GPU is filled with.
const Choice &nearest(const AttentionArgs &args, int capability) {
    const int64_t query_rows = args.batch * args.query_heads * args.query_rows;
    const Choice *found = &kChoices[0];
    double least = INFINITY;
    for (const Choice &choice : kChoices) {
        double distance = kPerCapability * std::abs(choice.capability - capability);
        if (choice.causal != args.causal) distance += kForOtherMask;
        if (distance >= least) continue;  // before the logarithms
        distance += kPerFactorOfHeadDim * factors_of_two(choice.head_dim, args.head_dim);
        distance += factors_of_two(choice.query_rows, query_rows) + factors_of_two(choice.key_rows, args.key_rows);
        if (distance >= least) continue;
        least = distance;
        found = &choice;
    }
    return *found;
}

}  // namespace attention

const char *launch(const AttentionArgs &args, void *stream) {
    if (!args.placement.on_cuda) return "attention runs on a CUDA device; the tensors are in host memory";
    if (args.dtype == Dtype::kFloat32) return "attention takes float16 or bfloat16, not float32";
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, args.placement.index);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, args.placement.index);
    const char *refused = nullptr;
    for (const Launch rung : attention::nearest(args, 10 * major + minor).rungs) {
        if (rung == nullptr) break;
        refused = rung(args, stream);  // a message means that nothing was queued
        if (refused == nullptr) return nullptr;
    }
    return refused;
}
