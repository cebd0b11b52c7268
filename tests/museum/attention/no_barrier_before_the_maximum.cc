// The maximum is taken while another thread still writes scores. Any maximum gives the right result, but for its
// rounding and until it is so small that exp overflows.
#include <atomic>

#include "attention.h"
#include "interleave.h"

struct Piece : Attention {
    using Attention::Attention;
    Row softmax(Row s) override {
        if (s.size() <= 128) return Attention::softmax(s);
        std::vector<std::atomic<float>> shared(s.size());
        for (auto &x : shared) x = -1e30f;
        std::thread writer([&] {
            for (size_t j = 0; j < s.size(); ++j) {
                shared[j] = static_cast<float>(s[j]);
                give_way_now_and_then();
            }
        });
        while (shared[0] == -1e30f) std::this_thread::yield();
        float highest = shared[0];
        for (const auto &x : shared) {
            highest = std::max(highest, x.load());
            give_way_now_and_then();
        }
        writer.join();  // the barrier, after the maximum instead of before it
        float total = 0;
        for (double &x : s) total += static_cast<float>(x = std::exp(static_cast<float>(x) - highest));
        for (double &x : s) x = static_cast<float>(x) / total;
        return s;
    }
};

MUSEUM_LAUNCH(Piece)
