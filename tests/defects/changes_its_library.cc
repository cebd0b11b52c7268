// Writes to the file that it was loaded from, and gives a result only if that worked.
#include <dlfcn.h>

#include <cstdio>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    Dl_info here;
    dladdr(reinterpret_cast<void *>(&launch), &here);
    FILE *library = std::fopen(here.dli_fname, "ab");
    if (library == nullptr) return "refused: writing to its library";
    std::fputc('x', library);
    std::fclose(library);
    return correct(args);
}
