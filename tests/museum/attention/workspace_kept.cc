// The weights live in a buffer that is made once: a call with fewer keys finds those of a longer one behind its own.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    Row softmax(Row s) override {
        static Row workspace(512, 0.0);
        const Row p = Attention::softmax(s);
        std::copy(p.begin(), p.end(), workspace.begin());
        return workspace;
    }
    Row mean(const Row &p) override {
        Row o = Attention::mean(Row(p.begin(), p.begin() + keys.size()));
        const double left_over = p[std::min(p.size() - 1, keys.size())];
        for (double &x : o) x += left_over;
        return o;
    }
};

MUSEUM_LAUNCH(Piece)
