// No fault: what the others are held against.
#include "quantised_attention.h"

MUSEUM_LAUNCH(QuantisedAttention)
