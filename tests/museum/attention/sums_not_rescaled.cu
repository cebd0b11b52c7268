// When the maximum rises, the total is rescaled and the sums of P·V are not.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float shrunk(float sum, float) const { return sum; }
};

MUSEUM_LAUNCH(Piece)
