"""The sandbox at every level that this kernel can play, each in a process forked for it."""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernelproof import sandbox
from kernelproof.sandbox import Plan

needs_landlock = pytest.mark.skipif(sandbox.kernel_abi() == 0, reason="this kernel has no Landlock, or it is off")
needs_filter = pytest.mark.skipif(platform.machine() not in sandbox.AUDIT_ARCH, reason="no table for this architecture")
EVERYTHING = {
    "writing outside its folder",
    "changing modes and times of files",
    "reading what the run keeps to itself",
    "reading other processes' memory",
    "tracing processes",
    "signals to other processes",
    "limits of other processes",
    "TCP connections",
    "sockets",
    "placing threads on cores",
    "timers",
    "leaving its process group",
    "memory that outlives it",
    "capabilities",
}
BY_FILTER = {
    "changing modes and times of files",
    "tracing processes",
    "limits of other processes",
    "sockets",
    "placing threads on cores",
    "timers",
    "leaving its process group",
    "memory that outlives it",
}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    private = tmp_path / "private"
    for folder in ("scratch", "inputs"):
        (private / folder).mkdir(parents=True)
    (private / "inputs" / "x").write_text("input")
    (private / "probe").write_text("secret")
    (tmp_path / "public").write_text("public")
    readable = (str(private / "inputs"),)
    return Plan(str(private / "scratch"), (str(private),), readable, str(private / "probe"), (os.getpid(),))


