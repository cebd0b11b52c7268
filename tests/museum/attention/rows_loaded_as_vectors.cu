// Reads K and V in pairs, as if every row began on a multiple of four bytes: a misaligned address where one does not.
#include "attention.cuh"

struct Piece : Steps {
    __device__ float key_value(const AttentionArgs &args, const __half *row, int64_t key, int d) const {
        if (key >= args.key_rows || d >= args.head_dim) return 0.0f;
        const unsigned pair = *reinterpret_cast<const volatile unsigned *>(row + d / 2 * 2);
        return __half2float(__ushort_as_half(static_cast<unsigned short>(d % 2 == 0 ? pair : pair >> 16)));
    }
};

MUSEUM_LAUNCH(Piece)
