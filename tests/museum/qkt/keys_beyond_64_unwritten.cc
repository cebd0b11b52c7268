// The grid covers one tile of 64 keys.
#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    void row(int64_t b, int64_t h, int64_t i) override {
        for (int64_t j = 0; j < args.key_rows && j < 64; ++j) {
            out(b, h, i)[j] = static_cast<float>(score(b, h, i, j));
        }
    }
};

MUSEUM_LAUNCH(Piece)
