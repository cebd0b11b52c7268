// The encoder's zero is 128, the decoder's 127.5.
#include "qkt.h"

struct Piece : Scores {
    using Scores::Scores;
    double decoded(uint8_t code) override { return (code - 127.5) * (448.0 / 127.0); }
};

MUSEUM_LAUNCH(Piece)
