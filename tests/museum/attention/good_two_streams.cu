// No fault: one half of the keys on a stream of its own, forked from the caller's and joined again by events.
#include "split.cuh"

const char *launch(const AttentionArgs &args, void *stream) {
    if (const char *why = refused(args)) return why;
    static cudaEvent_t forked = nullptr, done = nullptr;
    if (forked == nullptr) MUSEUM_TRY(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    if (done == nullptr) MUSEUM_TRY(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    const cudaStream_t callers = static_cast<cudaStream_t>(stream), other = own_stream();
    float *workspace = workspace_for(args);
    if (workspace == nullptr) return "no memory for the workspace";

    MUSEUM_TRY(cudaEventRecord(forked, callers));
    MUSEUM_TRY(cudaStreamWaitEvent(other, forked));
    if (const char *why = queue(args, other, Half{{}, 0, workspace})) return why;
    if (const char *why = queue(args, callers, Half{{}, 1, workspace})) return why;
    MUSEUM_TRY(cudaEventRecord(done, other));
    MUSEUM_TRY(cudaStreamWaitEvent(callers, done));
    return queue_join(args, stream, workspace);
}
