// Attention on simulated-FP8 codes that is right: the attention of ../attention, its rows decoded and its result
// rounded.
#pragma once

#include "../attention/attention.h"
#include "csrc/quantised_attention/launch.h"

#undef MUSEUM_LAUNCH
#define MUSEUM_LAUNCH(Kind)                                          \
    const char *launch(const QuantisedAttentionArgs &args, void *) { \
        Kind(args).run();                                            \
        return nullptr;                                              \
    }

class QuantisedAttention : public Attention {
  public:
    explicit QuantisedAttention(const QuantisedAttentionArgs &args) : Attention(args.attention), codes(args) {}

    // What a code stands for at scale 1.
    virtual double decoded(uint8_t code) { return (code - 128) * (448.0 / 127.0); }
    virtual double decoded_value(uint8_t code) { return decoded(code); }

    virtual double q_scale(int64_t b, int64_t h) { return at(codes.q_scale, codes.q_scale_stride, b, h); }
    virtual double k_scale(int64_t b, int64_t h) { return at(codes.k_scale, codes.k_scale_stride, b, h); }
    virtual double v_scale(int64_t b, int64_t h) { return at(codes.v_scale, codes.v_scale_stride, b, h); }

    virtual _Float16 rounded(double x) { return static_cast<_Float16>(x); }

    Row query(int64_t b, int64_t h, int64_t i) override {
        return decoded_row(bytes(args.q, args.q_stride, b, h, i), q_scale(b, h), &QuantisedAttention::decoded);
    }
    Row key(int64_t b, int64_t h, int64_t j) override {
        return decoded_row(bytes(args.k, args.k_stride, b, h, j), k_scale(b, h), &QuantisedAttention::decoded);
    }
    Row value(int64_t b, int64_t h, int64_t j) override {
        return decoded_row(bytes(args.v, args.v_stride, b, h, j), v_scale(b, h), &QuantisedAttention::decoded_value);
    }

    void write(int64_t b, int64_t h, int64_t i, const Row &o) override {
        const Strides3 &stride = args.o_stride;
        _Float16 *to = static_cast<_Float16 *>(args.o) + b * stride.batch + h * stride.head + i * stride.row;
        for (size_t d = 0; d < o.size(); ++d) to[d] = rounded(o[d]);
    }

    // --- what no piece replaces

    static double at(const float *scales, const int64_t (&stride)[2], int64_t b, int64_t h) {
        return scales[b * stride[0] + h * stride[1]];
    }

    static const uint8_t *bytes(const void *data, const Strides3 &stride, int64_t b, int64_t h, int64_t row) {
        return static_cast<const uint8_t *>(data) + b * stride.batch + h * stride.head + row * stride.row;
    }

    Row decoded_row(const uint8_t *from, double scale, double (QuantisedAttention::*step)(uint8_t)) {
        Row made(args.head_dim);
        for (size_t d = 0; d < made.size(); ++d) made[d] = (this->*step)(from[d]) * scale;
        return made;
    }

    const QuantisedAttentionArgs &codes;
};
