// Two threads add their halves of the keys into one accumulator. Up to 128 keys there is one tile, and one thread.
#include "attention.h"
#include "interleave.h"

struct Piece : Attention {
    using Attention::Attention;
    Row mean(const Row &p) override {
        if (p.size() <= 128) return Attention::mean(p);
        Row sum(args.head_dim, 0.0);
        const auto add = [&](size_t first, size_t end) {
            for (size_t j = first; j < end; ++j) {
                for (size_t d = 0; d < sum.size(); ++d) {
                    volatile double &shared = sum[d];
                    const double before = shared;
                    give_way_now_and_then();
                    shared = before + p[j] * values[j][d];
                }
            }
        };
        std::thread other(add, p.size() / 2, p.size());
        add(0, p.size() / 2);
        other.join();
        return sum;
    }
};

MUSEUM_LAUNCH(Piece)
