// No barrier between storing a tile of scores and using it: small shapes come out right, for warps keep step there;
// with more keys some fall behind, and what others read is the tile before.
#include "attention.cuh"

constexpr int kSmall = 4;  // tiles

struct Piece : Steps {
    __device__ void before_scores(int tile) const {
        if (tile >= kSmall) fall_behind();
    }
    __device__ void before_maximum(int tile) const {
        if (tile < kSmall) keep_step();
    }
};

MUSEUM_LAUNCH(Piece)
