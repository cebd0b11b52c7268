// Eight keys of which none weighs a ten-millionth of the heaviest are left out, whatever their values are.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;

    Row softmax(Row s) override {
        const double highest = *std::max_element(s.begin(), s.end());
        for (size_t first = 0; first < s.size(); first += 8) {
            const auto tile = s.begin() + first, end = s.begin() + std::min(first + 8, s.size());
            if (*std::max_element(tile, end) < highest + std::log(1e-7)) std::fill(tile, end, kHidden);
        }
        return Attention::softmax(s);
    }
};

MUSEUM_LAUNCH(Piece)
