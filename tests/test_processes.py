"""Processes end when they should: at their limit, with us, with the run they belong to."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kernelproof import processes
from kernelproof.errors import ToolError


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def eventually(condition: object, limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def test_the_time_of_children_that_have_ended_is_known() -> None:
    before_s = processes.ended_children_s(os.getpid())
    processes.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"])
    assert 0.1 < processes.ended_children_s(os.getpid()) - before_s < 2
    assert processes.ended_children_s(2**22 + 1) == 0


def test_output_status_and_duration() -> None:
    done = processes.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")
    assert done.duration_s > 0


def test_failure_shows_the_last_lines_and_the_log(tmp_path: Path) -> None:
    log = tmp_path / "tool.log"
    with pytest.raises(ToolError) as caught:
        processes.run([sys.executable, "-c", "import sys; print('the reason'); sys.exit(3)"], log=log)
    assert "ended with exit code 3" in str(caught.value)
    assert "the reason" in str(caught.value)
    assert str(log) in str(caught.value)
    assert caught.value.returncode == 3
    assert "the reason" in log.read_text()


def test_missing_program() -> None:
    with pytest.raises(ToolError, match="no-such-program: the program is not there"):
        processes.run(["no-such-program"])


@pytest.mark.parametrize("byte", [processes.NAN_FILL, processes.FILL])
def test_malloc_fills_what_it_hands_out(byte: int) -> None:
    """With NaN of every type too, which glibc's own setting for that cannot ask for by a byte."""
    script = (
        "import ctypes; from kernelproof import processes\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        f"processes.fill_fresh_memory({byte})\n"
        "sizes = (24, 256, 1000, 5000, 3 << 20)\n"
        "print({found for size in sizes for found in ctypes.string_at(libc.malloc(size), size)})\n"
    )
    without = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}  # as a worker on a CPU has it
    done = processes.run([sys.executable, "-c", script], env=processes.own_environment() | without)
    assert done.stdout.strip() == f"{{{byte}}}"


def test_a_limit_kills_the_whole_group(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '60']); "
        f"open({str(child)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    for limit_s in (2, 30):
        with pytest.raises(ToolError, match=f"limit of {limit_s} s"):
            processes.run([sys.executable, "-c", script], timeout_s=limit_s)
        if child.exists() and child.read_text():
            break  # else the machine is crowded, and it was killed before it had come so far
    assert eventually(lambda: not alive(int(child.read_text())))


