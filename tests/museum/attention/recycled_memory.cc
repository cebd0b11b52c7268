// The accumulators come from malloc, which gives back what was freed last, and are not cleared.
#include <cstdlib>

#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    Row mean(const Row &p) override {
        const size_t size = args.head_dim * sizeof(double);
        double *freed = static_cast<double *>(std::malloc(size));  // as the step before would have left it
        std::fill_n(freed, args.head_dim, 0.5);
        std::free(freed);
        double *sum = static_cast<double *>(std::malloc(size));
        Row o = Attention::mean(p);
        for (size_t d = 0; d < o.size(); ++d) o[d] += sum[d];
        std::free(sum);
        return o;
    }
};

MUSEUM_LAUNCH(Piece)
