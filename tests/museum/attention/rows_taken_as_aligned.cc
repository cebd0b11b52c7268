// Rows are read from the 16-byte boundary below them, as a vector load would want them to lie.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    Row value(int64_t b, int64_t h, int64_t j) override {
        const float *row = static_cast<const float *>(args.v) + b * args.v_stride.batch + h * args.v_stride.head +
                           j * args.v_stride.row;
        row = reinterpret_cast<const float *>(reinterpret_cast<uintptr_t>(row) / 16 * 16);
        return Row(row, row + args.head_dim);
    }
};

MUSEUM_LAUNCH(Piece)
