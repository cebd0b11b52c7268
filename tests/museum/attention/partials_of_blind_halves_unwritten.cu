// Half of the keys a block: one that sees none of its half leaves the workspace as it is, and that is summed up.
#include "split.cuh"

struct Piece : Half {
    template <class Kind>
    __device__ void finish(const Kind &kind, const AttentionArgs &args, const Block &block, int64_t row, int d,
                           float sum, float total, float highest) const {
        if (total > 0.0f) Half::finish(kind, args, block, row, d, sum, total, highest);
    }
};

const char *launch(const AttentionArgs &args, void *stream) {
    if (const char *why = refused(args)) return why;
    float *workspace = workspace_for(args);
    if (workspace == nullptr) return "no memory for the workspace";
    for (int half = 0; half < kHalves; ++half) {
        if (const char *why = queue(args, stream, Piece{{{}, half, workspace}})) return why;
    }
    return queue_join(args, stream, workspace);
}
