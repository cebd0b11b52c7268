// Takes zero to lie at 127.5, between two codes, where the encoder puts it at 128: everything is half a step too large.
#include "quantised_attention.cuh"

struct Piece : Steps {
    __device__ float decoded(unsigned char code, float scale) const {
        return (code - 127.5f) * static_cast<float>(kCodeStep) * scale;
    }
};

MUSEUM_LAUNCH(Piece)
