// No fault: what the others are held against.
#include "attention.h"

MUSEUM_LAUNCH(Attention)
