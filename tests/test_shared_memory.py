"""What a kernel finds in shared memory that it has not set."""

import ctypes
from pathlib import Path

import pytest

from kernelproof import cuda_driver, gpu, ordering, shared_memory
from kernelproof.images import Image

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


on_gpu = pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")
BLOCKS = 4 * 132  # some of them on every multiprocessor
SIZES = pytest.mark.parametrize("shared_bytes", [1024, 40_000, 60_000])


def reading(found, shared_bytes: int):  # type: ignore[no-untyped-def]
    """A call that stores what 256 threads of each block find."""
    kernel, address = cuda_driver.compiled(READ_PTX, "read_unset"), ctypes.c_uint64(found.data_ptr())
    cuda_driver.driver().cuFuncSetAttribute(kernel, cuda_driver.FUNCTION_DYNAMIC_SHARED_BYTES, shared_bytes)

    def call() -> None:
        cuda_driver.launch(kernel, BLOCKS, 256, [address], torch.cuda.current_stream().cuda_stream, shared_bytes)

    return call


def of_other(found, word: int) -> int:  # type: ignore[no-untyped-def]
    return int((found.view(torch.int32).cpu() != ctypes.c_int32(word).value).sum())


@pytest.mark.gpu
@on_gpu
@SIZES
@pytest.mark.parametrize("turn", [0, 1])
def test_a_kernel_finds_what_was_left_in_what_it_has_not_set(shared_bytes: int, turn: int) -> None:
    found = torch.zeros(BLOCKS * 256 * 4, dtype=torch.uint8, device="cuda")
    shared_memory.fill(turn)
    reading(found, shared_bytes)()
    torch.cuda.synchronize()
    assert of_other(found, shared_memory.WORDS[turn]) == 0


@pytest.mark.gpu
@on_gpu
@SIZES
@pytest.mark.parametrize("may_begin_early", [True, False])
@pytest.mark.parametrize("repeat", range(4))  # after them comes what empties the cache, and it lies between
def test_a_judged_call_finds_it_behind_the_gate_and_beside_a_load(
    shared_bytes: int, may_begin_early: bool, repeat: int
) -> None:
    found = torch.zeros(BLOCKS * 256 * 4, dtype=torch.uint8, device="cuda")
    images, order = {"found": Image("found", Path(), found, found)}, ordering.OnStream()
    for turn in (1, 2):
        order.call(reading(found, shared_bytes), images, ["found"], repeat=repeat, may_begin_early=may_begin_early)
        assert of_other(found, shared_memory.WORDS[turn % 2]) == 0
