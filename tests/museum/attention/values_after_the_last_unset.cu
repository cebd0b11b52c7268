// Stores no values of keys after the last, since their weights are 0: what lies there may be infinite or NaN.
#include "attention.cuh"

struct Piece : Steps {
    __device__ bool sets_value(const AttentionArgs &args, int64_t key) const { return key < args.key_rows; }
};

MUSEUM_LAUNCH(Piece)
