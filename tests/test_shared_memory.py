"""What a kernel finds in shared memory that it has not set."""

import ctypes

import pytest

from kernelproof import cuda_driver, gpu, shared_memory

torch = pytest.importorskip("torch")
PRESENT, WHY = gpu.available()

# Each thread copies a word of shared memory that nobody has set.
READ_PTX = b"""
.version 6.4
.target sm_75
.address_size 64
.extern .shared .align 4 .b8 room[];
.visible .entry read_unset(.param .u64 found)
{
    .reg .u32 %thread, %block, %place, %word;
    .reg .u64 %out, %index;
    ld.param.u64 %out, [found];
    cvta.to.global.u64 %out, %out;
    mov.u32 %thread, %tid.x;
    mov.u32 %place, room;
    mad.lo.u32 %place, %thread, 4, %place;
    ld.volatile.shared.u32 %word, [%place];
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %block, %block, 256, %thread;
    mul.wide.u32 %index, %block, 4;
    add.u64 %out, %out, %index;
    st.global.u32 [%out], %word;
    ret;
}
"""


@pytest.mark.gpu
@pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")
@pytest.mark.parametrize("shared_bytes", [1024, 40_000])
def test_a_kernel_finds_what_was_left_in_what_it_has_not_set(shared_bytes: int) -> None:
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    found = torch.zeros(blocks, 256, dtype=torch.int32, device="cuda")
    kernel = cuda_driver.compiled(READ_PTX, "read_unset")
    address = ctypes.c_uint64(found.data_ptr())
    stream = torch.cuda.current_stream().cuda_stream
    for inverted, word in ((False, shared_memory.WORD), (True, -shared_memory.WORD - 1)):
        shared_memory.fill(inverted=inverted)
        cuda_driver.launch(kernel, blocks, 256, [address], stream, shared_bytes)
        torch.cuda.synchronize()
        assert (found == word).all(), f"{int((found != word).sum())} of {found.numel()} words are others"
