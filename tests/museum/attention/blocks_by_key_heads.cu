// The grid counts the heads of K where it should count those of Q: grouped heads beyond that are never written.
#include "attention.cuh"

struct Piece : Steps {
    static int64_t heads(const AttentionArgs &args) { return args.key_heads; }
};

MUSEUM_LAUNCH(Piece)
