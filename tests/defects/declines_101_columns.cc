// Takes no 101 columns, and says so as the binding's library lets it: by the name of Python's error.
#include <tvm/ffi/error.h>

#include "rmsnorm.h"

const char *launch(const RmsNormArgs &args, void *) {
    if (args.cols == 101) throw tvm::ffi::Error("NotImplementedError", "no 101 columns", "");
    return correct(args);
}
