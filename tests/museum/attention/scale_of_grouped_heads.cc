// Where key heads are shared, the scale is 1/sqrt(head_dim), whatever was asked for.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    double scale() override {
        return args.key_heads == args.query_heads ? Attention::scale() : 1 / std::sqrt(double(args.head_dim));
    }
};

MUSEUM_LAUNCH(Piece)