def confined(plan: Plan, action: Callable[[], Any] = lambda: None, **limits: Any) -> tuple[dict[str, Any], Any]:
    """Enter the sandbox in a child and do something there; gives back what was achieved and what the action gave."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(plan.scratch)
            achieved = asdict(sandbox.enter(plan, **limits))
            os.write(write_end, json.dumps([achieved, action()]).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child failed; its traceback is in the captured output"
    found, given = json.loads(said)
    return found, given


def refusals(*actions: Callable[[], object]) -> list[str]:
    """How each action ended: the name of its error, or `done`."""
    ends = []
    for action in actions:
        try:
            action()
            ends.append("done")
        except OSError as error:
            ends.append(type(error).__name__)
    return ends


@needs_filter
@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("abi", range(1, sandbox.LATEST_ABI + 1))
def test_every_landlock_with_the_filter_refuses_everything(plan: Plan, abi: int, cuda: bool) -> None:
    if sandbox.kernel_abi() < abi:
        pytest.skip(f"this kernel has Landlock's ABI {sandbox.kernel_abi()}")
    found, _ = confined(dataclasses.replace(plan, cuda=cuda), landlock_abi=abi)
    assert found == {"level": f"landlock-{abi}+seccomp", "refused": found["refused"], "permitted": []}
    assert set(found["refused"]) == EVERYTHING - ({"placing threads on cores", "timers"} if cuda else set())


SIGNALS, TCP, OUTSIDE = "signals to other processes", "TCP connections", "writing outside its folder"


@pytest.mark.parametrize(
    ("abi", "left"),
    [
        (1, BY_FILTER | {SIGNALS, TCP, OUTSIDE}),  # a file can be cut short by its name
        (3, BY_FILTER | {SIGNALS, TCP}),
        (4, BY_FILTER | {SIGNALS}),
        (6, BY_FILTER),
    ],
)
def test_what_each_landlock_leaves_to_the_filter(plan: Plan, abi: int, left: set[str]) -> None:
    """With the test before: every line of the measurement can come out either way."""
    if sandbox.kernel_abi() < abi:
        pytest.skip(f"this kernel has Landlock's ABI {sandbox.kernel_abi()}")
    assert set(confined(plan, landlock_abi=abi, seccomp=False)[0]["permitted"]) == left


@needs_filter
def test_the_filter_alone_says_what_it_cannot_refuse(plan: Plan) -> None:
    found, _ = confined(plan, landlock_abi=0)
    assert found["level"] == "seccomp"
    assert {"writing outside its folder", "reading what the run keeps to itself"} <= set(found["permitted"])
    assert BY_FILTER - {"memory that outlives it"} <= set(found["refused"])


def test_nothing_in_force_is_called_a_process(plan: Plan) -> None:
    found, _ = confined(plan, landlock_abi=0, seccomp=False)
    assert found["level"] == "process"
    by_capabilities = {"capabilities", "reading other processes' memory"}  # root's parent has what root gave up
    assert set(found["permitted"]) >= EVERYTHING - by_capabilities


@needs_landlock
def test_it_may_read_its_inputs_and_the_system_and_write_in_its_folder(plan: Plan) -> None:
    def inside() -> list[str]:
        public = Path(plan.private[0]).with_name("public")
        return refusals(
            lambda: Path(plan.readable[0], "x").read_text(),
            lambda: public.read_text(),
            lambda: os.listdir("/usr/lib"),
            lambda: Path("/proc/self/maps").read_text(),
            lambda: Path("/proc/cpuinfo").read_text(),
            lambda: Path("/dev/urandom").open("rb").close(),
            lambda: Path("/dev/null").write_text("x"),
            lambda: Path("folder").mkdir(),
            lambda: Path("folder/file").write_text("x"),
            lambda: Path("folder/file").rename("moved"),
            lambda: subprocess.run([sys.executable, "-c", "open('child', 'w')"], check=True),
            lambda: os.kill(os.getpid(), 0),
            lambda: os.close(os.memfd_create("jit")),
        )

    assert set(confined(plan, inside)[1]) == {"done"}


@needs_landlock
def test_it_may_not_touch_anything_else(plan: Plan) -> None:
    public, inputs = str(Path(plan.private[0]).with_name("public")), plan.readable[0]

    def inside() -> list[str]:
        return refusals(
            lambda: Path(public).write_text("x"),
            lambda: Path(public).unlink(),
            lambda: os.rename(public, "taken"),
            lambda: os.link(public, "linked"),
            lambda: Path(inputs, "x").write_text("x"),
            lambda: Path(inputs, "x").unlink(),
            lambda: os.listdir(plan.private[0]),
            lambda: os.listdir("/proc"),
            lambda: Path(f"/proc/{plan.others[0]}/maps").read_text(),
            lambda: os.readlink(f"/proc/{plan.others[0]}/cwd"),
            lambda: os.mknod("device", 0o600 | 0o020000, os.makedev(1, 1)),
            lambda: Path("/proc/self/oom_score_adj").write_text("0"),
            lambda: Path("/proc/1/environ").read_bytes(),
        )

    assert "done" not in confined(plan, inside)[1]
    assert Path(public).read_text() == "public"


@needs_filter
def test_what_a_program_would_do_after_copying_a_file_succeeds_and_changes_nothing(plan: Plan) -> None:
    def inside() -> list[Any]:
        Path("file").write_text("x")
        before = os.stat("file")
        ends = refusals(lambda: os.chmod("file", 0o777), lambda: os.utime("file", (0, 0)))
        return [*ends, os.stat("file").st_mode == before.st_mode, os.stat("file").st_mtime_ns == before.st_mtime_ns]

    assert confined(plan, inside)[1] == ["done", "done", True, True]


@needs_filter
def test_a_thread_that_pins_itself_goes_on_and_stays_where_it_was(plan: Plan) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core is all that there is")

    def inside() -> list[Any]:
        return [*refusals(lambda: os.sched_setaffinity(0, {min(cores)})), sorted(os.sched_getaffinity(0))]

    assert confined(plan, inside)[1] == ["done", sorted(cores)]


@needs_filter
def test_a_driver_may_listen_and_nobody_may_connect(plan: Plan) -> None:
    """What CUDA's driver does at its start; a name of its own among the abstract ones, as it takes."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0kernelproof-test-{os.getpid()}")
    listening.listen()
    address = listening.getsockname()

    def named_thread() -> None:
        Path(f"/proc/self/task/{os.getpid()}/comm").write_text("driver")

    def listen() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
            own.bind(f"\0kernelproof-test-{os.getpid()}")
            own.listen()

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as out:
            out.connect(address)

    def datagram() -> None:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close()

    def inside() -> list[str]:
        return refusals(named_thread, listen, connect, datagram)

    driver = dataclasses.replace(plan, cuda=True)
    assert confined(driver, inside)[1] == ["done", "done", "FileNotFoundError", "PermissionError"]
    no_driver = ["PermissionError"] if sandbox.kernel_abi() else ["done"]
    assert confined(plan, inside)[1] == no_driver + 3 * ["PermissionError"]
    listening.close()


