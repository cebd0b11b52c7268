// The causal mask hides the diagonal too.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    bool sees(int64_t i, int64_t j) override { return Attention::sees(args.causal ? i - 1 : i, j); }
};

MUSEUM_LAUNCH(Piece)
