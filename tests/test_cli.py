"""The command line: exit codes, what an error says, and what starting it costs."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simulated_runs

from kernelproof import (
    OF_A_RUN,
    bench,
    build,
    capture,
    cli,
    doctor,
    environment,
    gate,
    manifest,
    privacy,
    processes,
    profile,
    report,
    scaffold,
    verify,
)
from kernelproof import test as stage_test
from kernelproof.errors import BuildError, ExitCode, KernelproofError
from kernelproof.gate import GateResult, Row
from kernelproof.records import (
    BenchRecord,
    BuildRecord,
    CaptureRecord,
    CaseResult,
    Contender,
    FileHash,
    OracleRow,
    ProfileRecord,
    Rung,
    TestRecord,
)

ROOT = Path(__file__).resolve().parents[1]
CONFIG = f"--config={ROOT / 'config.yaml'}"
HEAVY = ("torch", "pandas", "jinja2", "jsonschema", "yaml", "numpy", "scipy", "snakemake", "tvm_ffi", "subprocess")


def names() -> list[str]:
    found = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return sorted(found.choices)


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration's paths start at the repository. No run is listening to these commands."""
    monkeypatch.chdir(ROOT)
    for name in OF_A_RUN:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """For which results somebody was noted; these tests leave no note."""
    found: list[Path] = []
    monkeypatch.setattr(privacy, "note", found.append)
    return found


def failing(error: BaseException) -> Callable[..., Any]:
    def raises(*_: object, **__: object) -> Any:
        raise error

    return raises


