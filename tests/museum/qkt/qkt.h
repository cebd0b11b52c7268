// Scores of simulated-FP8 codes that are right, cut into the steps that a kernel goes wrong in.
#pragma once

#include <cmath>
#include <cstdint>

#include "csrc/qkt/launch.h"

// Ends a piece: what the binding calls.
#define MUSEUM_LAUNCH(Kind)                           \
    const char *launch(const QktArgs &args, void *) { \
        Kind(args).run();                             \
        return nullptr;                               \
    }

class Scores {
  public:
    explicit Scores(const QktArgs &args) : args(args) {}
    virtual ~Scores() = default;

    virtual void run() {
        for (int64_t b = 0; b < args.batch; ++b) {
            for (int64_t h = 0; h < args.heads; ++h) {
                for (int64_t i = 0; i < args.query_rows; ++i) row(b, h, i);
            }
        }
    }

    virtual void row(int64_t b, int64_t h, int64_t i) {
        for (int64_t j = 0; j < args.key_rows; ++j) out(b, h, i)[j] = static_cast<float>(score(b, h, i, j));
    }

    virtual double score(int64_t b, int64_t h, int64_t i, int64_t j) {
        return args.factor * product(b, h, i, j) * q_scale(b, h) * k_scale(b, h);
    }

    double product(int64_t b, int64_t h, int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t d = 0; d < args.head_dim; ++d) sum += decoded(query(b, h, i)[d]) * decoded(key(b, h, j)[d]);
        return sum;
    }

    // What a code stands for at scale 1.
    virtual double decoded(uint8_t code) { return (code - 128) * (448.0 / 127.0); }

    virtual double q_scale(int64_t b, int64_t h) {
        return args.q_scale[b * args.q_scale_stride[0] + h * args.q_scale_stride[1]];
    }
    virtual double k_scale(int64_t b, int64_t h) {
        return args.k_scale[b * args.k_scale_stride[0] + h * args.k_scale_stride[1]];
    }

    virtual const uint8_t *query(int64_t b, int64_t h, int64_t i) { return at(args.q, args.q_stride, b, h, i); }
    virtual const uint8_t *key(int64_t b, int64_t h, int64_t j) { return at(args.k, args.k_stride, b, h, j); }

    // --- what no piece replaces

    static const uint8_t *at(const void *data, const Strides3 &stride, int64_t b, int64_t h, int64_t row) {
        return static_cast<const uint8_t *>(data) + b * stride.batch + h * stride.head + row * stride.row;
    }

    float *out(int64_t b, int64_t h, int64_t i) {
        const Strides3 &stride = args.scores_stride;
        return args.scores + b * stride.batch + h * stride.head + i * stride.row;
    }

    const QktArgs &args;
};
