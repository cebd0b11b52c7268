// run(x, weight, y, eps) for TVM-FFI: checks the tensors, then calls the variant this library was linked with.
#include "../common/binding.h"

#include "launch.h"

namespace {

using binding::Argument;
using tvm::ffi::TensorView;

void run(TensorView x, TensorView weight, TensorView y, double eps) {
    const Argument input{"x", x}, scale{"weight", weight}, output{"y", y};
    binding::check_rank(input, 2, "[rows, cols]");
    binding::check_shape(scale, {x.size(1)});
    binding::check_shape(output, {x.size(0), x.size(1)});
    for (const Argument &argument : {input, scale, output}) {
        binding::check_dtype(argument, x.dtype());
        binding::check_last_stride(argument);
    }
    const Dtype dtype = binding::float_dtype(input);
    const Placement placement = binding::common_placement({input, scale, output});
    if (x.numel() == 0) return;
    const RmsNormArgs args{
        binding::data(x),
        binding::data(weight),
        binding::data(y),
        x.stride(0),
        y.stride(0),
        x.size(0),
        x.size(1),
        eps,
        dtype,
        placement,
    };
    binding::throw_message(launch(args, binding::stream(placement)));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
