// run(x, y) for TVM-FFI: checks the tensors and calls the kernel that this library was linked with. Compiled once for
// all variants of the operator.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "launch.h"

namespace {

using tvm::ffi::TensorView;

void *data(const TensorView &tensor) {
    return static_cast<char *>(tensor.data_ptr()) + tensor.byte_offset();
}

void run(TensorView x, TensorView y) {
    const DLDataType dtype = x.dtype();
    if (dtype.code != kDLFloat || (dtype.bits != 32 && dtype.bits != 16)) {
        TVM_FFI_THROW(TypeError) << "x must be float32 or float16";
    }
    if (y.dtype().code != dtype.code || y.dtype().bits != dtype.bits)
        TVM_FFI_THROW(TypeError) << "y is not of x's type";
    if (x.numel() != y.numel()) TVM_FFI_THROW(ValueError) << "x has " << x.numel() << " elements, y " << y.numel();
    if (!x.IsContiguous() || !y.IsContiguous()) TVM_FFI_THROW(ValueError) << "x and y must be contiguous";
    const Args args{data(x), data(y), x.numel(), dtype.bits == 32 ? Dtype::kFloat32 : Dtype::kFloat16};
    const DLDevice device = x.device();
    void *stream = device.device_type == kDLCUDA ? TVMFFIEnvGetStream(kDLCUDA, device.device_id) : nullptr;
    if (const char *message = launch(args, stream)) TVM_FFI_THROW(RuntimeError) << message;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
