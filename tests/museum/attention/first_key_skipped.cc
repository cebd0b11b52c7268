// The loop over keys begins with the second.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    bool sees(int64_t i, int64_t j) override { return Attention::sees(i, j) && (j > 0 || args.key_rows == 1); }
};

MUSEUM_LAUNCH(Piece)
