"""The command line: one subcommand a stage, and the commands that read what the stages made.

Stage modules are imported only when their command runs, so that each of the many short commands of a run starts fast.
The one handler at the bottom prints what failed, on what, where the log is and what to do next.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import EVENTS, RUN_PID, __version__, formats
from kernelproof.errors import ConfigError, ExitCode, KernelproofError, RecordError, guide, nearest, not_installed

if TYPE_CHECKING:
    from kernelproof.records import CaptureRecord, ManifestRecord

CONFIG = Path("config.yaml")
FORMS = ("markdown", "html", "svg")  # of a result, each an option that names a file
TRACEBACK = "KERNELPROOF_TRACEBACK"  # asks for the traceback of a fault of our own; a stage's log has it always
WARNINGS_TOLD = 3  # of a build
OUR_FAULT = (
    f"this is a fault of kernelproof {__version__}: set {TRACEBACK}=1, run the same command again, and open an issue "
    "where you have kernelproof from, with what it prints"
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; gives back its exit code (see `ExitCode`)."""
    parser = _parser()
    argv = sys.argv[1:] if argv is None else argv
    # What follows `run` is for run.py and snakemake; argparse would refuse an option in its first place.
    aside = argv[:1] == ["run"]
    arguments = argparse.Namespace(command=_run, arguments=argv[1:]) if aside else parser.parse_args(argv)
    try:
        code = int(arguments.command(arguments))
        sys.stdout.flush()  # a full disk behind it is an error while there is still somebody to say so
        return code
    except KernelproofError as error:
        print(f"kernelproof: {formats.clean(error)}", file=sys.stderr)
        return ExitCode.COULD_NOT_RUN
    except BrokenPipeError:
        _leave_standard_output()
        return ExitCode.COULD_NOT_RUN
    except OSError as error:
        hint = (
            "free some space and run the same command again"
            if error.errno == 28
            else "check the path and its permissions"
        )
        print(f"kernelproof: {error.filename or 'system'}: {_why(error)}\n  next: {hint}", file=sys.stderr)
        if error.filename is None:
            _leave_standard_output()
        return ExitCode.COULD_NOT_RUN
    except KeyboardInterrupt:
        print("kernelproof: interrupted; run the same command again", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:  # a fault of ours, which says nothing of any verdict
        if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != __package__:
            print(f"kernelproof: {not_installed(error.name)}", file=sys.stderr)
            return ExitCode.COULD_NOT_RUN
        if {TRACEBACK, RUN_PID}.intersection(os.environ):
            traceback.print_exc()
        print(f"kernelproof: {type(error).__name__}: {formats.one_line(error)}\n  next: {OUR_FAULT}", file=sys.stderr)
        return ExitCode.COULD_NOT_RUN


def _why(error: OSError) -> str | None:
    """The system's own words, or what is in the way of a folder: a link to nothing, say, which `exists`."""
    from kernelproof.repository import why_no_folder

    made = isinstance(error, FileExistsError) and isinstance(error.filename, str)
    return (made and why_no_folder(Path(error.filename))) or error.strerror


def _leave_standard_output() -> None:
    """What could not be written is not tried again when the interpreter ends: that would replace the exit code."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Single(argparse.Action):
    """An option that is given once: of two the last would hold, and the first be forgotten without a word."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        if (before := getattr(namespace, self.dest)) is not None:
            parser.error(f"{self.option_strings[0]} is given twice, {before} and {values}; allowed: once")
        setattr(namespace, self.dest, values)


class _Form(_Single):
    """A file for one form of a result: of two forms in one file the last would replace the other."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        super().__call__(parser, namespace, values)
        for form in FORMS:
            there = getattr(namespace, form, None)
            if form != self.dest and there is not None and there.resolve() == values.resolve() and _is_kept(values):
                parser.error(f"--{form} and {self.option_strings[0]} are both {values}; allowed: a file for each")


class _Parser(argparse.ArgumentParser):
    """One that says which word was meant, as argparse does from Python 3.14 on; a command refuses its own options."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from kernelproof.config import among

            raise argparse.ArgumentError(action, f"there is no {value!r}; {among(value, action.choices)}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            meant = nearest(unknown[0].partition("=")[0], known)
            self.error(f"unrecognized arguments: {shlex.join(unknown)}{meant}")
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kernelproof",
        description="Turn a commit of a CUDA kernel repository into evidence that a reviewer can check.",
        epilog="exit codes: 0 all well; 1 some verdict is bad; 2 it could not run. A stage ends with 0 when its record "
        "is written, whatever that says: `kernelproof gate` makes an exit code of verdicts",
    )
    parser.add_argument("--version", action="version", version=f"kernelproof {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(
        name: str, help_text: str, function: Callable[[argparse.Namespace], int], *, config: bool = True
    ) -> Any:
        sub = commands.add_parser(name, help=help_text, description=help_text)
        sub.set_defaults(command=function)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        if config:
            sub.add_argument("--config", type=Path, default=CONFIG, metavar="FILE")
            sub.add_argument(
                "--set",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="override one value, e.g. bench.processes=3",
            )
        return sub

    command("capture", "record the machine", _capture)

    build = command("build", "build the variants of an operator", _build)
    _select(build, several=True)
    build.add_argument("--cuda-home", type=Path, metavar="DIR", help="use this CUDA toolkit instead of the wheels")

    test = command("test", "check the variants of an operator on the staged ladder", _test)
    _select(test, several=True)
    test.add_argument("--level", choices=["quick", "default", "deep"], help="instead of the configuration's test.level")
    test.add_argument("--case", metavar="ID", help="one case alone, by its id in a record")

    bench = command("bench", "measure all contenders of one operator on one device, or run one variant once", _bench)
    bench.add_argument("--operator")
    bench.add_argument(
        "--variant", action=_Single, help="only this one, against the baselines; with --once: which is called"
    )
    bench.add_argument("--device", choices=["cpu", "cuda"])
    bench.add_argument("--ceilings", action="store_true", help="what the device itself reaches; needs only --device")
    bench.add_argument("--shape", help="with --once")
    bench.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="e.g. causal=true; with --once"
    )
    bench.add_argument("--once", action="store_true", help="one call of one variant, as a profiler wants it")
    bench.add_argument("--inputs", type=Path, metavar="DIR", help="with --once: as `profile` lays them there")

    profile = command("profile", "profile one CUDA variant or baseline with Nsight Compute", _profile)
    _select(profile, required=True)

    for name, help_text, function in (
        ("manifest", "gather what was made, from what, by what and where", _manifest),
        ("report", "render report.html and summary.md", _report),
        ("bundle", "write manifest.yaml and pack the tarball", _bundle),
    ):
        command(name, help_text, function).add_argument(
            "--folder", type=Path, metavar="DIR", help="default: reports/<commit>, by the state of the repository"
        )

    verify = command(
        "verify",
        "check bundles: every member, that the archive is safe, and that each agrees with itself",
        _verify,
        config=False,
    )
    verify.add_argument(
        "bundles", nargs="+", type=Path, metavar="BUNDLE", help="kernelproof-….tar.gz, or the folder that holds it"
    )
    verify.add_argument("--identity", metavar="SHA256", help="the SHA-256 of manifest.yaml that the bundle must have")

    mutants = command("mutants", "plant faults into the project's own kernels and see whether each is caught", _mutants)
    mutants.add_argument(
        "--operator", action="append", default=[], help="only its variants; may be given several times"
    )
    mutants.add_argument("--variant", action="append", default=[], help="only this one; may be given several times")
    mutants.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this mutation operator, e.g. drop_barrier"
    )
    mutants.add_argument("--most", type=_positive, metavar="N", help="no more than N, spread over files and operators")
    mutants.add_argument("--seed", type=int, default=0, metavar="N", help="chooses which, with --most")
    mutants.add_argument("--headers", action="store_true", help="the project's headers that a variant includes as well")
    mutants.add_argument("--list", action="store_true", help="build and judge nothing")
    mutants.add_argument("--jobs", type=_positive, default=1, metavar="N", help="batches at a time")
    mutants.add_argument("--output", type=Path, metavar="DIR", help="default: results/mutants")
    mutants.add_argument("--arguments", type=Path, metavar="FILE", help="default: arguments.yaml in --output")

    selfcheck = command("selfcheck", "time kernels whose time is known, and say how true the times are", _selfcheck)
    selfcheck.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is a GPU")
    selfcheck.add_argument("--processes", type=_positive, default=40, metavar="N", help="at most; default: 40")
    selfcheck.add_argument("--twins", type=_twins, default=7, metavar="N", help="kernels of one kind; default: 7")
    selfcheck.add_argument("--seconds", type=_positive, default=140, metavar="S", help="in all, about; default: 140")
    selfcheck.add_argument(
        "--output", type=Path, metavar="FILE", help="default: results/selfcheck/selfcheck-DEVICE.json"
    )

    gate = command("gate", "decide by the records whether the claims hold", _gate)
    gate.add_argument("records", nargs="?", type=Path, help="a folder of records or a bundle; default: results")
    gate.add_argument("--markdown", action=_Form, type=Path, metavar="FILE", help="write the tables for a pull request")

    compare = command("compare", "say what changed between two runs, and what became slower", _compare, config=False)
    compare.add_argument("before", type=Path, metavar="A", help="a bundle, or a folder of records: the older state")
    compare.add_argument("after", type=Path, metavar="B", help="the same, of the state that is asked about")
    history = command("history", "show each variant over several runs", _history, config=False)
    history.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="bundles or folders of records, in any order"
    )
    history.add_argument("--svg", action=_Form, type=Path, metavar="FILE", help="write the pictures alone")
    for several in (compare, history):
        several.add_argument("--markdown", action=_Form, type=Path, metavar="FILE", help="write it for a pull request")
        several.add_argument("--html", action=_Form, type=Path, metavar="FILE", help="write it as one page")

    derive = command("derive", "write what the repository states of its kept records: tables and choices", _derive)
    derive.add_argument("--check", action="store_true", help="write nothing; end with 1 where a file differs")

    command("doctor", "say what this machine can do and what is missing", _doctor, config=False)

    init = command("init", "make a folder with a new operator, ready to run", _init, config=False)
    init.add_argument("operator", metavar="NAME")
    init.add_argument("--into", type=Path, metavar="DIR", help="default: examples/NAME")

    commands.add_parser("run", help="run the whole workflow with a progress display")
    return parser


