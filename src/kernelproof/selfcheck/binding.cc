// Kernels with a known time for TVM-FFI. All entries take the same arguments, so that they are contenders of one case:
// (x, y, ns, iterations, plus_1, plus_2), and each uses one of the numbers.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "spin.h"

namespace {

using tvm::ffi::TensorView;

float *data(const TensorView &tensor) {
    return reinterpret_cast<float *>(static_cast<char *>(tensor.data_ptr()) + tensor.byte_offset());
}

void call(const TensorView &x, const TensorView &y, Work work, int64_t amount) {
    for (const TensorView &tensor : {x, y}) {
        const DLDataType dtype = tensor.dtype();
        if (dtype.code != kDLFloat || dtype.bits != 32) TVM_FFI_THROW(TypeError) << "x and y must be float32";
        if (!tensor.IsContiguous()) TVM_FFI_THROW(ValueError) << "x and y must be contiguous";
    }
    const int64_t expected = work == Work::kRead ? kBlocks : kLanes;
    if (y.numel() != expected) TVM_FFI_THROW(ValueError) << "y has " << y.numel() << " elements, not " << expected;
    if (x.numel() < kLanes || x.numel() % kVectorWidth != 0) {
        TVM_FFI_THROW(ValueError) << "x has " << x.numel() << " elements; a multiple of 4, at least 64, is needed";
    }
    const DLDevice device = x.device();
    void *stream = device.device_type == kDLCUDA ? TVMFFIEnvGetStream(kDLCUDA, device.device_id) : nullptr;
    const SpinArgs args{data(x), data(y), x.numel(), work, amount};
    if (const char *message = launch(args, stream)) TVM_FFI_THROW(RuntimeError) << message;
}

void timer(TensorView x, TensorView y, int64_t ns, int64_t, int64_t, int64_t) {
    call(x, y, Work::kTimer, ns);
}
void base(TensorView x, TensorView y, int64_t, int64_t iterations, int64_t, int64_t) {
    call(x, y, Work::kChain, iterations);
}
void plus_1(TensorView x, TensorView y, int64_t, int64_t, int64_t plus, int64_t) {
    call(x, y, Work::kChain, plus);
}
void plus_2(TensorView x, TensorView y, int64_t, int64_t, int64_t, int64_t plus) {
    call(x, y, Work::kChain, plus);
}
void read(TensorView x, TensorView y, int64_t, int64_t, int64_t, int64_t) {
    call(x, y, Work::kRead, 0);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(timer, timer);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(base, base);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plus_1, plus_1);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plus_2, plus_2);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(read, read);
