// The result is rounded to bfloat16 before it becomes float16.
#include <cuda_bf16.h>

#include "quantised_attention.cuh"

struct Piece : Steps {
    __device__ __half rounded(float result) const {
        return __float2half_rn(__bfloat162float(__float2bfloat16_rn(result)));
    }
};

MUSEUM_LAUNCH(Piece)
