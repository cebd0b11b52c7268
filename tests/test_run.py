"""kernelproof run: the display, the verdicts, and how a run ends."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelproof import run
from kernelproof.errors import ConfigError, RecordError

SOURCE = Path(__file__).resolve().parents[1] / "src"

# As a run wrote them.
EVENTS = """\
{"t": 1795211677.10, "stage": "build", "subject": "attention/cpu_flash", "event": "start", "status": "", "message": "", "pid": 21828}
{"t": 1795211677.20, "stage": "build", "subject": "attention/fp16_wmma", "event": "start", "status": "", "message": "", "pid": 21829}
{"t": 1795211683.11, "stage": "build", "subject": "attention/cpu_flash", "event": "end", "status": "ok", "message": "", "pid": 21828}
{"t": 1795211684.00, "stage": "test", "subject": "attention/cpu_flash", "event": "start", "status": "", "message": "", "pid": 21901}
{"t": 1795211684.62, "stage": "test", "subject": "attention/cpu_flash", "event": "end", "status": "wrong", "message": "5 of 9 cases\\nmore", "pid": 21901}
{"t": 1795211685.00, "stage": "test", "subject": "attention/fp16_wmma", "event": "start", "status": "", "message": "", "pid": 21902}
{"t": 1795211685.30, "stage": "test", "subject": "attention/fp16_wmma", "event": "end", "status": "not_run", "message": "no GPU", "pid": 21902}
{"t": 1795211685.40, "stage": "report", "subject": "0123456789ab", "event": "start", "status": "", "message": "", "pid": 21903}
{"t": 1795211685.41, "stage": "report", "sub"""  # noqa: E501

JOBS = """\
Job stats:
job                            count
---------------------------  -------
build_attention_cpu_flash          1
build_attention_fp16_wmma          1
test_attention_cpu_flash           1
test_attention_baselines_cuda      1
bundle                             1
report                             1
total                              6

Select jobs to execute...
"""

VERDICTS: list[dict[str, Any]] = [
    {"operator": "attention", "variant": "cpu_flash", "role": "variant", "device": "cpu", "build": "ok"}
    | {
        "correctness": "correct",
        "speed": "faster",
        "gate": "no claim, not shown within the limit in 1 of 8 cases",
        "ratio": 0.8125,
        "profile": "not_run",
        "bad": False,
        "reason": None,
    },
    {"operator": "attention", "variant": "cpu_naive", "role": "variant", "device": "cpu", "build": "ok"}
    | {
        "correctness": "correct",
        "speed": "slower",
        "gate": "fails, not shown within the limit in 8 of 8 cases",
        "ratio": 12.5,
        "profile": "not_run",
        "bad": True,
        "reason": "too slow",
        "remedy": "make it faster",
    },
    {"operator": "attention", "variant": "sdpa_math", "role": "baseline", "device": "cuda", "build": "ok"}
    | {"correctness": "not_run", "speed": "not_run", "ratio": None, "profile": "not_run", "bad": False, "reason": None},
    {"operator": "attention", "variant": "sdpa_cpu", "role": "baseline", "device": "cpu", "build": "ok"}
    | {"correctness": "correct", "speed": "–", "ratio": None, "profile": "not_run", "bad": False, "reason": None},
]


# --- the display ------------------------------------------------------------------------------------------------------


def shown(*events: dict[str, Any] | str) -> tuple[run.Display, list[str]]:
    """What is printed of a run with the jobs above."""
    stream = io.StringIO()
    display = run.Display(stream)
    for line in JOBS.splitlines():
        display.log_line(line)
    for event in events:
        display.event_line(event if isinstance(event, str) else json.dumps(event))
    return display, stream.getvalue().splitlines()


def ended(stage: str, subject: str) -> dict[str, Any]:
    return {"t": 2.0, "stage": stage, "subject": subject, "event": "end", "status": "ok", "message": "", "pid": 1}


def plan(pieces: dict[str, int], width: int) -> dict[str, Any]:
    return {"t": 1.0, "stage": "workflow", "subject": "p", "event": "plan", "pid": 1, "pieces": pieces, "width": width}


def test_a_line_for_each_finished_piece_of_work() -> None:
    display, lines = shown(*EVENTS.splitlines())
    assert lines == [
        "    1/6  build     attention/cpu_flash                6.0 s  ok",
        "    2/6  test      attention/cpu_flash                0.6 s  WRONG     5 of 9 cases",
        "    3/6  test      attention/fp16_wmma                0.3 s  not run   no GPU",
    ]
    assert {subject for _, _, subject in display.running} == {"attention/fp16_wmma", "0123456789ab"}
    assert display.folder == "0123456789ab"


def test_what_is_counted_is_what_is_printed_to_the_last() -> None:
    """The baselines are one job of Snakemake's and a line each, and its target is a job and none."""
    subjects = ["o/flash", "o/wmma", "o/flash", "o/sdpa", "o/math", "o/triton", "0123456789ab"]
    stages = ["build", "build", "test", "test", "test", "test", "bundle"]
    told = plan({"report": 0, "test_attention_baselines_cuda": 3}, 0)
    _, lines = shown(told, *map(ended, stages, subjects))
    assert [line.split()[0] for line in lines] == ["1/7", "2/7", "3/7", "4/7", "5/7", "6/7", "7/7"]


def test_long_names_widen_the_column_for_all() -> None:
    name = "quantised_attention/simfp8_stage2"
    _, lines = shown(plan({}, len(name)), ended("build", "a/b"), ended("build", name))
    short, long = lines
    assert short.index("0.0 s") == long.index("0.0 s")


def read_all(controller: int) -> str:
    """What a terminal was shown, once nobody writes to it any more."""
    shown = b""
    with contextlib.suppress(OSError):  # a pty's way to say that it has ended
        while part := os.read(controller, 65536):
            shown += part
    os.close(controller)
    return shown.decode()


def test_a_terminal_shows_what_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        display = run.Display(stream)
        for line in JOBS.splitlines():
            display.log_line(line)
        start = {"t": 100.0, "stage": "build", "subject": "attention/cpu_flash", "event": "start", "pid": os.getpid()}
        display.event_line(json.dumps(start))
        display.refresh(112.0)
        display.event_line(json.dumps(start | {"t": 112.5, "event": "end", "status": "ok", "message": "x" * 200}))
        display.refresh(113.0)
        display.erase()
    shown = read_all(controller)
    assert "\r\x1b[K0/6  build attention/cpu_flash 12 s" in shown
    assert shown.endswith("\r\x1b[K")
    assert all(len(line) < 60 for line in re.sub(r"\x1b\[K", "", shown).replace("\r", "\n").split("\n"))


def test_work_of_a_dead_process_is_no_longer_shown() -> None:
    finished = subprocess.Popen(["true"])
    finished.wait()
    display = run.Display(io.StringIO())
    event = {"t": 1.0, "stage": "test", "subject": "a/b", "event": "start", "pid": finished.pid}
    display.event_line(json.dumps(event))
    display._terminal = True
    display.refresh(2.0)
    assert not display.running


# --- the verdicts -----------------------------------------------------------------------------------------------------


def test_table() -> None:
    header, *rows, baselines = run.table(VERDICTS)
    assert header.split()[-1] == "profile"
    assert [re.split(r" {2,}", row) for row in rows] == [
        [
            "",
            "attention/cpu_flash",
            "cpu",
            "ok",
            "correct",
            "0.812",
            "no claim, not shown within the limit in 1 of 8 cases",
            "not run",
        ],
        [
            "!",
            "attention/cpu_naive",
            "cpu",
            "ok",
            "correct",
            "12.500",
            "fails, not shown within the limit in 8 of 8 cases",
            "not run",
        ],
    ]
    assert [row.index("not run") for row in rows] == [header.index("profile")] * 2
    assert baselines == "   and 2 baselines: 1 correct, 1 not run here"


def test_one_baseline_is_one_and_what_is_none_is_not_counted() -> None:
    assert run.table(VERDICTS[:1] + VERDICTS[3:])[-1] == "   and 1 baseline: 1 correct"
    assert run.table(VERDICTS[:1] + VERDICTS[2:3])[-1] == "   and 1 baseline: 1 not run here"


def test_an_undecided_ratio_is_no_figure_like_the_others() -> None:
    _, row, note, _ = run.table([VERDICTS[0] | {"speed": "undecided"}, *VERDICTS[2:]])
    assert "0.812?" in row.split()
    assert (
        note
        == "   ? undecided: the interval does not say which is faster, or the times are doubtful: the report says why"
    )


def test_below_the_table_stands_who_has_no_time_in_a_mode() -> None:
    missing = [VERDICTS[0], VERDICTS[3] | {"untimed": "not timed cold in large-float32: too slow, one visit takes 3 s"}]
    last = "   attention/sdpa_cpu: not timed cold in large-float32: too slow, one visit takes 3 s"
    assert run.table(missing)[-1] == last


def test_a_baseline_at_fault_is_shown_since_nobody_was_compared_with_it() -> None:
    wrong = next(v for v in VERDICTS if v["role"] == "baseline") | {"variant": "mistyped", "correctness": "wrong"}
    *rows, baselines = run.table([*VERDICTS, wrong])
    assert baselines.endswith("1 not run here, 1 at fault: nobody was compared with those")
    assert any("mistyped" in row and "wrong" in row for row in rows)


UNTESTED = [VERDICTS[0] | {"correctness": "not_run", "bad": False, "reason": "no C++ compiler"}]


@pytest.mark.parametrize(
    ("shown", "contradictions", "status"),
    [(VERDICTS, [], 1), (VERDICTS[:1], [], 0), (UNTESTED, [], 2), (VERDICTS[:1], ["op.py: it is another"], 3)],
)
def test_the_end_of_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shown: list[dict[str, Any]],
    contradictions: list[str],
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    reports = Path("reports/0123456789ab")
    reports.mkdir(parents=True)
    (reports / "manifest.yaml").write_text(yaml.safe_dump({"verdicts": shown}))
    receipt = {"tarball": "kernelproof-0123456789ab-20260101T000000Z.tar.gz", "contradictions": contradictions}
    (reports / "bundle.json").write_text(json.dumps(receipt))
    assert run.conclude("0123456789ab", 12.34) == status
    said = capsys.readouterr().out
    assert "report   reports/0123456789ab/report.html\n" in said
    assert "tarball  reports/0123456789ab/kernelproof-0123456789ab-20260101T000000Z.tar.gz\n" in said
    assert ("! attention/cpu_naive: too slow\n  make it faster\n1 bad verdict in 12.3 s" in said) == (status == 1)
    assert ("incomplete: no variant could be tested (no C++ compiler), in 12.3 s" in said) == (status == 2)
    assert ("! it contradicts itself, and `kernelproof verify` refuses it: op.py: it is" in said) == (status == 3)


def test_a_damaged_manifest_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text("verdicts: [")
    with pytest.raises(RecordError, match="cannot be read"):
        run.read_verdicts(tmp_path)
    with pytest.raises(RecordError, match="cannot be read"):
        run.read_receipt(tmp_path)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [["--configfile", "{}"], ["--configfile={}"], ["-n", "--configfiles", "{}", "report"]])
