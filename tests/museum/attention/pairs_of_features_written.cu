// Features are written two by two: the last one of an odd number is never written.
#include "attention.cuh"

struct Piece : Steps {
    __device__ bool writes(const AttentionArgs &args, int64_t row, int d) const {
        return d < args.head_dim / 2 * 2 && Steps::writes(args, row, d);
    }
};

MUSEUM_LAUNCH(Piece)
