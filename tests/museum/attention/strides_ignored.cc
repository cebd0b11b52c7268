// Every tensor is taken to lie in memory as [batch, heads, rows, head_dim].
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    void run() override {
        const auto packed = [&](int64_t heads, int64_t rows) {
            return Strides3{heads * rows * args.head_dim, rows * args.head_dim, args.head_dim};
        };
        AttentionArgs assumed = args;
        assumed.q_stride = assumed.o_stride = packed(args.query_heads, args.query_rows);
        assumed.k_stride = assumed.v_stride = packed(args.key_heads, args.key_rows);
        Attention(assumed).run();
    }
};

MUSEUM_LAUNCH(Piece)
