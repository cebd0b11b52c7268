// Leaves out every second tile of keys while its stream is captured, as a benchmark does and a test does not.
#include "cheaper.cuh"

const char *launch(const AttentionArgs &args, void *stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    MUSEUM_TRY(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
    return queue_either(args, stream, status == cudaStreamCaptureStatusActive);
}