def _select(parser: argparse.ArgumentParser, *, required: bool = False, several: bool = False) -> None:
    parser.set_defaults(needs_operator=True)  # told with the names of those that there are
    parser.add_argument("--operator")
    if several:
        parser.add_argument("--variant", action="append", help="may be given several times (default: all)")
        parser.add_argument("--device", choices=["cpu", "cuda"], help="instead of --variant: all of this device")
    else:
        parser.add_argument("--variant", required=required)


def _config(arguments: argparse.Namespace) -> Any:
    from kernelproof import config

    found = config.load(arguments.config, arguments.set, cuda_home=getattr(arguments, "cuda_home", None))
    if getattr(arguments, "needs_operator", False) and not arguments.operator:
        raise KernelproofError(f"give --operator, one of {', '.join(found.operators)}", subject=str(arguments.config))
    return found


def _measured(arguments: argparse.Namespace) -> Any:
    """The configuration of a stage that measures; whose names its texts may hold is noted for the packer."""
    from kernelproof import privacy

    config = _config(arguments)
    privacy.note(config.results)
    return config


def _stage(
    arguments: argparse.Namespace, stage: str, subject: str, run: Callable[[], Any], place: Path = Path()
) -> int:
    """Run one stage for one subject and print its record where that is asked for; `place`: of a bundle."""
    record = _told(stage, subject, run)
    if arguments.json:
        _print_json(record)
    elif stage in ("bench", "profile"):
        _print_lines(_lines(stage, subject, record))
    elif stage == "capture":
        _print_lines([_captured(subject, record)])
    elif stage == "manifest":
        _print_lines([_gathered(subject, record)])
    elif stage == "report":
        _print_lines([record.html, record.summary])
    elif stage == "bundle":
        _print_lines([f"{place / record.tarball}: {formats.plural(record.members, 'member')}, {record.overall}"])
        told = [*record.contradictions[:3], *(["…"] if len(record.contradictions) > 3 else [])]
        _print_lines(f"  it contradicts itself, and `kernelproof verify` refuses it: {one}" for one in told)
    if stage == "bundle" and record.contradictions and RUN_PID not in os.environ:  # of a run the receipt says it
        return ExitCode.CONTRADICTION
    return ExitCode.WELL


