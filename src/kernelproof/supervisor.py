"""The trusted side of running a candidate: starts worker processes, sets their limits, and says how each ended.

A supervisor never imports a candidate and never unpickles anything. It gives a worker files of bytes and a request,
and takes back JSON and files of bytes. While it waits it looks at what the worker takes in files, and ends it when
that is too much.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernelproof import footprint, sandbox
from kernelproof.errors import (
    NoSuchEntry,
    ToolError,
    WorkerConfined,
    WorkerCrashed,
    WorkerError,
    WorkerGreedy,
    WorkerRefused,
    WorkerReplyError,
    WorkerStarved,
    WorkerTimeout,
    describe_exit,
)
from kernelproof.processes import (
    IDLE_THREADS_SLEEP,
    NO_EXTENSION,
    cores_to_measure_on,
    end,
    ended_children_s,
    kill_group,
    pinned,
    processor_time_s,
    python_path,
    remove_tree,
    spawn,
)

START_LIMIT_S = 120.0  # importing torch from a cold network disk takes a minute
END_LIMIT_S = 10.0  # a killed process is gone at once, unless its GPU work must be torn down first
REPLY_LIMIT_BYTES = 512 << 20
WATCH_EVERY_S = 0.25
SCRATCH_LIMIT_BYTES = 256 << 20  # what a candidate may write beneath its folder, besides its results
PROCESSES_LIMIT = 256

# What a candidate says that meets the sandbox, and who may not know of it.
REFUSED = re.compile(r"Permission denied|Operation not permitted", re.IGNORECASE)
BY_SANDBOX = (
    "a candidate may not change what rank threads have, open connections, write outside its own folder or make shared "
    "memory and semaphores that have a name, as Python's multiprocessing does"
)
# What a candidate's process may know of our environment. HOME and the temporary folder are the scratch folder.
ENVIRONMENT = (
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_PROC_BIND", "OMP_PLACES"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
)


class WorkerHost:
    """One warm interpreter that forks a fresh process for every candidate.

    `needs_torch`: import torch (memory.needs_torch says when). `threads`: CPU threads a candidate may use, 0 for all.
    `scratch`: an existing folder, for the workers' folders and the interpreter's own. `private`: folders that a
    candidate may not even read; this one is always among them. `measures`: times are taken, and nothing else runs: on a
    CPU all threads stay on as many cores (`cores`); else a candidate's idle threads sleep, for others need the cores,
    unless they are to be `awake`.
    The interpreter starts at once and in parallel with the caller: the first `spawn` waits for it. A host that a
    candidate killed is started again by the next `spawn`.
    """

    def __init__(
        self,
        *,
        device: str,
        needs_torch: bool,
        scratch: Path,
        threads: int = 0,
        private: Sequence[Path] = (),
        measures: bool = False,
        awake: bool = False,
    ) -> None:
        self.device = device
        self.scratch = scratch.resolve()
        self.confined = device in sandbox.DEVICES
        self._private = [str(folder.resolve()) for folder in (self.scratch, *private)]
        self._probe = self.scratch / "probe"
        self._probe.touch()
        self._needs_torch = needs_torch
        self._measures = measures
        self.cores = os.sched_getaffinity(0)
        self._threads = threads or len(self.cores)
        if measures and device == "cpu":
            self.cores = cores_to_measure_on(self._threads)
        self._awake = measures or awake
        # Without torch there is no OpenMP in the host to be told, and each worker is: one host serves both kinds.
        idle = IDLE_THREADS_SLEEP if needs_torch and not self._awake else {}
        # Small pieces that come out of a thread's own cache, malloc does not fill.
        filled = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"} if device == "cpu" and not measures else {}
        self._environment = environment(self.scratch, self._threads) | idle | filled
        self._spawned = 0
        self._log = self.scratch / "host.log"
        self._start()

    def _start(self) -> None:
        self._exit_codes: dict[int, int] = {}
        self._ready = self._ended = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "control_fd": theirs.fileno(),
            "supervisor": os.getpid(),
            "confined": self.confined,
            "cuda": self.device == "cuda",
            "needs_torch": self._needs_torch,
            "measures": self._measures,
            "private": self._private,
            "probe": str(self._probe),
            "threads": self._threads,
        }
        with theirs, self._log.open("ab") as log, pinned(self.cores):
            self._process = spawn(
                [sys.executable, "-P", "-m", "kernelproof.worker", json.dumps(settings)],
                env=self._environment,
                cwd=self.scratch,
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
                stop_signal=signal.SIGTERM,
            )

    def spawn(
        self,
        log: Path | None = None,
        scratch: Path | None = None,
        readable: Sequence[Path] = (),
        *,
        awake: bool | None = None,
        fill: bool = True,
    ) -> Worker:
        """Fork a worker; its output is appended to `log`.

        `scratch`: an existing folder, the only one in which the worker writes; by default a new one that goes with it.
        `readable`: what it may read of the private folders. `awake`: whether its idle threads spin for a while, where
        that is not to be as the host has it; with torch, whose OpenMP has asked by then, it is. `fill`: whether memory
        that it asks for is filled, where results on a CPU are checked. The worker sees the GPU that we hold by now, and
        not what we saw when the host was started. Raises WorkerError when the host or the worker does not start.
        """
        if self._ended and self._ready:  # a candidate took it down: that must not condemn the next one
            self._control.close()
            self._start()
        self.wait_until_ready()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._spawned += 1
        folder = (scratch or self.scratch / f"worker-{self._spawned}").resolve()
        folder.mkdir(exist_ok=True)
        order = {
            "spawn": self._spawned,
            "scratch": str(folder),
            "readable": [str(path.resolve()) for path in readable],
            "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "awake": self._awake if awake is None else awake,
            "fill": fill,
        }
        with theirs, (log or Path(os.devnull)).open("ab") as stream:
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], [theirs.fileno(), stream.fileno()])
            except OSError:
                raise self._gone() from None
        reply = self._receive("spawned", START_LIMIT_S)
        worker = Worker(self, int(reply["pid"]), ours, log, folder, temporary=scratch is None)
        worker.wait_until_confined()
        return worker

    def members(self, worker: int) -> list[int]:
        """A worker and what it started."""
        return footprint.members(self._process.pid, worker)

    def ended_children_s(self) -> float:
        """Seconds that processes which have ended had a core, those that a worker abandoned among them."""
        return ended_children_s(self._process.pid)

    def wait_until_ready(self) -> None:
        """Wait for the interpreter's imports. Raises WorkerError when it does not start."""
        if not self._ready:
            self._receive("ready", START_LIMIT_S)
            self._ready = True

    def check(self) -> None:
        """Raises WorkerError when the interpreter has ended: after `close` of a worker, by that worker's doing."""
        if self._ended:
            raise self._gone()

    def exit_code(self, pid: int, limit_s: float) -> int | None:
        """How a worker ended (negative: by a signal), waiting for it at most `limit_s`; None when it still runs."""
        deadline = time.monotonic() + limit_s
        while pid not in self._exit_codes:
            message = self._next(deadline)
            if message is None:
                return None
        return self._exit_codes[pid]

    def kill(self, pid: int) -> None:
        """Kill a worker and everything it started, and wait until it is gone."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"kill": pid}).encode())
        with contextlib.suppress(WorkerError):
            self.exit_code(pid, END_LIMIT_S)

    def close(self) -> None:
        """End the host and with it every worker."""
        self._control.close()
        end(self._process, END_LIMIT_S)

    def _receive(self, key: str, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while True:
            message = self._next(deadline)
            if message is None:
                raise WorkerError(f"the worker host did not answer within {limit_s:g} s", log=self._log)
            if key in message:
                return message

    def _next(self, deadline: float) -> dict[str, Any] | None:
        """The host's next message, with exits noted; None when the deadline passed."""
        readable, _, _ = select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return None
        try:
            data = self._control.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            raise self._gone()
        message: dict[str, Any] = json.loads(data)
        if "exited" in message:
            self._exit_codes[int(message["exited"])] = int(message["exit_code"])
        return message

    def _gone(self) -> WorkerError:
        self._ended = True
        kill_group(self._process)
        how = describe_exit(self._process.returncode)
        if self._ready:
            return WorkerError(f"the worker host {how}, and with it the candidate's process", log=self._log)
        tail = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return WorkerError(
            f"the worker host {how}" + (f": {tail[0]}" if tail else ""),
            log=self._log,
            hint="try `python -c 'import tvm_ffi'` with the same interpreter",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Worker:
    """One candidate's process. Not thread-safe; after an exception it is dead, except after WorkerReplyError.

    `scratch`: its folder, where what it hands over lies. `isolation`: how far it was confined before it was given a
    candidate, as it found by trying.
    """

    def __init__(
        self, host: WorkerHost, pid: int, connection: socket.socket, log: Path | None, scratch: Path, *, temporary: bool
    ) -> None:
        self.pid = pid
        self.log = log
        self.scratch = scratch
        self.isolation = sandbox.Isolation()
        self.alive = True
        self._temporary = temporary
        self._room_bytes = SCRATCH_LIMIT_BYTES
        self._memory_kills = footprint.memory_kills()
        self._host = host
        self._connection = connection
        self._buffer = bytearray()

    def processor_time_s(self) -> float:
        """Seconds that it and whatever it started have had a core."""
        running = sum(map(processor_time_s, self._host.members(self.pid)))
        return running + ended_children_s(self.pid) + self._host.ended_children_s()

    def threads_at_work(self) -> int:
        """Threads, of it and whatever it started, that have a core or wait for one."""
        return footprint.threads_at_work(self._host.members(self.pid))

    def wait_until_confined(self) -> None:
        """Take the worker's own account of its sandbox: it holds no candidate yet. Raises WorkerError without one.

        Where the worker itself failed, ToolError.
        """
        try:
            line = self._receive_line(time.monotonic() + START_LIMIT_S)
        except OSError:
            line = b""
        if not line:
            code = self._host.exit_code(self.pid, END_LIMIT_S)
            self._kill()
            how = "did not answer" if code is None else describe_exit(code)
            ours = code == os.EX_SOFTWARE  # nobody is condemned for that
            raise (ToolError if ours else WorkerError)(
                f"the worker {how} before it was given a candidate", log=self.log, hint="try `kernelproof doctor`"
            )
        self.isolation = sandbox.Isolation(**json.loads(line))
        if self._host.confined and "reading other processes' memory" not in self.isolation.refused:
            sandbox.hide_memory()

    def request(self, command: str, *, timeout_s: float, room_bytes: int = 0, **payload: Any) -> Any:
        """Send one request and wait for its answer.

        `room_bytes`: what lies in the worker's folder by right, results that this request makes among it.
        Raises WorkerCrashed when the process ends first, WorkerTimeout (and kills it) when `timeout_s` passes,
        WorkerGreedy (and kills it) when it writes too much into files or starts too many processes,
        WorkerReplyError when the request failed in the worker, WorkerRefused when the candidate does not take the case.
        """
        if not self.alive:
            raise WorkerError("the worker has ended", log=self.log)
        token = secrets.token_hex(16)  # an answer that does not bear it was not made for this request
        deadline, had_s = time.monotonic() + timeout_s, processor_time_s(self.pid)
        self._room_bytes = room_bytes + SCRATCH_LIMIT_BYTES
        try:
            self._send(json.dumps({"command": command, "token": token, **payload}).encode() + b"\n", deadline)
            line = self._receive_line(deadline)
            self._watch()
        except ConnectionError:
            line = b""
        except TimeoutError:
            held = footprint.most_memory_bytes(self.pid)
            # Threads that spin for one another have cores too, and get nowhere beside others' programs.
            at_work = self.threads_at_work() == 1 and processor_time_s(self.pid) - had_s > timeout_s / 2
            self._kill()
            raise WorkerTimeout(timeout_s, held, at_work, log=self.log) from None
        except BaseException:
            self._kill()
            raise
        if not line:
            raise self._crashed()
        return self._answer(line, token)

    def clear(self) -> None:
        """Remove what it handed over, once that was read: the next call's results are what its folder has room for."""
        for suffix in ("out", "differing", "repeats"):
            for path in self.scratch.glob(f"*.{suffix}"):
                with contextlib.suppress(OSError):
                    path.unlink()

    def close(self) -> None:
        """Let the worker end; kill it if it does not."""
        if self.alive:
            self._connection.close()
            with contextlib.suppress(WorkerError):
                self._host.exit_code(self.pid, 2.0)
            self._kill()

    def _kill(self) -> None:
        self.alive = False
        self._connection.close()
        if self.pid not in self._host._exit_codes:
            self._host.kill(self.pid)
        if self._temporary:
            remove_tree(self.scratch)

    def _crashed(self) -> WorkerError:
        """The process closed its connection: find out how it ended."""
        code = self._host.exit_code(self.pid, END_LIMIT_S)
        self._kill()
        if code is None:  # it closed its descriptors and lives on
            return WorkerError("the candidate closed its connection to the supervisor and was killed", log=self.log)
        if code == -signal.SIGKILL and footprint.memory_kills() > self._memory_kills:
            return WorkerStarved(code, log=self.log)
        return WorkerCrashed(code, log=self.log)

    def _answer(self, line: bytes, token: str) -> Any:
        reply = _parsed(line)
        if not _is_answer(reply, token):
            self._kill()
            raise WorkerError(
                "the answer was not written by the worker: something else used its connection", log=self.log
            )
        if "error" in reply:
            error = reply["error"]
            if error["type"] == "NotImplementedError":
                raise WorkerRefused(error["message"], log=self.log)
            if error["type"] == WorkerGreedy.__name__:
                self._kill()
                raise WorkerGreedy(error["message"], log=self.log)
            ours = {kind.__name__: kind for kind in (WorkerReplyError, NoSuchEntry)}.get(error["type"])
            words = error["message"] if ours else f"{error['type']}: {error['message']}"
            if self._host.confined and REFUSED.search(words):
                raise WorkerConfined(f"{words} ({BY_SANDBOX})", log=self.log)
            raise (ours or WorkerReplyError)(words, log=self.log)
        return reply["result"]

    def _send(self, data: bytes, deadline: float) -> None:
        remaining = memoryview(data)
        while remaining:
            self._wait(select.POLLOUT, deadline)
            remaining = remaining[self._connection.send(remaining, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]

    def _receive_line(self, deadline: float) -> bytes:
        """One line, or b"" when the process has ended."""
        while b"\n" not in self._buffer:
            self._wait(select.POLLIN, deadline)
            data = self._connection.recv(1 << 20)
            if not data:
                return b""
            self._buffer += data
            if len(self._buffer) > REPLY_LIMIT_BYTES:
                raise WorkerError("the answer is larger than any answer can be", log=self.log)
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        while not poll.poll(1000 * min(WATCH_EVERY_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise TimeoutError
            self._watch()

    def _watch(self) -> None:
        """Raises WorkerGreedy when the worker filled its folder, its log or deleted files, or started many processes.

        Only where it is confined, for elsewhere it could write to any folder.
        """
        if not self._host.confined:
            return
        members = self._host.members(self.pid)
        if len(members) > PROCESSES_LIMIT:
            raise WorkerGreedy(f"it started more than {PROCESSES_LIMIT} processes and was killed", log=self.log)
        used = footprint.disk_bytes(self.scratch) + footprint.deleted_bytes(members, self.scratch)
        if self.log is not None:
            used += 512 * self.log.stat().st_blocks
        if used == float("inf"):
            message = f"it nested folders more than {footprint.DEPTH} deep, or than a path can be, and was killed"
            raise WorkerGreedy(message, log=self.log)
        if used > self._room_bytes:
            message = f"it wrote more than {self._room_bytes >> 20} MB into files and was killed"
            raise WorkerGreedy(message, log=self.log)


def _parsed(line: bytes) -> Any:
    """What a line of JSON says, None for any other; every text in it can be written to a file."""
    try:
        text = line.decode()
        # A surrogate that stands alone can be escaped in JSON, and is no character in UTF-8.
        return json.loads(json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _is_answer(reply: Any, token: str) -> bool:
    """Whether it has the token of the request and the form of an answer: a `result`, or an `error` in two texts."""
    if not isinstance(reply, dict) or reply.get("token") != token:
        return False
    if "error" not in reply:
        return "result" in reply
    error = reply["error"]
    return isinstance(error, dict) and all(isinstance(error.get(name), str) for name in ("type", "message"))


def environment(scratch: Path, threads: int) -> dict[str, str]:
    """The environment of a process that runs a candidate; `scratch` is its home and its temporary folder."""
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": python_path(),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",  # NumPy only moves bytes here, and idle threads do not survive a fork
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # "is there a GPU?" must not create a CUDA context before the fork
        **NO_EXTENSION,
    }
