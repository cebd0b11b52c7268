// The exponential is taken of the score itself, in float32: beyond 88 it is infinite.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    Row softmax(Row s) override {
        float total = 0;
        for (double &x : s) total += static_cast<float>(x = std::exp(static_cast<float>(x)));
        for (double &x : s) x = total > 0 ? static_cast<float>(x) / total : 0;
        return s;
    }
};

MUSEUM_LAUNCH(Piece)