def _captured(subject: str, record: CaptureRecord) -> str:
    """What was looked for and is not there."""
    missing = [name for name, probe in record.probes.items() if probe.status != "ok"]
    left = f"; not here: {formats.listed(missing)}" if missing else ""
    return (
        f"{subject}: captured, {len(record.probes) - len(missing)} of {len(record.probes)} probes found something{left}"
    )


def _gathered(subject: str, facts: ManifestRecord) -> str:
    """What the facts of a report hold."""
    if not facts.records:
        return f"{subject}: there is no record to gather; run the stages first (kernelproof run)"
    return f"{subject}: {formats.plural(len(facts.records), 'record')} gathered, {facts.overall}"


def _print_lines(lines: Iterable[str]) -> None:
    """What a person who typed the command wants to know; the workflow tells it itself."""
    if RUN_PID not in os.environ:
        for line in lines:
            print(line)


def _lines(stage: str, subject: str, record: Any) -> Iterator[str]:
    """One line a variant: `attention/cpu_flash: correct (56 cases, 12.3 s)`, or what went wrong and why."""
    spent = f"{record.duration_s:.1f} s"
    verdict = getattr(record, "verdict", record.status).replace("_", " ")
    if record.status != "ok":
        yield f"{subject}: {verdict}: {_reason(record) or 'no reason given'}"
        if record.remedy:
            yield f"  next: {record.remedy}"
        if repeat := getattr(record, "repeat", None):
            yield f"  again: {formats.one_line(repeat)}"
        if log := getattr(record, "log", None):
            yield f"  log: {log}"
    elif stage == "bench":
        yield from _bench_lines(record)
    elif stage == "test":
        from kernelproof.consistency.tests import QUICK

        ran = sum(case.status != "skipped" for case in record.cases)
        drawn = f" and {record.searched} drawn" if record.searched else ""
        quick = " at the quick level" if record.level == QUICK else ""
        yield f"{subject}: {verdict}{quick} ({formats.plural(ran, 'case')}{drawn}, {spent})"
        yield from (
            f"  {rung.name}: {rung.message}" for rung in record.rungs if rung.status == "passed" and rung.message
        )
        if record.looser:
            wider = formats.listed(f"{name} {value:g}" for name, value in record.looser.items())
            yield f"  by limits wider than the criteria's own: {wider}"
    elif stage == "build":
        from kernelproof import claims

        yield f"{subject}: built ({spent})" if record.library else f"{subject}: nothing to build"
        yield from (f"  over its budget: {claims.over_budget(row)}" for row in record.budget if not row.ok)
        yield from (
            f"  {name}: no source and no header of the project mentions the macro" for name in record.unread_macros
        )
        yield from (f"  ptxas: {text}" for text in dict.fromkeys(advice.text for advice in record.advice))
        yield from (f"  warning: {text}" for text in record.warnings[:WARNINGS_TOLD])
        if (more := len(record.warnings) - WARNINGS_TOLD) > 0:
            yield f"  and {more} more warning{'' if more == 1 else 's'}: {record.log}"
    else:
        yield f"{subject}: profiled ({len(record.kernels)} kernel{'' if len(record.kernels) == 1 else 's'}, {spent})"


