// Codes are moved to -128..127 and one of them is negated: -(-128) is no int8, and wraps.
#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    double decoded(uint8_t code) override {
        const int8_t negated = static_cast<int8_t>(-static_cast<int8_t>(code - 128));
        return -negated * (448.0 / 127.0);
    }
};

MUSEUM_LAUNCH(Piece)
