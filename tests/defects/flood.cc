// Prints 400 MB.
#include <unistd.h>

#include <cstring>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static char text[1 << 16];
    std::memset(text, 'x', sizeof text);
    for (int i = 0; i < 6400; ++i) {
        if (write(1, text, sizeof text) < 0) break;
    }
    return correct(args);
}