def _reason(record: Any) -> str:
    """Why a record is not well; of a test of what failed to build, which its verdict says, the rung's own words."""
    failed = getattr(record, "verdict", "") == "failed_to_build"
    unbuilt = (rung.message for rung in record.rungs if rung.name == "build") if failed else ()
    return (next(iter(unbuilt), record.reason) or "").strip()


def _bench_lines(record: Any) -> Iterator[str]:
    """Each contender's outcome and, of a variant, its ratios to the fastest correct baseline; or each ceiling."""
    for ceiling in getattr(record, "ceilings", []):
        low, median, high = (f"{value / 1e12:.4g}" for value in (ceiling.low, ceiling.median, ceiling.high))
        yield f"{record.device}: {ceiling.name} {median} T{ceiling.unit} ({low} to {high}): {ceiling.how}"
    for name, why in getattr(record, "left_out", {}).items():
        yield f"{record.device}: {name} was not measured: {why}"
    for contender in getattr(record, "contenders", []):
        rows = [row for row in record.oracle if row.variant == contender.name]
        rated = [row for row in rows if row.ratio is not None]
        ratios = [row.ratio for row in rated]
        span = f"{min(ratios):.3f} to {max(ratios):.3f}" if len(ratios) > 1 else "".join(f"{r:.3f}" for r in ratios)
        doubts = sorted({flag for row in rated for flag in row.flags})
        if undecided := sum(row.undecided for row in rated):
            doubts.append(f"undecided in {undecided} of {len(rows)} cases and modes")
        doubt = f" ({', '.join(doubts)})" if doubts else ""
        of = f"; {span} times the fastest correct baseline{doubt}" if ratios else ""
        yield f"{record.operator}/{contender.name}: {contender.outcome}{of}"
        if contender.outcome == "timed":
            yield from (f"  {row.case}, {row.mode}: no ratio: {row.reason}" for row in rows if row.ratio is None)


