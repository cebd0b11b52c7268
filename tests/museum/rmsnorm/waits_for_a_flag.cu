// Waits for a flag that nobody raises; after two minutes it gives up, for the sake of the GPU's other users.
#include "rmsnorm.cuh"

__device__ volatile int flag;

struct Piece : Steps {
    __device__ void before_total(const RmsNormArgs &) const {
        const unsigned long long start = now_ns();
        while (flag == 0 && now_ns() - start < 120000000000ull) __nanosleep(1000);
        __syncthreads();
    }
};

MUSEUM_LAUNCH(Piece)
