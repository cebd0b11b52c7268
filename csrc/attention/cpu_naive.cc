// Attention on a CPU as the formula says it: a whole row of scores, its softmax, the weighted mean, all in float32.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/message.h"
#include "launch.h"

namespace {

float dot(const float *a, const float *b, int64_t size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum) simdlen(8)  // lanes are added one by one in the end
    for (int64_t d = 0; d < size; ++d) sum += a[d] * b[d];
    return sum;
}

void attend_row(const float *q,  // [head_dim]
                const float *k,  // [key_rows, head_dim]
                const float *v,  // [key_rows, head_dim]
                float *o,        // [head_dim]
                int64_t visible, const AttentionArgs &args) {
    std::vector<float> weights(visible);
    std::vector<float> mean(args.head_dim, 0.0f);
    const float scale = static_cast<float>(args.scale);
    for (int64_t j = 0; j < visible; ++j) weights[j] = scale * dot(q, k + j * args.k_stride.row, args.head_dim);
    const float highest = visible > 0 ? *std::max_element(weights.begin(), weights.end()) : 0.0f;
    float total = 0;
    for (int64_t j = 0; j < visible; ++j) {
        const float weight = std::exp(weights[j] - highest);
        const float *value = v + j * args.v_stride.row;
        total += weight;
        for (int64_t d = 0; d < args.head_dim; ++d) mean[d] += weight * value[d];
    }
    for (int64_t d = 0; d < args.head_dim; ++d) o[d] = visible > 0 ? mean[d] / total : 0.0f;
}

}  // namespace

const char *launch(const AttentionArgs &args, void *) {
    if (args.placement.on_cuda) return "cpu_naive runs in host memory; the tensors are on a CUDA device";
    if (args.dtype != Dtype::kFloat32) return "cpu_naive takes float32 only";
    const int64_t heads = args.batch * args.query_heads;
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t row = 0; row < heads * args.query_rows; ++row) {
        const int64_t i = row % args.query_rows;
        const int64_t head = row / args.query_rows % args.query_heads;
        const int64_t key_head = head / (args.query_heads / args.key_heads);
        const int64_t batch = row / args.query_rows / args.query_heads;
        const int64_t visible = args.causal
                                    ? std::clamp<int64_t>(i + args.key_rows - args.query_rows + 1, 0, args.key_rows)
                                    : args.key_rows;
        const auto at = [&](const void *data, const Strides3 &stride, int64_t h) {
            return static_cast<const float *>(data) + batch * stride.batch + h * stride.head;
        };
        attend_row(at(args.q, args.q_stride, head) + i * args.q_stride.row, at(args.k, args.k_stride, key_head),
                   at(args.v, args.v_stride, key_head),
                   const_cast<float *>(at(args.o, args.o_stride, head)) + i * args.o_stride.row, visible, args);
    }
    return nullptr;
}
