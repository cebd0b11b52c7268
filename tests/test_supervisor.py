"""The supervisor against candidates that crash, hang, end the process, flood the disk and leave processes behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from defects import CallFiles, candidate, library, rmsnorm_call

from kernelproof import footprint, sandbox
from kernelproof.errors import WorkerCrashed, WorkerError, WorkerReplyError, WorkerStarved, WorkerTimeout
from kernelproof.supervisor import Worker, WorkerHost
from kernelproof.worker import FILE_LIMIT_BYTES


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", "hunter2")
        host = WorkerHost(device="cpu", needs_torch=False, scratch=tmp_path_factory.mktemp("scratch"), threads=1)
    with host:
        yield host


@pytest.fixture
def call(tmp_path: Path) -> CallFiles:
    return rmsnorm_call(tmp_path)


def loaded(host: WorkerHost, name: str, call: CallFiles | None = None, log: Path | None = None) -> Worker:
    """A worker with a candidate in it; with a call its folder is the call's, so that results outlive it."""
    described = candidate(name)  # compiled before: a worker does not see what appears later beside private folders
    worker = host.spawn(log, scratch=call.folder if call else None)
    worker.request("load", timeout_s=20, candidate=described)
    return worker


def test_torch_stays_out_of_a_worker_that_does_not_need_it(host: WorkerHost) -> None:
    worker = loaded(host, "good")
    mapped = Path(f"/proc/{worker.pid}/maps").read_text()
    worker.close()
    assert "libtvm_ffi" in mapped
    assert "libtorch" not in mapped


def test_a_good_kernel_gives_its_result(host: WorkerHost, call: CallFiles) -> None:
    worker = loaded(host, "good", call)
    reply = worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"], repeats=5)
    assert reply["differing"] == 0
    assert call.error("y") < 1e-6
    worker.close()


def test_results_that_were_read_take_no_room_of_later_ones(host: WorkerHost, call: CallFiles) -> None:
    worker = loaded(host, "good", call)
    for _ in range(2):
        worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
        assert call.error("y") < 1e-6
        worker.clear()
        assert not list(call.folder.glob("*.out"))
    worker.close()


@pytest.mark.parametrize(("name", "code"), [("segfault", -signal.SIGSEGV), ("exit_zero", 0)])
def test_a_crash_is_named(host: WorkerHost, call: CallFiles, name: str, code: int) -> None:
    worker = loaded(host, name)
    with pytest.raises(WorkerCrashed) as caught:
        worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    assert caught.value.exit_code == code
    assert not worker.alive
    with pytest.raises(WorkerError, match="has ended"):
        worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])


def test_a_truncated_library_takes_only_its_worker_down(host: WorkerHost, tmp_path: Path) -> None:
    (tmp_path / "short.so").write_bytes(library("good").read_bytes()[:1000])
    described = candidate("good") | {"library": str(tmp_path / "short.so")}
    worker = host.spawn()
    # The dynamic loader reads behind the end of the file: SIGBUS.
    with pytest.raises((WorkerCrashed, WorkerReplyError)):
        worker.request("load", timeout_s=20, candidate=described)
    worker.close()
    loaded(host, "good").close()


def test_a_hang_is_killed_on_time(host: WorkerHost, call: CallFiles) -> None:
    worker = loaded(host, "hang")
    started = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"within 0\.3 s"):
        worker.request("run", timeout_s=0.3, arguments=call.arguments, outputs=["y"])
    assert time.monotonic() - started < 10  # of a minute
    assert not alive(worker.pid)


def test_an_error_leaves_the_worker_usable(host: WorkerHost, call: CallFiles) -> None:
    worker = loaded(host, "raises")
    for _ in range(2):
        with pytest.raises(WorkerReplyError, match="this kernel takes no such input"):
            worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    worker.close()
    assert not alive(worker.pid)


