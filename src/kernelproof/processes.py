"""The one door through which processes are started.

Every child runs in its own process group, is killed whole when it overruns its time or when we are interrupted, and
dies with us (PR_SET_PDEATHSIG), so that a `kill -9` of a run leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeVar, get_args

from kernelproof.errors import ToolError, describe_exit
from kernelproof.privacy import scrubbed

T = TypeVar("T")
HasScratch = Literal["test", "bench", "once", "selfcheck"]  # whose folders are known, and swept, by their names
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Judges and candidates of several variants share the cores. A team whose threads spin at each barrier until the last
# one is given a core took seven times the processor time of one that sleeps (two threads on two cores, load 12), and
# the test stage on two cores took half as long again. But a thread that slept wakes when a short call is over: of two
# planted races at three sizes, six times 100 repeats each, a team that sleeps showed 12 of 36, one that spins all.
IDLE_THREADS_SLEEP = {"OMP_WAIT_POLICY": "passive"}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_PERTURB = -1, -3, -6  # <malloc.h>
# Bytes, of which fresh memory of a candidate is full of one or the other: a number whose sums show (float16 alone has a
# NaN there), which as an index is far outside; and a NaN of every type, which shows where it is multiplied by 0.
FILL, NAN_FILL = 0x7F, 0xFF
STACK_BYTES = 1 << 20  # of a stack are full of it too
KEPT_BYTES, LARGE_BYTES = 256 << 20, 32 << 20  # the second is the most that glibc takes
SHARED_FROM = 8  # cores: half of fewer is too little to drive a GPU, or to stand for a CPU
ROOM_S = 20.0  # how long is waited until another process may be started
SETTLED_S = 10.0  # a temporary folder younger than this may not have its lock yet
SHARED_MEMORY = Path("/dev/shm")
AMPLE_BYTES = 2 << 30  # of memory: what lies in files at a time, the judge of the same calls holds many times over
_LIBC = ctypes.CDLL(None, use_errno=True)


def collect_rarely() -> None:
    """Let Python look for unreachable objects seldom.

    Importing torch makes some 300,000 objects that live to the end; looking through them again and again costs as much
    as a third of the import.
    """
    gc.set_threshold(100_000, 20, 20)


def prepare_output() -> None:
    """Let what is printed never end a program: whether its streams are closed, or lack letters (a locale not of UTF-8).

    A stream that the shell closed (`>&-`) goes nowhere; else the next file that is opened would be in its place.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  until the process ends
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def keep_freed_memory() -> None:
    """Let this process use memory again that it freed, instead of giving it back to the system each time.

    A reference and what is held against it make tensors of some MB by the dozen. To map each anew, page by page, was a
    third of the time that the judge of 2 million elements took. Where the C library is another than glibc, nothing.
    """
    with contextlib.suppress(AttributeError):
        _LIBC.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        _LIBC.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        _LIBC.mallopt(M_PERTURB, 0)  # no fills: another user of this process may have asked for them


def fill_fresh_memory(byte: int = FILL) -> None:
    """Let malloc fill what it hands out: of a large piece the system hands out zeros, which pass for memory cleared.

    What is freed is filled too, with the complement.
    """
    with contextlib.suppress(AttributeError):
        # glibc fills with the complement of the low byte, and with nothing where the whole number is 0.
        _LIBC.mallopt(M_PERTURB, 0x100 | byte ^ 0xFF)


class _Stacked(ctypes.Structure):
    """An argument that is handed over by its value: a copy of it lies on the stack, and is left there."""

    _fields_ = (("bytes", ctypes.c_ubyte * STACK_BYTES),)


def fill_stack(byte: int = FILL) -> None:
    """Leave on this thread's stack, below what is in use, the bytes that fresh memory has, where it has ample room.

    A stack that nobody has used holds zeros, which pass for variables that were set.
    """
    room, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if room == resource.RLIM_INFINITY or room >= 4 * STACK_BYTES:
        _LIBC.getppid(_filled(byte))


@functools.cache
def _filled(byte: int) -> _Stacked:
    return _Stacked.from_buffer_copy(bytes([byte]) * STACK_BYTES)


@dataclass(frozen=True)
class Completed:
    """A finished process: its command line, exit status, output and wall time in seconds."""

    argv: list[str]
    returncode: int
    stdout: str
    stderr: str
    duration_s: float


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    log: Path | None = None,
    check: bool = True,
    input: str | None = None,
    stop_signal: int = signal.SIGKILL,
) -> Completed:
    """Run a command to its end and give back its output.

    `stop_signal` ends it when we are interrupted or die: SIGTERM for a program that must pass it on to process groups
    of its own (ninja).
    `log` receives the command line and both streams, scrubbed. Raises ToolError when the program is missing, runs past
    `timeout_s`, or (with `check`) ends with another status than 0.
    """
    started = start(argv, cwd=cwd, env=env, reads=input is not None, stop_signal=stop_signal)
    return started.finish(timeout_s=timeout_s, log=log, check=check, input=input)


