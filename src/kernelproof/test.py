"""The test stage: a variant's way up the staged ladder (see kernelproof.ladder), kept as a record, JUnit XML and a log.

pytest runs in this process with settings of its own; the candidate runs in workers. A record is written whatever
happens to pytest: first one that says the run was cut short, and at the end the true one in its place.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import errno
import functools
import io
import os
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import fingerprints, gpu, lease, own_modules, records, repository
from kernelproof.errors import ConfigError, JudgeError, KernelproofError, LeaseError, TestError
from kernelproof.privacy import scrubbed, scrubbed_markup
from kernelproof.processes import scratch_folder
from kernelproof.records import FileHash, Provenance, Status, TestRecord

if TYPE_CHECKING:
    import pytest

    from kernelproof.config import Config, VariantConfig
    from kernelproof.ladder.climb import Climb, Ladder
    from kernelproof.ladder.session import Resources, Session

LADDER = Path(__file__).resolve().parent / "ladder"
REPORT = "report this as a fault of kernelproof; the log has the traceback"
# Plugins of pytest's own; `unraisableexception` alone looks through all memory ten times a run.
UNNEEDED = "cacheprovider doctest faulthandler logging pastebin stepwise threadexception unraisableexception".split()
LOG_LIMIT_BYTES = 64 << 10  # of what a candidate printed: its beginning and its end


def run(config: Config, operator: str, names: list[str], output_dir: Path, case: str | None = None) -> list[TestRecord]:
    """Test variants of one operator one after the other; writes `<name>.json`, `.xml` and `.log` into `output_dir`.

    With a `case`, by the id that a record gives it, every rung is climbed on that case alone.

    Calls in one process share a warm worker host, references and the fresh seed. Raises ConfigError for an unknown
    name, and TestError when not the candidate failed but what judges it: the operator's module, or a shape it refuses.
    Where kernelproof itself or the operator's module fails on one variant, its record says so: it `failed` and has no
    verdict (`not_run`). Where others measure on every GPU for too long, none is run.
    """
    variants = [config.operator(operator).variant(name) for name in names]
    output_dir.mkdir(parents=True, exist_ok=True)
    state = repository.of_files(config.root, own_modules.files_of(config.operator(operator).module, config.root))
    places = [(variant, output_dir / f"{variant.name}.json") for variant in variants]
    with contextlib.ExitStack() as held:
        try:
            if any(variant.device == "cuda" for variant in variants) and gpu.available()[0]:
                held.enter_context(lease.gpu_lease(config.bench.gpu_wait_s, "test", shared=True))
        except LeaseError as busy:
            return [_left_out(config, variant, path, state, busy) for variant, path in places]
        return [_test(config, variant, path, state, case) for variant, path in places]


def _left_out(config: Config, variant: VariantConfig, path: Path, state: Provenance, busy: LeaseError) -> TestRecord:
    _remove_what_lay_beside(path)
    record = _empty(variant, state, records.NOT_RUN, busy.message)
    record.remedy = busy.hint
    record.settings = fingerprints.of(config, "test", variant.key)
    records.write(path, record)
    return record


def _remove_what_lay_beside(path: Path) -> None:
    """What an earlier run wrote is not this record's."""
    for ending in (".xml", ".log", records.LAUNCHES):
        path.with_suffix(ending).unlink(missing_ok=True)


def _empty(variant: VariantConfig, state: Provenance, status: Status, reason: str) -> TestRecord:
    return TestRecord(
        status=status,
        reason=reason,
        provenance=state,
        operator=variant.operator,
        variant=variant.name,
        role=variant.role,
        device=variant.device,
        trust=variant.trust,
        precision=dataclasses.asdict(variant.precision),
    )