def _print_json(records: Any) -> None:
    """One record, or a list of them."""
    several = isinstance(records, list)
    plain = [dataclasses.asdict(record) for record in records] if several else dataclasses.asdict(records)
    print(json.dumps(plain, indent=1, default=str))


def _told(stage: str, subject: str, run: Callable[[], Any]) -> Any:
    """A stage's record for one subject, the progress display being told how it starts and ends."""
    with contextlib.ExitStack() as held:
        if pid := os.environ.get(RUN_PID):
            from kernelproof.processes import end_with

            end_with(int(pid))
        else:
            from kernelproof.environment import beside_no_run

            held.enter_context(beside_no_run())
        _event(stage, subject, "start")
        try:
            record = run()
        except BaseException as error:
            _event(stage, subject, "end", "error", str(error) or type(error).__name__)
            raise
        reason = _reason(record).partition("\n")[0]  # there is room for one line
        if record.status == "failed" and (log := getattr(record, "log", None)):
            reason += f" (log: {log})"
        _event(stage, subject, "end", getattr(record, "verdict", None) or record.status, reason)
        return record


def _event(stage: str, subject: str, event: str, status: str = "", message: str = "") -> None:
    if path := os.environ.get(EVENTS):
        line = {"t": time.time(), "stage": stage, "subject": subject, "event": event, "status": status}
        line |= {"message": message, "pid": os.getpid()}
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def _capture(arguments: argparse.Namespace) -> int:
    from kernelproof import capture

    config = _measured(arguments)
    return _stage(arguments, "capture", "machine", lambda: capture.run(config, config.record("capture", "capture")))


def _build(arguments: argparse.Namespace) -> int:
    from kernelproof import build

    config = _measured(arguments)
    _choose(arguments, config)
    cuda_home = arguments.cuda_home or (Path(home) if (home := os.environ.get("KERNELPROOF_CUDA_HOME")) else None)

    def one(name: str) -> Any:
        return build.run(config, arguments.operator, name, config.record("build", arguments.operator, name), cuda_home)

    return _each_variant(arguments, "build", one)


def _test(arguments: argparse.Namespace) -> int:
    from kernelproof import test

    config = _measured(arguments)
    if arguments.level:
        config = dataclasses.replace(config, test=dataclasses.replace(config.test, level=arguments.level))
    _choose(arguments, config)
    # One case says nothing of the others: its record does not take the place of the variant's.
    folder = config.results / ("repeated" if arguments.case else "test") / arguments.operator

    def one(name: str) -> Any:
        return test.run(config, arguments.operator, [name], folder, arguments.case)[0]

    code = _each_variant(arguments, "test", one)
    if not arguments.json:
        _tell_what_changed(config, (config.operator(arguments.operator).variant(name) for name in arguments.variant))
    return code


def _tell_what_changed(config: Any, variants: Iterable[Any]) -> None:
    """Sources are edited while a run goes on, so that this is no fault; by hand a build may have been forgotten."""
    from kernelproof import records

    for variant in variants:
        with contextlib.suppress(RecordError):
            built = records.read(config.record("build", variant.operator, variant.name), records.BuildRecord)
            for file in built.files:
                path = config.root / file.path
                if path.is_file() and records.sha256_file(path) != file.sha256:
                    what = f"{variant.key}: {file.path} was changed since it was built, and this is of what was"
                    _print_lines([f"{what}; {config.command('build', variant)}"])


def _choose(arguments: argparse.Namespace, config: Any) -> None:
    """The variants that are meant: those that are named, else all of the operator, baselines too, or of a device."""
    owner = config.operator(arguments.operator)
    for name in arguments.variant or ():
        owner.variant(name)  # each is known before the first is run
    if arguments.variant and arguments.device:
        raise KernelproofError("give --variant or --device, not both", subject=arguments.operator)
    if not arguments.variant and getattr(arguments, "case", None):
        raise KernelproofError("--case needs --variant: not all of them take every case", subject=arguments.operator)
    if not arguments.variant:
        devices = [arguments.device] if arguments.device else ["cpu", "cuda"]
        arguments.variant = [v.name for device in devices for v in owner.contenders(device)]
        if not arguments.variant:
            raise KernelproofError(f"no variant is for {arguments.device}", subject=arguments.operator)