def start(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    reads: bool = False,
    stop_signal: int = signal.SIGKILL,
) -> Started:
    """Start what `run` runs, to be waited for later. Raises ToolError when the program is missing."""
    command = [str(part) for part in argv]
    started = time.monotonic()
    try:
        process = spawn(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stop_signal=stop_signal,
        )
    except FileNotFoundError:
        raise ToolError(
            "the program is not there", subject=command[0], hint="kernelproof doctor says what is missing"
        ) from None
    except OSError as error:
        raise ToolError(f"the program cannot be started: {error.strerror}", subject=command[0]) from None
    return Started(command, process, stop_signal, started)


@dataclass(frozen=True)
class Started:
    """A process under way, and since when by the monotonic clock."""

    argv: list[str]
    process: subprocess.Popen[str]
    stop_signal: int
    since: float

    def finish(
        self, *, timeout_s: float | None = None, log: Path | None = None, check: bool = True, input: str | None = None
    ) -> Completed:
        """Wait for its end, at most `timeout_s` from now; otherwise as `run`."""
        process, command = self.process, self.argv
        try:
            stdout, stderr = process.communicate(input, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            stdout, stderr = process.communicate()
            _write_log(log, command, stdout, stderr)
            raise ToolError(
                f"ran past its limit of {timeout_s:g} s and was killed",
                subject=command[0],
                log=log,
                output=stdout + stderr,
            ) from None
        except BaseException:
            self.stop()
            raise
        duration_s = time.monotonic() - self.since
        _write_log(log, command, stdout, stderr)
        if check and process.returncode != 0:
            tail = "\n".join(scrubbed(stderr.strip() or stdout.strip()).splitlines()[-15:])
            raise ToolError(
                f"{describe_exit(process.returncode)}\n{tail}",
                subject=" ".join(command[:3]),
                log=log,
                returncode=process.returncode,
                output=stdout + stderr,
            )
        return Completed(command, process.returncode, stdout, stderr, duration_s)

    def stop(self) -> None:
        """Ask it to end if it has to pass that on, then kill it and its group."""
        if self.stop_signal != signal.SIGKILL and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=2)
        kill_group(self.process)

    def abandon(self) -> None:
        """Stop it, unless it was waited for, whatever it still has to say: who holds the other end may live on."""
        if self.process.returncode is None:
            self.stop()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


def spawn(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdin: int | IO[str] | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[str] | IO[bytes] | None = None,
    stderr: int | IO[str] | IO[bytes] | None = None,
    text: bool = False,
    stop_signal: int = signal.SIGKILL,
) -> subprocess.Popen[str]:
    """Start a process that outlives the call, in a process group of its own; it is killed when we die."""
    return once_there_is_room(
        lambda: subprocess.Popen(
            [str(part) for part in argv],
            cwd=cwd,
            env=dict(env) if env is not None else None,
            pass_fds=tuple(pass_fds),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
            errors="replace" if text else None,
            process_group=0,
            preexec_fn=_die_with_parent(os.getpid(), stop_signal),
        )
    )


def once_there_is_room(fork: Callable[[], T]) -> T:
    """What `fork` gives, tried again for ROOM_S while the system has as many processes as it allows (EAGAIN, man fork).

    The limit counts threads too (RLIMIT_NPROC, pids.max). Tests that run beside each other on a large machine have
    hundreds, and reach it for moments. It is for processes alone: a thread that cannot be started is not tried again.
    """
    deadline = time.monotonic() + ROOM_S
    while True:
        try:
            return fork()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(ROOM_S / 100)


def python_path() -> str:
    """PYTHONPATH for a child that must import this very package: where it lies, then what we were given."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(Path(__file__).resolve().parents[1]), *filter(None, given)]))


# For a process that runs candidates: TVM-FFI would compile an extension into the home folder.
NO_EXTENSION = {"TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}


def own_environment() -> dict[str, str]:
    """Our environment, for a child that must import this very package."""
    return {**os.environ, "PYTHONPATH": python_path()}


def end(process: subprocess.Popen[str], limit_s: float) -> None:
    """Let a process that was told to end do so, then kill it and what is left of its group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=limit_s)
    kill_group(process)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and every other one in its group, and reap it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with_parent(parent: int, death_signal: int = signal.SIGKILL) -> None:
    """Have the kernel send this process `death_signal` when its parent (whose PID is `parent`) dies."""
    _LIBC.prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), death_signal)


def _die_with_parent(parent: int, death_signal: int) -> Callable[[], None]:
    return lambda: die_with_parent(parent, death_signal)