def _test(config: Config, variant: VariantConfig, path: Path, state: Provenance, case: str | None) -> TestRecord:
    from kernelproof.ladder.climb import Ladder
    from kernelproof.ladder.session import Session

    started = time.monotonic()
    _remove_what_lay_beside(path)
    cut_short = _empty(variant, state, records.FAILED, "the test run was cut short")
    records.write(path, cut_short)

    def written(record: TestRecord) -> TestRecord:
        record.provenance = state
        record.settings = fingerprints.of(config, "test", variant.key)
        beside = [path.with_suffix(ending) for ending in (".xml", ".log")]
        record.junit, record.log = (os.path.relpath(file, config.root) if file.exists() else None for file in beside)
        record.duration_s = time.monotonic() - started
        records.write(path, record)
        return record

    try:
        with contextlib.closing(Ladder(Session(config, [variant], _resources(), case))) as ladder:
            return written(_climb(ladder, path))
    except KernelproofError as error:
        written(dataclasses.replace(cut_short, reason=str(error).splitlines()[0], remedy=error.hint))
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        # A fault of our own, whoever brought it about: nobody is condemned for it, and the next variant has its turn.
        _keep_traceback(path)
        reason = f"kernelproof itself failed: {type(error).__name__}: {error}"
        return written(dataclasses.replace(cut_short, reason=reason, remedy=REPORT))


def _keep_traceback(path: Path) -> None:
    """Put the exception that is handled behind what the log of a record says."""
    log = path.with_suffix(".log")
    said = log.read_text(encoding="utf-8") if log.is_file() else ""
    records.atomic_write(log, scrubbed(said + "\n--- kernelproof itself failed ---\n" + traceback.format_exc()))
    _scrub_junit(path.with_suffix(".xml"))


@functools.cache
def _resources() -> Resources:
    """This process's, ended with it."""
    from kernelproof.ladder.session import Resources

    ends = contextlib.ExitStack()
    # A thousand small files are made, read and removed: on a disk a tenth of the whole time, more beside other writers.
    resources = Resources(ends.enter_context(scratch_folder("test", in_memory=not gpu.available()[0])))
    ends.callback(resources.close)
    atexit.register(ends.close)  # what is registered last runs first: the folder's own end would warn
    return resources


class StagePlugin:
    """Hands the stage's ladder to the ladder's conftest, which looks it up by this name."""

    def __init__(self, ladder: Ladder) -> None:
        self.__name__ = "kernelproof-stage"
        self.ladder = ladder
        self.fault: BaseException | None = None  # raised on our side: a candidate's failures come as results

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        """Keep the first exception that no rung reported."""
        import pytest

        error = call.excinfo.value if call.excinfo else None
        if self.fault is None and not isinstance(error, pytest.fail.Exception):
            self.fault = error


def _climb(ladder: Ladder, path: Path) -> TestRecord:
    """Run pytest on the one variant of a session, and keep its log and JUnit XML beside the record."""
    session, (climb,) = ladder.session, ladder.climbs
    session.start()
    if climb.variant.device == "cpu" or session.gpu[0]:
        _check_declared(session, climb)
    junit, written = path.with_suffix(".xml"), io.StringIO()
    plugin = StagePlugin(ladder)
    failure = _pytest(junit, written, plugin)
    climb.finish()
    log = path.with_suffix(".log")
    records.atomic_write(log, scrubbed(written.getvalue() + _candidate_output(climb.calls.log)))
    if plugin.fault is not None:
        raise _fault_of_ours(plugin.fault, climb, log)
    record = climb.record()
    if climb.lacks_entry and climb.variant.entry:
        record.remedy = _entry_to_mend(session.config, climb.variant)
    if record.sealing is not None:
        record.sealing.launches = _kept_launches(session, climb, path.with_suffix(records.LAUNCHES))
    if failure is None:
        _scrub_junit(junit)
    else:
        junit.unlink(missing_ok=True)
        record.status, record.reason = records.FAILED, failure
        record.verdict = "not_run" if record.verdict == "correct" else record.verdict
    return record


def _entry_to_mend(config: Config, variant: VariantConfig) -> str:
    """Where the configuration names a function that is not in what was loaded."""
    from kernelproof.config import place_of

    key = ("operators", variant.operator, f"{variant.role}s", variant.name, "entry")
    return f"mend {'.'.join(key)}, now {variant.entry!r}: {place_of(config, *key)}"


