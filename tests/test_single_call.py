"""The single runner, with inputs of its own and with those that another process lays out meanwhile."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import defects
import pytest
import test_bench
import torch

from kernelproof import config as configuration
from kernelproof import judge, memory, operators, single_call
from kernelproof.config import Config
from kernelproof.errors import BenchError, RecordError
from kernelproof.processes import python_path

RUNNER = """
import sys
from kernelproof import cli
status = cli.main()
print("torch" if sys.modules.get("torch") else "no torch")
sys.exit(status)
"""
KEEPER = "import torch\n\ndef keep(x, weight, y, eps):\n    torch.save([x, weight, eps], {path!r})\n"


def runner(config: Config, variant: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The command that a profiler starts, in a process of its own that says whether it loaded torch."""
    selected = ["--operator", "rmsnorm", "--variant", variant, "--shape", "odd", "--once", "--json", *more]
    command = [sys.executable, "-c", RUNNER, "bench", "--config", str(config.root / "config.yaml"), *selected]
    environment = {"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=config.root, env=environment, capture_output=True, text=True, check=False)


def test_a_call_with_inputs_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = test_bench.project(tmp_path, {"ours": test_bench.contender("into", "destination")}, {})
    done = single_call.once(loaded, "rmsnorm", "ours", "small", {})
    assert str(done).startswith("rmsnorm/ours small-float32: one call, ")
    assert done.elapsed_ms > 0
    dims = loaded.operator("rmsnorm").shapes["small"]
    assert done.bytes_written == 4 * dims["rows"] * dims["cols"]
    assert capsys.readouterr().out == ""  # the command prints it, as text or as JSON
    with pytest.raises(BenchError, match=r"no such shape; allowed: small; did you mean 'small'\?"):
        single_call.once(loaded, "rmsnorm", "ours", "smal", {})


def test_an_option_that_nobody_knows_is_refused() -> None:
    loaded = configuration.load(defects.REPOSITORY / "config.yaml", root=defects.REPOSITORY)
    for options, says in (
        ({"causl": True}, r"attention: causl: no such option; allowed: causal, layout; did you mean 'causal'\?"),
        ({"causal": "maybe"}, "attention: causal=maybe: no such value; allowed: false, true"),
        ({"layout": "bsdh"}, r"layout=bsdh: no such value; allowed: bhsd, bshd; did you mean 'bshd'\?"),
    ):
        with pytest.raises(BenchError, match=says):
            single_call.once(loaded, "attention", "cpu_naive", "mission", options)


def test_a_variant_that_returns_its_output(tmp_path: Path) -> None:
    loaded = test_bench.project(tmp_path, {"ours": test_bench.contender("once")}, {})
    assert single_call.once(loaded, "rmsnorm", "ours", "small", {}).elapsed_ms > 0


def test_what_the_variant_raises_is_its_own_fault_and_not_ours(tmp_path: Path) -> None:
    loaded = test_bench.project(tmp_path, {"ours": test_bench.contender("raising")}, {})
    says = r"its call raised ValueError: no such launch \(contenders\.py:\d+\)"
    with pytest.raises(BenchError, match=says) as caught:
        single_call.once(loaded, "rmsnorm", "ours", "small", {})
    assert caught.value.hint == "`kernelproof test --operator rmsnorm --variant ours` says what is wrong with it"


def test_a_variant_that_was_not_built_is_told_how(tmp_path: Path) -> None:
    loaded = defects.project(tmp_path, "good")
    loaded.record("build", "rmsnorm", "good").unlink()
    with pytest.raises(BenchError, match="it was not built") as caught:
        single_call.once(loaded, "rmsnorm", "good", "odd", {})
    assert "kernelproof build" in caught.value.hint


def test_the_inputs_are_those_of_the_case(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    (tmp_path / "keeper.py").write_text(KEEPER.format(path=str(kept)))
    settings = {**test_bench.contender("keep", "destination"), "entry": "keeper.py:keep"}
    loaded = test_bench.project(tmp_path, {"ours": settings}, {})
    single_call.once(loaded, "rmsnorm", "ours", "small", {})
    settled = loaded.operator("rmsnorm")
    case = single_call.case_of(settled, settled.variant("ours"), "small", {})
    call = operators.load(settled.module, tmp_path).make_call(case, judge.generator(case))
    x, weight, eps = torch.load(kept)
    assert torch.equal(x, call.tensor("x"))
    assert torch.equal(weight, call.tensor("weight"))
    assert eps == call.arguments["eps"]


def test_inputs_that_come_while_the_runner_starts_cost_it_no_torch(tmp_path: Path) -> None:
    config, folder = defects.project(tmp_path, "good"), tmp_path / "inputs"
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(runner, config, "good", "--inputs", str(folder))
        single_call.lay_out(config, "rmsnorm", "good", "odd", {}, folder)
        done = running.result()
    said, loaded = done.stdout.splitlines()
    assert (done.returncode, loaded) == (0, "no torch"), done.stderr
    assert json.loads(said)["case"] == "odd-float32"
    assert json.loads(said)["bytes_written"] == 4 * 17 * 101


def test_without_laid_out_inputs_a_library_is_called_all_the_same(tmp_path: Path) -> None:
    done = runner(defects.project(tmp_path, "good"), "good")
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, "torch"), done.stderr


def broken(tmp_path: Path, statement: str) -> Config:
    """A project whose operator does this, in line 8 of broken.py, instead of making a call."""
    defects.project(tmp_path, "good")
    module = tmp_path / "broken.py"
    module.write_text("import os\n\nfrom kernelproof.operators.rmsnorm import RmsNorm\n\n\nclass Broken(RmsNorm):\n"
                      f"    def make_call(self, case, generator):\n        {statement}\n\n\n"
                      "OPERATOR = Broken()\n")  # fmt: skip
    text = (tmp_path / "config.yaml").read_text().replace("kernelproof.operators.rmsnorm", "broken.py")
    (tmp_path / "config.yaml").write_text(text)
    return configuration.load(tmp_path / "config.yaml", root=tmp_path)


def test_inputs_that_a_process_beside_lays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "without_torch", lambda: None)
    config, folder = defects.project(tmp_path, "good"), tmp_path / "inputs"
    single_call.lay_out_beside(config, config.root / "config.yaml", "rmsnorm", "good", "odd", {}, folder)
    done = single_call.once(config, "rmsnorm", "good", "odd", {}, folder)
    assert (done.case, done.bytes_written) == ("odd-float32", 4 * 17 * 101)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("raise KeyError('rows')", "broken.py:8"),
        ("os._exit(3)", "the process that makes them ended with exit code 3"),
        ("os.write(2, b'first\\nlast\\n'); os.abort()", "the process that makes them was killed by SIGABRT: last"),
    ],
)
def test_who_waits_for_inputs_is_told_why_there_are_none(tmp_path: Path, statement: str, why: str) -> None:
    config, folder = broken(tmp_path, statement), tmp_path / "inputs"
    single_call.lay_out_beside(config, config.root / "config.yaml", "rmsnorm", "good", "odd", {}, folder)
    done = runner(config, "good", "--inputs", str(folder))
    assert done.returncode == 2
    assert f"rmsnorm/good: the call's inputs could not be made: {why}" in done.stderr