def test_what_a_candidate_leaves_running_is_killed_with_it(host: WorkerHost, call: CallFiles, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = loaded(host, "daemon", call, log)
    worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    daemon = int(log.read_text().split("daemon ")[1].split()[0])
    assert alive(daemon)
    worker.close()
    assert gone_within(daemon, 5)


def test_output_goes_to_the_log_and_cannot_fill_the_disk(host: WorkerHost, call: CallFiles, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = loaded(host, "flood", log=log)
    worker.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"])
    worker.close()
    assert 1 << 20 < log.stat().st_size <= FILE_LIMIT_BYTES
    log.unlink()


def test_a_hand_made_answer_is_refused(host: WorkerHost, call: CallFiles) -> None:
    worker = loaded(host, "forged_answer")
    with pytest.raises(WorkerError, match="not written by the worker"):
        worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    assert not alive(worker.pid)


def test_the_environment_is_allow_listed(host: WorkerHost, call: CallFiles, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = loaded(host, "prints_environment", call, log)
    worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    worker.close()
    names = {line.split("=")[0] for line in log.read_text().splitlines()}
    assert {"PATH", "HOME", "OMP_NUM_THREADS"} <= names
    assert not names & {"SECRET_TOKEN", "PYTEST_CURRENT_TEST", "USER"}
    assert {f"HOME={call.folder}", f"TMPDIR={call.folder}"} <= set(log.read_text().splitlines())


def test_workers_are_told_apart(host: WorkerHost, call: CallFiles) -> None:
    """Two at once, and the crash of one is not the other's."""
    good, bad = loaded(host, "good", call), loaded(host, "segfault")
    with pytest.raises(WorkerCrashed):
        bad.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    good.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    assert call.error("y") < 1e-6
    good.close()


@pytest.mark.parametrize("measures", [False, True])
def test_who_is_measured_on_a_cpu_stays_on_as_many_cores_as_it_may_have_threads(tmp_path: Path, measures: bool) -> None:
    ours = os.sched_getaffinity(0)
    host = WorkerHost(device="cpu", needs_torch=False, scratch=tmp_path, threads=1, measures=measures)
    with host:
        worker = host.spawn()
        found = os.sched_getaffinity(worker.pid)
        worker.close()
    assert found == host.cores == ({max(ours)} if measures else ours)
    assert os.sched_getaffinity(0) == ours


def test_a_worker_sees_the_gpu_that_was_taken_after_its_host_had_started(
    host: WorkerHost, call: CallFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks.py").write_text(
        "import os\ndef asks(*inputs):\n    raise RuntimeError(f\"it sees {os.environ.get('CUDA_VISIBLE_DEVICES')}\")\n"
    )
    asks = {"abi": "python", "device": "cpu", "passing": "return", "entry": "asks.py:asks"}
    for sees in ("GPU-one", "GPU-two", None):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if sees:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", sees)
        worker = host.spawn()
        worker.request("load", timeout_s=20, candidate={**asks, "library": None, "root": str(tmp_path)})
        with pytest.raises(WorkerReplyError, match=f"it sees {sees}"):
            worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
        worker.close()


def test_who_meets_the_sandbox_is_told_of_it(host: WorkerHost, call: CallFiles, tmp_path: Path) -> None:
    (tmp_path / "writes.py").write_text(f"def writes(*inputs):\n    open({str(tmp_path / 'here')!r}, 'w')\n")
    writes = {"abi": "python", "device": "cpu", "passing": "return", "entry": "writes.py:writes"}
    worker = host.spawn()
    worker.request("load", timeout_s=20, candidate={**writes, "library": None, "root": str(tmp_path)})
    with pytest.raises(
        WorkerReplyError,
        match=r"PermissionError: .*Permission denied.* \(a candidate may not .*folder or make .*does\)",
    ):
        worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    worker.close()


def test_a_host_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('this numpy is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        WorkerHost(device="cpu", needs_torch=False, scratch=tmp_path) as host,
        pytest.raises(WorkerError, match="this numpy is broken"),
    ):
        host.spawn()


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device whose candidates have a process of their own and nothing else."""
    monkeypatch.setattr(sandbox, "DEVICES", frozenset())


@pytest.mark.usefixtures("unconfined")
def test_a_host_that_a_candidate_killed_is_started_again(tmp_path: Path, call: CallFiles) -> None:
    with WorkerHost(device="cpu", needs_torch=False, scratch=folder(tmp_path), threads=1) as host:
        worker = loaded(host, "kills_its_host")
        with pytest.raises(WorkerError, match="the worker host was killed by SIGKILL"):
            worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
        worker.close()
        assert gone_within(worker.pid, 5)
        good = loaded(host, "good", call)
        good.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
        assert call.error("y") < 1e-6
        good.close()


def test_a_host_that_died_after_the_answer_is_noticed_when_the_worker_ends(tmp_path: Path, call: CallFiles) -> None:
    """A busy machine can take a while to carry a kill out, long enough for the candidate's answer."""
    with WorkerHost(device="cpu", needs_torch=False, scratch=folder(tmp_path), threads=1) as host:
        worker = loaded(host, "good")
        host.check()
        worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
        host._process.kill()
        worker.close()
        with pytest.raises(WorkerError, match="the worker host was killed by SIGKILL"):
            host.check()


def test_memory_that_runs_out_takes_the_candidate_first(host: WorkerHost) -> None:
    worker = loaded(host, "good")
    assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text().strip() == "1000"
    worker.close()


@pytest.mark.parametrize(("kills", "starved"), [((3, 3), False), ((3, 4), True)])
def test_who_is_killed_for_a_lack_of_memory_did_not_crash(
    host: WorkerHost, call: CallFiles, monkeypatch: pytest.MonkeyPatch, kills: tuple[int, int], starved: bool
) -> None:
    monkeypatch.setattr(footprint, "memory_kills", lambda: kills[0])
    worker = loaded(host, "good")
    os.kill(worker.pid, signal.SIGKILL)
    monkeypatch.setattr(footprint, "memory_kills", lambda: kills[1])
    with pytest.raises(WorkerCrashed) as caught:
        worker.request("run", timeout_s=20, arguments=call.arguments, outputs=["y"])
    assert isinstance(caught.value, WorkerStarved) is starved


@pytest.mark.parametrize("devices", [["cpu"], []], ids=["confined", "unconfined"])
def test_nothing_survives_a_killed_supervisor(tmp_path: Path, call: CallFiles, devices: list[str]) -> None:
    """Not even what a candidate started in a session of its own."""
    script = f"""
import sys, time
from pathlib import Path
sys.path[:0] = {sys.path!r}
from kernelproof import footprint, sandbox
from kernelproof.supervisor import WorkerHost
sandbox.DEVICES = frozenset({devices!r})
host = WorkerHost(device="cpu", needs_torch=False, scratch=Path({str(folder(tmp_path))!r}))
worker = host.spawn(Path({str(tmp_path / "log")!r}), scratch=Path({str(tmp_path)!r}))
worker.request("load", timeout_s=20, candidate={candidate("daemon")!r})
worker.request("run", timeout_s=20, arguments={call.arguments!r}, outputs=["y"])
print(host._process.pid, worker.pid, Path({str(tmp_path / "log")!r}).read_text().split()[1], flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    process.kill()
    process.wait()
    process.stdout.close()
    assert all(gone_within(pid, 5) for pid in pids)


def test_a_low_limit_of_the_machine_for_files_condemns_nobody(tmp_path: Path) -> None:
    script = f"""
import resource, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from kernelproof.supervisor import WorkerHost
resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES // 2,) * 2)
host = WorkerHost(device="cpu", needs_torch=False, scratch=Path({str(folder(tmp_path))!r}))
host.spawn().request("load", timeout_s=20, candidate={candidate("good")!r})
host.close()
""".replace("FILE_LIMIT_BYTES", str(FILE_LIMIT_BYTES))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def folder(parent: Path) -> Path:
    made = parent / "host"
    made.mkdir()
    return made


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_within(pid: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)
