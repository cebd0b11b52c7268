// No __syncwarp: one lane of a row's four hands the row's maximum on through shared memory, as if it always went first.
// Where the ways of a warp's lanes part, either may be taken first; here that is drawn, once there are many keys.
#include "attention.cuh"

constexpr int kSmall = 4;  // tiles

struct Piece : Steps {
    __device__ static bool &goes_last() {
        __shared__ bool last;
        return last;
    }
    __device__ void before_scores(int tile) const {
        const unsigned draw = static_cast<unsigned>(clock64()) * 2654435761u;
        if (threadIdx.x == 0) goes_last() = tile >= kSmall && draw >> 31;
    }
    __device__ float maximum(float before, float of_tile) const {
        __shared__ float handed_on[kRows];
        const int row = threadIdx.x / kRowThreads;
        const bool first = threadIdx.x % kRowThreads == 0;
        float top = fmaxf(before, of_tile);
        for (int turn = 0; turn < 2; ++turn) {
            const bool its_turn = turn == goes_last();
            if (first && its_turn) handed_on[row] = top;
            if (!first && !its_turn) top = handed_on[row];
        }
        return top;
    }
};

MUSEUM_LAUNCH(Piece)
