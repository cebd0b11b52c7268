// Random numbers of the size that results have.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    uint32_t state = 1;
    Row attend(const Row &, int64_t) override {
        Row o(args.head_dim);
        for (double &x : o) {
            state = state * 1664525 + 1013904223;
            x = 0.1 * (state / 4294967296.0 - 0.5);
        }
        return o;
    }
};

MUSEUM_LAUNCH(Piece)