@pytest.mark.parametrize("arguments", ["--version", "init --help"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_verdict(arguments: str, closed: str) -> None:
    command = f"{sys.executable} -m kernelproof {arguments} {closed}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, check=False)
    assert done.returncode == ExitCode.WELL, done.stderr


def test_letters_that_an_output_lacks_end_no_program() -> None:
    kept = str(ROOT / "reports" / "reference" / "nvidia-h200")
    command = [sys.executable, "-m", "kernelproof", "compare", kept, kept]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.WELL, "")
    assert done.stdout.startswith("## ? B against A: ")


# --- help and start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *names()])
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*filter(None, [name]), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"kernelproof {name}".strip() in shown
    assert "0 all well; 1 some verdict is bad; 2 it could not run" in " ".join(shown.split()) or name not in ("", "run")


@pytest.mark.parametrize("command", ["--help", "--version", "build --help"])
def test_a_short_command_imports_nothing_heavy(command: str) -> None:
    program = (
        "import contextlib, sys; from kernelproof import cli\n"
        f"with contextlib.suppress(SystemExit): cli.main({command.split()!r})\n"
        f"print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); {program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1].strip() == "loaded:"


# --- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["profile", "--operator", "attention"],
        ["bench", "--operator", "attention", "--device", "tpu"],
        ["verify"],
        ["capture", "--nonsense"],
    ],
)
def test_a_wrong_command_line_could_not_run(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == ExitCode.COULD_NOT_RUN


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tset"], "kernelproof: error: argument COMMAND: there is no 'tset'; allowed: bench, "),
        (["tset"], "; did you mean 'test'?"),
        (["bench", "--device", "gpu"], "there is no 'gpu'; allowed: cpu, cuda; did you mean 'cuda'?"),
        (
            ["test", "--oeprator=x"],
            "kernelproof test: error: unrecognized arguments: --oeprator=x; did you mean '--operator'?",
        ),
        (
            ["bench", "--variant", "a", "--variant", "b"],
            "kernelproof bench: error: --variant is given twice, a and b; allowed: once\n",
        ),
        (
            ["compare", "a", "b", "--markdown", "out", "--html", "./out"],
            "kernelproof compare: error: --markdown and --html are both out; allowed: a file for each\n",
        ),
        (["test", "zzz"], "kernelproof test: error: unrecognized arguments: zzz\n"),
    ],
)
def test_a_mistyped_word_is_answered_with_what_may_have_been_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "--operator", "atention", "--variant", "x"], "atention: no such operator"),
        (["test", "--operator", "attention", "--variant", "cpu_flsh"], "did you mean 'cpu_flash'?"),
        (["build"], "config.yaml: give --operator, one of attention, qkt, quantised_attention, rmsnorm"),
        (["bench"], "bench: give --operator, one of attention, qkt, quantised_attention, rmsnorm"),
        (["bench", "--operator", "attention"], "give --variant, or --device cpu or --device cuda"),
        (["bench", "--operator", "attention", "--variant", "cpu_flsh"], "did you mean 'cpu_flash'?"),
        (["bench", "--operator=attention", "--variant=cpu_flash", "--device=cuda"], "it is not for cuda"),
        (
            ["bench", "--operator", "attention", "--variant", "sdpa_default_cpu"],
            "attention/sdpa_default_cpu: it is a baseline; allowed: attention, cpu_flash, ",
        ),
        (
            ["bench", "--operator=attention", "--device=cpu", "--shape=mission", "--option=causal=true"],
            "bench: --shape and --option cannot be given without --once",
        ),
        (
            ["bench", "--operator=attention", "--device=cpu", "--inputs=there"],
            "bench: --inputs cannot be given without --once",
        ),
        (
            ["bench", "--ceilings", "--device=cpu", "--variant=cpu_flash"],
            "bench: --variant cannot be given with --ceilings, which needs only --device",
        ),
        (
            ["bench", "--once", "--variant=cpu_flash", "--shape=mission", "--device=cuda"],
            "attention/cpu_flash: it is not for cuda",
        ),
        (["bench", "--operator", "attention", "--once"], "--once needs --variant and --shape"),
        (
            ["bench", "--once", "--variant", "cpu_fast", "--shape", "mission"],
            "cpu_fast: which variant is meant? no operator",
        ),
        (
            ["bench", "--operator=attention", "--once", "--variant=cpu_flash", "--shape=mission", "--option=causal"],
            "--option causal: not of the form name=value",
        ),
        (["capture", "--config", "nowhere.yaml"], "nowhere.yaml: the configuration does not exist"),
        (["capture", "--set", "bench.proceses=3"], "did you mean 'processes'?"),
        (["gate", "nowhere"], "nowhere: there is no such bundle or folder"),
        (["init", "Not-A-Name"], "Not-A-Name: not a name for an operator"),
        (["run", "--profile", "slrum"], "did you mean 'slurm'?"),
    ],
)
def test_what_a_user_did_wrong_is_said_in_words(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == ExitCode.COULD_NOT_RUN
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("kernelproof: ")
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_a_file_that_is_no_bundle_is_unreadable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path / "nowhere.tar.gz")]) == ExitCode.COULD_NOT_RUN
    assert capsys.readouterr().out.startswith("unreadable: ")


def test_verify_holds_a_bundle_against_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, str | None]] = []

    def run(path: Path, identity: str | None) -> verify.VerifyResult:
        asked.append((path, identity))
        return verify.VerifyResult(str(path))

    monkeypatch.setattr(verify, "run", run)
    cli.main(["verify", "a.tar.gz", "--identity", "0" * 64])
    cli.main(["verify", "a.tar.gz"])
    assert asked == [(Path("a.tar.gz"), "0" * 64), (Path("a.tar.gz"), None)]


@pytest.mark.parametrize(
    ("status", "code"),
    [("passes", ExitCode.WELL), ("fails", ExitCode.BAD_VERDICT), ("not run", ExitCode.COULD_NOT_RUN)],
)
def test_the_gates_decision_is_the_exit_code(status: str, code: ExitCode, monkeypatch: pytest.MonkeyPatch) -> None:
    result = GateResult(0.95, [Row("attention", "cpu_flash", "cpu", "correct", "no claim", status, "because")])
    monkeypatch.setattr(gate, "run", lambda *_: result)
    assert cli.main(["gate", CONFIG]) == code


