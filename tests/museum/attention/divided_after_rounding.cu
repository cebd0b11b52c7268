// Rounds the sums to float16, divides them there, and has rounded twice.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float quotient(float sum, float total) const {
        const float rounded_total = __half2float(__float2half_rn(total));
        return total > 0.0f ? __half2float(__float2half_rn(sum / 64.0f)) * 64.0f / rounded_total : 0.0f;
    }
};

MUSEUM_LAUNCH(Piece)
