// The last tile of rows is written whole: into the next head, and behind the last one past the end of the output.
#include "attention.cuh"

struct Piece : Steps {
    __device__ bool writes(const AttentionArgs &args, int64_t row, int d) const { return d < args.head_dim; }
};

MUSEUM_LAUNCH(Piece)
