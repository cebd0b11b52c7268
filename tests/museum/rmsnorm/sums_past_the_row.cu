// Sums up columns four by four, rounded up: into the next row, and behind the last one past the end of x.
#include "rmsnorm.cuh"

struct Piece : Steps {
    __device__ int64_t summed(const RmsNormArgs &args) const { return (args.cols + 3) / 4 * 4; }
};

MUSEUM_LAUNCH(Piece)
