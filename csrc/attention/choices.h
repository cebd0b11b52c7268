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
    // nvidia-h200, mission-float16: 5.49 µs, 6.63 µs, 7.57 µs, 10.5 µs, 12.3 µs, 48.5 µs, 73.7 µs
    {90, false, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, mission-causal-float16: 5.06 µs, 6.69 µs, 7.54 µs, 10.6 µs, 12.6 µs, 48.3 µs, 72.6 µs
    {90, true, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-float16: 2.90 µs, 3.69 µs, 3.97 µs, 4.39 µs, 4.92 µs, 14.9 µs, 17.6 µs
    {90, false, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s128-causal-float16: 2.90 µs, 3.88 µs, 4.04 µs, 4.53 µs, 5.25 µs, 15.0 µs, 17.9 µs
    {90, true, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-float16: 6.89 µs, 6.91 µs, 10.8 µs, 12.7 µs, 14.3 µs, 48.7 µs, 115 µs
    {90, false, 64, 8192, 512, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b2h8s512-causal-float16: 6.44 µs, 6.79 µs, 10.7 µs, 12.9 µs, 14.3 µs, 48.6 µs, 101 µs
    {90, true, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h2s64-float16: 2.36 µs, 3.29 µs, 3.52 µs, 3.79 µs, 3.90 µs, 9.16 µs, 10.3 µs
    {90, false, 64, 128, 64, {fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h2s64-causal-float16: 2.36 µs, 3.47 µs, 3.78 µs, 3.91 µs, 3.92 µs, 9.24 µs, 10.4 µs
    {90, true, 64, 128, 64, {fp16_split_kv::launch, fp16_swizzled::launch, fp16_cluster::launch, fp16_mma_cp_async::launch, fp16_wgmma::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h4s128-float16: 2.83 µs, 3.64 µs, 3.94 µs, 4.37 µs, 4.78 µs, 14.9 µs, 17.7 µs
    {90, false, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h4s128-causal-float16: 2.83 µs, 3.81 µs, 3.97 µs, 4.54 µs, 5.17 µs, 15.0 µs, 17.8 µs
    {90, true, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h200, b1h8s2048-float16: 22.5 µs, 40.3 µs, 42.3 µs, 55.1 µs, 69.5 µs, 275 µs
    {90, false, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch}},
    // nvidia-h200, b1h8s2048-causal-float16: 19.2 µs, 28.4 µs, 42.0 µs, 53.8 µs, 69.5 µs, 271 µs
    {90, true, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch}},
    // nvidia-h200, large-float16: 519 µs, 1 037 µs, 1 337 µs
    {90, false, 64, 262144, 4096, {fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch}},
    // nvidia-h200, large-causal-float16: 290 µs, 594 µs, 710 µs
    {90, true, 64, 262144, 4096, {fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch}},
    // nvidia-h200, large_d128-float16: 821 µs, 1 847 µs, 2 854 µs
    {90, false, 128, 262144, 4096, {fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch}},
    // nvidia-h200, large_d128-causal-float16: 447 µs, 1 034 µs, 1 676 µs
    {90, true, 128, 262144, 4096, {fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch}},
};
// clang-format on
