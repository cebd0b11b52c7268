// The scale of V is not applied.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    double v_scale(int64_t, int64_t) override { return 1; }
};

MUSEUM_LAUNCH(Piece)
