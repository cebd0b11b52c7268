// The work goes on in a thread of its own after the call has come back.
#include <chrono>
#include <thread>

#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    void run() override {
        std::thread([copy = args] {
            std::this_thread::sleep_for(std::chrono::seconds(5));
            Attention(copy).run();
        }).detach();
    }
};

MUSEUM_LAUNCH(Piece)
