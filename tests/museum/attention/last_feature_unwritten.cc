// The store stops one feature early.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    void write(int64_t b, int64_t h, int64_t i, const Row &o) override {
        std::copy(o.begin(), o.end() - 1, out(b, h, i));
    }
};

MUSEUM_LAUNCH(Piece)
