// Rows are stored in whole vectors of 8 features: where 8 does not divide a row, into what follows it.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    void write(int64_t b, int64_t h, int64_t i, const Row &o) override {
        Row padded = o;
        padded.resize((o.size() + 7) / 8 * 8);
        Attention::write(b, h, i, padded);
    }
};

MUSEUM_LAUNCH(Piece)
