// No fault: what the others are held against.
#include "qkt.h"

MUSEUM_LAUNCH(Scores)
