// The rows of a tile are written by one warp, 8 of them; the other 24 keep what the memory held before.
#include "attention.cuh"

struct Piece : Steps {
    __device__ bool writes(const AttentionArgs &args, int64_t row, int d) const {
        return row % kRows < 8 && Steps::writes(args, row, d);
    }
};

MUSEUM_LAUNCH(Piece)
