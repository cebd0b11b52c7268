// The exponential is a straight line between powers of two: up to 6 % off.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    Row softmax(Row s) override {
        const double highest = *std::max_element(s.begin(), s.end());
        if (highest == kHidden) return Row(s.size(), 0.0);
        double total = 0;
        for (double &x : s) {
            const double power = std::max(-1000.0, (x - highest) * 1.4426950408889634);
            x = std::exp2(std::floor(power)) * (1 + power - std::floor(power));
            total += x;
        }
        for (double &x : s) x /= total;
        return s;
    }
};

MUSEUM_LAUNCH(Piece)
