// Checks that every binding makes. A message names the argument, the value it has and the value it should have.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <initializer_list>
#include <sstream>
#include <string>

#include "launch_abi.h"

namespace binding {

using tvm::ffi::TensorView;

struct Argument {
    const char *name;
    const TensorView &tensor;
};

inline std::string dtype_name(DLDataType dtype) {
    std::ostringstream text;
    switch (dtype.code) {
        case kDLFloat:
            text << "float";
            break;
        case kDLBfloat:
            text << "bfloat";
            break;
        case kDLUInt:
            text << "uint";
            break;
        case kDLInt:
            text << "int";
            break;
        default:
            text << "dtype code " << int{dtype.code} << " of bits ";
            break;
    }
    text << int{dtype.bits};
    if (dtype.lanes != 1) text << "x" << dtype.lanes;
    return text.str();
}

inline std::string shape_text(const TensorView &tensor) {
    std::ostringstream text;
    text << "[";
    for (int i = 0; i < tensor.ndim(); ++i) text << (i ? ", " : "") << tensor.size(i);
    text << "]";
    return text.str();
}

inline void check_shape(const Argument &argument, std::initializer_list<int64_t> expected) {
    bool same = argument.tensor.ndim() == static_cast<int>(expected.size());
    int dim = 0;
    for (int64_t size : expected) same = same && argument.tensor.size(dim++) == size;
    if (same) return;
    std::ostringstream wanted;
    for (int64_t size : expected) wanted << (wanted.tellp() > 0 ? ", " : "") << size;
    TVM_FFI_THROW(ValueError) << argument.name << " has shape " << shape_text(argument.tensor) << ", expected ["
                              << wanted.str() << "]";
}

inline void check_rank(const Argument &argument, int rank, const char *meaning) {
    if (argument.tensor.ndim() == rank) return;
    TVM_FFI_THROW(ValueError) << argument.name << " has shape " << shape_text(argument.tensor) << ", expected "
                              << meaning;
}

inline void check_dtype(const Argument &argument, DLDataType expected) {
    const DLDataType actual = argument.tensor.dtype();
    if (actual.code == expected.code && actual.bits == expected.bits && actual.lanes == expected.lanes) return;
    TVM_FFI_THROW(TypeError) << argument.name << " is " << dtype_name(actual) << ", expected " << dtype_name(expected);
}

inline Dtype float_dtype(const Argument &argument) {
    const DLDataType dtype = argument.tensor.dtype();
    if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 32) return Dtype::kFloat32;
    if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 16) return Dtype::kFloat16;
    if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16) return Dtype::kBfloat16;
    TVM_FFI_THROW(TypeError) << argument.name << " is " << dtype_name(dtype)
                             << ", expected float32, float16 or bfloat16";
    TVM_FFI_UNREACHABLE();
}

// Without a backtrace, which the first TVM_FFI_THROW of a process takes a second to put into symbols: a caller may be
// refused often, and in processes that live as long as one call.
[[noreturn]] inline void refuse(const char *kind, const std::string &message) {
    throw tvm::ffi::Error(kind, message, "");
}

// A stride means nothing along a dimension of size 1 or in an empty tensor.
inline void check_last_stride(const Argument &argument) {
    const int last = argument.tensor.ndim() - 1;
    if (argument.tensor.size(last) <= 1 || argument.tensor.numel() == 0 || argument.tensor.stride(last) == 1) return;
    refuse("ValueError", std::string(argument.name) + " has stride " + std::to_string(argument.tensor.stride(last)) +
                             " along its last dimension, expected 1");
}

inline Placement common_placement(std::initializer_list<Argument> arguments) {
    const Argument &first = *arguments.begin();
    const DLDevice device = first.tensor.device();
    for (const Argument &other : arguments) {
        const DLDevice its = other.tensor.device();
        if (its.device_type != device.device_type || its.device_id != device.device_id) {
            TVM_FFI_THROW(ValueError) << other.name << " is on device " << its.device_type << ":" << its.device_id
                                      << " (DLPack numbering), " << first.name << " on " << device.device_type << ":"
                                      << device.device_id << "; all must be on one device";
        }
    }
    if (device.device_type != kDLCPU && device.device_type != kDLCUDA) {
        TVM_FFI_THROW(ValueError) << first.name << " is on DLPack device type " << device.device_type
                                  << ", expected 1 (CPU) or 2 (CUDA)";
    }
    return {device.device_type == kDLCUDA, device.device_id};
}

inline void *data(const TensorView &tensor) {
    return static_cast<char *>(tensor.data_ptr()) + tensor.byte_offset();
}

// Strides of [batch, head, row, column].
inline Strides3 strides(const TensorView &tensor) {
    return {tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// The stream the caller works on; a launcher for the CPU ignores it.
inline void *stream(Placement placement) {
    return placement.on_cuda ? TVMFFIEnvGetStream(kDLCUDA, placement.index) : nullptr;
}

inline void throw_message(const char *message) {
    if (message != nullptr) refuse("RuntimeError", message);
}

}  // namespace binding
