"""What a device reaches at its best: the roofs that kernels are drawn under, measured on it and not looked up.

- *copy*: bytes read and written a second, by the faster of two ways to copy buffers far larger than any cache.
- *tensor_…*, *matmul_…*: operations a second of a large matrix product on random values, by the vendor's library. The
  values matter: on zeros a GPU draws less power, and clocks higher.

A part of the bench stage, in a process of its own in which no candidate ever runs. Measured once a machine: the record
is made again when the machine, its driver or torch is another.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelproof import fingerprints, gpu, lease, repository
from kernelproof.config import Config
from kernelproof.errors import BenchError, LeaseError
from kernelproof.records import FAILED, NOT_RUN, Ceiling, CeilingsRecord, write

COPY, TENSOR, TENSOR_FP8, MATMUL = "copy", "tensor_bfloat16", "tensor_float8_e4m3fn", "matmul_float32"
GIB = 1 << 30
MEMORY_SHARE = 16  # a buffer is at most this part of the memory
LEAST_BYTES, CACHES = 256 << 20, 4  # on a CPU a buffer is at least so large, and so many times the last-level cache
SAMPLES, SAMPLE_S = 8, 4e-3  # a sample is a batch of calls at least this long
MAX_SECONDS = 0.4  # for one way; at least three samples in any case
FP8_CAPABILITY = (8, 9)
SIZES = {"cuda": {TENSOR: 8192, TENSOR_FP8: 8192, MATMUL: 4096}, "cpu": {MATMUL: 2048}}


@dataclass(frozen=True)
class Way:
    """One way to reach a ceiling: what is called, and what one call moves (B) or computes (FLOP)."""

    how: str
    call: Callable[[], object]
    amount: float


def run(config: Config, device: str, output: Path) -> CeilingsRecord:
    """Measure the device's ceilings and write their record: not_run without the device, failed if nothing came of it.

    A GPU is held meanwhile; not_run too where none becomes free. A ceiling that cannot be measured (no memory, no such
    data type) is left out with the reason; the others stand.
    """
    started = time.monotonic()
    record = CeilingsRecord(device=device, provenance=repository.provenance(config.root))
    record.settings = fingerprints.of(config, "bench", f"ceilings/{device}")
    present, why = gpu.available() if device == "cuda" else (True, None)
    if present:
        alone = lease.gpu_lease(config.bench.gpu_wait_s, "ceilings") if device == "cuda" else contextlib.nullcontext()
        try:
            with alone, lease.own_cores(device):
                _measure(config, record)
        except LeaseError as busy:
            record.status, record.reason, record.remedy = NOT_RUN, busy.message, busy.hint
    else:
        record.status, record.reason = NOT_RUN, f"no GPU: {why}"
        record.remedy = "run it on a machine with an NVIDIA GPU and driver"
    record.duration_s = round(time.monotonic() - started, 3)
    write(output, record)
    return record


def _measure(config: Config, record: CeilingsRecord) -> None:
    import torch

    record.torch = torch.__version__
    if record.device == "cuda":
        board = gpu.gpus()[_board()]
        record.model, record.driver = board.name, board.driver
        clock: Clock = EventClock(torch)
    else:
        record.model = _cpu_model()
        record.threads = config.bench.cpu_threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(record.threads)
        clock = Clock()
    torch.manual_seed(0)
    for name, ways in _all_ways(torch, record.device):
        try:
            found = [_ceiling(name, way, clock) for way in ways()]
            record.ceilings.append(max(found, key=lambda ceiling: ceiling.median))
        except (RuntimeError, BenchError, AttributeError, TypeError) as error:  # torch's own; of another torch
            record.left_out[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
    if not record.ceilings:
        record.status, record.reason = FAILED, "; ".join(f"{name}: {why}" for name, why in record.left_out.items())


# --- the ways ---------------------------------------------------------------------------------------------------------


def _all_ways(torch: Any, device: str) -> Iterator[tuple[str, Callable[[], list[Way]]]]:
    """(name, what makes its ways) of every ceiling; made one after the other, so that memory is free again."""
    yield COPY, lambda: _copies(torch, device)
    if device == "cuda":
        yield TENSOR, lambda: [_matmul(torch, device, TENSOR, torch.bfloat16)]
        yield TENSOR_FP8, lambda: [_matmul_fp8(torch)]
    yield MATMUL, lambda: [_matmul(torch, device, MATMUL, torch.float32)]


def _copies(torch: Any, device: str) -> list[Way]:
    size = _buffer_bytes(torch, device)
    source = torch.randint(-(1 << 62), 1 << 62, (size // 8,), dtype=torch.int64, device=device)
    target = torch.zeros_like(source)
    words = f"{size >> 20} MiB to {size >> 20} MiB, read and written"
    return [
        Way(f"the library's copy, {words}", lambda: target.copy_(source), 2 * size),
        Way(f"a kernel that negates, {words}", lambda: torch.neg(source, out=target), 2 * size),
    ]


def _buffer_bytes(torch: Any, device: str) -> int:
    if device == "cuda":
        return int(min(GIB, torch.cuda.get_device_properties(0).total_memory // MEMORY_SHARE)) // 8 * 8
    cache = os.sysconf("SC_LEVEL3_CACHE_SIZE") if "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names else 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(LEAST_BYTES, min(CACHES * cache, GIB)), memory // MEMORY_SHARE) // 8 * 8


def _matmul(torch: Any, device: str, name: str, dtype: Any) -> Way:
    """A square product; float32 in true float32, which is torch's own default for products."""
    n = SIZES[device][name]
    left, right = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    target = torch.empty(n, n, dtype=dtype, device=device)
    kind = str(dtype).removeprefix("torch.")
    return Way(f"{n}³ of {kind}, normal values", lambda: torch.matmul(left, right, out=target), 2.0 * n**3)


