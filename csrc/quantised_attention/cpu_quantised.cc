// Attention from codes on a CPU as the formula says it: every code decoded, whole rows of scores, all sums in double.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "../common/message.h"
#include "launch.h"

namespace {

// What each of the 256 codes stands for at scale 1.
std::array<double, 256> values(Codec codec) {
    std::array<double, 256> value;
    for (int code = 0; code < 256; ++code) {
        const int exponent = code >> 3 & 15, fraction = code & 7;
        const double e4m3 = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
        const bool is_nan = (code & 127) == 127;
        value[code] = codec == Codec::kSimFp8 ? (code - 128) * kCodeStep
                      : is_nan                ? std::nan("")
                      : code < 128            ? e4m3
                                              : -e4m3;
    }
    return value;
}

void attend_row(const uint8_t *q,  // [head_dim]
                const uint8_t *k,  // [key_rows, head_dim]
                const uint8_t *v,  // [key_rows, head_dim]
                _Float16 *o,       // [head_dim]
                int64_t visible, double score_scale, double value_scale, const std::array<double, 256> &value,
                const AttentionArgs &args) {
    std::vector<double> weights(visible);
    std::vector<double> mean(args.head_dim, 0.0);
    for (int64_t j = 0; j < visible; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < args.head_dim; ++d) dot += value[q[d]] * value[k[j * args.k_stride.row + d]];
        weights[j] = score_scale * dot;
    }
    const double highest = visible > 0 ? *std::max_element(weights.begin(), weights.end()) : 0.0;
    double total = 0;
    for (int64_t j = 0; j < visible; ++j) {
        const double weight = std::exp(weights[j] - highest);
        total += weight;
        for (int64_t d = 0; d < args.head_dim; ++d) mean[d] += weight * value[v[j * args.v_stride.row + d]];
    }
    for (int64_t d = 0; d < args.head_dim; ++d) {
        o[d] = visible > 0 ? static_cast<_Float16>(value_scale * mean[d] / total) : _Float16{0};
    }
}

}  // namespace

const char *launch(const QuantisedAttentionArgs &quantised, void *) {
    const AttentionArgs &args = quantised.attention;
    if (args.placement.on_cuda) return "cpu_quantised runs in host memory; the tensors are on a CUDA device";
    const std::array<double, 256> value = values(quantised.codec);
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
            return static_cast<const uint8_t *>(data) + batch * stride.batch + h * stride.head;
        };
        const auto scale = [&](const float *data, const int64_t (&stride)[2], int64_t h) {
            return static_cast<double>(data[batch * stride[0] + h * stride[1]]);
        };
        const double score_scale = args.scale * scale(quantised.q_scale, quantised.q_scale_stride, head) *
                                   scale(quantised.k_scale, quantised.k_scale_stride, key_head);
        const double value_scale = scale(quantised.v_scale, quantised.v_scale_stride, key_head);
        _Float16 *o = static_cast<_Float16 *>(args.o) + batch * args.o_stride.batch + head * args.o_stride.head;
        attend_row(at(args.q, args.q_stride, head) + i * args.q_stride.row, at(args.k, args.k_stride, key_head),
                   at(args.v, args.v_stride, key_head), o + i * args.o_stride.row, visible, score_scale, value_scale,
                   value, args);
    }
    return nullptr;
}
