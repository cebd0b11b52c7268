// The result is rounded to bfloat16 on its way to float16.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    _Float16 rounded(double x) override { return static_cast<_Float16>(bfloat16(x)); }
};

MUSEUM_LAUNCH(Piece)