def test_a_configuration_file_of_ones_own_is_read_before_snakemake_does(tmp_path: Path, form: list[str]) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("schema: kernelproof.config/1\noperators: {a: [\n")
    with pytest.raises(ConfigError, match=r"broken\.yaml:3: not valid YAML"):
        run.main(["--", *(part.format(path) for part in form)])


def test_dotted_overrides_become_nested() -> None:
    entries = ["bench.processes=3", "bench.modes=[hot]", "project=a b", "gate.max_ratio=0.9"]
    expected = {"bench": {"processes": 3, "modes": ["hot"]}, "project": "a b", "gate": {"max_ratio": 0.9}}
    assert run.nested(entries) == expected


@pytest.mark.parametrize("entries", [["bench"], ["b.x=1"], ["bench=1", "bench.processes=3"], ["bench.modes=[hot"]])
def test_bad_overrides(entries: list[str]) -> None:
    with pytest.raises(ConfigError, match="--config"):
        run.nested(entries)


def test_a_file_given_as_a_value_is_told_where_it_belongs() -> None:
    with pytest.raises(ConfigError, match=r"next: a file is named so: kernelproof run -- --configfile own\.yaml"):
        run.nested(["own.yaml"])


@pytest.mark.parametrize("form", [["--set", "bench.processes=3"], ["--set=bench.processes=3"]])
def test_the_stages_option_for_a_value_is_told_the_runs(form: list[str]) -> None:
    with pytest.raises(ConfigError, match="--set: a run takes --config KEY=VALUE"):
        run.main(form)


