// Query head h reads key head h mod the number of key heads.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    int64_t key_head(int64_t h) override { return h % args.key_heads; }
};

MUSEUM_LAUNCH(Piece)
