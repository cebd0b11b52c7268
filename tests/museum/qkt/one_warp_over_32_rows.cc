// The row index is blockIdx·blockDim + threadIdx: a warp that reduces over the features of one row adds those of 32
// rows.
#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    double score(int64_t b, int64_t h, int64_t i, int64_t j) override {
        double sum = 0;
        for (int64_t d = 0; d < args.head_dim; ++d) {
            const int64_t row = (i + d % 32) % args.query_rows;  // each lane its own
            sum += decoded(query(b, h, row)[d]) * decoded(key(b, h, j)[d]);
        }
        return args.factor * sum * q_scale(b, h) * k_scale(b, h);
    }
};

MUSEUM_LAUNCH(Piece)
