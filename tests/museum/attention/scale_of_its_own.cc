// The scale is 1/sqrt(head_dim), whatever the caller asks for.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    double scale() override { return 1 / std::sqrt(static_cast<double>(args.head_dim)); }
};

MUSEUM_LAUNCH(Piece)
