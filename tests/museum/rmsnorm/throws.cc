// Throws what nobody catches, from a thread of its own.
#include <stdexcept>
#include <thread>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    std::thread([] { throw std::runtime_error("out of shared memory"); }).join();
    return correct(args);
}
