// Waits for the kernel before it, but of calls that are captured one after the other in the first only.
#include "csrc/common/dependent_launch.cuh"
#include "rmsnorm.cuh"

__global__ void __launch_bounds__(kThreads) sometimes_hasty_rmsnorm(RmsNormArgs args, int call) {
    dependents_launch();
    if (call > 0) prerequisites_wait();
    normalise(args, Steps{});
}

const char *launch(const RmsNormArgs &args, void *stream) {
    static int calls = 0;  // a different number each time: no description of a call in data fits two
    static bool captured = false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    MUSEUM_TRY(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
    const bool later = captured;
    captured = status == cudaStreamCaptureStatusActive;
    ++calls;
    return queue(sometimes_hasty_rmsnorm, dependent_rows(args), args, stream, captured && later ? -calls : calls);
}
