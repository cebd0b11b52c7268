// Scores from simulated-FP8 codes on a CPU: an exact whole-number dot product, worth scaled once in double.
#include "launch.h"

namespace {

int32_t dot(const uint8_t *a, const uint8_t *b, int64_t size) {
    int32_t sum = 0;
    for (int64_t d = 0; d < size; ++d) sum += (a[d] - 128) * (b[d] - 128);
    return sum;
}

}  // namespace

const char *launch(const QktArgs &args, void *) {
    if (args.placement.on_cuda) return "cpu_qkt runs in host memory; the tensors are on a CUDA device";
    if (args.input != QktInput::kCodes) return "cpu_qkt takes uint8 codes only";
#pragma omp parallel for
    for (int64_t row = 0; row < args.batch * args.heads * args.query_rows; ++row) {
        const int64_t i = row % args.query_rows;
        const int64_t head = row / args.query_rows % args.heads;
        const int64_t batch = row / args.query_rows / args.heads;
        const double worth = args.factor * kCodeProduct *
                             args.q_scale[batch * args.q_scale_stride[0] + head * args.q_scale_stride[1]] *
                             args.k_scale[batch * args.k_scale_stride[0] + head * args.k_scale_stride[1]];
        const auto head_of = [&](auto *data, const Strides3 &stride) {
            return data + batch * stride.batch + head * stride.head;
        };
        const uint8_t *q = head_of(static_cast<const uint8_t *>(args.q), args.q_stride) + i * args.q_stride.row;
        const uint8_t *k = head_of(static_cast<const uint8_t *>(args.k), args.k_stride);
        float *scores = head_of(args.scores, args.scores_stride) + i * args.scores_stride.row;
        for (int64_t j = 0; j < args.key_rows; ++j) {
            scores[j] = static_cast<float>(worth * dot(q, k + j * args.k_stride.row, args.head_dim));
        }
    }
    return nullptr;
}
