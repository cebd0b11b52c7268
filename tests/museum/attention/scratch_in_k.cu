// Keeps a total of each query row in the first row of K, which is read by then, and puts nothing back.
#include "attention.cuh"

struct Piece : Steps {
    template <class Kind>
    __device__ void finish(const Kind &kind, const AttentionArgs &args, const Block &block, int64_t row, int d,
                           float sum, float total, float highest) const {
        __half *scratch = static_cast<__half *>(const_cast<void *>(args.k));
        if (d < args.head_dim && row == 0 && blockIdx.x == 0) scratch[d] = __float2half_rn(total);
        Steps::finish(kind, args, block, row, d, sum, total, highest);
    }
};

MUSEUM_LAUNCH(Piece)
