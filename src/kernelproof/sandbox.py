"""What a worker gives up before it loads a candidate, by what this kernel offers, and what was achieved.

`enter` goes as far as it can and never further than it says: `measure` then tries what must not work, from within the
very process that will load the candidate, and what was refused is what the record states. The parts are

- no_new_privs and no capabilities (root in a container is the usual case), limits on processes and on the log;
- Landlock (Linux 5.13, with more of it up to 6.15): writing only beneath the worker's scratch folder; reading all but
  other processes' /proc, devices, and the folders that the run keeps to itself; no TCP; no signals, abstract sockets,
  ptrace or /proc/PID/mem across the border. /dev/shm stays shut, but for a scratch folder there: it outlives the
  worker, and others keep data there;
- seccomp, for what Landlock leaves: sockets of every kind (CUDA's driver may make one to listen on, but none connects),
  memory and limits of other processes, leaving the process group (so that killing the group leaves nobody), namespaces,
  io_uring (which would pass by this filter), kernel keys, System V memory. Changing modes and times of files does
  nothing and claims success, since copying a file ends with it; Landlock does not see it, and a record with a time in
  the future would never be made anew.

Both are called with ctypes: on PyPI `landlock` exists as a development release only, and `pyseccomp` needs a system
library, starts processes to find it, knows no call that is newer than that library and cannot say
SECCOMP_FILTER_FLAG_SPEC_ALLOW, without which kernels before 5.16 slow a filtered process down: a benchmark would show
it. A network namespace would refuse no more than the filter does, costs milliseconds and needs a privilege.

What stays possible: reading the user's other files (nothing but the log, which belongs to the record, leaves the
process), using the processor and the memory, listing process numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import glob
import json
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

DEVICES = frozenset({"cpu", "cuda"})  # whose candidates are confined
PROCESS = "process"  # the level of a worker that gave up nothing

LATEST_ABI = 7  # of Landlock; of a later one we know nothing that it could forbid
TASKS_ADDED = 4096  # processes and threads that a user's worker may add to all that run: a fork bomb ends there
# Of /proc: of the whole machine, and of no process. /proc/self is added in the process that it means.
PROC_PATHS = """
    cpuinfo meminfo stat vmstat version uptime loadavg filesystems devices cgroups diskstats interrupts modules sys
""".split()
DEVICE_FILES = ("null", "zero", "full", "random", "urandom")
# What CUDA's driver needs beside that (found by trying, driver 580): its devices, and to name its threads.
CUDA_DEVICE_FILES = (
    "/dev/nvidia[0-9]*",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm*",
    "/dev/nvidia-modeset",
    "/dev/nvidia-caps/*",
)
CUDA_PROC_FOLDERS = ("/proc/driver",)
THREADS_OF_ITSELF = "/proc/self/task/"

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 4, 38, 47  # <linux/prctl.h>
PR_CAP_AMBIENT_CLEAR_ALL = 4
LINUX_CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>


@dataclass(frozen=True)
class Plan:
    """Where a worker may write and read.

    scratch: the one folder in which it writes. private: folders that it may not even read. readable: what it may read
    beneath those all the same. probe: a file in a private folder, on which `measure` tries its hands. others: processes
    that it must not reach. cuda: it runs kernels on a GPU, whose driver needs its devices and a socket to listen on.
    """

    scratch: str
    private: tuple[str, ...]
    readable: tuple[str, ...]
    probe: str
    others: tuple[int, ...]
    cuda: bool = False


@dataclass(frozen=True)
class Isolation:
    """What was achieved: the parts in force by name (`landlock-7+seccomp`), and what was tried and how it ended."""

    level: str = PROCESS
    refused: list[str] = field(default_factory=list)
    permitted: list[str] = field(default_factory=list)


def enter(plan: Plan, *, landlock_abi: int = LATEST_ABI, seccomp: bool = True) -> Isolation:
    """Confine this process and all that it starts, for good; gives back what that achieved.

    The process must have one thread. `landlock_abi` and `seccomp` limit what is used, so that older kernels can be
    tried on a newer one. Raises OSError when something fails that this kernel offers.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise OSError(errno.EBUSY, "a process with several threads cannot be confined")
    _check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _limit_tasks()
    abi = min(landlock_abi, kernel_abi())
    parts = []
    if abi > 0 and _restrict_paths(plan, abi):
        parts.append(f"landlock-{abi}")
    _drop_capabilities()
    if seccomp and _install_filter(abi, plan.cuda):
        parts.append("seccomp")
    return measure(plan, "+".join(parts) or PROCESS)


