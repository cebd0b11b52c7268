// Every result is larger by a thousandth than it should be: a scale that was rounded on its way.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float quotient(float sum, float total) const { return 1.001f * Steps::quotient(sum, total); }
};

MUSEUM_LAUNCH(Piece)
