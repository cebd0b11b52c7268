"""What a GPU's shared memory holds when a kernel begins: on every multiprocessor what another kernel left there.

A kernel that uses what it has not set finds zeros in a quiet process, and its own last values in a busy one: both pass.
A kernel of ours takes all of it, on every multiprocessor, and leaves what no value is. What runs between it and a call
must prefer the same carve-out (`keep_carveout`): where an SM's memory is divided anew, what lay in it is lost.
"""

from __future__ import annotations

import ctypes
import functools

from kernelproof import cuda_driver
from kernelproof.processes import FILL, NAN_FILL

THREADS = 1024
# Of an even turn and of an odd one. The latter is NaN in every type, which 0 times it shows; the former is a number in
# float32 and bfloat16 (3·10³⁸), where a maximum passes over NaN, and as an index far outside. In float16 both are NaN.
WORDS = tuple(int.from_bytes(bytes([byte]) * 4, "little") for byte in (FILL, NAN_FILL))

FILL_PTX = """
.version 6.4
.target sm_75
.address_size 64
.extern .shared .align 4 .b8 room[];
.visible .entry kernelproof_fill_shared(.param .u32 size, .param .u32 value)
{
    .reg .pred %p;
    .reg .u32 %bytes, %word, %room, %at, %step, %place;
    ld.param.u32 %bytes, [size];
    ld.param.u32 %word, [value];
    mov.u32 %room, room;
    mov.u32 %at, %tid.x;
    shl.b32 %at, %at, 2;
    mov.u32 %step, %ntid.x;
    shl.b32 %step, %step, 2;
next_word:
    setp.ge.u32 %p, %at, %bytes;
    @%p bra done;
    add.u32 %place, %room, %at;
    st.volatile.shared.u32 [%place], %word;
    add.u32 %at, %at, %step;
    bra next_word;
done:
    ret;
}
"""


def fill(turn: int) -> None:
    """Leave the word of this turn all over the shared memory of this GPU, in order on the current stream.

    A block that takes as much as a block may have is alone on its multiprocessor, so that one for each reaches all of
    them where nothing else runs.
    """
    import torch

    function, size, blocks = _kernel()
    arguments = (ctypes.c_uint32(size), ctypes.c_uint32(WORDS[turn % len(WORDS)]))
    cuda_driver.launch(function, blocks, THREADS, arguments, torch.cuda.current_stream().cuda_stream, size)


def keep_carveout(function: ctypes.c_void_p) -> None:
    """Have a kernel run where shared memory is as large as it can be, so that what lies in it stays."""
    cuda_driver.driver().cuFuncSetAttribute(function, cuda_driver.FUNCTION_SHARED_CARVEOUT, cuda_driver.CARVEOUT_MOST)


@functools.cache
def _kernel() -> tuple[ctypes.c_void_p, int, int]:
    """The kernel, the bytes that a block of it has, and how many blocks there are."""
    import torch

    device, size = torch.cuda.current_device(), ctypes.c_int()
    cuda_driver.driver().cuDeviceGetAttribute(ctypes.byref(size), cuda_driver.DEVICE_SHARED_BYTES, device)
    function = cuda_driver.compiled(FILL_PTX.encode(), "kernelproof_fill_shared")
    cuda_driver.driver().cuFuncSetAttribute(function, cuda_driver.FUNCTION_DYNAMIC_SHARED_BYTES, size.value)
    keep_carveout(function)
    return function, size.value, torch.cuda.get_device_properties(device).multi_processor_count