def prepare(*, cuda: bool) -> None:
    """Do beforehand, in the process that workers are forked from, what is the same for all of them."""
    with contextlib.suppress(KeyError):
        _assembled(platform.machine(), min(LATEST_ABI, kernel_abi()), 0, cuda)


def hide_memory() -> None:
    """Keep other processes of this user from reading this one's memory, where Landlock does not.

    It also keeps out debuggers and core dumps, and does not keep out root.
    """
    _LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _syscall(number: int, *arguments: int | bytes) -> int:
    """The kernel's answer; -1 with the error number in errno. Bytes are passed by their address."""
    ctypes.set_errno(0)
    return int(
        _LIBC.syscall(ctypes.c_long(number), *(a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments))
    )


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _limit_tasks() -> None:
    """RLIMIT_NPROC counts all tasks of a user, so the limit is above what runs now. Root is exempt from it."""
    if os.getuid() == 0:
        return
    with contextlib.suppress(OSError, ValueError):
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        wanted = running + TASKS_ADDED
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def _drop_capabilities() -> None:
    """Give up every capability; with no_new_privs no program gives one back."""
    _LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _check(_LIBC.capset(struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0), bytes(24)))


# --- Landlock ---------------------------------------------------------------------------------------------------------

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446  # on every architecture
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1

# <linux/landlock.h>: LANDLOCK_ACCESS_FS_*, with the ABI that has it first.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
ALL_OF_ABI_1 = (1 << 13) - 1
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # ABI 2, 3, 5
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
READ = EXECUTE | READ_FILE | READ_DIR
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # what a rule may say of a file
NET_BIND_TCP, NET_CONNECT_TCP = 1 << 0, 1 << 1  # ABI 4
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1  # ABI 6


RULE = struct.Struct("=Qi")  # struct landlock_path_beneath_attr, which is packed
# The same `syscall` with its types fixed: a hundred rules are usual, and each worker adds them.
_ADD_RULE = ctypes.CFUNCTYPE(
    ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, use_errno=True
)(("syscall", _LIBC))


def kernel_abi() -> int:
    """The kernel's version of Landlock; 0 where there is none, or where it is off."""
    return max(0, _syscall(LANDLOCK_CREATE_RULESET, 0, 0, LANDLOCK_CREATE_RULESET_VERSION))


