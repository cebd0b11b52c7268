// The factor is taken for a flag: scores are raw where it is 1, and otherwise scaled by 1/sqrt(head_dim).
#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    double score(int64_t b, int64_t h, int64_t i, int64_t j) override {
        const double wanted = args.factor == 1 ? 1 : 1 / std::sqrt(static_cast<double>(args.head_dim));
        return Scores::score(b, h, i, j) / args.factor * wanted;
    }
};

MUSEUM_LAUNCH(Piece)
