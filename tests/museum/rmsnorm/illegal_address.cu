// Writes to an address that nobody was given.
#include "rmsnorm.cuh"

struct Piece : Steps {
    __device__ void before_total(const RmsNormArgs &args) const {
        __syncthreads();
        *reinterpret_cast<volatile float *>(args.rows * 64 + (1ull << 50)) = 1.0f;
    }
};

MUSEUM_LAUNCH(Piece)
