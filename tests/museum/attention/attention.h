// Attention that is right, cut into the steps that a kernel goes wrong in: a piece replaces one of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "csrc/attention/launch.h"

using Row = std::vector<double>;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

// Ends a piece: what the binding calls.
#define MUSEUM_LAUNCH(Kind)                                 \
    const char *launch(const AttentionArgs &args, void *) { \
        Kind(args).run();                                   \
        return nullptr;                                     \
    }

inline double dot(const Row &a, const Row &b) {
    double sum = 0;
    for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
    return sum;
}

class Attention {
  public:
    explicit Attention(const AttentionArgs &args) : args(args) {}
    virtual ~Attention() = default;

    virtual void run() {
        for (int64_t b = 0; b < args.batch; ++b) {
            for (int64_t h = 0; h < args.query_heads; ++h) head(b, h);
        }
    }

    virtual void head(int64_t b, int64_t h) {
        gather(b, h);
        for (int64_t i = 0; i < args.query_rows; ++i) row(b, h, i);
    }

    virtual void row(int64_t b, int64_t h, int64_t i) { write(b, h, i, attend(query(b, h, i), i)); }

    // One row of O from one row of Q.
    virtual Row attend(const Row &q, int64_t i) { return mean(softmax(scores(q, i))); }

    virtual Row scores(const Row &q, int64_t i) {
        Row made(keys.size());
        for (size_t j = 0; j < keys.size(); ++j) made[j] = sees(i, j) ? scale() * dot(q, keys[j]) : kHidden;
        return made;
    }

    virtual Row softmax(Row s) {
        const double highest = *std::max_element(s.begin(), s.end());
        if (highest == kHidden) return Row(s.size(), 0.0);
        double total = 0;
        for (double &x : s) total += x = std::exp(x - highest);
        for (double &x : s) x = weight(x / total);
        return s;
    }

    virtual Row mean(const Row &p) {
        Row sum(args.head_dim, 0.0);
        for (size_t j = 0; j < p.size(); ++j) {
            for (size_t d = 0; d < sum.size(); ++d) sum[d] = partial(sum[d] + p[j] * values[j][d]);
        }
        return sum;
    }

    virtual double scale() { return args.scale; }
    virtual bool sees(int64_t i, int64_t j) { return !args.causal || j <= i + args.key_rows - args.query_rows; }
    virtual int64_t key_head(int64_t h) { return h / (args.query_heads / args.key_heads); }

    // What is kept in which precision: Q and K, P, and the sums of P·V.
    virtual double operand(double x) { return x; }
    virtual double weight(double x) { return x; }
    virtual double partial(double x) { return x; }

    // Where rows lie.
    virtual Row query(int64_t b, int64_t h, int64_t i) { return operands(load(args.q, args.q_stride, b, h, i)); }
    virtual Row key(int64_t b, int64_t h, int64_t j) { return operands(load(args.k, args.k_stride, b, h, j)); }
    virtual Row value(int64_t b, int64_t h, int64_t j) { return load(args.v, args.v_stride, b, h, j); }

    virtual void write(int64_t b, int64_t h, int64_t i, const Row &o) { std::copy(o.begin(), o.end(), out(b, h, i)); }

    // --- what no piece replaces

    void gather(int64_t b, int64_t h) {
        keys.clear();
        values.clear();
        for (int64_t j = 0; j < args.key_rows; ++j) {
            keys.push_back(key(b, key_head(h), j));
            values.push_back(value(b, key_head(h), j));
        }
    }

    Row load(const void *data, const Strides3 &stride, int64_t b, int64_t h, int64_t row) {
        const float *from = static_cast<const float *>(data) + b * stride.batch + h * stride.head + row * stride.row;
        return Row(from, from + args.head_dim);
    }

    Row operands(Row row) {
        for (double &x : row) x = operand(x);
        return row;
    }

    float *out(int64_t b, int64_t h, int64_t i) {
        const Strides3 &stride = args.o_stride;
        return static_cast<float *>(args.o) + b * stride.batch + h * stride.head + i * stride.row;
    }

    const AttentionArgs &args;
    std::vector<Row> keys, values;  // of the head at work: [key_rows][head_dim]
};

// The same, a tile of keys at a time with an online softmax.
class OnlineAttention : public Attention {
  public:
    using Attention::Attention;
    static constexpr size_t kTile = 32;

    Row attend(const Row &q, int64_t i) override {
        const Row s = scores(q, i);
        Row sum(args.head_dim, 0.0);
        double total = 0, highest = kHidden;
        for (size_t first = 0; first < s.size(); first += kTile) {
            const size_t end = std::min(s.size(), first + kTile);
            const double before = highest;
            highest = maximum(before, *std::max_element(s.begin() + first, s.begin() + end));
            if (highest == kHidden) continue;
            const double shrink = std::exp(before - highest);
            total *= shrink_of_total(shrink);
            for (double &x : sum) x *= shrink_of_sum(shrink);
            for (size_t j = first; j < end; ++j) {
                const double p = std::exp(s[j] - highest);
                total += p;
                for (size_t d = 0; d < sum.size(); ++d) sum[d] += p * values[j][d];
            }
        }
        if (total > 0) {
            for (double &x : sum) x /= total;
        }
        return sum;
    }

    virtual double maximum(double before, double of_tile) { return std::max(before, of_tile); }
    virtual double shrink_of_total(double shrink) { return shrink; }
    virtual double shrink_of_sum(double shrink) { return shrink; }
};

// --- numbers of fewer bits, as doubles

inline double float16(double x) {
    return static_cast<double>(static_cast<_Float16>(x));
}

// Keeps `bits` bits of a float32's significand, rounding to nearest.
inline double shortened(double x, int bits) {
    int exponent;
    const double fraction = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

inline double bfloat16(double x) {
    return shortened(x, 8);
}
