// run(q_codes, k_codes, q_scale, k_scale, scores, factor) for TVM-FFI: checks the tensors, then calls the variant this
// library was linked with.
#include "../common/binding.h"

#include "launch.h"

namespace {

using binding::Argument;
using tvm::ffi::TensorView;

constexpr DLDataType kUint8{kDLUInt, 8, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};

void run(TensorView q_codes, TensorView k_codes, TensorView q_scale, TensorView k_scale, TensorView scores,
         double factor) {
    const Argument q{"q_codes", q_codes}, k{"k_codes", k_codes}, out{"scores", scores};
    const Argument q_factor{"q_scale", q_scale}, k_factor{"k_scale", k_scale};
    binding::check_rank(q, 4, "[batch, heads, query_rows, head_dim]");
    binding::check_rank(k, 4, "[batch, heads, key_rows, head_dim]");
    const int64_t batch = q_codes.size(0), heads = q_codes.size(1), head_dim = q_codes.size(3);
    const int64_t query_rows = q_codes.size(2), key_rows = k_codes.size(2);
    binding::check_shape(k, {batch, heads, key_rows, head_dim});
    binding::check_shape(q_factor, {batch, heads});
    binding::check_shape(k_factor, {batch, heads});
    binding::check_shape(out, {batch, heads, query_rows, key_rows});
    for (const Argument &argument : {q, k}) binding::check_dtype(argument, kUint8);
    for (const Argument &argument : {q_factor, k_factor, out}) binding::check_dtype(argument, kFloat32);
    for (const Argument &argument : {q, k, out}) binding::check_last_stride(argument);
    const Placement placement = binding::common_placement({q, k, q_factor, k_factor, out});
    if (head_dim > kMaxHeadDim) {
        TVM_FFI_THROW(ValueError) << "q_codes has head_dim " << head_dim << ", allowed are up to " << kMaxHeadDim;
    }
    if (scores.numel() == 0) return;
    const QktArgs args{
        static_cast<const uint8_t *>(binding::data(q_codes)),
        static_cast<const uint8_t *>(binding::data(k_codes)),
        static_cast<const float *>(binding::data(q_scale)),
        static_cast<const float *>(binding::data(k_scale)),
        static_cast<float *>(binding::data(scores)),
        binding::strides(q_codes),
        binding::strides(k_codes),
        binding::strides(scores),
        {q_scale.stride(0), q_scale.stride(1)},
        {k_scale.stride(0), k_scale.stride(1)},
        batch,
        heads,
        query_rows,
        key_rows,
        head_dim,
        factor,
        placement,
    };
    binding::throw_message(launch(args, binding::stream(placement)));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
