// Scores of 16-bit queries and keys by cuBLAS: one batched product on the tensor cores, sums and scores in FP32. cuBLAS
// is the one that the process has loaded already, or that the loader finds: building needs none of its files.
#include <dlfcn.h>
#include <library_types.h>

#include <mutex>

#include "../common/cuda_launch.h"
#include "launch.h"

namespace cublas_qkt {

// Prototypes and numbers of the cuBLAS documentation (docs.nvidia.com/cuda/cublas: data types, helper functions,
// cublasGemmStridedBatchedEx and its form for 64-bit sizes); its versions 12 and 13 share them.
using Handle = void *;
using Create = int (*)(Handle *);
using SetStream = int (*)(Handle, cudaStream_t);
using SetWorkspace = int (*)(Handle, void *, size_t);
using Name = const char *(*)(int);
using Gemm = int (*)(Handle, int a_op, int b_op, int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
                     cudaDataType a_type, int64_t a_pitch, long long a_stride, const void *b, cudaDataType b_type,
                     int64_t b_pitch, long long b_stride, const void *beta, void *c, cudaDataType c_type,
                     int64_t c_pitch, long long c_stride, int64_t batch, int compute_type, int algorithm);
constexpr int kSuccess = 0;
constexpr int kPlain = 0, kTransposed = 1;  // CUBLAS_OP_N, CUBLAS_OP_T
constexpr int kSumsInFloat32 = 68;          // CUBLAS_COMPUTE_32F
constexpr int kItsChoice = -1;              // CUBLAS_GEMM_DEFAULT

constexpr const char *kNames[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
constexpr int kMaxDevices = 64;
constexpr size_t kWorkspaceBytes = 32 << 20;  // what its documentation advises for sm_90

// The functions, found once a process.
struct Library {
    Library() {
        void *found = nullptr;
        for (int mode : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
            for (const char *name : kNames) found = found != nullptr ? found : dlopen(name, mode);
        }
        if (found == nullptr) return;
        create = reinterpret_cast<Create>(dlsym(found, "cublasCreate_v2"));
        set_stream = reinterpret_cast<SetStream>(dlsym(found, "cublasSetStream_v2"));
        set_workspace = reinterpret_cast<SetWorkspace>(dlsym(found, "cublasSetWorkspace_v2"));
        name = reinterpret_cast<Name>(dlsym(found, "cublasGetStatusName"));
        gemm = reinterpret_cast<Gemm>(dlsym(found, "cublasGemmStridedBatchedEx_64"));
        complete = create && set_stream && set_workspace && name && gemm;
    }
    Create create = nullptr;
    SetStream set_stream = nullptr;
    SetWorkspace set_workspace = nullptr;
    Name name = nullptr;
    Gemm gemm = nullptr;
    bool complete = false;
};

// A handle and its memory, made at a device's first call and kept; neither can be made while a graph is captured.
struct Engine {
    std::mutex in_use;
    Handle handle = nullptr;
    void *workspace = nullptr;
};

const char *failed(const Library &cublas, const char *what, int status) {
    return message("cublas_qkt: %s: %s", what, cublas.name(status));
}

const char *prepare(const Library &cublas, Engine &engine, cudaStream_t stream) {
    if (engine.workspace == nullptr) {
        const cudaError_t status = cudaMalloc(&engine.workspace, kWorkspaceBytes);
        if (status != cudaSuccess) {
            engine.workspace = nullptr;
            return cuda_message("cublas_qkt: its workspace", status);
        }
    }
    if (engine.handle == nullptr) {
        const int status = cublas.create(&engine.handle);
        if (status != kSuccess) {
            engine.handle = nullptr;
            return failed(cublas, "cublasCreate", status);
        }
    }
    int status = cublas.set_stream(engine.handle, stream);
    if (status != kSuccess) return failed(cublas, "cublasSetStream", status);
    status = cublas.set_workspace(engine.handle, engine.workspace, kWorkspaceBytes);  // a new stream forgets it
    return status == kSuccess ? nullptr : failed(cublas, "cublasSetWorkspace", status);
}

// Elements from a row to the next, as cuBLAS wants them: at least a row, even where there is only one.
int64_t pitch_of(int64_t stride, int64_t rows, int64_t columns) {
    return rows > 1 ? stride : columns;
}

const char *multiply(const Library &cublas, Engine &engine, const QktArgs &args) {
    const int64_t q_pitch = pitch_of(args.q_stride.row, args.query_rows, args.head_dim);
    const int64_t k_pitch = pitch_of(args.k_stride.row, args.key_rows, args.head_dim);
    const int64_t scores_pitch = pitch_of(args.scores_stride.row, args.query_rows, args.key_rows);
    if (q_pitch < args.head_dim || k_pitch < args.head_dim || scores_pitch < args.key_rows) {
        return "cublas_qkt takes rows that do not overlap";
    }
    // Heads of all batches in one call if they are equally far apart, else a call a batch.
    const auto in_line = [&](const Strides3 &stride) { return stride.batch == args.heads * stride.head; };
    const bool heads_alone = args.heads == 1,
               whole = in_line(args.q_stride) && in_line(args.k_stride) && in_line(args.scores_stride);
    const int64_t calls = whole || heads_alone ? 1 : args.batch;
    const int64_t batch = args.batch * args.heads / calls;
    const auto apart = [&](const Strides3 &stride) { return heads_alone ? stride.batch : stride.head; };
    const cudaDataType type = args.input == QktInput::kFloat16 ? CUDA_R_16F : CUDA_R_16BF;
    const float alpha = static_cast<float>(args.factor), beta = 0.0f;
    for (int64_t call = 0; call < calls; ++call) {
        const uint16_t *q = static_cast<const uint16_t *>(args.q) + call * args.q_stride.batch;
        const uint16_t *k = static_cast<const uint16_t *>(args.k) + call * args.k_stride.batch;
        float *scores = args.scores + call * args.scores_stride.batch;
        // cuBLAS counts down columns: to it the scores are [key_rows, query_rows], K^T and Q what lies in memory.
        const int status =
            cublas.gemm(engine.handle, kTransposed, kPlain, args.key_rows, args.query_rows, args.head_dim, &alpha, k,
                        type, k_pitch, apart(args.k_stride), q, type, q_pitch, apart(args.q_stride), &beta, scores,
                        CUDA_R_32F, scores_pitch, apart(args.scores_stride), batch, kSumsInFloat32, kItsChoice);
        if (status != kSuccess) return failed(cublas, "cublasGemmStridedBatchedEx_64", status);
    }
    return nullptr;
}

}  // namespace cublas_qkt

const char *launch(const QktArgs &args, void *stream) {
    using namespace cublas_qkt;
    static const Library cublas;
    static Engine engines[kMaxDevices];
    if (!args.placement.on_cuda) return "cublas_qkt runs on a CUDA device; the tensors are in host memory";
    if (args.input == QktInput::kCodes) return "cublas_qkt takes float16 or bfloat16, not uint8 codes";
    if (!cublas.complete) return "cublas_qkt finds no libcublas.so.13 or .12: import torch first, or install cuBLAS";
    if (args.placement.index >= kMaxDevices) return "cublas_qkt knows 64 devices";
    const DeviceGuard guard(args.placement.index);
    if (guard.status() != cudaSuccess) return cuda_message("cublas_qkt", guard.status());
    Engine &engine = engines[args.placement.index];
    const std::lock_guard<std::mutex> alone(engine.in_use);
    const char *problem = prepare(cublas, engine, static_cast<cudaStream_t>(stream));
    return problem != nullptr ? problem : multiply(cublas, engine, args);
}
