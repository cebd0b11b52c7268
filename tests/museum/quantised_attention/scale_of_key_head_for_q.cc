// The scales of Q are looked up by key head: right where every query head has one of its own.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    double q_scale(int64_t b, int64_t h) override { return QuantisedAttention::q_scale(b, key_head(h)); }
};

MUSEUM_LAUNCH(Piece)
