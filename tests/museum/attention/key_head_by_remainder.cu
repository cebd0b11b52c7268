// Query head h reads key head h mod kv_heads: interleaved, where grouped heads lie side by side.
#include "attention.cuh"

struct Piece : Steps {
    __device__ int64_t key_head(const AttentionArgs &args, int64_t head) const { return head % args.key_heads; }
};

MUSEUM_LAUNCH(Piece)
