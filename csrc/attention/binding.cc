// run(q, k, v, o, scale, causal) for TVM-FFI: checks the tensors, then calls the variant this library was linked with.
#include "../common/binding.h"

#include "launch.h"

namespace {

using binding::Argument;
using tvm::ffi::TensorView;

void run(TensorView q, TensorView k, TensorView v, TensorView o, double scale, bool causal) {
    const Argument all[] = {{"q", q}, {"k", k}, {"v", v}, {"o", o}};
    for (const Argument &argument : all) {
        binding::check_rank(argument, 4, "[batch, heads, rows, head_dim]");
        binding::check_dtype(argument, q.dtype());
        binding::check_last_stride(argument);
    }
    const int64_t batch = q.size(0), query_heads = q.size(1), query_rows = q.size(2), head_dim = q.size(3);
    const int64_t key_heads = k.size(1), key_rows = k.size(2);
    binding::check_shape(all[1], {batch, key_heads, key_rows, head_dim});
    binding::check_shape(all[2], {batch, key_heads, key_rows, head_dim});
    binding::check_shape(all[3], {batch, query_heads, query_rows, head_dim});
    const Dtype dtype = binding::float_dtype(all[0]);
    const Placement placement = binding::common_placement({all[0], all[1], all[2], all[3]});
    if (o.numel() == 0) return;
    if (key_rows == 0) TVM_FFI_THROW(ValueError) << "k has no rows: attention over no keys is not defined";
    if (key_heads == 0 || query_heads % key_heads != 0) {
        TVM_FFI_THROW(ValueError) << "q has " << query_heads << " heads and k has " << key_heads
                                  << "; the first must be a multiple of the second";
    }
    const AttentionArgs args{
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
        dtype,
        placement,
    };
    binding::throw_message(launch(args, binding::stream(placement)));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