def end_with(pid: int) -> None:
    """End this process and its children when process `pid`, not necessarily our parent, ends.

    A thread sleeps on a pidfd, which costs nothing while a benchmark runs. Snakemake starts a stage through a shell, so
    the stage's parent is not the run that it belongs to.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(128 + signal.SIGKILL)

    def wait() -> None:
        import select

        select.select([descriptor], [], [])
        os._exit(128 + signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="end-with-run").start()


@contextlib.contextmanager
def scratch_folder(stage: HasScratch, *, in_memory: bool = False) -> Iterator[Path]:
    """A temporary folder, removed at the end; what killed stages left of theirs is removed at the beginning.

    `in_memory`: on no disk, where there is ample memory for that and the environment names no place (see
    `tempfile.gettempdir`). A lock on the folder says that its process lives; the kernel frees it however that ends.
    """
    sweep()
    named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    place = SHARED_MEMORY if in_memory and not named and _has_ample_memory() else None
    with tempfile.TemporaryDirectory(prefix=_prefix(stage), dir=place) as folder, _locked(Path(folder)):
        yield Path(folder)


def sweep() -> None:
    """Remove the scratch folders that stages which were killed left behind, on the disk and in memory."""
    for place in (Path(tempfile.gettempdir()), SHARED_MEMORY):
        for left in (found for stage in get_args(HasScratch) for found in place.glob(f"{_prefix(stage)}*")):
            with contextlib.suppress(OSError):
                about = left.stat(follow_symlinks=False)
                if about.st_uid == os.getuid() and time.time() - about.st_mtime > SETTLED_S:
                    with _locked(left):
                        remove_tree(left)


def _prefix(stage: str) -> str:
    return f"kernelproof-{stage}-"


def _has_ample_memory() -> bool:
    """Whether files may lie in memory: in a place that takes programs too, with room there, here and on the machine."""
    try:
        place = os.statvfs(SHARED_MEMORY)
        of_machine = re.findall(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return False
    free = [place.f_bavail * place.f_frsize, *(int(kilobytes) << 10 for kilobytes in of_machine), *_left_to_groups()]
    return min(free) >= AMPLE_BYTES and not place.f_flag & os.ST_NOEXEC and os.access(SHARED_MEMORY, os.W_OK)


def _left_to_groups(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """The bytes of memory that each control group of this process may still take (man 7 cgroups, both versions).

    In a container the groups' names may be those outside it, and the mounted folder its own group.
    """
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, path = line.split(":", 2)
        second = not controllers
        if not second and "memory" not in controllers.split(","):
            continue
        top = mounted if second else mounted / "memory"
        names = ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        own = top / path.strip("/")
        for folder in {top, own, *(parent for parent in own.parents if top in parent.parents)}:
            with contextlib.suppress(OSError, ValueError):  # ValueError: it has no limit
                limit, used = (int((folder / name).read_text()) for name in names)
                yield limit - used


def remove_tree(folder: Path) -> None:
    """Remove a folder that a candidate could write to: nested deeper than Python's stack, or partly not removable."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        with contextlib.suppress(ToolError):
            run(["rm", "-rf", "--", folder], check=False, timeout_s=60)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock. Raises OSError when another process does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _write_log(log: Path | None, command: list[str], stdout: str, stderr: str) -> None:
    if log is None:
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as stream:
        stream.write(scrubbed("$ " + " ".join(command) + "\n" + stdout + stderr))
        if not (stdout + stderr).endswith("\n"):
            stream.write("\n")


def cores_to_measure_on(count: int) -> set[int]:
    """So many of the cores that we may use, where other threads cannot push a measurement to and fro.

    Threads of different cores come before those that share one, and the last before the first, which serve interrupts.
    """
    shared = Counter[str]()
    ranked: list[tuple[int, int]] = []
    for core in sorted(os.sched_getaffinity(0), reverse=True):
        siblings = _siblings(core)
        ranked.append((shared[siblings], -core))
        shared[siblings] += 1
    return {-core for _, core in sorted(ranked)[:count]}


def cores_beside(device: str) -> set[int]:
    """Those of our cores that a measurement on a device keeps to where there is a GPU too.

    Kernels of a CPU and those of GPUs are then timed beside each other: of `SHARED_FROM` cores and more the last half
    is the CPU's, threads of one core together, and the rest is for who drives a GPU. Fewer are everybody's, in turn.
    """
    ours = os.sched_getaffinity(0)
    if len(ours) < SHARED_FROM:
        return ours
    of_cpu = set(sorted(ours, key=lambda core: (-_first_of(core), -core))[: len(ours) // 2])
    return of_cpu if device == "cpu" else ours - of_cpu


def _first_of(core: int) -> int:
    """The lowest number among the threads of a core."""
    return int(re.split("[-,]", _siblings(core))[0])


def _siblings(core: int) -> str:
    """Which threads share a core, as Linux lists them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(core)


@contextlib.contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """What this thread starts meanwhile stays on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def processor_time_s(pid: int) -> float:
    """Seconds that a process's threads, ended ones too, have had a core (man 3 clock_getcpuclockid); 0 of none."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def ended_children_s(pid: int) -> float:
    """Seconds that a process's children had a core which have ended and were waited for (man 5 proc); 0 of none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[13:15]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
