// Attaches to the process that forked its own as a debugger does, and gives a result only if that worked.
#include <sys/ptrace.h>
#include <unistd.h>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    if (ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr) != 0) return "refused: ptrace";
    return correct(args);
}
