"""The trusted side of running a candidate: starts worker processes, sets their limits, and says how each ended.

A supervisor never imports a candidate and never unpickles anything. It gives a worker files of bytes and a request,
and takes back JSON and files of bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernelproof.errors import (
    WorkerCrashed,
    WorkerError,
    WorkerRefused,
    WorkerReplyError,
    WorkerTimeout,
    describe_exit,
)
from kernelproof.processes import kill_group, spawn

START_LIMIT_S = 120.0  # importing torch from a cold network disk takes a minute
END_LIMIT_S = 10.0  # a killed process is gone at once, unless its GPU work must be torn down first
REPLY_LIMIT_BYTES = 512 << 20

# What a candidate's process may know of our environment. HOME and the temporary folder are the scratch folder.
ENVIRONMENT = (
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_PROC_BIND", "OMP_PLACES"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
)


class WorkerHost:
    """One warm interpreter that forks a fresh process for every candidate.

    `needs_torch`: import torch (loading.needs_torch says when). `threads`: CPU threads a candidate may use, 0 for all.
    `scratch`: an existing folder for temporary files. The interpreter starts at once and in parallel with the caller:
    the first `spawn` waits for it. A host that a candidate killed is started again by the next `spawn`.
    """

    def __init__(self, *, device: str, needs_torch: bool, scratch: Path, threads: int = 0) -> None:
        self.device = device
        self.scratch = scratch.resolve()
        self._needs_torch = needs_torch
        self._threads = threads or len(os.sched_getaffinity(0))
        self._spawned = 0
        self._log = self.scratch / "host.log"
        self._start()

    def _start(self) -> None:
        self._exit_codes: dict[int, int] = {}
        self._ready = self._ended = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "control_fd": theirs.fileno(),
            "needs_torch": self._needs_torch,
            "scratch": str(self.scratch),
            "threads": self._threads,
        }
        with theirs, self._log.open("ab") as log:
            self._process = spawn(
                [sys.executable, "-P", "-m", "kernelproof.worker", json.dumps(settings)],
                env=_environment(self.scratch, self._threads),
                cwd=self.scratch,
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
            )

    def spawn(self, log: Path | None = None) -> Worker:
        """Fork a worker; its output is appended to `log`. Raises WorkerError when the host does not start."""
        if self._ended and self._ready:  # a candidate took it down: that must not condemn the next one
            self._control.close()
            self._start()
        self.wait_until_ready()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._spawned += 1
        with theirs, (log or Path(os.devnull)).open("ab") as stream:
            request = json.dumps({"spawn": self._spawned}).encode()
            try:
                socket.send_fds(self._control, [request], [theirs.fileno(), stream.fileno()])
            except OSError:
                raise self._gone() from None
        reply = self._receive("spawned", START_LIMIT_S)
        return Worker(self, int(reply["pid"]), ours, log)

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
        with contextlib.suppress(Exception):
            self._process.wait(timeout=END_LIMIT_S)
        kill_group(self._process)

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
    """One candidate's process. Not thread-safe; after an exception it is dead, except after WorkerReplyError."""

    def __init__(self, host: WorkerHost, pid: int, connection: socket.socket, log: Path | None) -> None:
        self.pid = pid
        self.log = log
        self.alive = True
        self._host = host
        self._connection = connection
        self._buffer = bytearray()

    def request(self, command: str, *, timeout_s: float, **payload: Any) -> Any:
        """Send one request and wait for its answer.

        Raises WorkerCrashed when the process ends first, WorkerTimeout (and kills it) when `timeout_s` passes,
        WorkerReplyError when the request failed in the worker, WorkerRefused when the candidate does not take the case.
        """
        if not self.alive:
            raise WorkerError("the worker has ended", log=self.log)
        token = secrets.token_hex(16)  # an answer that does not bear it was not made for this request
        deadline = time.monotonic() + timeout_s
        try:
            self._send(json.dumps({"command": command, "token": token, **payload}).encode() + b"\n", deadline)
            line = self._receive_line(deadline)
        except ConnectionError:
            line = b""
        except TimeoutError:
            self._kill()
            raise WorkerTimeout(timeout_s, log=self.log) from None
        except BaseException:
            self._kill()
            raise
        if not line:
            raise self._crashed()
        return self._answer(line, token)

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

    def _crashed(self) -> WorkerError:
        """The process closed its connection: find out how it ended."""
        code = self._host.exit_code(self.pid, END_LIMIT_S)
        self._kill()
        if code is None:  # it closed its descriptors and lives on
            return WorkerError("the candidate closed its connection to the supervisor and was killed", log=self.log)
        return WorkerCrashed(code, log=self.log)

    def _answer(self, line: bytes, token: str) -> Any:
        try:
            reply = json.loads(line)
            forged = not isinstance(reply, dict) or not secrets.compare_digest(str(reply.get("token")), token)
        except ValueError:
            forged = True
        if forged:
            self._kill()
            raise WorkerError(
                "the answer was not written by the worker: something else used its connection", log=self.log
            )
        if "error" in reply:
            error = reply["error"]
            if error["type"] == "NotImplementedError":
                raise WorkerRefused(str(error["message"]), log=self.log)
            raise WorkerReplyError(f"{error['type']}: {error['message']}", log=self.log)
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
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError


def _environment(scratch: Path, threads: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    package_parent = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(_unique([package_parent, *kept.get("PYTHONPATH", "").split(os.pathsep)]))
    return {
        **kept,
        "PYTHONPATH": path,
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",  # NumPy only moves bytes here, and idle threads do not survive a fork
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # "is there a GPU?" must not create a CUDA context before the fork
        "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",  # it would compile an extension into the home folder
    }


def _unique(values: list[str]) -> Iterator[str]:
    return (value for value in dict.fromkeys(values) if value)
