"""`kernelproof run`: the whole workflow with a progress display, then the verdicts and where the report is.

Two sources tell how the run goes: the stages, which append an event to `results/run/events.jsonl` when they start and
end with a piece of work, and Snakemake's own output, kept as `results/run/snakemake.log`, which knows how many jobs of
which rule there are.
A job can be several pieces (the baselines of an operator are tested in one) or none (the target); the workflow's own
first event says which.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import select
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from kernelproof import formats, privacy, processes, repository
from kernelproof.environment import RUN_LOCK, looks_like_a_file, only_one
from kernelproof.errors import ConfigError, ExitCode, KernelproofError, RecordError, ToolError, describe_exit, nearest

FOLDER = Path("results/run")
EVENTS, LOG = FOLDER / "events.jsonl", FOLDER / "snakemake.log"
PROFILES = Path("workflow/profiles")

# How long Snakemake and its jobs may take to end after Ctrl-C before they are killed, in seconds.
PATIENCE_S = 10.0
# How often the display looks for news, in seconds: rarely enough not to disturb what is being measured.
POLL_S = 0.25

# With these, Snakemake prints something for the user and runs nothing: it gets the terminal to itself.
_SHOWS_ONLY = set(
    "-n --dry-run --dryrun -h --help -l --list --list-rules --list-target-rules --lint --summary -D --detailed-summary "
    "--dag --rulegraph --filegraph --version --unlock".split()
)
_STOPS_EARLY = {"--until", "-U", "--omit-from", "-O"}
_GOOD = {"ok", "correct", "passed"}


def main(arguments: Sequence[str]) -> int:
    """Run the workflow; gives back 0 when all is well, 1 when a verdict is bad. Raises ToolError if it cannot run."""
    options, rest = _parse(arguments)
    command = snakemake_command(options, rest)
    if _SHOWS_ONLY & set(rest):
        return ExitCode.COULD_NOT_RUN if processes.spawn(command).wait() else ExitCode.WELL
    if not _value(rest, "-d", "--directory"):
        repository.check_folder(
            snakefile=not _value(rest, "-s", "--snakefile"), configuration=not _configuration_file(rest)
        )
    started = time.time()
    with only_one(FOLDER / ".lock", "at work"):
        with only_one(RUN_LOCK, "at work"):
            pass  # the lock of the Snakefile: a `snakemake` started by hand holds it, and ours is about to
        processes.sweep()  # a run that was killed had no time to, and this one may come to no stage that does
        interrupted = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            status, display = _run(command)
        except (KeyboardInterrupt, _Interrupted) as stop:
            print("interrupted; nothing is lost: the same command continues from here", file=sys.stderr)
            return 128 + (stop.number if isinstance(stop, _Interrupted) else signal.SIGINT)
        finally:
            for number, handler in interrupted.items():
                signal.signal(number, handler)
    if status != 0:
        raise failure(status, display)
    if _STOPS_EARLY & {argument.partition("=")[0] for argument in rest}:
        print(f"\nas far as was asked, in {time.time() - started:.1f} s; there is no report of it")
        return ExitCode.WELL
    code = conclude(display.folder, time.time() - started)
    if display.folder not in (None, repository.folder_name(repository.provenance(Path()))):
        print("note     files changed while it ran: this is the run of the repository as it was when it began")
    return code


class _Interrupted(BaseException):
    """A signal asked us to end."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupt(number: int, _: object) -> NoReturn:
    raise _Interrupted(number)


# --- the command line -------------------------------------------------------------------------------------------------


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="kernelproof run",
        description="Run the whole workflow with a progress display. What is not listed here goes to snakemake.",
        epilog="exit codes: 0 all well; 1 some verdict is bad; 2 it could not run",
        allow_abbrev=False,
    )
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="default: all")
    parser.add_argument("--profile", metavar="NAME", help="a folder, or a name in workflow/profiles")
    parser.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="e.g. bench.processes=3")
    before, separator, after = _split(list(arguments))
    options, rest = parser.parse_known_args(before)
    if any(argument.partition("=")[0] == "--set" for argument in rest):
        hint = "kernelproof run --config bench.processes=3; a file: kernelproof run -- --configfile FILE"
        raise ConfigError("a run takes --config KEY=VALUE, where a stage takes --set", subject="--set", hint=hint)
    return options, rest + after if separator else rest


