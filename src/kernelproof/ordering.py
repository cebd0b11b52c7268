"""How a worker calls a candidate, so that work which is not in order shows.

A call may rely on nothing but what came before it on the stream that it is given, and gives nothing but what is there
when that stream is done. So on a GPU every call is queued behind a *gate* on a stream of its own: a kernel that waits.
Until the gate opens, inputs and outputs hold scrambled bits, which it then puts right (late_inputs.py). Work on another
stream that was not ordered behind this one (the default stream, too) reads scrambled inputs and writes too early. So
does a kernel that begins before the gate has ended, as it may, and does not wait for that. The output is copied on the
stream itself: work on another stream that was not joined, or of a thread, comes too late.

On a CPU a call is over when it returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kernelproof import cuda_driver, shared_memory
from kernelproof.errors import WorkerReplyError
from kernelproof.late_inputs import LateInputs, has_dependent_launch
from kernelproof.loading import Image, on_stream

GATE_US, GATE_LIMIT_US = 100.0, 5000.0  # at least; at most, when queueing a call takes that long
LATE_WAIT_S = 0.01  # at most: what is late by a call's own duration is found, on a CPU now and then by all of it
WATCHED_LONG = 16  # calls, of which one is watched for all of that
SCRAMBLED_BYTES = 1 << 20  # at most, on a CPU: what is written while more are scrambled would be lost
# Blocks of ours for each multiprocessor while a call is repeated, in turn; none, some, one or a few. Round after round
# they work in the L2 cache, or, every second, in the GPU's memory, with the call's inputs gone from the cache: what is
# not waited for then comes late.
LOADS = (0.0, 0.25, 1.0, 3.0)
LOAD_THREADS = 256
NEAR_WORDS = 1 << 20  # of 4 bytes, which stay in the cache
EMPTYING_US = 300.0  # at most, while a load runs
# Of calls that may begin early and calls that may not: who adds in any order gives other bits by chance, at times.
AHEAD_PAIRS = 16
# Of MXCSR in `fenv_t`, and its bits 13 and 14 (Intel's manual, volume 1, 10.2.3); other processors have none.
MXCSR_WORD, MXCSR_ROUNDING = 7, 0x6000 if platform.machine() == "x86_64" else 0
_MEMCMP = ctypes.CDLL(None).memcmp
_MEMCMP.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass
class Taken:
    """What a call gave: each output image's bytes when it was over.

    when: `before` or `after` (the outputs changed before the call's turn, or after it was over), `ahead` (they are
    others where the call could begin before its turn), empty if none of that; changed_bytes: how many of theirs did.
    """

    outputs: dict[str, Any]
    when: str = ""
    changed_bytes: int = 0


class Order(Protocol):
    """How calls are made on one kind of device."""

    def call(
        self,
        act: Callable[[], None],
        images: Mapping[str, Image],
        outputs: Sequence[str],
        prepare: Callable[[], None] = lambda: None,
        repeat: int = 0,
        *,
        may_begin_early: bool = True,
    ) -> Taken:
        """Make one call, `act`, behind `prepare`, which may write to outputs; returns when all of it is done.

        repeat: which repeat of the same call it is. Only the first, 0, is watched for work that is out of order; on a
        GPU the others run beside some load. may_begin_early: false for a call none of whose kernels is launched so
        that it may begin before what is queued before it has ended.
        """
        ...


@functools.cache
def _libm() -> ctypes.CDLL:
    """Opened once: what a call costs counts a hundred times."""
    return ctypes.CDLL("libm.so.6")


class _Environment(ctypes.Structure):
    """`fenv_t`, with room to spare; on x86-64 (glibc's bits/fenv.h) MXCSR is the last of its 32 bytes' eight words."""

    _fields_ = (("words", ctypes.c_uint32 * 32),)


def _rounding(environment: _Environment) -> int:
    """This thread's rounding mode, by which vector units go too: fegetround knows that of the x87 alone on x86-64."""
    _libm().fegetenv(ctypes.byref(environment))
    vectors: int = environment.words[MXCSR_WORD] & MXCSR_ROUNDING
    return vectors | int(_libm().fegetround())


@contextlib.contextmanager
def rounding_kept() -> Iterator[None]:
    """Raises WorkerReplyError where a call leaves its thread another rounding mode than it found (man 3 fenv)."""
    before = _Environment()
    found = _rounding(before)
    try:
        yield
    finally:
        left = _rounding(_Environment())
        if left != found:
            _libm().fesetenv(ctypes.byref(before))
    if left != found:
        raise WorkerReplyError(f"it left its thread the rounding mode {left:#x} where it found {found:#x}")


def order_on(device: str) -> Order:
    """How calls are made on `cpu` or `cuda`."""
    return OnStream() if device == "cuda" else OnHost()


class OnHost:
    """Calls on a CPU.

    Once a call is over its outputs are looked at again after as long as it took. Small ones hold other bits meanwhile,
    and every WATCHED_LONG-th time for LATE_WAIT_S: a thread that was not joined shows there, even if what it writes is
    right.
    """

    def __init__(self) -> None:
        self.watched = 0

    def call(
        self,
        act: Callable[[], None],
        images: Mapping[str, Image],
        outputs: Sequence[str],
        prepare: Callable[[], None] = lambda: None,
        repeat: int = 0,
        *,
        may_begin_early: bool = True,
    ) -> Taken:
        """See Order."""
        prepare()
        started = time.monotonic()
        with rounding_kept():
            act()
        duration_s = time.monotonic() - started
        taken = Taken({name: _copy(images[name].raw) for name in outputs})
        if repeat == 0:
            wait_s = max(0.0, min(LATE_WAIT_S, duration_s))
            results = {name: compared(images[name].raw) for name in outputs}
            kept = {name: compared(raw) for name, raw in taken.outputs.items()}
            small = sum(raw.nbytes for raw in results.values()) <= SCRAMBLED_BYTES
            if not small:
                time.sleep(wait_s)
            _note(taken, "after", kept, results)
            if small and not taken.when:
                scrambled = {name: ~raw for name, raw in kept.items()}
                _set(scrambled, results)
                time.sleep(LATE_WAIT_S if self.watched % WATCHED_LONG == 0 else wait_s)
                self.watched += 1
                _note(taken, "after", scrambled, results)
                _set(kept, results)
        return taken


class OnStream:
    """Calls on a GPU."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        # torch's streams do not wait for the default stream, nor it for them.
        self.stream, self.probe = torch.cuda.Stream(), torch.cuda.Stream()
        self.done = torch.cuda.Event()
        self.queueing_us = 0.0
        self.load = Load()
        self.turn = 0  # of what lies in shared memory: one call finds the same, however often it is tried

    def call(
        self,
        act: Callable[[], None],
        images: Mapping[str, Image],
        outputs: Sequence[str],
        prepare: Callable[[], None] = lambda: None,
        repeat: int = 0,
        *,
        may_begin_early: bool = True,
    ) -> Taken:
        """See Order."""
        results = {name: images[name].raw for name in outputs}
        late = LateInputs({id(image): image.raw for image in images.values()}.values())  # of two inputs one may be
        self.turn += 1

        def behind(*, ahead: bool, watched: bool = False) -> Taken:
            return self.behind(late, act, prepare, results, repeat, ahead=ahead, watched=watched)

        if repeat > 0:
            return behind(ahead=False)
        found = {name: raw.clone() for name, raw in results.items()}
        taken = behind(ahead=may_begin_early, watched=True)
        if may_begin_early and not taken.when and has_dependent_launch():

            def again(*, ahead: bool) -> dict[str, Any]:
                _put(found, results)
                return behind(ahead=ahead).outputs

            usual = again(ahead=False)
            changed = _changed(usual, taken.outputs)
            if changed and all(
                not _changed(usual, again(ahead=False)) and _changed(usual, again(ahead=True))
                for _ in range(AHEAD_PAIRS)
            ):
                taken.when, taken.changed_bytes = "ahead", changed
            _put(taken.outputs, results)
        return taken

    def behind(
        self,
        late: LateInputs,
        act: Callable[[], None],
        prepare: Callable[[], None],
        results: Mapping[str, Any],
        repeat: int,
        *,
        ahead: bool,
        watched: bool,
    ) -> Taken:
        """One call behind the gate, until all is done. `ahead`: the gate lets it begin, and it has to wait itself."""
        cuda = self.torch.cuda
        cuda.synchronize()  # what was copied on the default stream is there
        with on_stream(cuda.stream(self.stream)):
            prepare()
            late.scramble()
            late.shut()
        cuda.synchronize()
        before = {name: raw.clone() for name, raw in results.items()} if watched else {}
        cuda.synchronize()
        if repeat:
            self.load.prepare()
        with on_stream(cuda.stream(self.stream)):
            shared_memory.fill(self.turn)  # behind it come kernels alone that keep it: the load and the gate
        cuda.synchronize()
        gate_us = min(GATE_LIMIT_US, max(GATE_US, 2 * self.queueing_us))
        if repeat:
            self.load.start(repeat, int((3 * gate_us + EMPTYING_US) * late.cycles_per_us))
        started = time.monotonic()
        with on_stream(cuda.stream(self.stream)):
            late.scramble(gate_us, ahead=ahead)
            if repeat:
                self.load.empty_cache(repeat)
            act()
            early = self.early(late, results) if watched else {}
            self.queueing_us = 1e6 * (time.monotonic() - started)
            taken = Taken({name: raw.clone() for name, raw in results.items()})
            self.done.record(self.stream)
        self.done.synchronize()
        duration_s = time.monotonic() - started
        cuda.synchronize()
        if early:
            _note(taken, "before", before, early)
        if watched and not taken.when:
            time.sleep(max(0.0, min(LATE_WAIT_S, duration_s)))
            cuda.synchronize()
            _note(taken, "after", taken.outputs, results)
        return taken

    def early(self, late: LateInputs, results: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs as they are while the gate is closed; nothing when it opened meanwhile."""
        with self.torch.cuda.stream(self.probe):
            seen = {name: raw.clone() for name, raw in results.items()}
            return {} if late.opened.item() else seen


def _put(values: Mapping[str, Any], into: Mapping[str, Any]) -> None:
    for name, raw in into.items():
        raw.copy_(values[name])


def _set(values: Mapping[str, Any], into: Mapping[str, Any]) -> None:
    for name, raw in into.items():
        raw[...] = values[name]


def _note(taken: Taken, when: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Note in how many bytes two states of the outputs differ, where they do."""
    if changed := _changed(then, now):
        taken.when, taken.changed_bytes = when, changed


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    """The bytes in which two states of the outputs differ."""
    changed = [name for name, value in then.items() if not alike(now[name], value)]
    return sum(int((compared(now[name]) != compared(then[name])).sum()) or 1 for name in changed)


def alike(now: Any, then: Any) -> bool:
    """Whether two arrays of integers, of one type and shape, are the same.

    In the host's memory the C library compares them, in a quarter of the time: it makes no mask, which is as large.
    """
    now, then = compared(now), compared(then)
    if now.shape != then.shape:  # of a tensor that its owner has resized
        return False
    if hasattr(now, "ctypes") and now.flags.c_contiguous and then.flags.c_contiguous:
        return bool(_MEMCMP(now.ctypes.data, then.ctypes.data, now.nbytes) == 0)
    return not bool((now != then).any())


def compared(values: Any) -> Any:
    """The same memory, to be compared with other: of the host's it is NumPy's, ten times as fast at that as torch."""
    return values.numpy() if getattr(values, "is_cpu", False) else values


def _copy(raw: Any) -> Any:
    return raw.copy() if hasattr(raw, "copy") else raw.clone()


# --- load -------------------------------------------------------------------------------------------------------------

# Adds to words of memory until so many clock cycles have passed.
BUSY_PTX = b"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry kernelproof_busy(.param .u64 words, .param .u32 mask, .param .u64 cycles)
{
    .reg .pred %more;
    .reg .u32 %block, %threads, %thread, %index, %last, %word;
    .reg .u64 %base, %offset, %address, %limit, %begin, %now, %spent;
    ld.param.u64 %base, [words];
    ld.param.u32 %last, [mask];
    ld.param.u64 %limit, [cycles];
    cvta.to.global.u64 %base, %base;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    mov.u64 %begin, %clock64;
again:
    and.b32 %index, %index, %last;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %address, %base, %offset;
    ld.volatile.global.u32 %word, [%address];
    add.u32 %word, %word, 1;
    st.volatile.global.u32 [%address], %word;
    add.u32 %index, %index, 7919;
    mov.u64 %now, %clock64;
    sub.u64 %spent, %now, %begin;
    setp.lt.u64 %more, %spent, %limit;
    @%more bra again;
    ret;
}
"""


class Load:
    """Work of ours that keeps a part of the multiprocessors and of the memory busy while a call is repeated."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.stream = torch.cuda.Stream()
        device = torch.cuda.get_device_properties(0)
        self.multiprocessors = device.multi_processor_count
        # Of 4 bytes, twice the cache or more, and a power of two, as the kernel's mask wants it.
        self.far_words = max(NEAR_WORDS, 1 << (2 * device.L2_cache_size // 4).bit_length())
        self.words: Any = None
        self.function = ctypes.c_void_p()

    def start(self, turn: int, cycles: int) -> None:
        """Begin the load of this turn, which ends by itself after so many cycles; `prepare` comes before it."""
        blocks = round(LOADS[turn % len(LOADS)] * self.multiprocessors)
        if not blocks:
            return
        reached = self.far_words if _is_cold(turn) else NEAR_WORDS
        words, mask = ctypes.c_uint64(self.words.data_ptr()), ctypes.c_uint32(reached - 1)
        arguments = (words, mask, ctypes.c_uint64(cycles))
        cuda_driver.launch(self.function, blocks, LOAD_THREADS, arguments, self.stream.cuda_stream)

    def empty_cache(self, turn: int) -> None:
        """On the current stream, in a turn that wants it: put other bytes where the call's inputs are cached.

        `prepare` comes before it. What was left in shared memory is lost.
        """
        if _is_cold(turn):
            self.words.zero_()

    def prepare(self) -> None:
        """Have the driver compile the kernel, once."""
        if self.words is not None:
            return
        words = self.torch.zeros(self.far_words, dtype=self.torch.int32, device="cuda")
        self.torch.cuda.synchronize()
        self.function = cuda_driver.compiled(BUSY_PTX, "kernelproof_busy")
        shared_memory.keep_carveout(self.function)
        self.words = words


def _is_cold(turn: int) -> bool:
    return turn // len(LOADS) % 2 == 1
