"""The process that runs candidates: `python -m kernelproof.worker`, started by the supervisor and by nobody else.

It is a fork server. The *host* imports what candidates need (NumPy and TVM-FFI, torch where it must), touches no GPU
and runs no candidate. For each `spawn` it forks a *worker*: a process in a session of its own, with its own private
connection to the supervisor, which gives up what a candidate has no need of (see kernelproof.sandbox), says so, loads
one candidate, calls it and hands over raw bytes. A worker never knows the operator, the seed or the expected result,
and whatever it does to itself (a crash, a hang, `exit(0)`) ends only it.

Messages are JSON: one datagram each between host and supervisor, one line each between worker and supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import gc
import json
import math
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kernelproof import formats, sandbox
from kernelproof.errors import OUT_OF_TOUCH, KernelproofError, WorkerGreedy, WorkerReplyError
from kernelproof.processes import (
    FILL,
    IDLE_THREADS_SLEEP,
    collect_rarely,
    die_with_parent,
    fill_fresh_memory,
    fill_stack,
    once_there_is_room,
)

if TYPE_CHECKING:
    from kernelproof.loading import Candidate, Image
    from kernelproof.ordering import Order, Taken
    from kernelproof.sealed import Cubins

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
# The largest file a candidate can write, its log included: a disk cannot be filled. A precompiled header, as
# torch.compile makes one for a CPU, has 150 MB. The supervisor watches the sum, and a full log alone stays below that.
FILE_LIMIT_BYTES = 192 << 20
# What a program says that meets the limit.
TOO_LARGE = (os.strerror(errno.EFBIG), signal.strsignal(signal.SIGXFSZ) or "")
OUT_SUFFIX, DIFFERING_SUFFIX = ".out", ".differing"  # of an image as the first call left it, and as another did
REPEATS_SUFFIX = ".repeats"  # of an output image: some of the repeats, one behind the other
REPEATS_KEPT_BYTES = 1 << 30
# Results are the caller's and are held for it, as many as these bytes hold: later calls must leave them alone, and so
# must what earlier ones left running. Of those that a candidate returned in memory of its own, a few of any size.
HELD_BYTES, HELD_MOST, RETURNED_HELD = 16 << 20, 64, 8
SETTLING_S = 0.04  # behind a call's repeats, for what they left running
POISON_FLIP = 0x55  # XORed into every element of every second repeat's output poison


def main() -> None:
    """Serve as a host until the supervisor's end of the control socket closes."""
    settings = json.loads(sys.argv[1])
    control = socket.socket(fileno=settings["control_fd"])
    preload(settings["needs_torch"], settings["cuda"], settings["measures"])
    Host(control, settings).serve()


def preload(needs_torch: bool, cuda: bool, measures: bool) -> None:
    """Import what candidates need, and what times them: once, and not in each of the processes of a benchmark.

    No CUDA call may happen here: a CUDA context does not survive a fork.
    """
    usual = gc.get_threshold()
    collect_rarely()
    import numpy  # noqa: F401

    if needs_torch:
        import torch  # noqa: F401
    else:
        sys.modules["torch"] = None  # type: ignore[assignment]  # TVM-FFI imports torch where it can: 2 s for nothing
    import tvm_ffi  # noqa: F401

    import kernelproof.ordering  # and with it loading

    if measures:
        import scipy.special  # noqa: F401  which kernelproof.statistics imports when it is first asked

        import kernelproof.holding  # noqa: F401  and with it timing

    sandbox.prepare(cuda=cuda)
    gc.freeze()  # a worker's collections need not look at what was imported
    gc.set_threshold(*usual)


