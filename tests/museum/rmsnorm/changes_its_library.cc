// Writes to the file that it was loaded from.
#include <dlfcn.h>

#include <cstdio>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    Dl_info here;
    dladdr(reinterpret_cast<void *>(&launch), &here);
    if (FILE *library = std::fopen(here.dli_fname, "ab")) {
        std::fputc('x', library);
        std::fclose(library);
    }
    return correct(args);
}
