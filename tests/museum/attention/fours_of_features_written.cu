// Features are written four by four, rounded up: past the end of a row whose length four does not divide.
#include "attention.cuh"

struct Piece : Steps {
    __device__ bool writes(const AttentionArgs &args, int64_t row, int d) const {
        return row < args.query_rows && d < (args.head_dim + 3) / 4 * 4;
    }
};

MUSEUM_LAUNCH(Piece)
