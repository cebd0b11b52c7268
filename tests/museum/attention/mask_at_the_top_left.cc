// The causal mask is aligned at the first key, which differs where there are more keys than queries, or fewer.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    bool sees(int64_t i, int64_t j) override { return !args.causal || j <= i; }
};

MUSEUM_LAUNCH(Piece)
