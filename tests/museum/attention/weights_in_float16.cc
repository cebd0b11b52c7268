// P is rounded to float16 although float32 is declared.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    double weight(double x) override { return float16(x); }
};

MUSEUM_LAUNCH(Piece)
