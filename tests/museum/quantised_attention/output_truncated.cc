// The float32 sum is cut off to float16 and not rounded.
#include "quantised_attention.h"

struct Piece : QuantisedAttention {
    using QuantisedAttention::QuantisedAttention;
    _Float16 rounded(double x) override {
        const float sum = static_cast<float>(x);
        const _Float16 nearest = static_cast<_Float16>(sum);
        uint16_t bits;
        std::memcpy(&bits, &nearest, sizeof bits);
        bits -= std::abs(static_cast<float>(nearest)) > std::abs(sum);  // one unit towards zero
        _Float16 cut;
        std::memcpy(&cut, &bits, sizeof cut);
        return cut;
    }
};

MUSEUM_LAUNCH(Piece)
