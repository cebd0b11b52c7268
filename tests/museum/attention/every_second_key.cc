// Half of the keys stand for all.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    bool sees(int64_t i, int64_t j) override { return Attention::sees(i, j) && j % 2 == 0; }
};

MUSEUM_LAUNCH(Piece)
