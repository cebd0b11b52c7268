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
    // nvidia-h100-80gb-hbm3, mission-float16: 3.55 µs, 5.19 µs, 7.83 µs, 10.3 µs, 12.2 µs, 45.2 µs, 71.1 µs
    // nvidia-h200, mission-float16: 3.25 µs, 5.27 µs, 7.95 µs, 10.5 µs, 12.3 µs, 47.3 µs, 73.9 µs
    {90, false, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, mission-causal-float16: 3.34 µs, 5.18 µs, 7.77 µs, 10.4 µs, 12.5 µs, 45.6 µs, 70.5 µs
    // nvidia-h200, mission-causal-float16: 3.28 µs, 5.29 µs, 7.90 µs, 10.6 µs, 12.6 µs, 47.5 µs, 72.8 µs
    {90, true, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h2s64-float16: 1.52 µs, 2.41 µs, 2.66 µs, 3.22 µs, 3.43 µs, 8.38 µs, 9.79 µs
    // nvidia-h200, b1h2s64-float16: 1.47 µs, 2.41 µs, 2.67 µs, 3.27 µs, 3.49 µs, 8.75 µs, 10.2 µs
    {90, false, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h2s64-causal-float16: 1.50 µs, 2.41 µs, 2.68 µs, 3.40 µs, 3.80 µs, 8.87 µs, 9.94 µs
    // nvidia-h200, b1h2s64-causal-float16: 1.44 µs, 2.42 µs, 2.68 µs, 3.45 µs, 3.85 µs, 9.19 µs, 10.3 µs
    {90, true, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h4s128-float16: 1.82 µs, 2.34 µs, 2.53 µs, 4.25 µs, 4.65 µs, 13.6 µs, 17.1 µs
    // nvidia-h200, b1h4s128-float16: 1.82 µs, 2.33 µs, 2.55 µs, 4.36 µs, 4.75 µs, 14.3 µs, 17.8 µs
    {90, false, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h4s128-causal-float16: 1.72 µs, 2.44 µs, 2.68 µs, 4.42 µs, 5.00 µs, 14.0 µs, 17.2 µs
    // nvidia-h200, b1h4s128-causal-float16: 1.75 µs, 2.47 µs, 2.69 µs, 4.53 µs, 5.10 µs, 14.7 µs, 17.7 µs
    {90, true, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s128-float16: 1.99 µs, 2.37 µs, 2.57 µs, 4.28 µs, 4.78 µs, 13.7 µs, 17.1 µs
    // nvidia-h200, b1h8s128-float16: 2.00 µs, 2.34 µs, 2.60 µs, 4.36 µs, 4.88 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s128-causal-float16: 1.86 µs, 2.46 µs, 2.74 µs, 4.42 µs, 5.09 µs, 14.0 µs, 17.2 µs
    // nvidia-h200, b1h8s128-causal-float16: 1.89 µs, 2.49 µs, 2.74 µs, 4.53 µs, 5.20 µs, 14.7 µs, 17.7 µs
    {90, true, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b2h8s512-float16: 4.98 µs, 5.51 µs, 10.8 µs, 12.6 µs, 14.4 µs, 45.5 µs, 111 µs
    // nvidia-h200, b2h8s512-float16: 4.88 µs, 5.58 µs, 10.9 µs, 12.8 µs, 14.7 µs, 47.6 µs, 116 µs
    {90, false, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b2h8s512-causal-float16: 4.85 µs, 5.43 µs, 10.6 µs, 12.8 µs, 14.1 µs, 45.7 µs, 98.3 µs
    // nvidia-h200, b2h8s512-causal-float16: 4.95 µs, 5.52 µs, 10.8 µs, 12.9 µs, 14.3 µs, 47.7 µs, 102 µs
    {90, true, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s2048-float16: 19.2 µs, 24.4 µs, 42.5 µs, 54.7 µs, 70.1 µs, 283 µs, 847 µs
    // nvidia-h200, b1h8s2048-float16: 19.1 µs, 25.3 µs, 42.1 µs, 55.0 µs, 69.7 µs, 282 µs, 847 µs
    {90, false, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s2048-causal-float16: 15.0 µs, 16.4 µs, 41.3 µs, 48.7 µs, 53.3 µs, 274 µs, 601 µs
    // nvidia-h200, b1h8s2048-causal-float16: 15.3 µs, 16.8 µs, 41.9 µs, 49.4 µs, 53.9 µs, 281 µs, 602 µs
    {90, true, 64, 16384, 2048, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_split_kv::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large-float16: 505 µs, 684 µs, 1 056 µs, 1 305 µs, 1 922 µs, 8 214 µs, 24 421 µs
    // nvidia-h200, large-float16: 497 µs, 723 µs, 1 068 µs, 1 301 µs, 1 931 µs, 8 229 µs, 24 475 µs
    {90, false, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large-causal-float16: 275 µs, 376 µs, 601 µs, 710 µs, 1 097 µs, 4 345 µs, 12 644 µs
    // nvidia-h200, large-causal-float16: 273 µs, 370 µs, 602 µs, 715 µs, 1 094 µs, 4 356 µs, 12 638 µs
    {90, true, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large_d128-float16: 759 µs, 1 201 µs, 1 783 µs, 2 797 µs, 5 092 µs, 17 308 µs, 44 126 µs
    // nvidia-h200, large_d128-float16: 770 µs, 1 253 µs, 1 758 µs, 2 885 µs, 4 813 µs, 17 360 µs, 44 366 µs
    {90, false, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large_d128-causal-float16: 419 µs, 758 µs, 972 µs, 1 540 µs, 2 697 µs, 9 194 µs, 22 692 µs
    // nvidia-h200, large_d128-causal-float16: 414 µs, 719 µs, 977 µs, 1 553 µs, 2 720 µs, 9 120 µs, 22 852 µs
    {90, true, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
};
// clang-format on
