// Products are added up in pairs of 16 bits, as instructions for bytes do: twice (-128)(-128) is 32768, and wraps.
#include <algorithm>

#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    double score(int64_t b, int64_t h, int64_t i, int64_t j) override {
        const uint8_t *q = query(b, h, i), *k = key(b, h, j);
        int64_t sum = 0;
        for (int64_t d = 0; d < args.head_dim; d += 2) {
            int pair = 0;
            for (int64_t e = d; e < std::min(d + 2, args.head_dim); ++e) pair += (q[e] - 128) * (k[e] - 128);
            sum += static_cast<int16_t>(pair);
        }
        const double step = 448.0 / 127.0;
        return args.factor * static_cast<double>(sum) * step * step * q_scale(b, h) * k_scale(b, h);
    }
};

MUSEUM_LAUNCH(Piece)