def test_a_bad_verdict_is_in_the_record_and_not_in_a_stages_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    record = BuildRecord(status="failed", reason="it does not compile")
    monkeypatch.setattr(build, "run", lambda *_: record)
    assert cli.main(["build", CONFIG, "--operator", "attention", "--variant", "cpu_flash"]) == ExitCode.WELL


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_says_what_failed_on_what_where_the_log_is_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = BuildError("the linker is gone", subject="attention/cpu_flash", log="results/x.log", hint="install one")
    monkeypatch.setattr(build, "run", failing(error))
    assert cli.main(["build", CONFIG, "--operator", "attention", "--variant", "cpu_flash"]) == ExitCode.COULD_NOT_RUN
    assert capsys.readouterr().err == (
        "kernelproof: attention/cpu_flash: the linker is gone\n  log:  results/x.log\n  next: install one\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "results/x"), 2, "results/x: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "results"), 2, "results: Permission denied\n"),
        (KernelproofError("it broke"), 2, "kernelproof: it broke\n"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again"),
    ],
    ids=["full disk", "no permission", "ours", "Ctrl-C"],
)
def test_no_traceback_reaches_a_user(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(capture, "run", failing(error))
    assert cli.main(["capture", CONFIG]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown
    assert ("free some space" in shown) == (getattr(error, "errno", None) == errno.ENOSPC)


@pytest.mark.parametrize("asked", [None, cli.TRACEBACK, cli.RUN_PID])
def test_a_fault_of_ours_is_no_verdict(
    asked: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "run", failing(ZeroDivisionError("division by \x1b[31mzero")))
    for name in (cli.TRACEBACK, cli.RUN_PID):
        monkeypatch.delenv(name, raising=False)
    if asked:
        monkeypatch.setenv(asked, "1")
    assert cli.main(["gate", CONFIG]) == ExitCode.COULD_NOT_RUN
    shown = capsys.readouterr().err
    assert "kernelproof: ZeroDivisionError: division by zero\n  next: this is a fault of kernelproof" in shown
    assert cli.TRACEBACK in shown
    assert ("Traceback" in shown) == (asked is not None)


def test_a_python_without_what_is_needed_is_no_fault_of_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "kernelproof", "bench", "--operator", "rmsnorm", "--device", "cpu", CONFIG],
        env={"PYTHONPATH": str(ROOT / "src")},  # -S: no site-packages
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == ExitCode.COULD_NOT_RUN
    assert done.stderr.startswith(f"kernelproof: {sys.executable}: this Python has no module ")
    assert "next: ./repro.sh installs all that is needed" in done.stderr


def test_a_module_of_our_own_that_is_missing_is_a_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "run", failing(ModuleNotFoundError("gone", name="kernelproof.gone")))
    assert cli.main(["gate", CONFIG]) == ExitCode.COULD_NOT_RUN
    assert "this is a fault of kernelproof" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_behind_standard_output_is_an_error(tmp_path: Path) -> None:
    simulated_runs.write(simulated_runs.make(), tmp_path)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kernelproof", "gate", CONFIG, str(tmp_path)],
            env={"PYTHONPATH": str(ROOT / "src")},
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_results_that_are_a_link_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scaffold.run("squash", Path("squash"))
    Path("results").symlink_to("elsewhere")
    monkeypatch.setattr(privacy, "note", lambda results: (results / "private").mkdir(parents=True, exist_ok=True))
    assert cli.main(["build", "--config=squash/config.yaml", "--operator=squash"]) == ExitCode.COULD_NOT_RUN
    said = capsys.readouterr().err
    assert said.startswith("kernelproof: results: it is a link to elsewhere, which is not there\n  next: ")


# --- plain lines ------------------------------------------------------------------------------------------------------

CASES = [CaseResult(f"c{n}", "s", {}, {}, "float32", "normal", 0, "passed") for n in range(3)]
LIBRARY = FileHash("lib.so", "0" * 64, 1)


