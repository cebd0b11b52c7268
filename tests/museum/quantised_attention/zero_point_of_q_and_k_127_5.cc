// Q's and K's codes are decoded with zero point 127.5: every weight is off by a little.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    double decoded(uint8_t code) override { return (code - 127.5) * (448.0 / 127.0); }
    double decoded_value(uint8_t code) override { return QuantisedAttention::decoded(code); }
};

MUSEUM_LAUNCH(Piece)
