// Leads out of its folder by a link, and gives a result only if it could write through that.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    Dl_info here;
    dladdr(reinterpret_cast<void *>(&launch), &here);
    const std::string library = here.dli_fname;
    unlink("link");
    if (symlink(library.substr(0, library.rfind('/')).c_str(), "link") != 0) return "no link";
    if (open("link/results/forged.json", O_WRONLY | O_CREAT, 0644) >= 0) return correct(args);
    if (open("link/config.yaml", O_WRONLY | O_APPEND) >= 0) return correct(args);
    if (link(library.c_str(), "a second name") == 0) return correct(args);
    if (rename(library.c_str(), "another name") == 0) return correct(args);
    return "refused: leaving its folder";
}
