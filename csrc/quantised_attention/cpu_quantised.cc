// Attention from codes on a CPU as the formula says it: every code decoded first, whole rows of scores, all in float32.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "../common/message.h"
#include "launch.h"

namespace {

// What a code stands for in units of its scale: whole numbers and e4m3 numbers, which float32 holds exactly.
float value_of(uint8_t code, Codec codec) {
    if (codec == Codec::kSimFp8) return static_cast<float>(code - 128);
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 127) == 127) return std::nanf("");
    const float magnitude =
        exponent == 0 ? std::ldexp(1.0f * fraction, -9) : std::ldexp(8.0f + fraction, exponent - 10);
    return code < 128 ? magnitude : -magnitude;
}

// All heads of a tensor of codes [batch, heads, rows, head_dim], decoded and contiguous.
std::vector<float> decoded(const void *codes, const Strides3 &stride, int64_t heads, int64_t rows,
                           const QuantisedAttentionArgs &args) {
    std::array<float, 256> value;
    for (int code = 0; code < 256; ++code) value[code] = value_of(static_cast<uint8_t>(code), args.codec);
    const int64_t head_dim = args.attention.head_dim;
    std::vector<float> made(args.attention.batch * heads * rows * head_dim);
#pragma omp parallel for
    for (int64_t row = 0; row < args.attention.batch * heads * rows; ++row) {
        const uint8_t *from = static_cast<const uint8_t *>(codes) + row / rows / heads * stride.batch +
                              row / rows % heads * stride.head + row % rows * stride.row;
        for (int64_t d = 0; d < head_dim; ++d) made[row * head_dim + d] = value[from[d]];
    }
    return made;
}

float dot(const float *a, const float *b, int64_t size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum) simdlen(8)  // lanes are added one by one in the end
    for (int64_t d = 0; d < size; ++d) sum += a[d] * b[d];
    return sum;
}

void attend_row(const float *q,  // [head_dim]
                const float *k,  // [key_rows, head_dim]
                const float *v,  // [key_rows, head_dim]
                _Float16 *o,     // [head_dim]
                int64_t visible, int64_t head_dim, float score_scale, float value_scale) {
    std::vector<float> weights(visible);
    std::vector<float> mean(head_dim, 0.0f);
    for (int64_t j = 0; j < visible; ++j) weights[j] = score_scale * dot(q, k + j * head_dim, head_dim);
    const float highest = visible > 0 ? *std::max_element(weights.begin(), weights.end()) : 0.0f;
    float total = 0;
    for (int64_t j = 0; j < visible; ++j) {
        const float weight = std::exp(weights[j] - highest);
        const float *value = v + j * head_dim;
        total += weight;
        for (int64_t d = 0; d < head_dim; ++d) mean[d] += weight * value[d];
    }
    for (int64_t d = 0; d < head_dim; ++d) {
        o[d] = visible > 0 ? static_cast<_Float16>(value_scale * mean[d] / total) : _Float16{0};
    }
}

}  // namespace

const char *launch(const QuantisedAttentionArgs &quantised, void *) {
    const AttentionArgs &args = quantised.attention;
    if (args.placement.on_cuda) return "cpu_quantised runs in host memory; the tensors are on a CUDA device";
    const std::vector<float> q = decoded(args.q, args.q_stride, args.query_heads, args.query_rows, quantised);
    const std::vector<float> k = decoded(args.k, args.k_stride, args.key_heads, args.key_rows, quantised);
    const std::vector<float> v = decoded(args.v, args.v_stride, args.key_heads, args.key_rows, quantised);
    const double step = quantised.codec == Codec::kSimFp8 ? kCodeStep : 1.0;
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t row = 0; row < args.batch * args.query_heads * args.query_rows; ++row) {
        const int64_t i = row % args.query_rows;
        const int64_t head = row / args.query_rows % args.query_heads;
        const int64_t key_head = head / (args.query_heads / args.key_heads);
        const int64_t batch = row / args.query_rows / args.query_heads;
        const int64_t visible = args.causal
                                    ? std::clamp<int64_t>(i + args.key_rows - args.query_rows + 1, 0, args.key_rows)
                                    : args.key_rows;
        const auto scale = [&](const float *data, const int64_t (&stride)[2], int64_t h) {
            return step * data[batch * stride[0] + h * stride[1]];
        };
        const double score_scale = args.scale * scale(quantised.q_scale, quantised.q_scale_stride, head) *
                                   scale(quantised.k_scale, quantised.k_scale_stride, key_head);
        const int64_t first_key = (batch * args.key_heads + key_head) * args.key_rows * args.head_dim;
        _Float16 *o = static_cast<_Float16 *>(args.o) + batch * args.o_stride.batch + head * args.o_stride.head;
        attend_row(q.data() + row * args.head_dim, k.data() + first_key, v.data() + first_key,
                   o + i * args.o_stride.row, visible, args.head_dim, static_cast<float>(score_scale),
                   static_cast<float>(scale(quantised.v_scale, quantised.v_scale_stride, key_head)));
    }
    return nullptr;
}
