"""One measurement a GPU: the lock, among processes that really exist; the boards are only names."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelproof import RUN_PID, gpu, lease, processes
from kernelproof.errors import LeaseError

HOLDER = """
import sys, time
from kernelproof import lease
assert lease.lock(sys.argv[1]) is not None
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two boards, and a temporary folder of our own for their locks."""
    named = ["GPU-one", "GPU-two"]
    monkeypatch.setattr(lease.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(gpu, "visible", lambda: named)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    return named


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the first board."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, gpu.uuid_sha256("GPU-one")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_first_board_is_taken_and_becomes_the_only_one(boards: list[str]) -> None:
    with lease.gpu_lease(0, "bench") as name:
        assert name == gpu.uuid_sha256("GPU-one")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-one"
        with lease.gpu_lease(0, "bench") as other:
            assert other == gpu.uuid_sha256("GPU-two")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_board_that_another_process_measures_on_is_left_alone(holder: subprocess.Popen[str]) -> None:
    with lease.gpu_lease(0, "bench") as name:
        assert name == gpu.uuid_sha256("GPU-two")


def test_tests_share_a_board_and_leave_the_first_to_measurements(boards: list[str]) -> None:
    with (
        lease.gpu_lease(0, "test", shared=True) as one,
        lease.gpu_lease(0, "test", shared=True) as other,
        lease.gpu_lease(0, "bench") as measured,
    ):
        assert (one, other, measured) == tuple(gpu.uuid_sha256(name) for name in ("GPU-two", "GPU-two", "GPU-one"))
        with pytest.raises(LeaseError, match="all 2 GPUs are in use"), lease.gpu_lease(0, "bench"):
            pass


def test_who_waits_for_a_board_alone_gets_it_although_tests_overlap(boards: list[str]) -> None:
    del boards[1]
    sharers = contextlib.ExitStack()
    sharers.enter_context(lease.gpu_lease(0, "test", shared=True))
    with ThreadPoolExecutor(1) as beside:

        def measure() -> float:
            with lease.gpu_lease(20, "bench"):
                return time.monotonic()

        started = time.monotonic()
        measured = beside.submit(measure)
        time.sleep(0.5)
        with pytest.raises(LeaseError), lease.gpu_lease(0, "test", shared=True):
            pass  # or one would begin before the last has ended, for ever
        sharers.close()
        assert 0.4 < measured.result() - started < 10
    with lease.gpu_lease(0, "test", shared=True):
        pass  # nobody waits any more


def test_no_test_begins_on_a_board_that_is_measured_on(holder: subprocess.Popen[str], boards: list[str]) -> None:
    del boards[1]
    with pytest.raises(LeaseError, match="the GPU is in use"), lease.gpu_lease(0, "test", shared=True):
        pass


def test_when_none_is_free_the_message_says_what_to_do(holder: subprocess.Popen[str], boards: list[str]) -> None:
    del boards[1]
    with (
        pytest.raises(LeaseError, match="the GPU is in use by another kernelproof") as raised,
        lease.gpu_lease(0, "bench"),
    ):
        pass
    assert "bench.gpu_wait_s" in str(raised.value)


def test_the_lock_ends_with_its_holder_however_that_ends(
    holder: subprocess.Popen[str], boards: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    del boards[1]
    threading_killer = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; time.sleep(0.3); os.kill({holder.pid}, 9)"]
    )
    started = time.monotonic()
    with lease.gpu_lease(30, "bench") as name:
        assert name == gpu.uuid_sha256("GPU-one")
    assert 0.2 < time.monotonic() - started < 20
    assert capsys.readouterr().err.count("waiting for another kernelproof") == 1
    threading_killer.wait()


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"kernelproof-gpu-{gpu.uuid_sha256('GPU-one')}.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LeaseError, match="the lock cannot be opened"):
        lease.lock(gpu.uuid_sha256("GPU-one"))
    assert not (tmp_path / "elsewhere").exists()


def test_no_visible_board_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "visible", list)
    with pytest.raises(LeaseError, match="leaves no GPU"), lease.gpu_lease(0, "bench"):
        pass


def test_where_there_is_a_gpu_a_measurement_keeps_to_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = os.sched_getaffinity(0)
    monkeypatch.setattr(processes, "SHARED_FROM", 2)
    for present, shares in ((False, [ours, ours]), (True, [processes.cores_beside(d) for d in ("cpu", "cuda")])):
        monkeypatch.setattr(gpu, "available", lambda present=present: (present, None))
        found = []
        for device in ("cpu", "cuda"):
            with lease.own_cores(device):
                found.append(os.sched_getaffinity(0))
        assert found == shares
    if len(ours) > 1:
        assert not found[0] & found[1]
    assert os.sched_getaffinity(0) == ours


@pytest.mark.parametrize("shared", [False, True])
def test_jobs_of_a_run_wait_for_each_other_however_long(
    boards: list[str], monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setenv(RUN_PID, str(os.getpid()))
    del boards[1]
    taken = []

    def job(shared: bool) -> None:
        with lease.gpu_lease(0.5, "bench", shared=shared) as name:
            taken.append(name)
            time.sleep(1.5)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(job, False), pool.submit(job, shared)]:
            done.result()
    assert taken == [gpu.uuid_sha256("GPU-one")] * 2


def test_jobs_of_a_run_wait_for_others_no_longer_than_they_may(
    boards: list[str], holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_PID, str(os.getpid()))
    del boards[1]
    with pytest.raises(LeaseError, match="in use by another kernelproof"), lease.gpu_lease(0.1, "bench"):
        pass
