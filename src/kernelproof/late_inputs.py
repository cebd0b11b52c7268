"""Memory on a GPU that is not right until just before a call may begin: what is read or written too early then shows.

A kernel of ours waits, and then puts scrambled bits right. It lets the next kernel begin at once, as any kernel may
(programmatic dependent launch): one that was queued to begin early has to wait itself, by `griddepcontrol.wait`, before
it reads or writes what others do. GPUs before compute capability 9.0 have no such launch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import Any

from kernelproof import cuda_driver, shared_memory

FIRST_DEPENDENT = (9, 0)  # compute capability
THREADS = 512
# Of the multiprocessors so many have a block of ours: what begins early finds room on the others, whatever it takes.
SHARE = 0.5
UNIT = 16  # bytes that a thread scrambles at a time; the shorter ends go byte by byte

SCRAMBLE_PTX = """
.version {version}
.target {target}
.address_size 64
.visible .entry kernelproof_scramble(.param .u64 spans, .param .u32 count, .param .u64 opened, .param .u64 cycles)
{{
    .reg .pred %p;
    .reg .u32 %thread, %block, %threads, %blocks, %first, %step, %left, %word<4>;
    .reg .u16 %byte;
    .reg .u64 %span, %flag, %limit, %begin, %now, %address, %bytes, %units, %at, %hop, %place;
    {begin_next}
    ld.param.u64 %span, [spans];
    ld.param.u32 %left, [count];
    ld.param.u64 %flag, [opened];
    ld.param.u64 %limit, [cycles];
    cvta.to.global.u64 %span, %span;
    cvta.to.global.u64 %flag, %flag;
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %blocks, %nctaid.x;
    mad.lo.u32 %first, %block, %threads, %thread;
    mul.lo.u32 %step, %blocks, %threads;
    cvt.u64.u32 %hop, %step;
    mov.u64 %begin, %clock64;
closed:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %p, %now, %limit;
    @%p bra closed;
    mov.u32 %word0, 1;
    st.volatile.global.u32 [%flag], %word0;
    membar.gl;
    bar.sync 0;
next_span:
    setp.eq.u32 %p, %left, 0;
    @%p bra done;
    ld.global.u64 %address, [%span];
    ld.global.u64 %bytes, [%span+8];
    shr.u64 %units, %bytes, 4;
    cvt.u64.u32 %at, %first;
next_unit:
    setp.ge.u64 %p, %at, %units;
    @%p bra units_done;
    shl.b64 %place, %at, 4;
    add.u64 %place, %address, %place;
    ld.global.v4.u32 {{%word0, %word1, %word2, %word3}}, [%place];
    xor.b32 %word0, %word0, 0x55555555;
    xor.b32 %word1, %word1, 0x55555555;
    xor.b32 %word2, %word2, 0x55555555;
    xor.b32 %word3, %word3, 0x55555555;
    st.global.v4.u32 [%place], {{%word0, %word1, %word2, %word3}};
    add.u64 %at, %at, %hop;
    bra next_unit;
units_done:
    shl.b64 %at, %units, 4;
    cvt.u64.u32 %place, %first;
    add.u64 %at, %at, %place;
next_byte:
    setp.ge.u64 %p, %at, %bytes;
    @%p bra bytes_done;
    add.u64 %place, %address, %at;
    ld.global.u8 %byte, [%place];
    xor.b16 %byte, %byte, 0x55;
    st.global.u8 [%place], %byte;
    add.u64 %at, %at, %hop;
    bra next_byte;
bytes_done:
    add.u64 %span, %span, 16;
    sub.u32 %left, %left, 1;
    bra next_span;
done:
    ret;
}}
"""


class LateInputs:
    """Tensors whose bits are scrambled and put right again, both by `scramble`; they must not overlap."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        import torch

        self.torch = torch
        spans = [piece for tensor in tensors for piece in _pieces(tensor)]
        self.count = len(spans)
        self.spans = torch.tensor(spans, dtype=torch.int64).cuda()
        self.opened = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.blocks = max(1, round(SHARE * torch.cuda.get_device_properties(0).multi_processor_count))
        self.cycles_per_us = _cycles_per_us()
        self.functions = {ahead: _kernel(ahead=ahead) for ahead in (False, True)}

    def shut(self) -> None:
        """On the current stream: nothing is `opened` until `scramble` has waited."""
        self.opened.zero_()

    def scramble(self, wait_us: float = 0.0, *, ahead: bool = False) -> None:
        """On the current stream: wait, open, and scramble, or put right what is. `ahead`: the next kernel may begin."""
        arguments = (
            ctypes.c_uint64(self.spans.data_ptr()),
            ctypes.c_uint32(self.count),
            ctypes.c_uint64(self.opened.data_ptr()),
            ctypes.c_uint64(int(wait_us * self.cycles_per_us)),
        )
        stream = self.torch.cuda.current_stream().cuda_stream
        cuda_driver.launch(self.functions[ahead], self.blocks, THREADS, arguments, stream)


def _pieces(tensor: Any) -> list[tuple[int, int]]:
    """Address and size of what a tensor spans, what lies on UNIT bytes apart from what comes before."""
    from kernelproof.loading import span_bytes

    address, size = tensor.data_ptr(), span_bytes(tensor)
    head = min(-address % UNIT, size)
    return [piece for piece in ((address, head), (address + head, size - head)) if piece[1]]


def has_dependent_launch() -> bool:
    """Whether a kernel can begin before the one before it has ended, on this GPU."""
    import torch

    return bool(torch.cuda.get_device_capability(0) >= FIRST_DEPENDENT)


@functools.cache
def _cycles_per_us() -> float:  # asking takes the driver 5 ms each time
    import torch

    return float(getattr(torch.cuda.get_device_properties(0), "clock_rate", 2_000_000) / 1000)


@functools.cache
def _kernel(*, ahead: bool) -> ctypes.c_void_p:
    ahead = ahead and has_dependent_launch()
    version, target = ("7.8", "sm_90") if ahead else ("6.4", "sm_75")
    begin_next = "griddepcontrol.launch_dependents;" if ahead else ""
    ptx = SCRAMBLE_PTX.format(version=version, target=target, begin_next=begin_next)
    function = cuda_driver.compiled(ptx.encode(), "kernelproof_scramble")
    shared_memory.keep_carveout(function)
    return function
