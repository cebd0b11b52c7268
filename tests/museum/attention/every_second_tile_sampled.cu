// Half of the tiles of keys stand for all of them: near enough where no key matters more than another.
#include "attention.cuh"

struct Piece : Steps {
    __device__ bool takes(int tile) const { return tile % 2 == 0; }
};

MUSEUM_LAUNCH(Piece)
