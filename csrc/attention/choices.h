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
    // nvidia-h200, mission-float16: 4.97 µs, 6.42 µs, 7.98 µs, 10.6 µs, 12.4 µs, 47.3 µs, 73.8 µs
    {90, false, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, mission-causal-float16: 4.86 µs, 6.44 µs, 7.94 µs, 10.6 µs, 12.7 µs, 47.5 µs, 72.6 µs
    {90, true, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h2s64-float16: 1.97 µs, 3.08 µs, 3.28 µs, 3.50 µs, 3.60 µs, 8.78 µs, 10.3 µs
    {90, false, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_wgmma::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h2s64-causal-float16: 1.93 µs, 3.16 µs, 3.47 µs, 3.65 µs, 3.90 µs, 9.18 µs, 10.4 µs
    {90, true, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_wgmma::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h4s128-float16: 2.24 µs, 3.14 µs, 3.68 µs, 4.36 µs, 4.81 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h4s128-causal-float16: 2.18 µs, 3.20 µs, 3.70 µs, 4.52 µs, 5.19 µs, 14.7 µs, 17.9 µs
    {90, true, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-float16: 2.44 µs, 3.19 µs, 3.68 µs, 4.36 µs, 4.91 µs, 14.3 µs, 17.6 µs
    {90, false, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-causal-float16: 2.35 µs, 3.24 µs, 3.74 µs, 4.55 µs, 5.29 µs, 14.7 µs, 17.8 µs
    {90, true, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-float16: 6.60 µs, 6.79 µs, 10.9 µs, 12.7 µs, 14.8 µs, 47.6 µs, 116 µs
    {90, false, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-causal-float16: 6.60 µs, 6.60 µs, 10.8 µs, 13.0 µs, 14.3 µs, 47.7 µs, 101 µs
    {90, true, 64, 8192, 512, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s2048-float16: 22.1 µs, 31.7 µs, 42.3 µs, 55.2 µs, 70.0 µs, 283 µs, 848 µs
    {90, false, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s2048-causal-float16: 18.8 µs, 25.4 µs, 41.8 µs, 49.2 µs, 54.0 µs, 282 µs, 613 µs
    {90, true, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_split_kv::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large-float16: 528 µs, 873 µs, 1 046 µs, 1 293 µs, 1 928 µs, 8 200 µs, 24 446 µs
    {90, false, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large-causal-float16: 286 µs, 478 µs, 597 µs, 707 µs, 1 103 µs, 4 360 µs, 12 620 µs
    {90, true, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large_d128-float16: 830 µs, 1 632 µs, 1 729 µs, 2 824 µs, 4 858 µs, 17 350 µs, 44 271 µs
    {90, false, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large_d128-causal-float16: 441 µs, 900 µs, 952 µs, 1 528 µs, 2 655 µs, 9 174 µs, 22 895 µs
    {90, true, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
};
// clang-format on