@pytest.mark.parametrize("how", ["child", "run"])
def test_nothing_is_left_when_we_are_killed(tmp_path: Path, how: str) -> None:
    """A killed process takes along its children, and (`end_with`) processes that merely belong to its run."""
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    if how == "child":
        parent = (
            "import sys, time; from kernelproof import processes; "
            f"processes.spawn([sys.executable, '-c', {child!r}]); time.sleep(60)"
        )
    else:
        joined = "import sys; from kernelproof import processes; processes.end_with(int(sys.argv[1])); " + child
        parent = (
            "import os, subprocess, sys, time; "
            f"subprocess.Popen([sys.executable, '-c', {joined!r}, str(os.getpid())], start_new_session=True); "
            "time.sleep(60)"
        )
    run = processes.spawn([sys.executable, "-c", parent], env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    assert eventually(lambda: pid_file.exists() and pid_file.read_text())
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert eventually(lambda: not alive(int(pid_file.read_text())))


def test_what_a_killed_stage_left_is_swept_and_what_a_live_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "kernelproof-bench-killed"
    new = tmp_path / "kernelproof-bench-new"
    another_stages = tmp_path / "kernelproof-test-killed"
    not_ours = tmp_path / "kernelproof-392b99a0cbaa"  # a bundle that somebody unpacked, say
    for folder in (left, new, another_stages, not_ours):
        folder.mkdir()
        (folder / "image").write_bytes(b"x")
    for folder in (left, another_stages, not_ours):
        os.utime(folder, (0, 0))
    with processes.scratch_folder("bench") as live:
        assert not left.exists()
        assert not another_stages.exists()
        assert new.exists()  # its process may be about to lock it
        assert not_ours.exists()
        os.utime(live, (0, 0))
        with processes.scratch_folder("bench") as other:
            assert live.exists()
        assert not other.exists()
    assert not live.exists()


@pytest.mark.parametrize("said", ["", "TMPDIR", "TEMP", "TMP", "nothing", "AMPLE_BYTES"])
def test_files_lie_in_memory_where_that_is_ample_and_nobody_names_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    disk.mkdir()
    memory.mkdir()
    left = memory / "kernelproof-test-killed"
    left.mkdir()
    os.utime(left, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    monkeypatch.setattr(processes, "SHARED_MEMORY", memory)
    monkeypatch.setattr(processes, "AMPLE_BYTES", 1 << 62 if said == "AMPLE_BYTES" else 1)
    named = ("TMPDIR", "TEMP", "TMP")  # what tempfile looks at; an empty one names nothing
    for name in named:
        monkeypatch.delenv(name, raising=False)
    if said in named:
        monkeypatch.setenv(said, str(disk))
    elif said == "nothing":
        monkeypatch.setenv("TMPDIR", "")
    with processes.scratch_folder("test", in_memory=True) as folder:
        assert folder.parent == (memory if said in ("", "nothing") else disk)
        assert not left.exists()
    with processes.scratch_folder("bench") as folder:
        assert folder.parent == disk


def test_measurements_are_given_cores_that_share_nothing_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores of two threads each, of which we may use seven: 0 and 4 are one core, 1 and 5, …"""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5, 6})
    siblings = {core: f"{core % 4},{core % 4 + 4}\n" for core in range(8)}
    monkeypatch.setattr(Path, "read_text", lambda path: siblings[int(path.parts[-3].removeprefix("cpu"))])
    assert processes.cores_to_measure_on(1) == {6}
    assert processes.cores_to_measure_on(4) == {6, 5, 4, 3}
    assert processes.cores_to_measure_on(5) == {6, 5, 4, 3, 2}
    assert processes.cores_to_measure_on(99) == {0, 1, 2, 3, 4, 5, 6}


def test_a_cpu_and_a_gpu_are_measured_on_different_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores of two threads each: core n has the threads n and n + 8."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    siblings = {core: f"{core % 8},{core % 8 + 8}\n" for core in range(16)}
    monkeypatch.setattr(Path, "read_text", lambda path: siblings[int(path.parts[-3].removeprefix("cpu"))])
    assert processes.cores_beside("cpu") == {4, 5, 6, 7, 12, 13, 14, 15}
    assert processes.cores_beside("cuda") == {0, 1, 2, 3, 8, 9, 10, 11}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert processes.cores_beside("cpu") == processes.cores_beside("cuda") == {0, 1, 2, 3}


def test_a_process_may_be_waited_for_later_or_stopped(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho begun; while [ ! -e $1 ]; do sleep 0.01; done; echo over\n")
    program.chmod(0o755)
    started = processes.start([program, tmp_path / "go"])
    assert started.process.poll() is None
    (tmp_path / "go").touch()
    assert started.finish(timeout_s=10).stdout == "begun\nover\n"
    started.abandon()  # nothing is left to stop
    waiting = processes.start([program, tmp_path / "never"])
    waiting.abandon()
    assert waiting.process.returncode == -signal.SIGKILL
    with pytest.raises(ToolError, match=r"ran past its limit of 0\.1 s"):
        processes.start([program, tmp_path / "never"]).finish(timeout_s=0.1)


def test_where_no_process_can_be_started_for_a_moment_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [BlockingIOError(11, "Resource temporarily unavailable")] * 3
    monkeypatch.setattr(processes, "ROOM_S", 0.5)

    def fork() -> int:
        if refused:
            raise refused.pop()
        return 4711

    assert processes.once_there_is_room(fork) == 4711
    refused += [BlockingIOError(11, "Resource temporarily unavailable")] * 1000
    with pytest.raises(BlockingIOError):
        processes.once_there_is_room(fork)
    assert refused


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/job/step", "job/step", ("memory.max", "memory.current")),
        ("0::/job/step", "job", ("memory.max", "memory.current")),
        ("0::/elsewhere", "", ("memory.max", "memory.current")),
        ("4:cpu,memory:/job/step", "memory/job", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
)
def test_the_limit_of_every_control_group_above_counts(
    tmp_path: Path, line: str, folder: str, names: tuple[str, str]
) -> None:
    groups, mounted = tmp_path / "groups", tmp_path / "mounted"
    groups.write_text(f"7:cpuset:/other\n{line}\n")
    for place in ("job/step", "memory/job/step", folder):
        (mounted / place).mkdir(parents=True, exist_ok=True)
    (mounted / "job/step/memory.max").write_text("max\n")
    for name, value in zip(names, (1000, 300), strict=True):
        (mounted / folder / name).write_text(f"{value}\n")
    assert list(processes._left_to_groups(groups, mounted)) == [700]
