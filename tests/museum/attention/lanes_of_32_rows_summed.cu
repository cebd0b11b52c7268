// A score is summed up by a warp whose lanes are not one key's, since each took its row from its own index.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float score(const AttentionArgs &args, const Tiles &tiles, const Block &, int64_t, int row,
                           int key) const {
        float sum = 0.0f;
        for (int d = threadIdx.x % kWarpSize; d < kDim; d += kWarpSize) {
            sum = fmaf(tiles.Q[row][d], tiles.K[key][d], sum);
        }
        return static_cast<float>(args.scale) * warp_sum(sum);
    }
};

MUSEUM_LAUNCH(Piece)
