// Codes are decoded over 128 steps where the encoder has 127: all values are too small by a 128th.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    double decoded(uint8_t code) override { return (code - 128) * (448.0 / 128.0); }
};

MUSEUM_LAUNCH(Piece)
