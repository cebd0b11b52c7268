// Two to the power of a score: log2(e) was forgotten.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    double scale() override { return args.scale * std::log(2); }
};

MUSEUM_LAUNCH(Piece)
