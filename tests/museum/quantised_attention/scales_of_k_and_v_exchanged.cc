// The scales of K and V are handed over in the wrong order: each is decoded by the other's.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    double k_scale(int64_t b, int64_t h) override { return QuantisedAttention::v_scale(b, h); }
    double v_scale(int64_t b, int64_t h) override { return QuantisedAttention::k_scale(b, h); }
};

MUSEUM_LAUNCH(Piece)