def test_a_process_that_takes_too_long_over_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_call, "WAIT_S", 0.05)
    monkeypatch.setattr(memory, "without_torch", lambda: None)
    config, folder = defects.project(tmp_path, "good"), tmp_path / "inputs"
    single_call.lay_out_beside(config, config.root / "config.yaml", "rmsnorm", "good", "odd", {}, folder)
    with pytest.raises(BenchError, match=r"the process that makes them ran past its limit of 0\.05 s"):
        single_call.once(config, "rmsnorm", "good", "odd", {}, folder)


def test_an_operators_fault_ends_that_process_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = broken(tmp_path, "raise KeyError('rows')")
    task = {"config": str(config.root / "config.yaml"), "operator": "rmsnorm", "variant": "good"}
    task |= {"shape": "odd", "folder": str(tmp_path / "inputs")}
    monkeypatch.setattr(sys, "argv", ["single_call", json.dumps({**task, "options": {}})])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^kernelproof: broken\.py:8"):
        single_call.main()


def test_inputs_that_never_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_call, "WAIT_S", 0.05)
    monkeypatch.setattr(memory, "without_torch", lambda: None)
    with pytest.raises(BenchError, match=r"no inputs appeared within 0\.05 s"):
        single_call.once(defects.project(tmp_path, "good"), "rmsnorm", "good", "odd", {}, tmp_path)


def test_another_library_than_the_built_one_is_not_called(tmp_path: Path) -> None:
    config = defects.project(tmp_path, "good")
    with (tmp_path / "good.so").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(RecordError, match=r"good\.so is not the file that the build made .*build it again"):
        single_call.once(config, "rmsnorm", "good", "odd", {})
