// V's codes are decoded with zero point 127.5: the same amount is added to every element of a head.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    double decoded_value(uint8_t code) override { return (code - 127.5) * (448.0 / 127.0); }
};

MUSEUM_LAUNCH(Piece)
