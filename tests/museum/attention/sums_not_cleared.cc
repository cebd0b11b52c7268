// The accumulators are a static buffer, cleared when the library is loaded and never again.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    Row mean(const Row &p) override {
        static Row sum(512, 0.0);
        const Row o = Attention::mean(p);
        for (size_t d = 0; d < o.size(); ++d) sum[d] += o[d];
        return Row(sum.begin(), sum.begin() + o.size());
    }
};

MUSEUM_LAUNCH(Piece)
