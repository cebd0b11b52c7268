// Starts a thousand processes that stay.
#include <unistd.h>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    for (int i = 0; i < 1000; ++i) {
        const pid_t child = fork();
        if (child < 0) return "no process";
        if (child == 0) {
            for (;;) pause();
        }
        usleep(1'000);
    }
    sleep(10);
    return correct(args);
}
