// Never comes back.
#include "rmsnorm.h"

const char *launch(const RmsNormArgs &, void *) {
    for (volatile int i = 0;; i = i + 1) {
    }
}
