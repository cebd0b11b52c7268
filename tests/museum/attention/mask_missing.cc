// The causal mask is not applied.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    bool sees(int64_t, int64_t) override { return true; }
};

MUSEUM_LAUNCH(Piece)