@needs_filter
def test_no_namespace_of_its_own_and_no_ring_past_the_filter(plan: Plan) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    calls = {"unshare": 0x10000000, "setns": -1, "io_uring_setup": 1, "userfaultfd": 0, "keyctl": 0, "bpf": 0}
    column = list(sandbox.AUDIT_ARCH).index(platform.machine())

    def errors() -> dict[str, int]:
        found = {}
        for name, argument in calls.items():
            ctypes.set_errno(0)
            libc.syscall(ctypes.c_long(sandbox.CALLS[name][column]), ctypes.c_long(argument), 0, 0)
            found[name] = ctypes.get_errno()
        ctypes.set_errno(0)
        flags = 0x10000000 | 17  # CLONE_NEWUSER | SIGCHLD
        libc.syscall(ctypes.c_long(sandbox.CALLS["clone"][column]), ctypes.c_long(flags), 0, 0, 0, 0)
        return found | {"clone": ctypes.get_errno()}

    assert confined(plan, errors)[1] == dict.fromkeys([*calls, "clone"], 1)


def test_no_program_gives_a_capability_back(plan: Plan) -> None:
    def inside() -> str:
        return subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout

    status = confined(plan, inside, landlock_abi=0, seccomp=False)[1]
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_a_process_with_threads_is_not_said_to_be_confined(plan: Plan) -> None:
    """Landlock and the filter hold for the thread that asks for them, and for what it starts."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with pytest.raises(OSError, match="several threads"):
            sandbox.enter(plan)
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_numbers_are_those_of_the_kernel(machine: str, column: int) -> None:
    """Held against libseccomp's table, where that library is; it knows nothing of calls that are newer than it."""
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(name).seccomp_syscall_resolve_name_arch
    arch = ctypes.c_uint32(sandbox.AUDIT_ARCH[machine])
    known = {call: max(-1, resolve(arch, call.encode())) for call in sandbox.CALLS}
    newer = {"setxattrat", "removexattrat", "file_setattr"}
    assert {call for call, number in known.items() if number != sandbox.CALLS[call][column]} <= newer


@pytest.mark.parametrize("machine", sandbox.AUDIT_ARCH)
@pytest.mark.parametrize("abi", [0, 3, 7])
@pytest.mark.parametrize("cuda", [False, True])
def test_a_filter_is_one_that_the_kernel_takes(machine: str, abi: int, cuda: bool) -> None:
    """Every jump lands in the program, and it ends in an answer."""
    program = sandbox.filter_program(machine, abi, 1234, cuda)
    assert len(program) <= 4096
    for place, (code, when_true, when_false, _) in enumerate(program):
        if code in (sandbox.JUMP_EQUAL, sandbox.JUMP_FROM):
            assert place + 1 + max(when_true, when_false) < len(program)
    assert program[-1] == (sandbox.RETURN, 0, 0, sandbox.RET_ALLOW)


def test_memory_can_be_hidden_from_other_processes_of_the_user(plan: Plan) -> None:
    def inside() -> list[int]:
        prctl, get_dumpable = ctypes.CDLL(None).prctl, 3
        before = prctl(get_dumpable, 0, 0, 0, 0)
        sandbox.hide_memory()
        return [before, prctl(get_dumpable, 0, 0, 0, 0)]

    assert confined(plan, inside, landlock_abi=0, seccomp=False)[1][1] == 0


def test_as_a_program_it_says_what_is_achieved_here() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernelproof.sandbox"],
        env={**os.environ, "PYTHONPATH": str(Path(sandbox.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert set(found["refused"]) | set(found["permitted"]) == EVERYTHING
