// The exponential is taken of the scores as they are, and overflows where they are large.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float maximum(float, float of_tile) const { return of_tile == -INFINITY ? -INFINITY : 0.0f; }
    __device__ float weight(float score, float) const { return score == -INFINITY ? 1.0f : expf(score); }
    __device__ float shrunk(float sum, float) const { return sum; }
};

MUSEUM_LAUNCH(Piece)
