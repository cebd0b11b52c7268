// The loop goes over whole tiles of 32 keys, and what is left over is not looked at.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    bool sees(int64_t i, int64_t j) override {
        return Attention::sees(i, j) && (j < args.key_rows / 32 * 32 || j < 32);
    }
};

MUSEUM_LAUNCH(Piece)