def _matmul_fp8(torch: Any) -> Way:
    """The same on float8_e4m3fn, by what torch's scaled products call; it wants the right side by columns."""
    if torch.cuda.get_device_capability(0) < FP8_CAPABILITY:
        raise BenchError("this GPU's tensor cores do not take float8_e4m3fn", subject=TENSOR_FP8)
    n = SIZES["cuda"][TENSOR_FP8]
    left, right = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")

    def call() -> object:
        return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return Way(f"{n}³ of float8_e4m3fn, normal values", call, 2.0 * n**3)


# --- the clocks -------------------------------------------------------------------------------------------------------


class Clock:
    """Times a batch of calls, s: by the host's clock, which on a CPU is the only one."""

    def seconds(self, call: Callable[[], object], count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - started

    def state(self) -> gpu.GpuSample | None:
        """Of the GPU, in the last batch."""
        return None


class EventClock(Clock):
    """Times a batch of calls by CUDA events around it, and looks at the board while it runs."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.board = _board()
        self.seen: gpu.GpuSample | None = None

    def seconds(self, call: Callable[[], object], count: int) -> float:
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            call()
        last.record()
        self.seen = gpu.sample(self.board)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def state(self) -> gpu.GpuSample | None:
        return self.seen


def _board() -> int:
    return gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))


def _ceiling(name: str, way: Way, clock: Clock) -> Ceiling:
    """Batches of calls after a first call, which sets the library up, and one that says how many fill a sample."""
    clock.seconds(way.call, 1)
    once_s = clock.seconds(way.call, 1)
    count = max(1, round(SAMPLE_S / once_s))
    rates: list[float] = []
    spent_s = 0.0
    while len(rates) < 3 or (len(rates) < SAMPLES and spent_s < MAX_SECONDS):
        taken_s = clock.seconds(way.call, count)
        spent_s += taken_s
        rates.append(way.amount * count / taken_s)
    state = clock.state()
    return Ceiling(
        name=name,
        unit="B/s" if name == COPY else "FLOP/s",
        median=_rounded(statistics.median(rates)),
        low=_rounded(min(rates)),
        high=_rounded(max(rates)),
        samples=len(rates),
        how=way.how,
        sm_clock_mhz=state.sm_clock_mhz if state else None,
        throttle=state.throttle_reasons if state else [],
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _cpu_model() -> str | None:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), None)
