// Q and K are cut to the 11 bits that TF32 products keep, although float32 is declared.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    double operand(double x) override { return shortened(x, 11); }
};

MUSEUM_LAUNCH(Piece)
