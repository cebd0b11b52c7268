// Cuts the weights to the 10 bits of TF32 without rounding; their total is taken before that, so all sums are too
// small.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float kept_weight(float weight) const { return __uint_as_float(__float_as_uint(weight) & 0xffffe000u); }
};

MUSEUM_LAUNCH(Piece)