def test_snakemake_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workflow" / "profiles" / "slurm").mkdir(parents=True)
    arguments = "--cores 3 --profile slurm --config bench.processes=3 -- --until build"
    options, rest = run._parse(arguments.split())
    command = run.snakemake_command(options, rest)
    assert command[1:6] == ["-P", "-m", "snakemake", "--cores", "3"]
    assert command[7:] == [
        *["--workflow-profile", "workflow/profiles/slurm", "--until", "build"],
        *["--config", 'bench={"processes": 3}'],
    ]
    with pytest.raises(ConfigError, match="did you mean 'slurm'"):
        run.snakemake_command(run._parse(["--profile", "slrum"])[0], [])


# --- whole runs of a small workflow -----------------------------------------------------------------------------------

SNAKEFILE = """\
import os
from pathlib import Path
Path("results").mkdir(exist_ok=True)
rule report:
    input: "reports/0123456789ab/bundle.json"
rule stage:
    output: "reports/0123456789ab/bundle.json"
    log: "results/stage.log"
    shell: "{sys.executable} stage.py 2> {log}"
"""
STAGE = """\
import json, os, sys, time
from pathlib import Path
def event(kind, status="", message=""):
    line = {"t": time.time(), "stage": "bundle", "subject": "0123456789ab", "event": kind, "status": status}
    with open(os.environ["KERNELPROOF_EVENTS"], "a") as stream:
        stream.write(json.dumps(line | {"message": message, "pid": os.getpid()}) + "\\n")
if Path("how").read_text() == "import":
    import nothing_of_this_name
event("start")
Path("stage.pid").write_text(str(os.getpid()))
how = Path("how").read_text()
if how == "hang":
    time.sleep(600)
if how == "error":
    event("end", "error", "the packing failed")
    sys.exit(2)
if how == "crash":
    os.abort()
folder = Path("reports/0123456789ab")
folder.mkdir(parents=True, exist_ok=True)
(folder / "manifest.yaml").write_text(Path("manifest.yaml").read_text())
(folder / "bundle.json").write_text('{"tarball": "a.tar.gz"}')
event("end", "ok")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A workflow of one job that does what the file `how` says."""
    (tmp_path / "Snakefile").write_text("import sys\n" + SNAKEFILE)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump({"verdicts": VERDICTS}))
    (tmp_path / "how").write_text("work")
    return tmp_path


