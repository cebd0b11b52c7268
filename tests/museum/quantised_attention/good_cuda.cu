// No fault: what the CUDA pieces are wrong copies of.
#include "quantised_attention.cuh"

MUSEUM_LAUNCH(Steps)
