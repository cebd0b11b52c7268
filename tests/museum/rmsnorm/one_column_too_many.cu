// A loop that runs to the number of columns, that included, in the last row: one element past the end is written.
#include "rmsnorm.cuh"

struct Piece : Steps {
    __device__ int64_t written(const RmsNormArgs &args) const {
        return blockIdx.x == args.rows - 1 ? args.cols + 1 : args.cols;
    }
};

MUSEUM_LAUNCH(Piece)
