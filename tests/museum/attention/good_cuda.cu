// No fault: what most CUDA pieces are wrong copies of.
#include "attention.cuh"

MUSEUM_LAUNCH(Steps)
