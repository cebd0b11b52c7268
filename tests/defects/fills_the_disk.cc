// Writes one file after the other, each within the limit on a file.
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static const char text[1 << 20] = {1};
    for (int file = 0; file < 400; ++file) {
        const int descriptor = open(("file-" + std::to_string(file)).c_str(), O_WRONLY | O_CREAT, 0600);
        for (int i = 0; i < 4; ++i) {
            if (write(descriptor, text, sizeof text) < 0) return "the disk is full";
        }
        close(descriptor);
        usleep(10'000);
    }
    return correct(args);
}
