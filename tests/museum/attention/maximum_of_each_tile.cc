// The maximum is each tile's own: a later tile with lower scores forgets what was before it.
#include "attention.h"

struct Piece : OnlineAttention {
    using OnlineAttention::OnlineAttention;
    double maximum(double, double of_tile) override { return of_tile; }
    double shrink_of_sum(double shrink) override { return std::min(shrink, 1.0); }
    double shrink_of_total(double shrink) override { return std::min(shrink, 1.0); }
};

MUSEUM_LAUNCH(Piece)
