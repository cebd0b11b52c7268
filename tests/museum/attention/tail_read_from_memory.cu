// Keys of the last tile that do not exist are read all the same, and weigh as much as what lies behind K says.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float key_value(const AttentionArgs &args, const __half *row, int64_t, int d) const {
        return d < args.head_dim ? __half2float(row[d]) : 0.0f;
    }
    __device__ bool sees(const AttentionArgs &args, int64_t row, int64_t key) const {
        return !args.causal || key <= row + args.key_rows - args.query_rows;
    }
};

MUSEUM_LAUNCH(Piece)
