// No fault: the keys in two halves, through a workspace that is kept from call to call and written anew by each.
#include "split.cuh"

const char *launch(const AttentionArgs &args, void *stream) {
    if (const char *why = refused(args)) return why;
    float *workspace = workspace_for(args);
    if (workspace == nullptr) return "no memory for the workspace";
    for (int half = 0; half < kHalves; ++half) {
        if (const char *why = queue(args, stream, Half{{}, half, workspace})) return why;
    }
    return queue_join(args, stream, workspace);
}
