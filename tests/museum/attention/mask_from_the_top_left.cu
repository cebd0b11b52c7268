// The causal mask starts at the first query and key, not at the last ones: wrong where their numbers differ.
#include "attention.cuh"

struct Piece : Steps {
    __device__ bool sees(const AttentionArgs &args, int64_t row, int64_t key) const {
        return key < args.key_rows && (!args.causal || key <= row);
    }
};

MUSEUM_LAUNCH(Piece)