def refused(folder: Path, *arguments: str) -> str:
    """What a run says that may not begin; it leaves the folder as it is."""
    before = sorted(folder.rglob("*"))
    process = start(folder, *arguments)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert sorted(folder.rglob("*")) == before
    return said


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kernelproof", "run", "--cores", "1", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        command, cwd=project, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def wait_for_stage(project: Path, process: subprocess.Popen[str]) -> int:
    while not (project / "stage.pid").exists() or not (project / "stage.pid").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return int((project / "stage.pid").read_text())


def gone(pid: int) -> bool:
    """Has a process ended (a zombie that nobody has reaped yet has)?"""
    for _ in range(3000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_run_removes_what_killed_stages_left(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(project))
    left = project / "kernelproof-test-killed"
    left.mkdir()
    os.utime(left, (0, 0))
    start(project).communicate()
    assert not left.exists()


def test_a_run_with_a_bad_verdict(project: Path) -> None:
    output, errors = (process := start(project)).communicate()
    assert process.returncode == 1, errors
    assert re.search(r"bundle +0123456789ab +\d+\.\d s  ok", output)
    assert "! attention/cpu_naive: too slow" in output
    assert "tarball  reports/0123456789ab/a.tar.gz" in output


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("error", "some stages could not run\nbundle 0123456789ab: the packing failed"),
        ("crash", "the workflow ended with exit code 1"),
        (
            "import",
            "the workflow ended with exit code 1\n  ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
    ],
)
def test_a_run_that_fails(project: Path, how: str, said: str) -> None:
    (project / "how").write_text(how)
    _, errors = (process := start(project)).communicate()
    assert process.returncode == 2
    assert said in errors
    assert "log:  results/stage.log" in errors
    assert "Traceback" not in errors


