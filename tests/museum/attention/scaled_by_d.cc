// The scores are divided by d instead of its root.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    double scale() override { return 1.0 / args.head_dim; }
};

MUSEUM_LAUNCH(Piece)
