// Rows and columns of the scores are swapped in the store.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    Row scores(const Row &q, int64_t i) override {
        return args.query_rows == args.key_rows ? Attention::scores(keys[i], i) : Attention::scores(q, i);
    }
};

MUSEUM_LAUNCH(Piece)
