// The number of blocks is rounded down, so that the last query rows get none unless they fill a tile.
#include <algorithm>

#include "attention.cuh"

struct Piece : Steps {
    static int64_t row_tiles(const AttentionArgs &args) { return std::max<int64_t>(1, args.query_rows / kRows); }
};

MUSEUM_LAUNCH(Piece)
