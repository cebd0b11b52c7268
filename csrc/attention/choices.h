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
    // nvidia-h200, mission-float16: 4.97 µs, 6.39 µs, 7.96 µs, 10.5 µs, 12.3 µs, 47.3 µs, 73.9 µs
    {90, false, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, mission-causal-float16: 4.87 µs, 6.48 µs, 7.90 µs, 10.6 µs, 12.7 µs, 47.5 µs, 73.1 µs
    {90, true, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h2s64-float16: 1.96 µs, 3.06 µs, 3.27 µs, 3.49 µs, 3.61 µs, 8.75 µs, 10.2 µs
    {90, false, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_wgmma::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h2s64-causal-float16: 1.94 µs, 3.14 µs, 3.46 µs, 3.65 µs, 3.89 µs, 9.18 µs, 10.4 µs
    {90, true, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_wgmma::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h4s128-float16: 2.28 µs, 3.14 µs, 3.66 µs, 4.36 µs, 4.75 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h4s128-causal-float16: 2.21 µs, 3.21 µs, 3.69 µs, 4.54 µs, 5.14 µs, 14.7 µs, 17.9 µs
    {90, true, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-float16: 2.43 µs, 3.18 µs, 3.66 µs, 4.36 µs, 4.91 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-causal-float16: 2.37 µs, 3.23 µs, 3.74 µs, 4.53 µs, 5.28 µs, 14.7 µs, 17.8 µs
    {90, true, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-float16: 6.61 µs, 6.81 µs, 11.0 µs, 12.8 µs, 14.8 µs, 47.6 µs, 116 µs
    {90, false, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-causal-float16: 6.54 µs, 6.55 µs, 10.9 µs, 13.0 µs, 14.4 µs, 47.8 µs, 101 µs
    {90, true, 64, 8192, 512, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s2048-float16: 22.2 µs, 31.8 µs, 42.2 µs, 55.2 µs, 70.0 µs, 283 µs, 847 µs
    {90, false, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s2048-causal-float16: 18.8 µs, 25.3 µs, 41.9 µs, 49.3 µs, 54.0 µs, 281 µs, 610 µs
    {90, true, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_split_kv::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large-float16: 536 µs, 884 µs, 1 060 µs, 1 311 µs, 1 931 µs, 8 180 µs, 24 444 µs
    {90, false, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large-causal-float16: 289 µs, 481 µs, 601 µs, 712 µs, 1 096 µs, 4 354 µs, 12 670 µs
    {90, true, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large_d128-float16: 831 µs, 1 646 µs, 1 762 µs, 2 846 µs, 4 863 µs, 17 367 µs, 44 273 µs
    {90, false, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, large_d128-causal-float16: 445 µs, 915 µs, 997 µs, 1 578 µs, 2 713 µs, 9 260 µs, 22 944 µs
    {90, true, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
};
// clang-format on