class Host:
    """Forks workers on request and reports how each ended."""

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self.control = control
        self.settings = settings
        self.pid = os.getpid()
        self.workers: set[int] = set()

    def serve(self) -> None:
        """Handle requests and ended children until the supervisor is gone; then kill every worker."""
        # Whatever a worker starts and abandons becomes our child, and is found and killed when the worker ends.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        # The supervisor's death comes as this signal. To die of it at once would leave alive what a worker started.
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        self.tell(ready=True)
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == wake_read:
                        with contextlib.suppress(BlockingIOError):
                            os.read(wake_read, 4096)
                        self.reap()
                    elif not self.obey():
                        self.end()

    def obey(self) -> bool:
        """Carry out one message of the supervisor; False when it is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 2)
        except ConnectionError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if "kill" in message:
            self.kill(message["kill"])
        else:
            connection, log = descriptors
            pid = once_there_is_room(os.fork)
            if pid == 0:
                self.become_worker(connection, log, message)
            self.workers.add(pid)
            os.close(connection)
            os.close(log)
            self.tell(spawned=message["spawn"], pid=pid)
        return True

    def become_worker(self, connection: int, log: int, order: dict[str, Any]) -> NoReturn:
        """In the forked child: leave everything of the host behind and serve one candidate.

        order: `scratch`, the worker's folder; `readable`, what else of the run's folders it may read; `gpu`, what CUDA
        is to see, null where nobody says; `awake`, whether its idle threads spin for a while; `fill`, whether fresh
        memory is filled, where results on a CPU are checked.
        """
        status = OUT_OF_TOUCH
        try:
            os.setsid()
            die_with_parent(self.pid)
            signal.set_wakeup_fd(-1)
            # TVM-FFI's own handler allocates while it prints C++ frames, and a crash ended as an abort, or could hang.
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGSEGV):
                signal.signal(number, signal.SIG_DFL)
            self.control.close()
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            limit = FILE_LIMIT_BYTES if most == resource.RLIM_INFINITY else min(FILE_LIMIT_BYTES, most)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
            with contextlib.suppress(OSError):  # when memory runs out, it is this process that goes, and not the run
                Path("/proc/self/oom_score_adj").write_text("1000")
            faulthandler.enable()
            if order["gpu"] is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = order["gpu"]
            if not order["awake"]:  # OpenMP asks when the candidate's library brings it along
                os.environ.update(IDLE_THREADS_SLEEP)
            os.chdir(order["scratch"])
            fills = order["fill"] and not (self.settings["measures"] or self.settings["cuda"])
            if fills:
                fill_fresh_memory()
            isolation = self.confine(connection, order)
            scratch = Path(order["scratch"])
            Worker(socket.socket(fileno=connection), self.settings, scratch, isolation, fills=fills).serve()
            status = 0
        except BaseException as error:
            import traceback

            traceback.print_exc()
            if isinstance(error, SystemExit):  # the candidate's own: the status is the one that it asked for
                status = error.code if isinstance(error.code, int) else int(error.code is not None)
        finally:
            os._exit(status)

    def confine(self, connection: int, order: dict[str, Any]) -> sandbox.Isolation:
        """Give up what this device's candidates need not have, and what the host left open."""
        if not self.settings["confined"]:
            return sandbox.Isolation()
        os.closerange(3, connection)
        os.closerange(connection + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for name in ("HOME", "TMPDIR"):
            os.environ[name] = order["scratch"]
        tempfile.tempdir = None  # else it stays what it was when it was first asked for
        plan = sandbox.Plan(
            scratch=order["scratch"],
            private=tuple(self.settings["private"]),
            readable=tuple(order["readable"]),
            probe=self.settings["probe"],
            others=(self.settings["supervisor"], self.pid),
            cuda=self.settings["cuda"],
        )
        return sandbox.enter(plan)

    def kill(self, pid: int) -> None:
        if pid in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # the fork may not have come to its setsid yet

    def reap(self) -> None:
        """Collect every ended child; report workers, and kill what they left running."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            if pid in self.workers:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # while the zombie still holds the group's number
            _, status = os.waitpid(pid, 0)
            ours = pid in self.workers
            self.workers.discard(pid)
            self.kill_adopted()  # also after one of these: what it had started is ours now
            if ours:
                self.tell(exited=pid, exit_code=os.waitstatus_to_exitcode(status))

    def kill_adopted(self) -> None:
        """Kill processes that an ended worker moved out of its session (a daemon) and left to us."""
        children = Path(f"/proc/self/task/{self.pid}/children")
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    if child not in self.workers and os.getsid(child) not in self.workers:
                        os.kill(child, signal.SIGKILL)

    def tell(self, **message: Any) -> None:
        with contextlib.suppress(ConnectionError):
            self.control.send(json.dumps(message).encode())

    def end(self) -> NoReturn:
        for pid in list(self.workers):
            self.kill(pid)
        self.kill_adopted()
        os._exit(0)


class Worker:
    """One candidate in one process: loads it, calls it, hands over what it wrote."""

    def __init__(
        self,
        connection: socket.socket,
        settings: dict[str, Any],
        scratch: Path,
        isolation: sandbox.Isolation,
        *,
        fills: bool,
    ) -> None:
        self.connection = connection
        self.settings = settings
        self.scratch = scratch
        self.isolation = isolation
        self.fills = fills  # memory and stack that nobody has written
        self.byte = FILL  # what they are full of
        self.with_torch = bool(settings["needs_torch"])
        self.candidate: Candidate | None = None
        self.function: Callable[..., Any] | None = None
        self.order: Order | None = None
        self.kept: list[Any] = []  # by image, what each repeat of the last request left in the outputs
        self.returned: list[Any] = []  # by the last call, where the candidate returns its outputs
        self.held: deque[tuple[Any, Any]] = deque()  # results of calls, and their bits then
        self.cubins: Cubins | None = None
        self.may_begin_early = True  # the calls of this request; nobody knows what a library's are launched like

    def serve(self) -> None:
        """Say how far this process is confined, while no candidate is in it; then answer requests."""
        self.say(asdict(self.isolation))
        commands: dict[str, Callable[..., Any]] = {
            "load": self.load,
            "describe": self.describe,
            "run": self.run,
            "repeats": self.hand_over_repeats,
            "settle": self.settle,
            "measure": self.measure,
            "witness": self.witness,
        }
        if self.with_torch and self.settings["threads"]:
            import torch

            torch.set_num_threads(self.settings["threads"])
        with self.connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                token = request.pop("token")
                try:
                    answer = {"result": commands[request.pop("command")](**request)}
                except Exception as error:
                    import traceback

                    traceback.print_exc()
                    answer = {"error": self.words_of(error)}
                sys.stdout.flush()
                sys.stderr.flush()
                self.say({"token": token, **answer})

    def words_of(self, error: Exception) -> dict[str, str]:
        """An exception's type and message, as the supervisor takes them."""
        kind, words, place = type(error).__name__, str(error), ""
        if isinstance(error, KernelproofError) and error.hint:  # what comes next the record says, once
            words = f"{KernelproofError(error.message, subject=error.subject)}; {error.hint}"
        if self.candidate and self.candidate.abi == "python":
            from kernelproof.loading import raised_in

            place = "" if isinstance(error, NotImplementedError) else raised_in(error, Path(self.candidate.root))
        elif self.candidate and isinstance(error, UnicodeDecodeError):
            # A library's message is not UTF-8: who made an exception of it failed at that, and holds the whole of it.
            kind, words = "RuntimeError", error.object.decode(errors="replace")
        if any(said in words for said in TOO_LARGE):
            limit = (
                f"a file of it, or of a program that it ran, grew beyond {FILE_LIMIT_BYTES >> 20} MB, the limit here"
            )
            kind, words = WorkerGreedy.__name__, f"{limit}: {kind}: {words}"
        return {"type": kind, "message": _first_lines(words) + place}

    def say(self, message: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def load(self, candidate: dict[str, Any]) -> dict[str, Any]:
        """Load the candidate (see loading.Candidate): its library or callable, or its cubins and nothing else."""
        from kernelproof.loading import Candidate, load, synchronise
        from kernelproof.ordering import order_on

        self.candidate = Candidate(**candidate)
        if self.candidate.cubins is not None:
            from kernelproof.sealed import Cubins

            self.cubins = Cubins(self.candidate.cubins)
            self.order = order_on(self.candidate.device)
            return {}
        library = Path(self.candidate.library) if self.candidate.library else None
        self.function = load(self.candidate, library, Path(self.candidate.root))
        for name in IDLE_THREADS_SLEEP:  # its OpenMP has asked by now, and where we time there is none
            os.environ.pop(name, None)
        self.order = order_on(self.candidate.device)
        synchronise(self.candidate.device)
        return {}

    def describe(self, outline: dict[str, Any], unread: dict[str, list[list[int]]]) -> dict[str, Any]:
        """What a call with such arguments (images.outline) launches: `steps`, or `reason` why that cannot be said.

        `unread`: by kernel, parts of its parameters that it does not read.
        `refused` is the reason where the candidate does not take the case. Raises when the device is unusable now.
        """
        from kernelproof.launches import Indescribable
        from kernelproof.loading import synchronise
        from kernelproof.sealed import describe

        if self.function is None:
            raise RuntimeError("nothing is loaded")
        function = self.function
        try:
            steps = describe(lambda values: function(*values.values()), outline, unread)
            return {"steps": [asdict(step) for step in steps]}
        except NotImplementedError as error:
            answer = {"refused": _first_lines(str(error))}
        except Indescribable as error:
            answer = {"reason": _first_lines(str(error))}
        except Exception as error:
            answer = {"reason": _first_lines(f"{type(error).__name__}: {error}")}
        synchronise("cuda")
        return answer

    def run(
        self,
        arguments: dict[str, Any],
        outputs: list[str],
        repeats: int = 1,
        following: Sequence[dict[str, Any]] = (),
        launches: Sequence[Any] = (),
        repeats_limit_s: float = math.inf,
        fresh: Sequence[int] = (),
    ) -> dict[str, Any]:
        """Call the candidate `repeats` times on the same inputs and hand every image over (loading.handed_over).

        No repeat begins later than `repeats_limit_s` after the first call; `repeats` says how many calls there were.
        Each call finds its outputs freshly poisoned. What is handed over is the first call's outputs and the inputs as
        the last call left them. The other calls should give the same bits: `differing` counts those that do not,
        `first_difference` is [repeat, output, flat element index] of the first that did not, and its images are handed
        over too, to `<image>.differing`. What the first `kept` repeats gave is kept until the next request, so that
        somebody else can compare too (hand_over_repeats); `farthest` is the one of these, from 0, whose result lies
        farthest from the first call's, null where none differs.

        The arguments of `following` calls are laid out like the first one's; their images are put into the same
        memory, one after another, and handed over in the same way. Where cubins are loaded, `launches` describes each
        of the calls. `fresh`: the byte that fresh memory is full of in each (on a CPU). `out_of_order` lists the calls
        (the first is 0) whose outputs changed before their turn or after they were over, or are others where it may
        begin before its turn: [call, `before`, `after` or `ahead`, bytes]; [0, `later`, bytes] is of what the last call
        of this request or of an earlier one had written, seen at this one's end.
        """
        from kernelproof.loading import load_image, synchronise

        if self.candidate is None:
            raise RuntimeError("nothing is loaded")
        device = self.candidate.device
        described = {name: value for name, value in arguments.items() if isinstance(value, dict)}
        # Once each: inputs that have one image are one tensor.
        by_path = {value["image"]: value for value in described.values()}
        loaded = {path: load_image(value, device, self.with_torch) for path, value in by_path.items()}
        images = {name: loaded[value["image"]] for name, value in described.items()}
        poison = {name: _copy(images[name].raw) for name in outputs}
        acts = [
            self.prepared(values, images, outputs, launches[number : number + 1])
            for number, values in enumerate((arguments, *following))
        ]
        if self.cubins is not None:
            from kernelproof.launches import begins_early

            self.may_begin_early = any(map(begins_early, launches))
        synchronise(device)
        bytes_of_calls = iter(fresh)
        self.byte = next(bytes_of_calls, FILL)
        started = time.monotonic()
        first = last = self.call(acts[0], images, outputs)
        duration_s = time.monotonic() - started
        calls = [first]
        self.look_again()
        first_bits = {name: _copy(_bits(images[name].view)) for name in outputs}
        differing, first_difference = 0, None
        farthest, largest = None, 0.0
        self.kept = []
        last_start = time.monotonic() + repeats_limit_s
        made = 1
        for repeat in range(1, repeats):
            if time.monotonic() > last_start:
                break
            made += 1
            last = self.call(acts[0], images, outputs, poison, repeat)
            again = last.outputs
            if (len(self.kept) + 1) * sum(map(len, poison.values())) <= REPEATS_KEPT_BYTES:
                self.kept.append({arguments[name]["image"]: raw for name, raw in again.items()})
            found = {name: _first_difference(_bits(images[name].view), first_bits[name]) for name in outputs}
            place = next(([name, element] for name, element in found.items() if element is not None), None)
            if place is not None:
                differing += 1
                apart = max(_distance(images[name].view, first_bits[name]) for name in outputs)
                if apart > largest and len(self.kept) == repeat:
                    farthest, largest = repeat - 1, apart
            if place is not None and first_difference is None:
                first_difference = [repeat, *place]
                self.hand_over(arguments, {name: image.raw for name, image in images.items()}, DIFFERING_SUFFIX)
        left = {name: image.raw for name, image in images.items()}
        self.hand_over(arguments, {**left, **first.outputs})
        for others, act in zip(following, acts[1:], strict=True):
            for name, image in images.items():
                image.raw[...] = _bytes_like(image.raw, others[name]["image"])
            self.byte = next(bytes_of_calls, FILL)
            last = self.call(act, images, outputs)
            calls.append(last)
            self.look_again()
            self.hand_over(others, {**left, **last.outputs})
        out_of_order = [[n, call.when, call.changed_bytes] for n, call in enumerate(calls) if call.when]
        if self.candidate.passing == "destination":
            if not last.when:
                self.hold([(images[name].raw, _bits(last.outputs[name])) for name in outputs])
            time.sleep(SETTLING_S if repeats > 1 else 0)
            if changed := self.changed():
                out_of_order.insert(0, [0, "later", changed])
        return {
            "repeats": made,
            "differing": differing,
            "first_difference": first_difference,
            "kept": len(self.kept),
            "farthest": farthest,
            "out_of_order": out_of_order,
            "duration_s": duration_s,
        }

    def settle(self) -> dict[str, Any]:
        """Wait until all that was queued is done. Raises when the device is unusable now."""
        from kernelproof.loading import synchronise

        assert self.candidate is not None
        synchronise(self.candidate.device)
        return {}

    def hand_over_repeats(self, images: list[str], indices: list[int]) -> dict[str, Any]:
        """Hand over what the last request's repeats (the first is 0) left in output images, to `<image>.repeats`."""
        from kernelproof.loading import handed_over, new_file, to_bytes, unlimited_files

        for image in images:
            with unlimited_files(), new_file(handed_over(self.scratch, image, REPEATS_SUFFIX)) as stream:
                for index in indices:
                    stream.write(to_bytes(self.kept[index][image]))
        return {}

    def hand_over(self, arguments: dict[str, Any], raw: dict[str, Any], suffix: str = OUT_SUFFIX) -> None:
        from kernelproof.loading import handed_over, new_file, to_bytes, unlimited_files

        with unlimited_files():
            for name, data in raw.items():
                with new_file(handed_over(self.scratch, arguments[name]["image"], suffix)) as stream:
                    stream.write(to_bytes(data))

    def prepared(
        self, arguments: dict[str, Any], images: dict[str, Image], outputs: list[str], launches: Sequence[Any]
    ) -> Callable[[], None]:
        """One call: with all arguments, or without the outputs when the candidate returns them.

        Images take the place of the arguments that describe them.
        """
        if self.cubins is not None:
            return self.cubins.prepared(launches[0], images)
        values = {name: images[name].argument if name in images else value for name, value in arguments.items()}
        return lambda: self._call(values, images, outputs)

    def call(
        self,
        act: Callable[[], None],
        images: dict[str, Image],
        outputs: list[str],
        poison: dict[str, Any] | None = None,
        repeat: int = 0,
    ) -> Taken:
        """Make one prepared call, until its work is done.

        A repeat finds its outputs poisoned in turn with `poison` and with its complement, so that a result which hangs
        on it shows.
        """
        assert self.order is not None

        def prepare() -> None:
            for name, raw in (poison or {}).items():
                images[name].raw[...] = raw
                if repeat % 2 == 1:
                    _bits(images[name].view).__ixor__(POISON_FLIP)
            if self.fills and not repeat:
                fill_fresh_memory(self.byte)  # again: a candidate can have changed that
                fill_stack(self.byte)

        return self.order.call(act, images, outputs, prepare, repeat, may_begin_early=self.may_begin_early)

    def _call(self, values: dict[str, Any], images: dict[str, Image], outputs: list[str]) -> None:
        assert self.candidate is not None
        assert self.function is not None
        if self.candidate.passing == "destination":
            self.function(*values.values())
            return
        from kernelproof.loading import parts_of

        returned = self.function(*(value for name, value in values.items() if name not in outputs))
        parts = parts_of(returned)
        tensors = (returned,) if parts is None else parts
        if len(tensors) != len(outputs):
            given = f"a {type(returned).__name__}" if parts is None else formats.plural(len(parts), "value")
            wanted = "one tensor" if len(outputs) == 1 else f"a tuple of {', '.join(outputs)}"
            raise WorkerReplyError(f"it returned {given} where {wanted} is expected")
        for name, tensor in zip(outputs, tensors, strict=True):
            _check_returned(tensor, images[name].view, {n: i for n, i in images.items() if n not in outputs})
            images[name].view[...] = tensor
        addresses = [_address(tensor) for tensor in tensors if math.prod(tensor.shape)]
        if len(set(addresses)) < len(addresses):
            raise WorkerReplyError("it returned one tensor for two of its outputs; each is in memory of its own")
        self.returned = list(tensors)

    def look_again(self) -> None:
        """What earlier calls returned is the caller's: raise where it was written to; hold what the last one returned.

        What repeats of a call return is not held: it has the same bits.
        """
        if self.returned and self.changed():
            raise WorkerReplyError(
                "a later call wrote to the tensor that it had returned, or work of its own that still ran (a thread, "
                "say) did: who keeps two results has the last twice"
            )
        self.hold([(tensor, _copy(_bits(tensor))) for tensor in self.returned], RETURNED_HELD)
        self.returned = []

    def changed(self) -> int:
        """In how many elements held results are not what they were when they were last looked at."""
        from kernelproof.ordering import alike

        changed = 0
        for tensor, bits in self.held:
            if not alike(_bits(tensor), bits):
                changed += int((_bits(tensor) != bits).sum())
                bits[...] = _bits(tensor)
        return changed

    def hold(self, results: Sequence[tuple[Any, Any]], least: int = 0) -> None:
        """Hold results and their bits, and let go of the oldest."""
        self.held.extend(results)
        size = sum(bits.nbytes for _, bits in self.held)
        while len(self.held) > least and (len(self.held) > HELD_MOST or size > HELD_BYTES):
            size -= self.held.popleft()[1].nbytes

    def measure(self, **payload: Any) -> Any:
        """Time contenders against one another in this process (see timing.measure)."""
        from kernelproof import timing

        return timing.measure(**payload)

    def witness(self, step: str, **payload: Any) -> Any:
        """A step of timing contenders from outside this process (see holding.hold): hold, replay, move, let_go."""
        from kernelproof import holding

        steps: dict[str, Callable[..., Any]]
        steps = {"hold": holding.hold, "replay": holding.replay, "move": holding.move, "let_go": holding.let_go}
        return steps[step](**payload)


def _first_lines(text: str, most: int = 12) -> str:
    lines = text.strip().splitlines()
    return "\n".join(lines[:most])[:2000]


def _copy(raw: Any) -> Any:
    return raw.copy() if hasattr(raw, "copy") else raw.clone()


def _bytes_like(raw: Any, path: str) -> Any:
    """A file's bytes as NumPy or torch holds an image's, on the CPU."""
    import numpy as np

    data = np.fromfile(path, np.uint8)
    if isinstance(raw, np.ndarray):
        return data
    import torch

    return torch.from_numpy(data)


def _bits(view: Any) -> Any:
    """The same memory as integers: comparing floats would take -0 for 0 and NaN for different from itself."""
    if hasattr(view, "data_ptr"):
        from kernelproof.results import bits_of

        return bits_of(view)
    return view.view(f"i{view.itemsize}")


def _first_difference(now: Any, then: Any) -> int | None:
    """Flat index of the first element whose bits are not those of the first call; None when all are."""
    from kernelproof.ordering import alike, compared

    if alike(now, then):
        return None
    different = (compared(now) != compared(then)).reshape(-1)
    if not bool(different.any()):  # a thread that still writes has put it right meanwhile
        return None
    return int(different.nonzero()[0].reshape(-1)[0])


def _distance(view: Any, bits: Any) -> float:
    """The largest absolute difference from a result of which there are bits; infinite where one is not finite."""
    now, then = (
        values.double() if hasattr(values, "data_ptr") else values.astype(float)
        for values in (view, bits.view(view.dtype))
    )
    if not math.prod(now.shape):
        return 0.0
    largest = float(abs(now - then).max())
    return math.inf if math.isnan(largest) else largest


def _check_returned(tensor: Any, expected: Any, inputs: dict[str, Image]) -> None:
    """A returned tensor must be what the case asks for, and its memory the candidate's own.

    No subclass: that may compute when it is read, which is after the call.
    """
    if type(tensor) is not type(expected):
        from kernelproof.results import not_plain

        raise WorkerReplyError(str(not_plain(type(tensor))))
    if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        raise WorkerReplyError(
            f"it returned a tensor of the layout {tensor.layout}, not torch.strided; return .to_dense()"
        )
    if hasattr(tensor, "is_neg") and (tensor.is_neg() or tensor.is_conj()):
        raise WorkerReplyError(
            "it returned a view that is negated or conjugated when somebody reads it; "
            "return tensor.resolve_neg().resolve_conj()"
        )
    if tuple(tensor.shape) != tuple(expected.shape):
        raise WorkerReplyError(
            f"it returned a tensor of shape {tuple(tensor.shape)}; {tuple(expected.shape)} is expected"
        )
    if tensor.dtype != expected.dtype:
        raise WorkerReplyError(f"it returned a tensor of dtype {tensor.dtype}; {expected.dtype} is expected")
    if getattr(tensor, "device", None) != getattr(expected, "device", None):
        raise WorkerReplyError(f"it returned a tensor on {tensor.device}; {expected.device} is expected")
    address = _address(tensor)
    for name, image in inputs.items():
        start = _address(image.raw)
        if start <= address < start + len(image.raw):
            raise WorkerReplyError(f"the tensor that it returned lies in the memory of its input {name!r}")


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data)


if __name__ == "__main__":
    main()
