// Lifts the limit on the size of files and fills one that has no name any more.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    static const char text[1 << 20] = {1};
    rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
    const int descriptor = open("file", O_WRONLY | O_CREAT, 0600);
    unlink("file");
    for (int i = 0; i < 1600; ++i) {
        if (write(descriptor, text, sizeof text) < 0) return "the disk is full";
        usleep(2'500);
    }
    return correct(args);
}
