"""The one family of exceptions, and what each means for the exit code.

Every message says what failed, on what value, where the log is and what to do next; the command line prints it and
nothing else, so no traceback reaches a user unless the fault is in kernelproof itself.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path


def guide(page: str) -> str:
    """Where a page of `docs/` lies, for who reads of it in any folder; its name alone where it lies nowhere."""
    ours = Path(__file__).resolve().parents[2] / "docs" / page
    return str(Path("docs") / page if Path("docs", page).is_file() or not ours.is_file() else ours)


class ExitCode(IntEnum):
    """Exit codes of every command, documented in docs/reference/commands.md."""

    WELL = 0
    BAD_VERDICT = 1  # the pipeline ran, and some verdict is bad
    COULD_NOT_RUN = 2
    CONTRADICTION = 3  # the bundle is whole, and it contradicts itself
    INTERRUPTED = 128 + signal.SIGINT  # as a shell says it


class KernelproofError(Exception):
    """Something that a user can act on.

    `subject` names the value at fault (a variant, a file and line, a tool), `log` the file with the whole story and
    `hint` the next step.
    """

    def __init__(
        self, message: str, *, subject: str | None = None, log: Path | str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.log = log
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.message}" if self.subject else self.message]
        if self.log is not None:
            lines.append(f"  log:  {self.log}")
        if self.hint is not None:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)


class ConfigError(KernelproofError):
    """The configuration is not valid; the message lists every fault with file, line and key."""


class ToolError(KernelproofError):
    """An external tool is missing, failed or ran past its time limit."""

    def __init__(self, message: str, *, returncode: int | None = None, output: str = "", **details: object) -> None:
        super().__init__(message, **details)  # type: ignore[arg-type]
        self.returncode = returncode
        self.output = output


def not_installed(module: str) -> ToolError:
    """The error for a package that kernelproof needs and the Python that runs it has not; `module`: as imported."""
    return ToolError(
        f"this Python has no module {module.partition('.')[0]}",
        subject=sys.executable,
        hint="./repro.sh installs all that is needed; run .venv/bin/kernelproof (`doctor` lists what is missing)",
    )


class RecordError(KernelproofError):
    """A record is missing, unreadable or of a schema version that this release does not know."""


class BuildError(KernelproofError):
    """The build stage could not run at all (a kernel that does not compile is a record, not this)."""


class TestError(KernelproofError):
    """The test stage could not run at all (a wrong kernel is a record, not this)."""

    __test__ = False  # the name begins with Test: keep pytest from collecting it


class JudgeError(KernelproofError):
    """Not the candidate failed but what judges it: the operator's module, a shape that it refuses, the judge itself."""


@contextlib.contextmanager
def blamed(module: str, root: Path) -> Iterator[None]:
    """Raise what an operator's module raises, or makes others raise, as a JudgeError that names its line.

    `module`: a dotted name, or a `.py` path relative to `root`. Whatever does not come from there is raised as it is.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if fault := _in_module(error, module, root):
            raise fault from error
        raise


def file_of(module: str, root: Path) -> Path:
    """The file of an operator's module: a dotted name, or a `.py` path relative to `root`."""
    if not module.endswith(".py"):
        with contextlib.suppress(ImportError):
            spec = importlib.util.find_spec(module)
            return Path(str(spec and spec.origin))
    return (root / module).resolve()


def _in_module(error: BaseException, module: str, root: Path) -> JudgeError | None:
    path = str(file_of(module, root))
    lines = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__) if f.f_code.co_filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        where, line, what = "<module>", error.lineno, error.msg
    elif lines:
        where, line, what = lines[-1][0].co_qualname, lines[-1][1], str(error)
    else:
        return None
    inside = Path(path).is_relative_to(root.resolve())
    place = f"{os.path.relpath(path, root.resolve()) if inside else module}:{line}"
    if isinstance(error, KernelproofError):
        subject = f"{place}: {error.subject}" if error.subject else place
        return JudgeError(error.message, subject=subject, log=error.log, hint=error.hint)
    what = f"{type(error).__name__}: {what}".strip().splitlines()[0]
    message = f"it cannot be imported: {what}" if where == "<module>" else f"`{where}` raised {what}"
    return JudgeError(message, subject=place, hint="mend the operator's module, or the shapes that it is given")


class MutantsError(KernelproofError):
    """The mutants could not be made, built or judged (one that survives is an outcome, not this)."""


class BenchError(KernelproofError):
    """The bench stage could not run at all."""


class LeaseError(KernelproofError):
    """No GPU became free, or none can be locked."""


class ProfileError(KernelproofError):
    """The profile stage could not run, or its report is empty or unreadable."""


class BundleError(KernelproofError):
    """The bundle could not be packed, read or verified."""


class WorkerError(KernelproofError):
    """The process that runs a candidate did not give a usable answer."""


OUT_OF_TOUCH = 70  # EX_SOFTWARE: the exit code of a candidate's process that cannot answer


class WorkerCrashed(WorkerError):
    """The candidate's process ended in the middle of a request.

    `exit_code` is the process's exit status, negative for a signal as in `subprocess`.
    """

    def __init__(self, exit_code: int, **details: object) -> None:
        super().__init__(f"the candidate's process {describe_exit(exit_code)}", **details)  # type: ignore[arg-type]
        self.exit_code = exit_code


class WorkerStarved(WorkerCrashed):
    """The system killed the candidate's process when the machine's memory ran out, whoever took it."""


class WorkerTimeout(WorkerError):
    """The candidate's process did not answer within its time limit and was killed.

    `most_bytes`: of memory that it held at a time. `at_work`: it had a core most of that time, for a single thread, so
    it was late for nobody else.
    """

    def __init__(self, limit_s: float, most_bytes: int = 0, at_work: bool = False, **details: object) -> None:
        super().__init__(f"no answer within {limit_s:g} s; the process was killed", **details)  # type: ignore[arg-type]
        self.limit_s, self.most_bytes, self.at_work = limit_s, most_bytes, at_work


class WorkerGreedy(WorkerError):
    """The candidate's process took more room in files, or more processes, than any candidate needs, and was killed."""


class WorkerReplyError(WorkerError):
    """The candidate's process answered that the request failed (the candidate raised, or CUDA reported an error)."""


class NoSuchEntry(WorkerReplyError):
    """What was loaded has no function of the name that the variant's `entry` says."""


class WorkerConfined(WorkerReplyError):
    """The candidate failed with the system's words for what a candidate is kept from: by a rule of ours."""


class WorkerRefused(WorkerReplyError):
    """The candidate declined the case (it raised NotImplementedError), as a library does that cannot take a shape."""


class ValuesRefused(WorkerReplyError):
    """The candidate declined a call for its values: of another with the same shapes and scalars it took them."""

    def __init__(self, refusal: str) -> None:
        super().__init__(
            "it refuses values: a call with the same shapes, strides, data types and scalars was taken, and of this "
            f"one it said: {refusal}"
        )


def nearest(word: str, known: Iterable[str]) -> str:
    """What was meant by a word that is not known, for the end of a message: `; did you mean 'b'?`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def describe_exit(exit_code: int) -> str:
    """How a process ended, in words: `ended with exit code 3`, `was killed by SIGSEGV`."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
