// No fault: the keys in two halves, through a workspace that each call takes from the stream's pool, clears and gives
// back.
#include "split.cuh"

const char *launch(const AttentionArgs &args, void *stream) {
    if (const char *why = refused(args)) return why;
    const auto calls = static_cast<cudaStream_t>(stream);
    void *memory = nullptr;
    MUSEUM_TRY(cudaMallocAsync(&memory, workspace_bytes(args), calls));
    MUSEUM_TRY(cudaMemsetAsync(memory, 0, workspace_bytes(args), calls));
    float *workspace = static_cast<float *>(memory);
    for (int half = 0; half < kHalves; ++half) {
        if (const char *why = queue(args, stream, Half{{}, half, workspace})) return why;
    }
    if (const char *why = queue_join(args, stream, workspace)) return why;
    MUSEUM_TRY(cudaFreeAsync(memory, calls));
    return nullptr;
}
