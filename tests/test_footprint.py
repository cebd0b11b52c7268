"""What a worker takes of the disk and of the process table."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelproof import footprint, processes


def test_files_and_folders_count_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_bytes(os.urandom(1 << 20))
    os.sync()
    (tmp_path / "link").symlink_to("/usr")
    used = footprint.disk_bytes(tmp_path)
    assert 1 << 20 <= used <= (1 << 20) + 8 * footprint.ENTRY_BYTES


def test_empty_files_cost_something_too(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert footprint.disk_bytes(tmp_path) == 100 * footprint.ENTRY_BYTES


def test_what_is_gone_costs_nothing(tmp_path: Path) -> None:
    assert footprint.disk_bytes(tmp_path / "gone") == 0


@pytest.mark.parametrize(("count", "letters"), [(3000, 1), (30, 250)])
def test_folders_nested_too_deep_are_more_than_any_limit_and_can_be_removed(
    tmp_path: Path, count: int, letters: int
) -> None:
    script = f"import os\nfor _ in range({count}): os.mkdir('d' * {letters}); os.chdir('d' * {letters})"
    (tmp_path / "deep").mkdir()
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path / "deep", check=True)
    assert math.isinf(footprint.disk_bytes(tmp_path / "deep"))
    processes.remove_tree(tmp_path / "deep")
    assert not (tmp_path / "deep").exists()


def test_deleted_files_that_are_open_count(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as stream:
        stream.write(os.urandom(1 << 20))
        stream.flush()
        os.fsync(stream.fileno())
        assert footprint.deleted_bytes([os.getpid()], tmp_path) == 0
        (tmp_path / "file").unlink()
        assert footprint.deleted_bytes([os.getpid()], tmp_path) >= 1 << 20
        assert footprint.disk_bytes(tmp_path) == 0


def test_members_are_those_of_the_group(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    leader = subprocess.Popen([sys.executable, "-c", script], process_group=0)
    other = subprocess.Popen(["sleep", "60"], process_group=0)
    try:
        while len(found := footprint.members(os.getpid(), leader.pid)) < 2:
            assert leader.poll() is None
        assert leader.pid in found
        assert other.pid not in found
    finally:
        for process in (leader, other):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_threads_that_have_or_want_a_core_are_counted() -> None:
    programs = ("while True: pass", "import time; time.sleep(60)")
    starts = [[sys.executable, "-c", f"print(flush=True)\n{program}"] for program in programs]
    busy, idle = (subprocess.Popen(start, stdout=subprocess.PIPE) for start in starts)
    try:
        for process in (busy, idle):  # else it may be at work on its own start, on a crowded machine for seconds
            assert process.stdout
            assert process.stdout.readline()
        time.sleep(1)
        assert footprint.threads_at_work([busy.pid, idle.pid]) == 1
    finally:
        for process in (busy, idle):
            process.kill()
            process.communicate()
    assert footprint.threads_at_work([busy.pid]) == 0


def test_what_a_program_works_is_seen_on_its_core() -> None:
    core = max(os.sched_getaffinity(0))
    before_s = footprint.busy_s([core])
    with processes.pinned({core}):
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
    assert footprint.busy_s([core]) - before_s > 0.25
    assert footprint.busy_s([]) == 0
