// No fault: what the pieces with an online softmax are held against.
#include "attention.h"

MUSEUM_LAUNCH(OnlineAttention)
