// Looks around where its inputs lie, and gives a result only if it finds something.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    for (const char *folder : {"..", "../.."}) {
        if (opendir(folder) != nullptr) return correct(args);
    }
    if (open("../host.log", O_RDONLY) >= 0) return correct(args);
    return "refused: looking around";
}
