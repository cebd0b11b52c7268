// Codes are decoded over 128 steps; the encoder has 127 on either side of zero.
#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    double decoded(uint8_t code) override { return (code - 128) * (448.0 / 128.0); }
};

MUSEUM_LAUNCH(Piece)
