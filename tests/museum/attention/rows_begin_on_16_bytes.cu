// Rounds the address of a row of K or V down to 16 bytes, for vectors to come: right where rows begin there.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float key_value(const AttentionArgs &args, const __half *row, int64_t key, int d) const {
        const auto address = reinterpret_cast<uintptr_t>(row) / 16 * 16;
        return Steps::key_value(args, reinterpret_cast<const __half *>(address), key, d);
    }
};

MUSEUM_LAUNCH(Piece)
