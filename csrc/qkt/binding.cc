// run(q, k, q_scale, k_scale, scores, factor) for TVM-FFI: checks the tensors, then calls the variant this
// library was linked with.
#include "../common/binding.h"

#include "launch.h"

namespace {

using binding::Argument;
using tvm::ffi::TensorView;

constexpr DLDataType kFloat32{kDLFloat, 32, 1};

QktInput input_of(const Argument &argument) {
    const DLDataType dtype = argument.tensor.dtype();
    if (dtype.lanes == 1 && dtype.code == kDLUInt && dtype.bits == 8) return QktInput::kCodes;
    if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 16) return QktInput::kFloat16;
    if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16) return QktInput::kBfloat16;
    TVM_FFI_THROW(TypeError) << argument.name << " is " << binding::dtype_name(dtype)
                             << ", expected uint8 (simulated FP8), float16 or bfloat16";
    TVM_FFI_UNREACHABLE();
}

void run(TensorView q, TensorView k, TensorView q_scale, TensorView k_scale, TensorView scores, double factor) {
    const Argument queries{"q", q}, keys{"k", k}, out{"scores", scores};
    const Argument q_factor{"q_scale", q_scale}, k_factor{"k_scale", k_scale};
    binding::check_rank(queries, 4, "[batch, heads, query_rows, head_dim]");
    binding::check_rank(keys, 4, "[batch, heads, key_rows, head_dim]");
    const int64_t batch = q.size(0), heads = q.size(1), head_dim = q.size(3);
    const int64_t query_rows = q.size(2), key_rows = k.size(2);
    binding::check_shape(keys, {batch, heads, key_rows, head_dim});
    binding::check_shape(q_factor, {batch, heads});
    binding::check_shape(k_factor, {batch, heads});
    binding::check_shape(out, {batch, heads, query_rows, key_rows});
    const QktInput input = input_of(queries);
    binding::check_dtype(keys, q.dtype());
    for (const Argument &argument : {q_factor, k_factor, out}) binding::check_dtype(argument, kFloat32);
    for (const Argument &argument : {queries, keys, out}) binding::check_last_stride(argument);
    const Placement placement = binding::common_placement({queries, keys, q_factor, k_factor, out});
    if (head_dim > kMaxHeadDim) {
        TVM_FFI_THROW(ValueError) << "q has head_dim " << head_dim << ", allowed are up to " << kMaxHeadDim;
    }
    if (scores.numel() == 0) return;
    const QktArgs args{
        binding::data(q),
        binding::data(k),
        static_cast<const float *>(binding::data(q_scale)),
        static_cast<const float *>(binding::data(k_scale)),
        static_cast<float *>(binding::data(scores)),
        binding::strides(q),
        binding::strides(k),
        binding::strides(scores),
        {q_scale.stride(0), q_scale.stride(1)},
        {k_scale.stride(0), k_scale.stride(1)},
        batch,
        heads,
        query_rows,
        key_rows,
        head_dim,
        input,
        factor,
        placement,
    };
    binding::throw_message(launch(args, binding::stream(placement)));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