def _check_declared(session: Session, climb: Climb) -> None:
    """What only the operator's module knows of the configuration. Raises ConfigError before anything is run."""
    from kernelproof.config import check_declared, place_of

    try:
        declared = session.judge.declared(climb.settings)
    except JudgeError as error:
        place = place_of(session.config, "operators", climb.settings.name, "module")
        subject = f"{place}: operators.{climb.settings.name}.module: {error.subject or climb.settings.module}"
        raise ConfigError(error.message, subject=subject, log=error.log, hint=error.hint) from None
    check_declared(session.config, climb.settings, declared)


def _kept_launches(session: Session, climb: Climb, path: Path) -> FileHash | None:
    """The descriptions of the sealed calls' launches, beside the record."""
    text = climb.calls.sealer.evidence() if climb.calls.sealer else None
    if text is None:
        path.unlink(missing_ok=True)
        return None
    records.atomic_write(path, text)
    return records.file_hash(session.root, os.path.relpath(path, session.root))


def _fault_of_ours(error: BaseException, climb: Climb, log: Path) -> BaseException:
    """The operator's module does not import, refuses a shape, or failed while it made inputs or a reference."""
    if not isinstance(error, KernelproofError):
        return error
    subject = f"{climb.variant.key}: {error.subject}" if error.subject else climb.variant.key
    return TestError(error.message, subject=subject, log=error.log or log, hint=error.hint)


def _pytest(junit: Path, written: io.StringIO, plugin: StagePlugin) -> str | None:
    """Run the ladder; gives back what went wrong with pytest itself, if anything did."""
    arguments = [
        "-c",
        LADDER / "pytest.ini",
        "--rootdir",
        LADDER,
        "--junitxml",
        junit,
        "--color=no",
        "--capture=no",
        "-rs",
    ]
    for unneeded in UNNEEDED:
        arguments += ["-p", f"no:{unneeded}"]
    try:
        with _private_environment(), contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            import pytest

            code = pytest.main([*map(str, arguments), str(LADDER / "test_ladder.py")], plugins=[plugin])
    except Exception as error:
        return f"pytest itself failed: {type(error).__name__}: {error}"
    if code == pytest.ExitCode.INTERRUPTED and plugin.fault is None:  # it calls a fault while it collects that too
        raise KeyboardInterrupt
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return None
    return f"pytest ended with {getattr(code, 'name', code)}; its log has the whole story"


@contextlib.contextmanager
def _private_environment() -> Iterator[None]:
    """The user's own pytest settings and plugins have no say in the ladder."""
    kept = dict(os.environ)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _candidate_output(path: Path) -> str:
    """What the candidate printed, without the middle of it if it is long."""
    if not path.is_file() or path.stat().st_size == 0:
        return ""
    size, half = path.stat().st_size, LOG_LIMIT_BYTES // 2
    with path.open("rb") as stream:
        data = stream.read(half if size > 2 * half else 2 * half)
        if size > 2 * half:
            stream.seek(-half, os.SEEK_END)
            data += f"\n[... {size - 2 * half} bytes left out ...]\n".encode() + stream.read()
    return "\n--- printed by the candidate's processes ---\n" + _without_own_frames(
        data.decode("utf-8", errors="replace")
    )


def _without_own_frames(printed: str) -> str:
    """What faulthandler printed of a crash, without the functions of ours that had called the candidate."""
    ours = re.escape(str(Path(__file__).resolve().parent))
    frame = rf'  File "(?:{ours}/.*|<frozen runpy>)", line \d+ in .*\n'
    return re.sub(f"(?:{frame})+", "  (kernelproof, which made the call)\n", printed)


def _scrub_junit(path: Path) -> None:
    if not path.is_file():
        return
    text = re.sub(r'hostname="[^"]*"', 'hostname=""', path.read_text(encoding="utf-8"))
    records.atomic_write(path, scrubbed_markup(text))
