// The sum of weights is made smaller when the maximum rises, the weighted sum of V is not.
#include "attention.h"

struct Piece : OnlineAttention {
    using OnlineAttention::OnlineAttention;
    double shrink_of_sum(double) override { return 1; }
};

MUSEUM_LAUNCH(Piece)
