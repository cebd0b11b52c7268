"""One measurement a GPU: a lock on the board, held alone while kernelproof times or profiles on it, or among tests.

A file in the machine's temporary folder, named by the hash of the board's UUID, carries the lock (flock): the kernel
frees it however its holders end, and the file stays. A second one is held by whoever waits for the board alone: while
it is, nobody new shares the board, or tests that overlap would keep it from them for ever. Whoever does not use
kernelproof is not kept away; that is what the list of processes on the GPU in a record is for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelproof import RUN_PID, gpu, processes
from kernelproof.errors import LeaseError

POLL_S, LOOK_S = 0.1, 0.01
CLAIM = "-next"  # behind a board's name: who is to have it alone


@contextlib.contextmanager
def gpu_lease(wait_s: float, stage: str, *, shared: bool = False) -> Iterator[str]:
    """Hold the first visible GPU that is free, and make it the only one this process and its children see.

    Those that share one take the last that nobody measures on, so that tests leave the others alone. Gives back what
    stands for its UUID. Waits at most `wait_s` seconds for others, saying so once on standard error, and for jobs of
    the same run as long as those take. Raises LeaseError when none becomes free. Must be entered before CUDA starts in
    this process.
    """
    boards = gpu.visible()
    if not boards:
        raise LeaseError("CUDA_VISIBLE_DEVICES leaves no GPU of this machine", subject=stage)
    with contextlib.ExitStack() as held:
        uuid, descriptor = _take(boards[::-1] if shared else boards, wait_s, stage, shared)
        held.callback(os.close, descriptor)
        if RUN_PID in os.environ:
            held.callback(os.close, _hold_for_run())
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        try:
            yield gpu.uuid_sha256(uuid)
        finally:
            if before is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = before


def own_cores(device: str) -> contextlib.AbstractContextManager[None]:
    """Where there is a GPU, keep what this thread starts meanwhile to the cores of those who measure on a device.

    So that kernels of the CPU are timed beside those of a GPU, and neither is in the other's way.
    """
    return processes.pinned(processes.cores_beside(device)) if gpu.available()[0] else contextlib.nullcontext()


def _of_run() -> str:
    """The lock that whoever holds a board in this folder's run shares."""
    return f"run-{hashlib.sha256(os.getcwd().encode()).hexdigest()[:16]}"


def _hold_for_run() -> int:
    while (descriptor := lock(_of_run(), shared=True)) is None:  # somebody looks
        time.sleep(LOOK_S)
    return descriptor


def _run_holds_one() -> bool:
    """Whether another job of our run holds a board."""
    if RUN_PID not in os.environ:
        return False
    if (descriptor := lock(_of_run())) is None:
        return True
    os.close(descriptor)
    return False


def _take(boards: Sequence[str], wait_s: float, stage: str, shared: bool) -> tuple[str, int]:
    deadline, told = time.monotonic() + wait_s, False
    claim: int | None = None
    try:
        while True:
            for uuid in boards:
                if (descriptor := _joined(uuid) if shared else lock(gpu.uuid_sha256(uuid))) is not None:
                    return uuid, descriptor
            if _run_holds_one():
                deadline = time.monotonic() + wait_s
            elif time.monotonic() >= deadline:
                several = f"all {len(boards)} GPUs are" if len(boards) > 1 else "the GPU is"
                raise LeaseError(
                    f"{several} in use by another kernelproof, and {wait_s:g} s of waiting have passed",
                    subject=stage,
                    hint="wait for it to end, or set bench.gpu_wait_s to more seconds",
                )
            elif not told:
                print(
                    f"{stage}: waiting for another kernelproof to leave the GPU ({wait_s:g} s at most)", file=sys.stderr
                )
                told = True
            if not shared and claim is None:
                claim = _claim(boards)
            time.sleep(POLL_S)
    finally:
        if claim is not None:
            os.close(claim)


def _joined(uuid: str) -> int | None:
    """The lock of a board beside others, unless somebody waits for it alone."""
    name = gpu.uuid_sha256(uuid)
    if (claim := lock(name + CLAIM, shared=True)) is None:
        return None
    try:
        return lock(name, shared=True)
    finally:
        os.close(claim)


def _claim(boards: Sequence[str]) -> int | None:
    """What says that we wait for a board, of which nobody else says so; None where others wait for each."""
    claims = (lock(gpu.uuid_sha256(uuid) + CLAIM) for uuid in boards)
    return next((claim for claim in claims if claim is not None), None)


def lock(name: str, shared: bool = False) -> int | None:
    """The open, locked file of a board; None when another process holds it. Raises LeaseError where none can be made.

    A file that another user made is only read: a lock needs no more.
    """
    path = Path(tempfile.gettempdir(), f"kernelproof-gpu-{name}.lock")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            descriptor = os.open(path, flags)
    except OSError as error:
        raise LeaseError(
            f"the lock cannot be opened: {error.strerror}", subject=str(path), hint="remove the file, or set TMPDIR"
        ) from None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
