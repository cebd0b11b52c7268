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
    // nvidia-h200, mission-float16: 3.30 µs, 5.26 µs, 7.96 µs, 10.5 µs, 12.3 µs, 47.3 µs, 73.8 µs
    {90, false, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, mission-causal-float16: 3.34 µs, 5.18 µs, 7.77 µs, 10.4 µs, 12.5 µs, 45.6 µs, 70.5 µs
    // nvidia-h200, mission-causal-float16: 3.34 µs, 5.36 µs, 7.93 µs, 10.7 µs, 12.7 µs, 47.5 µs, 72.9 µs
    {90, true, 64, 4096, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_split_kv::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h2s64-float16: 1.52 µs, 2.41 µs, 2.66 µs, 3.22 µs, 3.43 µs, 8.38 µs, 9.79 µs
    // nvidia-h200, b1h2s64-float16: 1.50 µs, 2.44 µs, 2.72 µs, 3.27 µs, 3.49 µs, 8.77 µs, 10.2 µs
    {90, false, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h2s64-causal-float16: 1.50 µs, 2.41 µs, 2.68 µs, 3.40 µs, 3.80 µs, 8.87 µs, 9.94 µs
    // nvidia-h200, b1h2s64-causal-float16: 1.47 µs, 2.47 µs, 2.73 µs, 3.45 µs, 3.89 µs, 9.17 µs, 10.4 µs
    {90, true, 64, 128, 64, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h4s128-float16: 1.82 µs, 2.34 µs, 2.53 µs, 4.25 µs, 4.65 µs, 13.6 µs, 17.1 µs
    // nvidia-h200, b1h4s128-float16: 1.83 µs, 2.44 µs, 2.60 µs, 4.36 µs, 4.75 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h4s128-causal-float16: 1.72 µs, 2.44 µs, 2.68 µs, 4.42 µs, 5.00 µs, 14.0 µs, 17.2 µs
    // nvidia-h200, b1h4s128-causal-float16: 1.77 µs, 2.51 µs, 2.73 µs, 4.52 µs, 5.13 µs, 14.7 µs, 17.7 µs
    {90, true, 64, 512, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s128-float16: 1.99 µs, 2.37 µs, 2.57 µs, 4.28 µs, 4.78 µs, 13.7 µs, 17.1 µs
    // nvidia-h200, b1h8s128-float16: 2.01 µs, 2.45 µs, 2.65 µs, 4.36 µs, 4.91 µs, 14.3 µs, 17.7 µs
    {90, false, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s128-causal-float16: 1.86 µs, 2.46 µs, 2.74 µs, 4.42 µs, 5.09 µs, 14.0 µs, 17.2 µs
    // nvidia-h200, b1h8s128-causal-float16: 1.90 µs, 2.54 µs, 2.79 µs, 4.52 µs, 5.29 µs, 14.7 µs, 17.7 µs
    {90, true, 64, 1024, 128, {fp16_split_kv::launch, fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b2h8s512-float16: 4.98 µs, 5.51 µs, 10.8 µs, 12.6 µs, 14.4 µs, 45.5 µs, 111 µs
    // nvidia-h200, b2h8s512-float16: 4.79 µs, 5.55 µs, 11.0 µs, 12.7 µs, 14.7 µs, 47.5 µs, 116 µs
    {90, false, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b2h8s512-causal-float16: 4.85 µs, 5.43 µs, 10.6 µs, 12.8 µs, 14.1 µs, 45.7 µs, 98.3 µs
    // nvidia-h200, b2h8s512-causal-float16: 4.97 µs, 5.57 µs, 10.8 µs, 13.0 µs, 14.3 µs, 47.7 µs, 102 µs
    {90, true, 64, 8192, 512, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s2048-float16: 19.2 µs, 24.4 µs, 42.5 µs, 54.7 µs, 70.1 µs, 283 µs, 847 µs
    // nvidia-h200, b1h8s2048-float16: 18.2 µs, 24.4 µs, 42.2 µs, 54.9 µs, 70.0 µs, 282 µs, 846 µs
    {90, false, 64, 16384, 2048, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, b1h8s2048-causal-float16: 15.0 µs, 16.4 µs, 41.3 µs, 48.7 µs, 53.3 µs, 274 µs, 601 µs
    // nvidia-h200, b1h8s2048-causal-float16: 15.2 µs, 17.9 µs, 41.8 µs, 49.1 µs, 53.8 µs, 280 µs, 595 µs
    {90, true, 64, 16384, 2048, {fp16_cluster::launch, fp16_wgmma::launch, fp16_swizzled::launch, fp16_split_kv::launch, fp16_mma_cp_async::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large-float16: 505 µs, 684 µs, 1 056 µs, 1 305 µs, 1 922 µs, 8 214 µs, 24 421 µs
    // nvidia-h200, large-float16: 497 µs, 673 µs, 1 059 µs, 1 296 µs, 1 930 µs, 8 179 µs, 24 418 µs
    {90, false, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large-causal-float16: 275 µs, 376 µs, 601 µs, 710 µs, 1 097 µs, 4 345 µs, 12 644 µs
    // nvidia-h200, large-causal-float16: 272 µs, 368 µs, 595 µs, 706 µs, 1 100 µs, 4 283 µs, 12 623 µs
    {90, true, 64, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large_d128-float16: 759 µs, 1 201 µs, 1 783 µs, 2 797 µs, 5 092 µs, 17 308 µs, 44 126 µs
    // nvidia-h200, large_d128-float16: 760 µs, 1 209 µs, 1 733 µs, 2 827 µs, 4 804 µs, 17 369 µs, 44 264 µs
    {90, false, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
    // nvidia-h100-80gb-hbm3, large_d128-causal-float16: 419 µs, 758 µs, 972 µs, 1 540 µs, 2 697 µs, 9 194 µs, 22 692 µs
    // nvidia-h200, large_d128-causal-float16: 409 µs, 727 µs, 993 µs, 1 547 µs, 2 658 µs, 9 283 µs, 23 078 µs
    {90, true, 128, 262144, 4096, {fp16_wgmma::launch, fp16_cluster::launch, fp16_swizzled::launch, fp16_mma_cp_async::launch, fp16_split_kv::launch, fp16_vectorised::launch, fp16_scalar::launch}},
};
// clang-format on
