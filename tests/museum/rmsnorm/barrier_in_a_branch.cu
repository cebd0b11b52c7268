// A barrier stands in a branch that a part of a warp takes, and another in the other branch.
#include "rmsnorm.cuh"

struct Piece : Steps {
    __device__ void before_total(const RmsNormArgs &args) const {
        if (threadIdx.x < 100) {
            __syncthreads();
            __nanosleep(20);
        } else {
            __nanosleep(40);
            __syncthreads();
        }
    }
};

MUSEUM_LAUNCH(Piece)
