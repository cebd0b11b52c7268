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

// A case that was measured, on every GPU of a compute capability.
struct Choice {
    int capability;  // of the GPU: 90 for compute capability 9.0
    bool causal;
    int64_t head_dim;
    int64_t query_rows;  // of all heads and batches together
    int64_t key_rows;
    Launch rungs[7];  // the fastest first, by times over the best one's; null: no more
};

// clang-format off
constexpr Choice kChoices[] = {
    // nvidia-h100-80gb-hbm3, mission-float16: 4.08 µs, 5.53 µs, 7.81 µs, 10.4 µs, 12.2 µs, 45.7 µs, 71.7 µs
    // nvidia-h200, mission-float16: 3.68 µs, 5.48 µs, 7.99 µs, 10.6 µs, 12.4 µs, 47.3 µs, 73.8 µs
    {90, false, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, mission-causal-float16: 3.88 µs, 5.57 µs, 7.75 µs, 10.5 µs, 12.5 µs, 45.9 µs, 71.0 µs
    // nvidia-h200, mission-causal-float16: 3.49 µs, 5.54 µs, 7.95 µs, 10.7 µs, 12.7 µs, 47.6 µs, 72.8 µs
    {90, true, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h2s64-float16: 1.50 µs, 2.67 µs, 2.88 µs, 3.23 µs, 3.43 µs, 8.47 µs, 9.96 µs
    // nvidia-h200, b1h2s64-float16: 1.50 µs, 2.60 µs, 2.94 µs, 3.30 µs, 3.52 µs, 8.83 µs, 10.3 µs
    {90, false, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h2s64-causal-float16: 1.49 µs, 2.74 µs, 2.97 µs, 3.42 µs, 3.77 µs, 8.90 µs, 10.1 µs
    // nvidia-h200, b1h2s64-causal-float16: 1.47 µs, 2.60 µs, 3.00 µs, 3.48 µs, 3.90 µs, 9.23 µs, 10.4 µs
    {90, true, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h4s128-float16: 1.80 µs, 2.56 µs, 2.92 µs, 4.28 µs, 4.69 µs, 13.8 µs, 17.4 µs
    // nvidia-h200, b1h4s128-float16: 1.82 µs, 2.56 µs, 2.97 µs, 4.38 µs, 4.78 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h4s128-causal-float16: 1.72 µs, 2.76 µs, 3.02 µs, 4.45 µs, 5.00 µs, 14.2 µs, 17.5 µs
    // nvidia-h200, b1h4s128-causal-float16: 1.77 µs, 2.63 µs, 3.03 µs, 4.55 µs, 5.15 µs, 14.7 µs, 17.8 µs
    {90, true, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s128-float16: 1.99 µs, 2.57 µs, 2.95 µs, 4.30 µs, 4.78 µs, 13.8 µs, 17.2 µs
    // nvidia-h200, b1h8s128-float16: 2.03 µs, 2.57 µs, 3.00 µs, 4.39 µs, 4.91 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s128-causal-float16: 1.87 µs, 2.76 µs, 3.08 µs, 4.46 µs, 5.09 µs, 14.2 µs, 17.4 µs
    // nvidia-h200, b1h8s128-causal-float16: 1.89 µs, 2.65 µs, 3.07 µs, 4.54 µs, 5.28 µs, 14.7 µs, 17.8 µs
    {90, true, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b2h8s512-float16: 5.74 µs, 5.85 µs, 10.8 µs, 12.7 µs, 14.4 µs, 46.0 µs, 112 µs
    // nvidia-h200, b2h8s512-float16: 5.28 µs, 5.71 µs, 11.0 µs, 12.9 µs, 14.8 µs, 47.7 µs, 116 µs
    {90, false, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b2h8s512-causal-float16: 5.22 µs, 5.76 µs, 10.6 µs, 12.8 µs, 14.0 µs, 46.1 µs, 98.6 µs
    // nvidia-h200, b2h8s512-causal-float16: 5.15 µs, 5.65 µs, 10.8 µs, 13.0 µs, 14.3 µs, 47.7 µs, 102 µs
    {90, true, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s2048-float16: 21.4 µs, 30.6 µs, 42.2 µs, 54.2 µs, 69.8 µs, 282 µs, 840 µs
    // nvidia-h200, b1h8s2048-float16: 20.3 µs, 24.8 µs, 42.4 µs, 55.4 µs, 70.3 µs, 283 µs, 848 µs
    {90, false, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s2048-causal-float16: 17.7 µs, 23.4 µs, 41.2 µs, 48.6 µs, 53.1 µs, 272 µs, 593 µs
    // nvidia-h200, b1h8s2048-causal-float16: 17.0 µs, 19.7 µs, 42.1 µs, 49.5 µs, 54.1 µs, 281 µs, 601 µs
    {90, true, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_split_kv::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large-float16: 544 µs, 891 µs, 1 053 µs, 1 306 µs, 1 927 µs, 8 116 µs, 24 228 µs
    // nvidia-h200, large-float16: 505 µs, 675 µs, 1 049 µs, 1 303 µs, 1 941 µs, 8 168 µs, 24 412 µs
    {90, false, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large-causal-float16: 291 µs, 483 µs, 604 µs, 711 µs, 1 104 µs, 4 287 µs, 12 617 µs
    // nvidia-h200, large-causal-float16: 270 µs, 377 µs, 599 µs, 707 µs, 1 105 µs, 4 312 µs, 12 601 µs
    {90, true, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large_d128-float16: 833 µs, 1 540 µs, 1 745 µs, 2 794 µs, 5 002 µs, 17 369 µs, 44 289 µs
    // nvidia-h200, large_d128-float16: 770 µs, 1 224 µs, 1 739 µs, 2 886 µs, 4 908 µs, 17 359 µs, 44 277 µs
    {90, false, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large_d128-causal-float16: 451 µs, 879 µs, 998 µs, 1 550 µs, 2 701 µs, 9 162 µs, 22 783 µs
    // nvidia-h200, large_d128-causal-float16: 407 µs, 703 µs, 979 µs, 1 538 µs, 2 677 µs, 9 112 µs, 22 866 µs
    {90, true, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
};
// clang-format on