def _split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in arguments:
        return arguments, False, []
    place = arguments.index("--")
    return arguments[:place], True, arguments[place + 1 :]


def snakemake_command(options: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """The command line that runs the workflow."""
    command = [sys.executable, "-P", "-m", "snakemake", "--cores", str(options.cores), "--nocolor"]
    if options.profile:
        command += ["--workflow-profile", str(_profile(options.profile))]
    # Before --config, which takes all that follows it.
    command += rest
    overrides = nested(options.config)
    found = _configuration_file(rest)
    # Snakemake reads it first, and tells of broken YAML without its line.
    if found and not {"--config", "-C"} & set(rest):
        from kernelproof import config

        config.load(found, overrides)
    if overrides:
        command += ["--config", *(f"{key}={json.dumps(value)}" for key, value in overrides.items())]
    return command


def _configuration_file(rest: Sequence[str]) -> Path | None:
    """What Snakemake's `--configfile` names, the first of the last one; None without it."""
    found = _value(rest, "--configfile", "--configfiles")
    return Path(found) if found else None


def _value(rest: Sequence[str], *names: str) -> str | None:
    """What follows the last of these options of Snakemake's; None without it."""
    found = None
    for argument, following in itertools.zip_longest(rest, rest[1:], fillvalue=""):
        option, _, value = argument.partition("=")
        if option in names and (value or following):
            found = value or following
    return found


def _profile(name: str) -> Path:
    folder = Path(name) if os.sep in name else PROFILES / name
    if not folder.is_dir():
        known = sorted(path.name for path in PROFILES.iterdir() if path.is_dir())
        hint = f"there are {', '.join(known)}{nearest(name, known)}"
        raise ConfigError("no such profile", subject=f"--profile {name}", hint=hint)
    return folder


def nested(entries: Sequence[str]) -> dict[str, Any]:
    """`["bench.processes=3", "archs=[sm_90a]"]` as nested dictionaries, the values read as YAML.

    Snakemake's own option takes no dotted keys, and replaces nothing below a key that is given twice.
    """
    import yaml

    tree: dict[str, Any] = {}
    for entry in entries:
        key, separator, text = entry.partition("=")
        *parents, leaf = key.split(".")
        if not separator or not re.fullmatch(r"[a-zA-Z_][\w-]*\w(\.[\w-]+)*", key):
            hint = f"a file is named so: kernelproof run -- --configfile {entry}" if looks_like_a_file(entry) else None
            raise ConfigError(
                "not of the form key=value, e.g. bench.processes=3", subject=f"--config {entry}", hint=hint
            )
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError("the value is not valid YAML", subject=f"--config {entry}") from None
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
            if not isinstance(branch, dict):
                raise ConfigError(f"{parent} already has a value of its own", subject=f"--config {entry}")
        branch[leaf] = value
    return tree


# --- running ----------------------------------------------------------------------------------------------------------


def _run(command: Sequence[str]) -> tuple[int, Display]:
    # A user's Snakemake profile is for workflows of another kind: on a cluster, say.
    environment = {name: value for name, value in os.environ.items() if name != "SNAKEMAKE_PROFILE"}
    environment |= {"KERNELPROOF_EVENTS": str(EVENTS.absolute()), "PYTHONUNBUFFERED": "1"}
    EVENTS.write_bytes(b"")
    with LOG.open("wb") as log:
        process = processes.spawn(command, env=environment, stdout=log, stderr=log)
    display = Display(sys.stdout)
    events, output = _Tail(EVENTS), _Tail(LOG)
    ended = os.pidfd_open(process.pid)
    try:
        while True:
            finished = bool(select.select([ended], [], [], POLL_S)[0])
            for line in output.lines():
                display.log_line(line)
            for line in events.lines():
                display.event_line(line)
            display.refresh(time.time())
            if finished:
                return process.wait(), display
    except BaseException:
        display.erase()
        _end(process.pid, ended)
        processes.kill_group(process)
        raise
    finally:
        display.erase()
        events.close()
        output.close()
        os.close(ended)


def _end(group: int, ended: int) -> None:
    """Pass an interruption on to Snakemake and its jobs, and give them some time."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)
    select.select([ended], [], [], PATIENCE_S)


class _Tail:
    """New whole lines of a growing file, each time they are asked for."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb")
        self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def lines(self) -> list[str]:
        """What was appended since the last call; a line without its end waits."""
        *lines, self._rest = (self._rest + self._stream.read()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


# --- the display ------------------------------------------------------------------------------------------------------


@dataclass
class Display:
    """One line per finished piece of work and, on a terminal, one below them of what is running now."""

    stream: IO[str]
    done: int = 0  # pieces of work
    jobs: dict[str, int] = field(default_factory=dict)  # of each rule, how many
    pieces: dict[str, int] = field(default_factory=dict)  # of each rule whose jobs are not one piece, how many a job is
    width: int = 30  # of the column of names
    folder: str | None = None  # of the report, once the run has named it
    running: dict[tuple[int, str, str], float] = field(default_factory=dict)  # (pid, stage, subject): start, s
    errors: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._terminal = self.stream.isatty()
        self._shown = ""
        self._counting = False

    def log_line(self, line: str) -> None:
        """Learn from a line of Snakemake's output, a row of its table of jobs, how many there are."""
        if line == "Job stats:":
            self.jobs, self._counting = {}, True
        elif self._counting and (match := re.fullmatch(r"(\S+) +(\d+)", line)):
            if match[1] == "total":
                self._counting = False
            else:
                self.jobs[match[1]] = int(match[2])

    @property
    def total(self) -> int:
        """How many pieces of work the run has; 0 as long as nobody has said."""
        return sum(count * self.pieces.get(rule, 1) for rule, count in self.jobs.items())

    def event_line(self, line: str) -> None:
        """Take one line of the stages' events."""
        try:
            event = json.loads(line)
            key = (int(event["pid"]), str(event["stage"]), str(event["subject"]))
            moment, kind = float(event["t"]), event["event"]
            if kind == "plan":
                self.pieces, self.width = dict(event["pieces"]), max(self.width, int(event["width"]))
                return
        except (ValueError, KeyError, TypeError):
            return  # a line that a killed stage left half written
        if key[1] in ("manifest", "report", "bundle"):
            self.folder = key[2]
        if kind == "start":
            self.running[key] = moment
            return
        elapsed = moment - self.running.pop(key, moment)
        self.done += 1
        if event.get("status") == "error":
            self.errors.append(event)
        self._print(self.finished_line(event, elapsed))

    def finished_line(self, event: Mapping[str, Any], elapsed_s: float) -> str:
        """`  3/41  build     attention/cpu_flash            2.1 s  ok`."""
        count = f"{self.done}/{self.total}" if self.total else ""
        status = str(event.get("status", "")).replace("_", " ")
        status = status if status in _GOOD or status == "not run" else status.upper()
        message = str(event.get("message") or "").strip().split("\n")[0]
        left = f"{count:>7}  {event['stage']:9} {event['subject']:{self.width}} {elapsed_s:7.1f} s  {status:9}"
        return f"{left} {message}".rstrip()

    def refresh(self, now: float) -> None:
        """Show what is running, and for how long, on the last line of a terminal."""
        if not self._terminal:
            return
        self._forget_dead()
        oldest = sorted(self.running.items(), key=lambda item: item[1])
        work = " · ".join(f"{stage} {subject} {now - start:.0f} s" for (_, stage, subject), start in oldest)
        self._live(f"{self.done}/{self.total or '?'}  {work or 'snakemake'}")

    def erase(self) -> None:
        """Take the line of what is running away."""
        self._live("")

    def _forget_dead(self) -> None:
        for key in [key for key in self.running if not Path(f"/proc/{key[0]}").exists()]:
            del self.running[key]

    def _print(self, line: str) -> None:
        self.erase()
        print(self._fitted(line), file=self.stream, flush=True)

    def _live(self, text: str) -> None:
        text = self._fitted(text)
        if self._terminal and text != self._shown:
            self.stream.write(f"\r\x1b[K{text}")
            self.stream.flush()
            self._shown = text

    def _fitted(self, text: str) -> str:
        width = shutil.get_terminal_size().columns - 1
        return text if not self._terminal or len(text) <= width else text[: width - 1] + "…"


# --- the end ----------------------------------------------------------------------------------------------------------


def failure(status: int, display: Display) -> KernelproofError:
    """Why the workflow did not reach its end, by what a stage said, else the Snakefile, else Snakemake's last lines."""
    text = LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    if display.errors:
        said = "\n".join(_grouped(display.errors))
        return ToolError(f"some stages could not run\n{said}", log=_stage_log(text) or LOG, hint=_hint(text + said))
    refused = re.search(r"^kernelproof: (.*)", text, re.MULTILINE | re.DOTALL)
    if refused:
        return ToolError(refused[1].strip())
    if usage := re.search(r"^usage: .*^\S+: error: ([^\n]*)\s*\Z", text, re.MULTILINE | re.DOTALL):
        hint = "kernelproof run --help lists what a run takes; snakemake takes the rest: python -m snakemake --help"
        return ToolError(f"snakemake refuses the options: {usage[1]}", hint=hint)
    if "No space left on device" in text:
        return ToolError("no space left on the disk", log=LOG, hint="free some space and run the same command again")
    log = _stage_log(text) or LOG
    with contextlib.suppress(OSError):  # a stage that could not even start has told nobody but its own log
        text = Path(log).read_text(encoding="utf-8", errors="replace").strip() or text
    lines = privacy.scrubbed(text).strip().splitlines()
    shown = lines[-1:] if any(line.startswith("Traceback") for line in lines) else lines[-12:]
    last = "\n".join(f"  {line}" for line in shown)
    return ToolError(f"the workflow {describe_exit(status)}\n{last}", log=log, hint=_hint(text))


def _grouped(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each message once, with the first of the stages that it stopped; where only logs differ, with the first log."""
    stages: dict[str, list[str]] = {}
    messages: dict[str, str] = {}
    for event in errors:
        message = str(event["message"]).removeprefix(f"{event['subject']}: ")
        said = re.sub(r"^  log: .*\n?", "", message, flags=re.MULTILINE)
        messages.setdefault(said, message)
        stages.setdefault(said, []).append(f"{event['stage']} {event['subject']}")
    return [f"{', '.join(_first(names, 3))}: {messages[said]}" for said, names in stages.items()]


def _first(names: list[str], count: int) -> list[str]:
    return names if len(names) <= count else [*names[:count], f"{len(names) - count} more"]


def _stage_log(text: str) -> str | None:
    logs = re.findall(r"^    log: (\S+) \(check log file", text, re.MULTILINE)
    return logs[-1] if logs else None


def _hint(text: str) -> str:
    if "No space left on device" in text:
        return "free some space and run the same command again"
    return "mend what it says and run the same command: it continues from here"


def conclude(folder: str | None, elapsed_s: float) -> int:
    """Print the verdicts and where everything is; gives back the exit code."""
    reports = Path("reports") / (folder or repository.folder_name(repository.provenance(Path())))
    verdicts = read_verdicts(reports)
    print()
    print("\n".join(table(verdicts)))
    bad = [verdict for verdict in verdicts if verdict.get("bad")]
    ours = [verdict for verdict in verdicts if verdict.get("role") != "baseline"]
    judged = [verdict for verdict in ours if verdict.get("correctness") != "not_run"]
    print()
    if bad:
        for verdict in bad:
            print(f"! {verdict['operator']}/{verdict['variant']}: {verdict.get('reason') or 'bad'}")
            if verdict.get("remedy"):
                print(f"  {verdict['remedy']}")
        print(f"{len(bad)} bad verdict{'s' if len(bad) > 1 else ''} in {elapsed_s:.1f} s")
    elif ours and not judged:
        why = next((verdict["reason"] for verdict in ours if verdict.get("reason")), "no reason is on record")
        print(f"incomplete: no variant could be tested ({formats.one_line(str(why))}), in {elapsed_s:.1f} s")
    else:
        print(f"no bad verdict in {elapsed_s:.1f} s")
    receipt = read_receipt(reports)
    print(f"report   {reports / 'report.html'}")
    print(f"tarball  {reports / receipt['tarball']}")
    if contradictions := receipt.get("contradictions"):
        print(f"! it contradicts itself, and `kernelproof verify` refuses it: {contradictions[0]}")
    if bad:
        return ExitCode.BAD_VERDICT
    if contradictions:
        return ExitCode.CONTRADICTION
    return ExitCode.WELL if judged or not ours else ExitCode.COULD_NOT_RUN


def read_receipt(reports: Path) -> dict[str, Any]:
    """`bundle.json`: which tarball belongs to the report. Raises RecordError."""
    path = reports / "bundle.json"
    try:
        receipt = json.loads(path.read_text(encoding="utf-8"))
        return {**receipt, "tarball": Path(receipt["tarball"]).name}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"cannot be read: {error}", subject=str(path), hint="delete it and run again") from None


def read_verdicts(reports: Path) -> list[dict[str, Any]]:
    """The verdicts in a report's manifest. Raises RecordError."""
    import yaml

    path = reports / "manifest.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(yaml.load(path.read_text(encoding="utf-8"), loader)["verdicts"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise RecordError(f"cannot be read: {error}", subject=str(path), hint="delete it and run again") from None


def table(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a variant; of the baselines, only those at fault, who are no peers, and a line that counts them.

    Below it, who has no time in some mode, and why.
    """
    baselines = [verdict for verdict in verdicts if verdict.get("role") == "baseline"]
    faulty = [v for v in baselines if v.get("bad") or v.get("correctness") not in ("correct", "not_run")]
    shown = [verdict for verdict in verdicts if verdict not in baselines or verdict in faulty]
    header = ("", "variant", "device", "build", "correctness", "time / best baseline", "gate", "profile")
    rows = [header, *(_row(verdict) for verdict in shown)]
    lines = formats.columns(rows)
    if any(row[5].endswith("?") for row in rows):
        lines.append(
            "   ? undecided: the interval does not say which is faster, or the times are doubtful: the report says why"
        )
    if any(row[4] == "correct" and row[5] == "–" for row in rows[1:]):
        lines.append("   – no ratio: not timed, or by too few processes undisturbed: the report and `gate` say why")
    if baselines:
        words = {"correct": "correct", "not_run": "not run here"}
        counts = Counter(words.get(str(verdict.get("correctness")), "") for verdict in baselines)
        counted = [f"{counts[word]} {word}" for word in words.values() if counts[word]]
        counted += [f"{len(faulty)} at fault: nobody was compared with those"] if faulty else []
        lines.append(f"   and {formats.plural(len(baselines), 'baseline')}: {', '.join(counted)}")
    lines += [f"   {v['operator']}/{v['variant']}: {v['untimed']}" for v in verdicts if v.get("untimed")]
    return lines


def _row(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    def word(key: str) -> str:
        return str(verdict.get(key) or "–").replace("_", " ")

    ratio = verdict.get("ratio")
    return (
        "!" if verdict.get("bad") else " ",
        f"{verdict['operator']}/{verdict['variant']}",
        word("device"),
        word("build"),
        word("correctness"),
        f"{ratio:.3f}{'?' if verdict.get('speed') == 'undecided' else ''}" if isinstance(ratio, int | float) else "–",
        word("gate"),
        word("profile"),
    )