def _restrict_paths(plan: Plan, abi: int) -> bool:
    """Enforce the plan's rules; False where a container forbids to."""
    handled = ALL_OF_ABI_1 | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0) | (IOCTL_DEV if abi >= 5 else 0)
    net = NET_BIND_TCP | NET_CONNECT_TCP if abi >= 4 else 0
    scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0
    attributes = struct.pack("=QQQ", handled, net, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _syscall(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0 and ctypes.get_errno() == errno.EPERM:
        return False
    _check(ruleset)
    try:
        for path, access in _rules(plan):
            _allow(ruleset, path, access & handled)
        return _syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _rules(plan: Plan) -> Iterator[tuple[str, int]]:
    """Paths and what is allowed beneath each. Rules only ever add, so a folder with an exception is listed in parts."""
    kept = tuple(os.path.realpath(folder) for folder in plan.private)
    yield from _around(("/proc", "/dev", *kept))
    for path in plan.readable:
        yield path, READ
    for name in PROC_PATHS:
        yield f"/proc/{name}", READ if name == "sys" else READ_FILE
    yield "/proc/self/", READ
    devices = [f"/dev/{name}" for name in DEVICE_FILES]
    if plan.cuda:
        devices += [path for pattern in CUDA_DEVICE_FILES for path in glob.glob(pattern)]
        yield from ((path, READ) for path in CUDA_PROC_FOLDERS)
        yield THREADS_OF_ITSELF, WRITE_FILE | TRUNCATE
    for path in devices:
        yield path, READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
    yield plan.scratch, (ALL_OF_ABI_1 | REFER | TRUNCATE) & ~(MAKE_CHAR | MAKE_BLOCK)


def _around(excluded: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The largest folders, and files, that together hold everything but the excluded folders, to read."""
    closed = set(excluded)
    listed = {parent for path in excluded for parent in _parents(path)}
    for folder in listed:
        if closed.isdisjoint((folder, *_parents(folder))):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path in closed or entry.path in listed:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        yield entry.path, READ
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.path, READ & OF_A_FILE


def _parents(path: str) -> Iterator[str]:
    """The folders that a path lies in, up to the root."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _allow(ruleset: int, path: str, access: int) -> None:
    """Add a rule; a path that is not there, or no longer, needs none."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return
    try:
        _check(_ADD_RULE(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, RULE.pack(access, descriptor), 0))
    finally:
        os.close(descriptor)


# --- seccomp ----------------------------------------------------------------------------------------------------------

SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 1 << 2  # <linux/seccomp.h>
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
NR, ARCH, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
LOAD, JUMP_EQUAL, JUMP_FROM, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # <linux/bpf_common.h>
X32_BIT = 0x40000000  # the other numbering of x86-64
SOCKET_KINDS = 0xB  # SOCK_STREAM (1) and SOCK_SEQPACKET (5) look alike under it, and no other kind does
CLONE_NEW_ANY = 0x7E020080  # every CLONE_NEW* namespace flag of <linux/sched.h>

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
# Numbers of <asm/unistd.h> on x86-64 and AArch64; -1 where an architecture has no such call.
CALLS = {
    "socket": (41, 198),
    "connect": (42, 203),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "perf_event_open": (298, 241),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "clone": (56, 220),
    "clone3": (435, 435),
    "prlimit64": (302, 261),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "truncate": (76, 45),
    "open": (2, -1),
    "openat": (257, 56),
    "openat2": (437, 437),
    "seccomp": (317, 277),
    "setitimer": (38, 103),
    "alarm": (37, -1),
    "timer_create": (222, 107),
}
# Refused always, with EPERM.
REFUSED = """
    socket io_uring_setup io_uring_enter io_uring_register
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd perf_event_open
    setsid setpgid unshare setns bpf userfaultfd add_key request_key keyctl shmget shmat msgget semget mq_open
    chown fchown lchown fchownat setxattr lsetxattr fsetxattr setxattrat
    removexattr lremovexattr fremovexattr removexattrat file_setattr
""".split()
# On a CPU: before whom threads run, and on which cores; those of others that are timed beside it too. The first is
# refused, the second ignored: thread pools pin their threads, and some take a refusal for the end.
RANKING, PLACING = "sched_setscheduler sched_setparam sched_setattr setpriority".split(), ["sched_setaffinity"]
# On a CPU: a timer's signal comes to whoever has the thread by then, and its handler takes their time.
TIMERS = "setitimer alarm timer_create".split()
# Done by nobody, and answered as if it had been.
IGNORED = "chmod fchmod fchmodat fchmodat2 utime utimes futimesat utimensat".split()
# Signals to others, where Landlock has no scope for them (ABI 6).
SIGNALS = "tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal".split()

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def filter_program(machine: str, landlock_abi: int, pid: int, cuda: bool = False) -> list[Instruction]:
    """The filter for one architecture (`x86_64`, `aarch64`); without Landlock's later parts it refuses more.

    `pid` is the process that may signal itself. With `cuda`, a local socket may be made, on which the driver listens;
    but nothing connects to another. Raises KeyError for another architecture.
    """
    column = list(AUDIT_ARCH).index(machine)

    def numbers(names: Sequence[str]) -> list[int]:
        return [CALLS[name][column] for name in names if CALLS[name][column] >= 0]

    refuse = _answer(errno.EPERM)
    program = [(LOAD, 0, 0, ARCH), (JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]), _answer(errno.ENOSYS), (LOAD, 0, 0, NR)]
    if machine == "x86_64":
        program += [(JUMP_FROM, 0, 1, X32_BIT), _answer(errno.ENOSYS)]
    absent = ["clone3"] + (["openat2"] if landlock_abi < 3 else [])  # their flags are out of sight; the C library copes
    refused, ignored = REFUSED + RANKING + TIMERS, IGNORED + PLACING
    if cuda:  # the driver may have threads of its own to place
        ignored = IGNORED
        refused = [name for name in REFUSED if name != "socket"]
        # Neither kind sends anything before it is connected. The driver looks for a service (MPS) and goes on where
        # there is none.
        program += _if_argument(numbers(["socket"]), 0, 0xFFFFFFFF, socket.AF_UNIX, refuse)
        program += _if_argument(numbers(["socket"]), 1, SOCKET_KINDS, socket.SOCK_STREAM, refuse)
        program += [
            step for number in numbers(["connect"]) for step in ((JUMP_EQUAL, 0, 1, number), _answer(errno.ENOENT))
        ]
    for names, answer in [(refused, refuse), (ignored, _answer(0)), (absent, _answer(errno.ENOSYS))]:
        for number in numbers(names):
            program += [(JUMP_EQUAL, 0, 1, number), answer]
    program += _if_argument(numbers(["clone"]), 0, CLONE_NEW_ANY, 0, refuse)
    program += _if_argument(numbers(["prlimit64"]), 0, 0xFFFFFFFF, 0, refuse)
    if landlock_abi < 3:  # it does not see a file being cut short: neither by name nor by opening it to read
        program += [step for number in numbers(["truncate"]) for step in ((JUMP_EQUAL, 0, 1, number), refuse)]
        for name, place in (("open", 1), ("openat", 2)):
            for flags in (os.O_RDONLY, os.O_ACCMODE):
                cut = os.O_ACCMODE | os.O_TRUNC
                program += _if_argument(numbers([name]), place, cut, flags | os.O_TRUNC, refuse, equal=True)
    if landlock_abi < 6:
        program += [step for number in numbers(SIGNALS) for step in ((JUMP_EQUAL, 0, 1, number), refuse)]
        program += _if_argument(numbers(["kill"]), 0, 0xFFFFFFFF, pid, refuse)
        program += _if_argument(numbers(["tgkill"]), 0, 0xFFFFFFFF, pid, refuse)
    return [*program, (RETURN, 0, 0, RET_ALLOW)]


def _answer(number: int) -> Instruction:
    """Do not make the call; it fails with this error number, or succeeds with 0."""
    return (RETURN, 0, 0, RET_ERRNO | number)


def _if_argument(
    numbers: Sequence[int], place: int, mask: int, value: int, answer: Instruction, *, equal: bool = False
) -> list[Instruction]:
    """Answer a call whose argument (its low 32 bits, under a mask) is not `value`, or with `equal` is."""
    program: list[Instruction] = []
    for number in numbers:
        jumps = (0, 1) if equal else (1, 0)
        program += [
            (JUMP_EQUAL, 0, 5, number),
            (LOAD, 0, 0, ARGUMENTS + 8 * place),
            (AND, 0, 0, mask),
            (JUMP_EQUAL, *jumps, value),
            answer,
            (LOAD, 0, 0, NR),
        ]
    return program


@functools.cache
def _assembled(machine: str, landlock_abi: int, pid: int, cuda: bool) -> tuple[int, ctypes.Array[ctypes.c_char]]:
    """A filter as the kernel takes it: how many instructions, and their bytes."""
    program = filter_program(machine, landlock_abi, pid, cuda)
    return len(program), ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))


def _install_filter(landlock_abi: int, cuda: bool) -> bool:
    """False on an architecture without a table of numbers, or where the kernel has no filters."""
    machine = platform.machine()
    if machine not in AUDIT_ARCH or struct.calcsize("P") != 8:
        return False
    count, program = _assembled(machine, landlock_abi, os.getpid() if landlock_abi < 6 else 0, cuda)
    header = struct.pack("@HP", count, ctypes.addressof(program))
    number = CALLS["seccomp"][list(AUDIT_ARCH).index(machine)]
    result = _syscall(number, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, header)
    if result < 0 and ctypes.get_errno() == errno.EINVAL:  # before 4.17
        result = _syscall(number, SECCOMP_SET_MODE_FILTER, 0, header)
    return result == 0


# --- what was achieved ------------------------------------------------------------------------------------------------


def measure(plan: Plan, level: str) -> Isolation:
    """Try what a candidate must not manage, harmlessly, and say what was refused."""
    found = Isolation(level)
    for what, tries in _attempts(plan).items():
        (found.permitted if any(_succeeds(attempt) for attempt in tries) else found.refused).append(what)
    return found


def _attempts(plan: Plan) -> dict[str, list[Callable[[], object]]]:
    """By what is tried, one call each way: it succeeds, or raises OSError."""
    beside = f"{plan.probe}-{os.getpid()}"
    others = plan.others
    return {
        "writing outside its folder": [
            lambda: _opened(plan.probe, os.O_WRONLY),
            lambda: _opened(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
            lambda: os.truncate(plan.probe, os.stat(plan.probe).st_size),
            lambda: _made_folder(beside),
        ],
        "changing modes and times of files": [lambda: _changed_mode(plan.probe)],
        "reading what the run keeps to itself": [lambda: _opened(plan.probe, os.O_RDONLY)],
        "reading other processes' memory": [
            *(lambda pid=pid: _opened(f"/proc/{pid}/mem", os.O_RDONLY) for pid in others),
            *(lambda pid=pid: _opened(f"/proc/{pid}/environ", os.O_RDONLY) for pid in others),
            *(lambda pid=pid: _read_memory(pid) for pid in others),
        ],
        "tracing processes": [lambda: _answered("ptrace", -1, 0, 0, 0, expected=errno.EPERM)],
        "signals to other processes": [*(lambda pid=pid: os.kill(pid, 0) for pid in others)],
        "limits of other processes": [*(lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_CORE) for pid in others)],
        "TCP connections": [_connects],
        "sockets": [
            lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
            lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close(),
            lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
            lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close(),
            lambda: _connects_locally(os.path.join(plan.scratch, ".probe")),
        ],
        **({} if plan.cuda else {"placing threads on cores": [_placed, _ranked], "timers": [_timed]}),
        "leaving its process group": [lambda: _answered("setpgid", 0, -1, expected=errno.EPERM)],
        "memory that outlives it": [
            lambda: _answered("shmget", 0, 0, 0, expected=errno.EPERM),
            lambda: _opened(f"/dev/shm/kernelproof-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        ],
        "capabilities": [_has_capabilities],
    }


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _placed() -> None:
    """Ask for a core that no machine has: who is heard is told so, and who is ignored is not."""
    try:
        os.sched_setaffinity(0, {2**16})
    except OSError as error:
        if error.errno == errno.EINVAL:
            return
        raise
    raise PermissionError(errno.EPERM, "nothing was done")


def _ranked() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))


def _timed() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)


def _opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags | os.O_CLOEXEC, 0o600))
    if flags & os.O_CREAT:
        os.unlink(path)


def _made_folder(path: str) -> None:
    os.mkdir(path)
    os.rmdir(path)


def _changed_mode(path: str) -> None:
    before = os.stat(path)
    os.chmod(path, stat.S_IMODE(before.st_mode) ^ stat.S_IXOTH)
    os.utime(path, (0, 0))
    after = os.stat(path)
    if (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns):
        raise PermissionError(errno.EPERM, "nothing changed")


def _read_memory(pid: int) -> None:
    """process_vm_readv of one byte at an address that nobody has: EFAULT says that it was allowed."""
    byte = ctypes.create_string_buffer(1)
    local, remote = struct.pack("@PN", ctypes.addressof(byte), 1), struct.pack("@PN", 8, 1)
    ctypes.set_errno(0)
    _LIBC.process_vm_readv(pid, local, 1, remote, 1, 0)
    if ctypes.get_errno() != errno.EFAULT:
        raise PermissionError(errno.EPERM, "refused")


def _answered(name: str, *arguments: int, expected: int) -> None:
    """Make a call with arguments that no kernel accepts: another error than `expected` says that it was looked at."""
    machine = platform.machine()
    if machine in AUDIT_ARCH:
        _syscall(CALLS[name][list(AUDIT_ARCH).index(machine)], *arguments)
        if ctypes.get_errno() == expected:
            raise PermissionError(expected, os.strerror(expected))


def _connects() -> None:
    with socket.socket() as connection:
        connection.settimeout(1)
        try:
            connection.connect(("127.0.0.1", 9))
        except ConnectionRefusedError:
            return  # by nobody listening there: it went out


def _connects_locally(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connection:
        listening.bind(path)
        try:
            listening.listen()
            connection.connect(path)
        finally:
            os.unlink(path)


def _has_capabilities() -> None:
    with open("/proc/self/status", "rb", buffering=0) as status:
        if b"CapEff:\t0000000000000000" in status.read(1 << 16):
            raise PermissionError(errno.EPERM, "none")


def main() -> None:
    """Enter a sandbox in a temporary folder and print what it achieves here, as JSON (`kernelproof doctor` asks)."""
    with tempfile.TemporaryDirectory(prefix="kernelproof-sandbox-") as folder:
        scratch, probe = Path(folder, "scratch"), Path(folder, "probe")
        scratch.mkdir()
        probe.touch()
        child = os.fork()
        if child == 0:
            plan = Plan(str(scratch), (folder,), (), str(probe), (os.getppid(),))
            print(json.dumps(asdict(enter(plan))), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