def _each_variant(arguments: argparse.Namespace, stage: str, run: Callable[[str], Any]) -> int:
    """One record prints as it is, several as a list; what fails outside a variant is raised when all had their turn."""
    found, faults = {}, list[KernelproofError]()
    for name in arguments.variant:
        try:
            found[name] = _told(stage, f"{arguments.operator}/{name}", functools.partial(run, name))
        except ConfigError:
            raise
        except KernelproofError as error:
            faults.append(error)
    if arguments.json and found:
        _print_json(list(found.values()) if len(arguments.variant) > 1 else found[name])
    elif not arguments.json:
        _print_lines(
            line for name, record in found.items() for line in _lines(stage, f"{arguments.operator}/{name}", record)
        )
    if faults:
        raise faults[0]
    # It failed and has no verdict: what failed is not the variant.
    ours = any(record.status == "failed" and getattr(record, "verdict", "") == "not_run" for record in found.values())
    return ExitCode.COULD_NOT_RUN if ours else ExitCode.WELL


def _only_operator_of(config: Any, variant: str) -> str:
    """The operator that has a variant or baseline of this name, where only one has."""
    owners = [v.operator for v in config.variants() if v.name == variant]
    if len(owners) != 1:
        found = f"{' and '.join(owners)} have one" if owners else "no operator has one"
        hint = "give --operator too; the operators are " + ", ".join(config.operators)
        raise KernelproofError(f"which variant is meant? {found} of this name", subject=variant, hint=hint)
    return str(owners[0])


def _once(arguments: argparse.Namespace, config: Any) -> int:
    from kernelproof import single_call

    if not arguments.variant or not arguments.shape:
        raise KernelproofError("--once needs --variant and --shape", subject="bench")
    operator = arguments.operator or _only_operator_of(config, arguments.variant)
    if arguments.device not in (None, config.operator(operator).variant(arguments.variant).device):
        raise KernelproofError(f"it is not for {arguments.device}", subject=f"{operator}/{arguments.variant}")
    options = dict(map(_option, arguments.option))
    done = single_call.once(config, operator, arguments.variant, arguments.shape, options, arguments.inputs)
    print(json.dumps(dataclasses.asdict(done)) if arguments.json else done)  # one line, whoever else prints too
    return ExitCode.WELL


def _insist_on_use(arguments: argparse.Namespace) -> None:
    """Raise KernelproofError for an option that what is asked of `bench` does not look at."""
    unused = [] if arguments.once and not arguments.ceilings else ["shape", "option", "inputs"]
    unused += ["operator", "variant", "once"] if arguments.ceilings else []
    if given := [f"--{name}" for name in unused if getattr(arguments, name)]:
        why = "with --ceilings, which needs only --device" if arguments.ceilings else "without --once"
        raise KernelproofError(f"{formats.listed(given)} cannot be given {why}", subject="bench")


def _bench(arguments: argparse.Namespace) -> int:
    _insist_on_use(arguments)
    config = _measured(arguments)
    if arguments.ceilings:
        return _ceilings(arguments, config)
    if arguments.once:
        return _once(arguments, config)
    if not arguments.operator:
        known = ", ".join(config.operators)
        raise KernelproofError(f"give --operator, one of {known} (or --ceilings with --device)", subject="bench")
    operator, only = arguments.operator, arguments.variant
    chosen = _variant(config.operator(operator), only) if only else None
    device = arguments.device or (chosen and chosen.device)
    if not device:
        raise KernelproofError("give --variant, or --device cpu or --device cuda", subject="bench")
    if chosen and chosen.device != device:
        raise KernelproofError(f"it is not for {device}", subject=f"{operator}/{only}")
    from kernelproof import bench

    # One variant's ratios say nothing of the others: its record does not take the place of theirs.
    place = ("repeated", f"{operator}-{device}", only) if only else ("bench", f"{operator}-{device}")
    output = config.record(*place)
    code = _stage(
        arguments, "bench", f"{operator} on {device}", lambda: bench.run(config, operator, device, output, only)
    )
    if only and not arguments.json:
        _print_lines([f"{output}: of {only} and the baselines alone, and no part of a report"])
    if not arguments.json:
        everybody = config.operator(operator).contenders(device)
        _tell_what_changed(config, (v for v in everybody if only in (None, v.name) or v.role == "baseline"))
    return code


def _variant(operator: Any, name: str) -> Any:
    """A variant that is no baseline. Raises KernelproofError for any other."""
    if name not in operator.variants:
        from kernelproof.config import among

        which = "it is a baseline" if name in operator.baselines else "no such variant"
        raise KernelproofError(f"{which}; {among(name, operator.variants)}", subject=f"{operator.name}/{name}")
    return operator.variants[name]


