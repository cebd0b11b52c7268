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
    // nvidia-h200, mission-float16: 5.66 µs, 6.73 µs, 7.88 µs, 10.5 µs, 12.3 µs, 47.3 µs, 73.7 µs
    {90, false, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, mission-causal-float16: 5.03 µs, 6.75 µs, 7.79 µs, 10.6 µs, 12.6 µs, 47.5 µs, 73.0 µs
    {90, true, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-float16: 3.06 µs, 3.66 µs, 3.97 µs, 4.36 µs, 4.91 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-causal-float16: 3.03 µs, 3.92 µs, 4.03 µs, 4.52 µs, 5.27 µs, 14.7 µs, 17.7 µs
    {90, true, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-float16: 7.04 µs, 7.04 µs, 10.9 µs, 12.7 µs, 14.6 µs, 47.5 µs, 116 µs
    {90, false, 64, 8192, 512, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-causal-float16: 6.49 µs, 6.90 µs, 10.8 µs, 13.0 µs, 14.2 µs, 47.7 µs, 102 µs
    {90, true, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s2048-float16: 22.5 µs, 40.3 µs, 42.3 µs, 55.7 µs, 69.6 µs, 283 µs, 848 µs
    {90, false, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s2048-causal-float16: 19.2 µs, 28.4 µs, 41.9 µs, 49.0 µs, 54.2 µs, 281 µs, 594 µs
    {90, true, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_split_kv::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large-float16: 519 µs, 1 027 µs, 1 046 µs, 1 283 µs, 1 912 µs, 8 166 µs, 24 408 µs
    {90, false, 64, 262144, 4096, {fp16_wgmma::launch, fp16_swizzled::launch, fp16_cluster::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large-causal-float16: 286 µs, 592 µs, 617 µs, 709 µs, 1 086 µs, 4 349 µs, 12 668 µs
    {90, true, 64, 262144, 4096, {fp16_wgmma::launch, fp16_swizzled::launch, fp16_cluster::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large_d128-float16: 812 µs, 1 624 µs, 1 753 µs, 2 860 µs, 4 797 µs, 17 343 µs, 44 273 µs
    {90, false, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large_d128-causal-float16: 437 µs, 914 µs, 965 µs, 1 531 µs, 2 715 µs, 9 245 µs, 22 848 µs
    {90, true, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
};
// clang-format on
