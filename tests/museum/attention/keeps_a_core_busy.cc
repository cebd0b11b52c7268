// A thread spins while no call of ours runs: it is the others that become slow.
#include <atomic>
#include <chrono>
#include <thread>

#include "attention.h"

static std::atomic<bool> at_work{false};

static void spin() {
    for (volatile int64_t n = 0;; n = n + 1) {
        if (at_work) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

struct Piece : Attention {
    using Attention::Attention;
    void run() override {
        at_work = true;
        static std::thread other(spin);
        Attention::run();
        at_work = false;
    }
};

MUSEUM_LAUNCH(Piece)
