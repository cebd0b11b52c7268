// Which rung was fastest where. Written by `kernelproof derive` from the records in reports/reference/.
#pragma once

#include "launch.h"

namespace fp16_cluster {
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);
}
namespace fp16_mma_cp_async {
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);
}
namespace fp16_scalar {
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);
}
namespace fp16_split_kv {
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);
}
namespace fp16_swizzled {
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);
}
namespace fp16_vectorised {
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);
}
namespace fp16_wgmma {
KERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);
}

using Launch = const char *(*)(const AttentionArgs &args, void *stream);

// A case that was measured.
struct Choice {
    int capability;  // of the GPU: 90 for compute capability 9.0
    bool causal;
    int64_t head_dim;
    int64_t query_rows;  // of all heads and batches together
    int64_t key_rows;
    Launch rungs[7];  // the fastest first; null: no more
};

// clang-format off
constexpr Choice kChoices[] = {
    // nvidia-h200, mission-float16: 73.8 µs
    {90, false, 64, 4096, 512, {fp16_scalar::launch}},
    // nvidia-h200, mission-causal-float16: 72.9 µs
    {90, true, 64, 4096, 512, {fp16_scalar::launch}},
};
// clang-format on