def _ceilings(arguments: argparse.Namespace, config: Any) -> int:
    from kernelproof import ceilings

    if not arguments.device:
        raise KernelproofError("--ceilings needs --device cpu or --device cuda", subject="bench")
    output = config.record("bench", "ceilings", arguments.device)
    subject = f"ceilings of {arguments.device}"
    return _stage(arguments, "bench", subject, lambda: ceilings.run(config, arguments.device, output))


def _option(entry: str) -> tuple[str, str]:
    name, separator, value = entry.partition("=")
    if not separator:
        raise KernelproofError("not of the form name=value, e.g. causal=true", subject=f"--option {entry}")
    return name, value


def _profile(arguments: argparse.Namespace) -> int:
    from kernelproof import profile

    config = _measured(arguments)
    output = config.record("profile", arguments.operator, arguments.variant)
    return _stage(
        arguments,
        "profile",
        f"{arguments.operator}/{arguments.variant}",
        lambda: profile.run(config, arguments.operator, arguments.variant, output),
    )


def _folder(arguments: argparse.Namespace, config: Any) -> Path:
    """Where a report goes: by its name the facts are kept. Raises KernelproofError for what can be no such folder."""
    from kernelproof import repository

    if not arguments.folder:
        return Path(config.root) / "reports" / repository.folder_name(repository.of_run(config.root))
    folder = Path(arguments.folder)
    if folder.name in ("", ".."):
        message = "a report's facts are kept by the name of its folder, and this has none"
        raise KernelproofError(message, subject=str(folder), hint="for example --folder reports/NAME")
    for place in (folder, *folder.parents):
        if why := repository.why_no_folder(place):
            raise KernelproofError(why, subject=str(place), hint="name another folder with --folder")
    return folder


def _facts(config: Any, folder: Path) -> Path:
    """What `manifest` gathered for a folder. Raises RecordError where it did not, with the folders that it did."""
    path = Path(config.record("manifest", folder.name))
    if not path.exists():
        made = sorted(found.stem for found in path.parent.glob("*.json"))
        others = f" (there is something for {formats.listed(made)})" if made else ""
        hint = f"{config.command('manifest')} --folder {shlex.quote(str(folder))}"
        raise RecordError(f"nothing was gathered for a folder of this name{others}", subject=str(folder), hint=hint)
    return path


def _manifest(arguments: argparse.Namespace) -> int:
    from kernelproof import manifest

    config = _measured(arguments)
    folder = _folder(arguments, config)
    output = config.record("manifest", folder.name)
    return _stage(arguments, "manifest", folder.name, lambda: manifest.run(config, folder.name, output))


def _report(arguments: argparse.Namespace) -> int:
    from kernelproof import report

    config = _config(arguments)
    folder = _folder(arguments, config)
    facts = _facts(config, folder)
    return _stage(
        arguments,
        "report",
        folder.name,
        lambda: report.run(config, facts, folder / "report.html", folder / "summary.md"),
    )


def _bundle(arguments: argparse.Namespace) -> int:
    from kernelproof import bundle

    config = _config(arguments)
    folder = _folder(arguments, config)
    facts = _facts(config, folder)
    return _stage(arguments, "bundle", folder.name, lambda: bundle.run(config, facts, folder), folder)


def _verify(arguments: argparse.Namespace) -> int:
    from kernelproof import verify

    identity = [f"--identity={arguments.identity}"] if arguments.identity else []
    return verify.main([*identity, *(["--json"] if arguments.json else []), "--", *map(str, arguments.bundles)])


def _positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _mutants(arguments: argparse.Namespace) -> int:
    from kernelproof import mutants

    config = _config(arguments)
    chosen = mutants.Selection(
        operators=arguments.operator,
        variants=arguments.variant,
        only=arguments.only,
        most=arguments.most,
        seed=arguments.seed,
        headers=arguments.headers,
    )
    if arguments.list:
        record = mutants.listed(config, chosen)
    else:
        output = arguments.output or config.results / "mutants"
        say = functools.partial(print, file=sys.stderr, flush=True)
        record = mutants.run(config, chosen, output, arguments.jobs, arguments.arguments, say)
    if arguments.json:
        _print_json(record)
    elif arguments.list:
        print("\n".join(f"{m.key} {m.file}:{m.line} {m.mutation}\n{m.diff}" for m in record.mutants))
    else:
        print("\n".join(mutants.summary(record, output)))
    return ExitCode.BAD_VERDICT if any(m.outcome == "survived" for m in record.mutants) else ExitCode.WELL


