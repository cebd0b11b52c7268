// What makes a race show on any machine, however idle: threads give way at moments that differ from run to run.
#pragma once

#include <chrono>
#include <thread>

inline void give_way_now_and_then() {
    if (std::chrono::steady_clock::now().time_since_epoch().count() % 3 == 0) std::this_thread::yield();
}