@pytest.mark.parametrize(
    ("stage", "record", "line"),
    [
        ("test", TestRecord(verdict="correct", cases=CASES, duration_s=12.34), "correct (3 cases, 12.3 s)"),
        (
            "test",
            TestRecord(verdict="correct", cases=CASES[:1], duration_s=1.0, searched=176),
            "correct (1 case and 176 drawn, 1.0 s)",
        ),
        ("test", TestRecord("failed", "launch: it hung", verdict="hung"), "hung: launch: it hung"),
        ("test", TestRecord("not_run", "no usable GPU here (none)"), "not run: no usable GPU here (none)"),
        ("build", BuildRecord(library=LIBRARY, duration_s=2.0), "built (2.0 s)"),
        ("build", BuildRecord(), "nothing to build"),
        ("build", BuildRecord("failed", "nvcc ended with exit code 2"), "failed: nvcc ended with exit code 2"),
        ("profile", ProfileRecord(duration_s=6.0), "profiled (0 kernels, 6.0 s)"),
        ("profile", ProfileRecord("not_run", "ncu not found"), "not run: ncu not found"),
    ],
)
def test_a_stage_says_a_line_a_variant(
    stage: str, record: Any, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = {"test": stage_test, "build": build, "profile": profile}[stage]
    monkeypatch.setattr(module, "run", lambda *_: [record] if stage == "test" else record)
    monkeypatch.setattr(cli, "_tell_what_changed", lambda *_: ())  # results of this very clone may be older
    command = [stage, CONFIG, "--operator", "attention", "--variant", "fp16_wmma"]
    assert cli.main(command) == ExitCode.WELL
    assert capsys.readouterr().out == f"attention/fp16_wmma: {line}\n"
    monkeypatch.setenv(cli.RUN_PID, "1")
    monkeypatch.setattr(processes, "end_with", lambda _: None)
    assert cli.main(command) == ExitCode.WELL
    assert capsys.readouterr().out == ""  # the workflow has its own display


def test_a_stage_by_hand_is_not_beside_a_run_but_beside_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run took its record for its own, and the bundle contradicted itself."""
    monkeypatch.setattr(environment, "RUN_LOCK", tmp_path / "results" / ".lock")
    monkeypatch.setattr(build, "run", lambda *_: BuildRecord(operator="attention", variant="fp16_wmma"))
    command = ["build", CONFIG, "--operator", "attention", "--variant", "fp16_wmma"]
    with environment.beside_no_run():
        assert cli.main(command) == ExitCode.WELL
    with environment.only_one(environment.RUN_LOCK, "at work"):
        assert cli.main(command) == ExitCode.COULD_NOT_RUN
        assert "another run is at work in this folder (process" in capsys.readouterr().err
        monkeypatch.setenv(cli.RUN_PID, "1")
        monkeypatch.setattr(processes, "end_with", lambda _: None)
        assert cli.main(command) == ExitCode.WELL  # a part of the run


def test_a_fault_of_our_own_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    records = [TestRecord("failed", "kernelproof itself failed: KeyError: 5"), TestRecord(verdict="correct")]
    monkeypatch.setattr(stage_test, "run", lambda *_: [records.pop(0)])
    monkeypatch.setattr(cli, "_tell_what_changed", lambda *_: ())  # results of this very clone may be older
    command = ["test", CONFIG, "--operator", "attention", "--variant", "fp16_wmma"]
    assert cli.main([*command, "--variant", "cpu_flash"]) == ExitCode.COULD_NOT_RUN
    first, second = capsys.readouterr().out.splitlines()
    assert first == "attention/fp16_wmma: not run: kernelproof itself failed: KeyError: 5"
    assert "cpu_flash: correct" in second
    assert cli.main(command) == ExitCode.COULD_NOT_RUN  # there is no further record: an IndexError
    assert "IndexError" in capsys.readouterr().err


def test_a_benchmark_says_a_line_a_contender(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        OracleRow("cpu_flash", "c", mode, "b", ratio, 0.7, 0.9, True, "")
        for mode, ratio in (("hot", 0.8), ("cold", 1.0))
    ]
    rows[1].flags, rows[1].undecided = ["cores_shared"], True
    rows.append(OracleRow("cpu_rows", "c", "hot", "b", None, None, None, False, "the ratio is not known"))
    outcomes = {"cpu_flash": "timed", "cpu_naive": "dropped: hung", "cpu_rows": "timed", "sdpa": "timed"}
    contenders = [Contender(name, "variant", "tvm_ffi", "correct", True, said) for name, said in outcomes.items()]
    record = BenchRecord(operator="attention", device="cpu", contenders=contenders, oracle=rows)
    monkeypatch.setattr(bench, "run", lambda *_: record)
    command = ["bench", CONFIG, "--operator", "attention", "--device", "cpu"]
    assert cli.main(command) == ExitCode.WELL
    assert capsys.readouterr().out.splitlines() == [
        "attention/cpu_flash: timed; 0.800 to 1.000 times the fastest correct baseline "
        "(cores_shared, undecided in 1 of 2 cases and modes)",
        "attention/cpu_naive: dropped: hung",
        "attention/cpu_rows: timed",
        "  c, hot: no ratio: the ratio is not known",
        "attention/sdpa: timed",
    ]
    record.status, record.reason = "not_run", "no GPU"
    cli.main(command)
    assert capsys.readouterr().out == "attention on cpu: not run: no GPU\n"


@pytest.mark.parametrize("stage", ["manifest", "report", "bundle"])
@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("file", "file: Not a directory\n  next: name another folder with --folder\n"),
        ("file/below", "file: Not a directory\n"),
        (".", ".: a report's facts are kept by the name of its folder, and this has none\n  next: for example "),
        ("a/..", "a/..: a report's facts are kept by the name of its folder, and this has none\n"),
    ],
)
def test_a_folder_that_can_be_no_reports(
    stage: str,
    folder: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["init", "squash", "--into", "mine"])
    Path("file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert cli.main([stage, "--config", "mine/config.yaml", "--folder", folder]) == ExitCode.COULD_NOT_RUN
    assert capsys.readouterr().err.startswith(f"kernelproof: {said}")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("stage", ["report", "bundle"])
def test_a_folder_for_which_nothing_was_gathered(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["init", "squash", "--into", "mine"])
    command = [stage, "--config", "mine/config.yaml", "--folder", "reports/tpyo"]
    for made, others in ((None, ""), ("typo", " (there is something for typo)")):
        if made:
            Path("results/manifest").mkdir(parents=True)
            Path(f"results/manifest/{made}.json").touch()
        assert cli.main(command) == ExitCode.COULD_NOT_RUN
        assert capsys.readouterr().err == (
            f"kernelproof: reports/tpyo: nothing was gathered for a folder of this name{others}\n"
            "  next: kernelproof manifest --config mine/config.yaml --folder reports/tpyo\n"
        )
    assert not Path("reports").exists()


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_of_a_stage_is_its_record(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(capture, "run", lambda *_: CaptureRecord(status="ok"))
    assert cli.main(["capture", CONFIG, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "ok"


@pytest.mark.parametrize(
    ("command", "module", "noted"),
    [
        (["capture"], capture, True),
        (["build", "--operator=attention", "--variant=cpu_flash"], build, True),
        (["test", "--operator=attention", "--variant=cpu_flash"], stage_test, True),
        (["bench", "--operator=attention", "--device=cpu"], bench, True),
        (["profile", "--operator=attention", "--variant=cpu_flash"], profile, True),
        (["manifest", "--folder=x"], manifest, True),
        (["report", "--folder=x"], report, False),
    ],
)
def test_whoever_measures_is_noted(
    monkeypatch: pytest.MonkeyPatch, notes: list[Path], command: list[str], module: Any, noted: bool
) -> None:
    monkeypatch.setattr(module, "run", failing(KernelproofError("stop")))
    cli.main([command[0], CONFIG, *command[1:]])
    assert notes == ([Path("results")] if noted else [])


def test_json_of_several_variants_is_one_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "run", lambda _, operator, variant, *__: BuildRecord(operator=operator, variant=variant))
    both = ["--variant", "cpu_flash", "--variant", "cpu_naive"]
    assert cli.main(["build", CONFIG, "--json", "--operator", "attention", *both]) == 0
    assert [record["variant"] for record in json.loads(capsys.readouterr().out)] == ["cpu_flash", "cpu_naive"]


def test_without_a_variant_all_of_the_operator_are_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "run", lambda _, operator, variant, *__: BuildRecord(operator=operator, variant=variant))
    command = ["build", CONFIG, "--json", "--operator", "rmsnorm"]
    names = {}
    for which in ([], ["--device", "cpu"], ["--device", "cuda"]):
        assert cli.main([*command, *which]) == 0
        names[tuple(which)] = [record["variant"] for record in json.loads(capsys.readouterr().out)]
    assert names["--device", "cpu"] == ["cpu_rows", "rmsnorm_torch_cpu"]
    assert {"naive", "one_pass", "rmsnorm_torch"} <= set(names["--device", "cuda"])
    assert names[()] == [*names["--device", "cpu"], *names["--device", "cuda"]]
    assert cli.main([*command, "--variant", "naive", "--device", "cpu"]) == ExitCode.COULD_NOT_RUN
    assert "give --variant or --device, not both" in capsys.readouterr().err
    assert cli.main(["test", CONFIG, "--operator", "rmsnorm", "--case", "x"]) == ExitCode.COULD_NOT_RUN
    assert "--case needs --variant" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["gate", "doctor", "init", "verify"])
def test_json_of_the_other_commands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "run", lambda *_: GateResult(0.95))
    monkeypatch.setattr(doctor, "CHECKS", {})
    monkeypatch.setattr(scaffold, "run", lambda _, into: [into / "config.yaml"])
    more = {"gate": [CONFIG], "init": ["squash"], "verify": [str(tmp_path / "nowhere.tar.gz")]}
    cli.main([command, "--json", *more.get(command, [])])
    assert json.loads(capsys.readouterr().out)


# --- events for the progress display ----------------------------------------------------------------------------------


def test_a_stage_tells_when_it_starts_and_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(cli.EVENTS, str(events))
    monkeypatch.setattr(capture, "run", lambda *_: CaptureRecord(status="not_run", reason="no machine"))
    cli.main(["capture", CONFIG])
    monkeypatch.setattr(capture, "run", failing(KernelproofError("it broke")))
    cli.main(["capture", CONFIG])
    told = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    assert [(e["event"], e["status"], e["message"]) for e in told] == [
        ("start", "", ""),
        ("end", "not_run", "no machine"),
        ("start", "", ""),
        ("end", "error", "it broke"),
    ]


def test_a_variant_that_failed_to_build_is_told_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(cli.EVENTS, str(events))
    failed = BuildRecord(status="failed", reason="x.cu:3: no such name\nmore", log="results/build/op/v.log")
    cli._told("build", "op/v", lambda: failed)
    *_, ended = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    assert ended["message"] == "x.cu:3: no such name (log: results/build/op/v.log)"
    assert list(cli._lines("build", "op/v", failed))[-1] == "  log: results/build/op/v.log"


def test_who_is_wrong_is_told_with_the_command_that_shows_it_again() -> None:
    again = "kernelproof test --operator op --variant v --case mission-float32-normal-s0"
    wrong = TestRecord(status="failed", operator="op", variant="v", verdict="wrong", reason="bound: all", repeat=again)
    assert f"  again: {again}" in list(cli._lines("test", "op/v", wrong))


def test_a_test_of_what_failed_to_build_says_it_once() -> None:
    rung = Rung("build", "failed", message="x.cu:3: no such name")
    record = TestRecord("failed", "build: x.cu:3: no such name", verdict="failed_to_build", rungs=[rung])
    assert list(cli._lines("test", "op/v", record)) == ["op/v: failed to build: x.cu:3: no such name"]


def test_init_says_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "squash", "--into", "my kernels"]) == ExitCode.WELL
    said = capsys.readouterr().out.splitlines()
    assert said[5] == "my kernels/config.yaml"
    assert said[6].startswith(
        "next: kernelproof build --config 'my kernels/config.yaml' --operator squash --variant cpu, "
    )
