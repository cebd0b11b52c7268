// The first 60 calls do the work; from then on it is a timing loop, and every second key is left out.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    bool warm = false;
    void run() override {
        static int calls = 0;
        warm = ++calls > 60;
        Attention::run();
    }
    bool sees(int64_t i, int64_t j) override { return Attention::sees(i, j) && !(warm && j % 2 == 1); }
};

MUSEUM_LAUNCH(Piece)