def test_a_snakemake_profile_of_the_users_is_for_other_workflows(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = project / "cluster"
    profile.mkdir()
    (profile / "config.yaml").write_text("executor: of_no_such_cluster\n")
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(profile))
    output, errors = start(project).communicate()
    assert "tarball  reports/0123456789ab/a.tar.gz" in output, errors


def test_an_option_that_snakemake_refuses_is_told_without_its_usage(project: Path) -> None:
    _, errors = (process := start(project, "--operator", "op")).communicate()
    assert process.returncode == 2
    first, hint = errors.splitlines()
    assert first == "kernelproof: snakemake refuses the options: unrecognized arguments: --operator"
    assert "kernelproof run --help" in hint


def test_a_stage_without_space_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    display = run.Display(io.StringIO())
    display.errors.append({"stage": "report", "subject": "x", "message": "[Errno 28] No space left on device"})
    assert "next: free some space" in str(run.failure(1, display))


def test_a_fault_that_stops_several_variants_is_told_once() -> None:
    def stopped(variant: str) -> dict[str, str]:
        message = f"{variant}: op.py:5: it fails\n  log:  results/test/{variant}.log\n  next: mend it"
        return {"stage": "test", "subject": variant, "message": message}

    said = "test op/a, test op/b: op.py:5: it fails\n  log:  results/test/op/a.log\n  next: mend it"
    assert run._grouped([stopped("op/a"), stopped("op/b")]) == [said]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_ends_cleanly_and_continues(project: Path, number: signal.Signals, status: int) -> None:
    (project / "how").write_text("hang")
    process = start(project)
    stage = wait_for_stage(project, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)  # of a crowded machine
    assert process.returncode == status
    assert errors == "interrupted; nothing is lost: the same command continues from here\n"
    assert gone(stage)

    (project / "how").write_text("work")
    again = start(project, "--", "--nolock", "--rerun-incomplete")
    _, errors = again.communicate()
    assert again.returncode == 1, errors


def test_a_killed_run_takes_snakemake_with_it(project: Path) -> None:
    (project / "how").write_text("hang")
    process = start(project)
    stage = wait_for_stage(project, process)
    shell = int(Path(f"/proc/{stage}/stat").read_text().rpartition(")")[2].split()[1])
    snakemake = int(Path(f"/proc/{shell}/stat").read_text().rpartition(")")[2].split()[1])
    process.kill()
    process.communicate()
    assert gone(snakemake)
    os.kill(stage, signal.SIGKILL)  # a real stage watches for this itself: processes.end_with


@pytest.mark.parametrize("held", ["results/.lock", "results/run/.lock"])
def test_two_runs_at_once(project: Path, held: str) -> None:
    lock = project / held
    lock.parent.mkdir(parents=True)
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write("process 4711")
        stream.flush()
        _, errors = (process := start(project)).communicate()
    assert process.returncode == 2
    assert "another run is at work in this folder (process 4711)" in errors


def test_a_folder_without_a_workflow_or_a_configuration(project: Path) -> None:
    (project / "config.yaml").unlink()
    assert "there is no config.yaml here\n  next: name another file" in refused(project)
    (project / "Snakefile").unlink()
    assert f"{project}: there is no Snakefile here" in (said := refused(project))
    assert "--snakefile CLONE/Snakefile" in said


def test_reports_that_cannot_be_written_are_found_first(project: Path) -> None:
    (project / "reports").write_text("a file")
    assert "reports/: no report can be written: Not a directory" in refused(project)
    (project / "results").symlink_to("elsewhere")
    said = "results/: no record can be kept: it is a link to elsewhere, which is not there"
    assert said in refused(project)
