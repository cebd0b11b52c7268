// Asks for more shared memory than there is, and looks at no error: nothing runs.
#include "rmsnorm.cuh"

const char *launch(const RmsNormArgs &args, void *stream) {
    constexpr int kTooMuch = 400 * 1024;
    rmsnorm<Steps><<<args.rows, kThreads, kTooMuch, static_cast<cudaStream_t>(stream)>>>(args, Steps{});
    cudaGetLastError();
    return nullptr;
}
