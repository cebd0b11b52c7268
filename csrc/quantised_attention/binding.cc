// run(q, k, v, q_scale, k_scale, v_scale, o, scale, causal) for TVM-FFI: checks the tensors, then calls the variant
// this library was linked with.
#include "../common/binding.h"

#include "launch.h"

namespace {

using binding::Argument;
using tvm::ffi::TensorView;

constexpr DLDataType kUint8{kDLUInt, 8, 1};
constexpr DLDataType kFloat8E4m3{kDLFloat8_e4m3fn, 8, 1};
constexpr DLDataType kFloat16{kDLFloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};

Codec codec_of(const Argument &argument) {
    const DLDataType dtype = argument.tensor.dtype();
    if (dtype.lanes == 1 && dtype.bits == 8 && dtype.code == kDLUInt) return Codec::kSimFp8;
    if (dtype.lanes == 1 && dtype.bits == 8 && dtype.code == kDLFloat8_e4m3fn) return Codec::kE4m3;
    TVM_FFI_THROW(TypeError) << argument.name << " is " << binding::dtype_name(dtype)
                             << ", expected uint8 (simulated FP8) or float8_e4m3fn";
    TVM_FFI_UNREACHABLE();
}

void run(TensorView q, TensorView k, TensorView v, TensorView q_scale, TensorView k_scale, TensorView v_scale,
         TensorView o, double scale, bool causal) {
    const Argument codes[] = {{"q", q}, {"k", k}, {"v", v}}, output{"o", o};
    const Argument scales[] = {{"q_scale", q_scale}, {"k_scale", k_scale}, {"v_scale", v_scale}};
    for (const Argument &argument : {codes[0], codes[1], codes[2], output}) {
        binding::check_rank(argument, 4, "[batch, heads, rows, head_dim]");
        binding::check_last_stride(argument);
    }
    const Codec codec = codec_of(codes[0]);
    for (const Argument &argument : codes) {
        binding::check_dtype(argument, codec == Codec::kSimFp8 ? kUint8 : kFloat8E4m3);
    }
    binding::check_dtype(output, kFloat16);
    for (const Argument &argument : scales) binding::check_dtype(argument, kFloat32);
    const int64_t batch = q.size(0), query_heads = q.size(1), query_rows = q.size(2), head_dim = q.size(3);
    const int64_t key_heads = k.size(1), key_rows = k.size(2);
    binding::check_shape(codes[1], {batch, key_heads, key_rows, head_dim});
    binding::check_shape(codes[2], {batch, key_heads, key_rows, head_dim});
    binding::check_shape(output, {batch, query_heads, query_rows, head_dim});
    binding::check_shape(scales[0], {batch, query_heads});
    binding::check_shape(scales[1], {batch, key_heads});
    binding::check_shape(scales[2], {batch, key_heads});
    const Placement placement =
        binding::common_placement({codes[0], codes[1], codes[2], scales[0], scales[1], scales[2], output});
    if (o.numel() == 0) return;
    if (key_rows == 0) TVM_FFI_THROW(ValueError) << "k has no rows: attention over no keys is not defined";
    if (key_heads == 0 || query_heads % key_heads != 0) {
        TVM_FFI_THROW(ValueError) << "q has " << query_heads << " heads and k has " << key_heads
                                  << "; the first must be a multiple of the second";
    }
    const QuantisedAttentionArgs args{
        {
            binding::data(q),
            binding::data(k),
            binding::data(v),
            binding::data(o),
            binding::strides(q),
            binding::strides(k),
            binding::strides(v),
            binding::strides(o),
            batch,
            query_heads,
            key_heads,
            query_rows,
            key_rows,
            head_dim,
            scale,
            causal,
            Dtype::kFloat16,
            placement,
        },
        static_cast<const float *>(binding::data(q_scale)),
        static_cast<const float *>(binding::data(k_scale)),
        static_cast<const float *>(binding::data(v_scale)),
        {q_scale.stride(0), q_scale.stride(1)},
        {k_scale.stride(0), k_scale.stride(1)},
        {v_scale.stride(0), v_scale.stride(1)},
        codec,
    };
    binding::throw_message(launch(args, binding::stream(placement)));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