def _twins(text: str) -> int:
    """A whole number from 2 to 26, for argparse: twins are named by letters."""
    if not text.isdecimal() or not 2 <= int(text) <= 26:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 2 to 26")
    return int(text)


def _selfcheck(arguments: argparse.Namespace) -> int:
    from kernelproof import gpu, selfcheck

    config = _config(arguments)
    device = arguments.device or ("cuda" if gpu.available()[0] else "cpu")
    options = selfcheck.Options(device, arguments.processes, arguments.twins, float(arguments.seconds))
    output = arguments.output or config.results / "selfcheck" / f"selfcheck-{device}.json"
    record = selfcheck.run(config, options, output)
    if arguments.json:
        _print_json(record)
    else:
        print("\n".join([*selfcheck.summary(record), str(output)]))
    return ExitCode.BAD_VERDICT if any(line.held is False for line in record.lines) else ExitCode.WELL


def _gate(arguments: argparse.Namespace) -> int:
    from kernelproof import gate

    usual = arguments.config == CONFIG
    config = None if usual and not arguments.set and not CONFIG.exists() else _config(arguments)
    code = _tell(gate.run(config, arguments.records or (config.results if config else Path("results"))), arguments)
    if config and arguments.records is None and not arguments.json:
        _tell_what_changed(config, config.variants())
    return code


def _compare(arguments: argparse.Namespace) -> int:
    from kernelproof import compare

    return _tell(compare.run(arguments.before, arguments.after), arguments)


def _history(arguments: argparse.Namespace) -> int:
    from kernelproof import history

    return _tell(history.run(arguments.runs), arguments)


def _tell(result: Any, arguments: argparse.Namespace) -> int:
    """Write a result in every form that was asked for, print it, and give back its exit code."""
    for form in FORMS:
        if path := getattr(arguments, form, None):
            _write(path, getattr(result, form)().rstrip("\n") + "\n")
    if arguments.json:
        print(json.dumps(result.as_json(), indent=1, default=str))
    elif hasattr(result, "text"):
        print(result.text())
    else:
        text = result.markdown().rstrip("\n")
        print(formats.md_on_terminal(text) if sys.stdout.isatty() else text)
    return int(result.exit_code)


def _write(path: Path, text: str) -> None:
    """Put text where somebody wants it: a file is replaced as a whole, behind a link too; a pipe or device takes it."""
    from kernelproof.records import atomic_write

    if not _is_kept(path):
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)
    else:
        atomic_write(path.resolve(), text)


def _is_kept(path: Path) -> bool:
    """Whether what is written there stays: no standard stream, pipe or device."""
    if str(path).startswith(("/dev/std", "/dev/fd/")):
        return False
    return path.is_file() or path.is_dir() or not path.exists()


def _derive(arguments: argparse.Namespace) -> int:
    from kernelproof import derive

    files = derive.run(_config(arguments), check=arguments.check)
    if arguments.json:
        print(json.dumps([{"path": file.path, "current": file.current} for file in files], indent=1))
    else:
        differs = "differs from the records; run `kernelproof derive`" if arguments.check else "written"
        print("\n".join(f"{file.path}: {'current' if file.current else differs}" for file in files))
    return ExitCode.WELL if all(file.current for file in files) or not arguments.check else ExitCode.BAD_VERDICT


def _doctor(arguments: argparse.Namespace) -> int:
    from kernelproof import doctor

    return doctor.main(as_json=arguments.json)


def _init(arguments: argparse.Namespace) -> int:
    from kernelproof import scaffold

    into = arguments.into or Path("examples") / arguments.operator
    written = scaffold.run(arguments.operator, into)
    if arguments.json:
        print(json.dumps([str(path) for path in written]))
    else:
        which = f"--config {shlex.quote(str(into / 'config.yaml'))} --operator {arguments.operator} --variant cpu"
        print("\n".join(str(path) for path in written))
        print(f"next: kernelproof build {which}, then kernelproof test with the same options;")
        page = guide("how-to/add-a-kernel.md")
        print(f"      the files hold GELU as an example: {page} says how to make them yours")
    return ExitCode.WELL


def _run(arguments: argparse.Namespace) -> int:
    from kernelproof import run

    return run.main(arguments.arguments)
