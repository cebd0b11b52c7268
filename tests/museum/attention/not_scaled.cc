// The scores are not multiplied by the scale.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    double scale() override { return 1; }
};

MUSEUM_LAUNCH(Piece)
