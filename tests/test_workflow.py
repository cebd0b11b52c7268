"""The workflow does what is needed and no more: run for real, in a small clone with three CPU variants."""

import dataclasses
import hashlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from kernelproof import OF_A_RUN, environment, fingerprints, gpu, records, verify, workflow
from kernelproof import config as configuration

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = configuration.load(ROOT / "config.yaml")
CONFIG = """\
schema: kernelproof.config/1
project: small
archs: [sm_89]
operators:
  rmsnorm:
    module: kernelproof.operators.rmsnorm
    binding: csrc/rmsnorm/binding.cc
    include: [csrc]
    shapes: {tiny: {rows: 3, cols: 8}}
    test: {shapes: [tiny]}
    bench: {shapes: [tiny]}
    variants:
      first:
        device: cpu
        sources: [kernels/first.cc]
        flags: [-O1, -fopenmp]
        dtypes: [float32]
        precision: {output: float32}
      second:
        device: cpu
        sources: [kernels/second.cc]
        flags: [-O1, -fopenmp]
        dtypes: [float32]
        precision: {output: float32}
      third:
        {abi: python, device: cpu, entry: "callables.right:rms", dtypes: [float32], precision: {output: float32}}
test: {trials: 3}
bench: {processes: 1, blocks: 2, sample_ms: 0.1, max_seconds: 0.1, modes: [hot], bootstrap: 100, cpu_threads: 1}
"""
WAITS = """
#include <unistd.h>
static const bool waited = [] {{
    while (access("{}", F_OK) == 0) usleep(10'000);
    return true;
}}();
"""

# Of the third variant, which is Python: what its entry imports, and that.
RIGHT = """
from callables.weigh import weigh


def rms(x, w, eps):
    return weigh(x, w, eps)
"""
WEIGH = """
def weigh(x, w, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w{}
"""


class Clone:
    """A small project with kernelproof in it, and what its last run did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = sys.executable
        self.environment = dict(os.environ)
        # With byte code, which copies keep, a stage of the clone starts in half the time.
        for variable in (*OF_A_RUN, "CI", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(variable, None)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.folder / path).read_text() + text)

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "init.defaultBranch=main"]
        done = subprocess.run(["git", *who, *arguments], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "change")
        return self.git("rev-parse", "HEAD")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self.events.unlink(missing_ok=True)
        return subprocess.Popen(
            [self.python, "-m", "snakemake", "-j1", "report", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, status: int = 0) -> list[str]:
        """What `snakemake -j1 report` ran: `stage subject`, in order."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == status, output
        self.output = output
        return self.did("start")

    def did(self, event: str) -> list[str]:
        if not self.events.exists():
            return []
        lines = [json.loads(line) for line in self.events.read_text().splitlines()]
        return [f"{line['stage']} {line['subject']}" for line in lines if line["event"] == event]

    @property
    def events(self) -> Path:
        return self.folder / "results" / "run" / "events.jsonl"

    def reports(self) -> list[Path]:
        return sorted(p for p in (self.folder / "reports").iterdir() if p.is_dir())

    def newest(self) -> Path:
        return max(self.reports(), key=lambda p: (p / "bundle.json").stat().st_mtime_ns)

    def verdict(self, variant: str) -> str:
        return json.loads((self.folder / "results" / "test" / "rmsnorm" / f"{variant}.json").read_text())["verdict"]

    def facts(self) -> dict:
        return json.loads((self.folder / "results" / "manifest" / f"{self.newest().name}.json").read_text())


def stages(ran: list[str]) -> set[str]:
    return {entry.split()[0] for entry in ran}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone in which everything has run once."""
    clone = Clone(tmp_path_factory.mktemp("pristine"))
    for name in ("Snakefile", "workflow", "profiles", "src", "csrc", ".gitignore"):
        source = ROOT / name
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, clone.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, clone.folder / name, follow_symlinks=False)
    clone.write("config.yaml", CONFIG)
    clone.write("README.md", "small\n")
    kernel = (ROOT / "csrc" / "rmsnorm" / "cpu_rows.cc").read_text()
    for name in ("first", "second"):
        clone.write(f"kernels/{name}.cc", kernel.replace('#include "launch.h"', '#include "rmsnorm/launch.h"'))
    clone.append("kernels/first.cc", '#include "../parts/more.inl"\n')
    clone.write("parts/more.inl", "int something_new() { return 1; }\n")
    clone.write("callables/__init__.py", "")
    clone.write("callables/right.py", RIGHT)
    clone.write("callables/weigh.py", WEIGH.format(""))
    clone.git("init", "-q")
    clone.commit()
    assert stages(clone.run()) == {"capture", "build", "test", "bench", "manifest", "report", "bundle"}
    return clone


@pytest.fixture
def clone(pristine: Clone, tmp_path: Path) -> Clone:
    copy = tmp_path / "clone"
    subprocess.run(["cp", "-a", pristine.folder, copy], check=True)
    return Clone(copy)


def test_each_gpu_of_several_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "available", lambda: (True, None))
    monkeypatch.setattr(gpu, "visible", lambda: ["GPU-one", "GPU-two", "GPU-three"])
    assert workflow.measuring_threads(6, "cuda") == 2
    assert workflow.measuring_threads(2, "cuda") == 1
    assert workflow.measuring_threads(6, "cpu") == 6


@pytest.mark.parametrize(("boards", "cores"), [(1, 8), (1, 16), (1, 63), (2, 32), (4, 64), (8, 8)])
def test_two_jobs_a_gpu_fit_beside_one_on_the_cpu(monkeypatch: pytest.MonkeyPatch, boards: int, cores: int) -> None:
    """One measures and one gets ready; on one GPU none of them begins beside four tests, which it would wait for."""
    monkeypatch.setattr(gpu, "available", lambda: (True, None))
    monkeypatch.setattr(gpu, "visible", lambda: [f"GPU-{number}" for number in range(boards)])
    of_gpu, of_cpu = (workflow.measuring_threads(cores, device) for device in ("cuda", "cpu"))
    assert of_cpu == 1
    assert of_gpu >= 1
    if cores > 2 * boards:
        assert 2 * boards * of_gpu + of_cpu <= cores
    if boards == 1:
        assert 4 * workflow.test_threads(cores, driver=True) + of_gpu > cores


BESIDE = """
import sys
sys.path.insert(0, {package!r})
from kernelproof import workflow as support
support.limit_claims(workflow)
rule all:
    input: "cpu-1", "gpu-1", "cpu-2", "test-1", "test-2", "gpu-2"
rule some:
    output: "{{kind}}-{{number}}"
    resources: anywhere=lambda wildcards: {{"cpu": support.EVERYBODY, "gpu": 0, "test": 1}}[wildcards.kind]
    params: until=lambda wildcards: {{"cpu": "start cpu", "gpu": "end cpu", "test": "start test"}}[wildcards.kind],
        times=lambda wildcards: {{"cpu": 1, "gpu": 2, "test": 2}}[wildcards.kind]
    shell:
        "echo start {{output}} >> order; sleep 0.3; "
        "for turn in $(seq 300); do "
        "[ $(grep -c '{{params.until}}' order) -ge {{params.times}} ] && break; sleep 0.1; done; "
        "echo end {{output}} >> order; touch {{output}}"
"""  # a GPU's job goes on until both of the CPU's have ended, a test until the other has begun: for 30 s at most


def test_a_cpu_is_measured_beside_gpus_and_beside_nothing_else(tmp_path: Path) -> None:
    """What the rules claim, under Snakemake's own scheduler and without a profile."""
    (tmp_path / "Snakefile").write_text(BESIDE.format(package=str(ROOT / "src")))
    command = [sys.executable, "-m", "snakemake", "-j16", "--quiet", "--scheduler", "greedy"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    running: set[str] = set()
    together = set()
    for line in (tmp_path / "order").read_text().splitlines():
        what, job = line.split()
        together |= {frozenset((job, other)) for other in running} if what == "start" else set()
        running = running | {job} if what == "start" else running - {job}
    kinds = [sorted(name.partition("-")[0] for name in pair) for pair in together]
    assert ["test", "test"] in kinds
    assert ["cpu", "gpu"] in kinds
    assert ["cpu", "cpu"] not in kinds
    assert ["cpu", "test"] not in kinds


def test_everything_is_made(clone: Clone) -> None:
    folder = clone.newest()
    assert folder.name == clone.git("rev-parse", "HEAD")[:12]
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "summary.md", "manifest.yaml", "bundle.json"} <= names
    assert [name for name in names if name.endswith(".tar.gz")]
    verdicts = {v["variant"]: (v["build"], v["correctness"], v["bad"]) for v in clone.facts()["verdicts"]}
    right = ("ok", "correct", False)
    assert verdicts == {"first": right, "second": right, "third": ("not_needed", "correct", False)}


def test_an_interpreter_below_a_folder_with_a_space_in_its_name_will_do(clone: Clone, tmp_path: Path) -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("this Python is in no virtual environment that could be had under another name")
    home = tmp_path / "two words"
    (home / "bin").mkdir(parents=True)
    (home / "lib").symlink_to(Path(sys.prefix, "lib"))
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), home)
    clone.python = str(home / "bin" / "python")
    Path(clone.python).symlink_to(os.path.realpath(sys.executable))
    clone.append("README.md", "more\n")
    clone.commit()
    assert stages(clone.run()) == {"manifest", "report", "bundle"}


def test_a_readme_costs_no_measurement(clone: Clone) -> None:
    measured = clone.git("rev-parse", "HEAD")
    clone.append("README.md", "more\n")
    now = clone.commit()
    assert stages(clone.run()) == {"manifest", "report", "bundle"}
    facts = clone.facts()
    assert facts["provenance"]["commit"] == now
    assert {state["commit"] for state in facts["measured"].values()} == {measured}
    assert len(clone.reports()) == 2


def test_a_library_that_was_damaged_is_built_again(clone: Clone) -> None:
    record = json.loads((clone.folder / "results/build/rmsnorm/first.json").read_text())
    library = clone.folder / record["library"]["path"]
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.chmod(0o755)
    library.write_bytes(data)
    no_further = ("--until", "test_rmsnorm_first")  # nothing is measured
    ran = clone.run(*no_further)
    assert ran == ["build rmsnorm/first", "test rmsnorm/first"]
    assert hashlib.sha256(library.read_bytes()).hexdigest() == record["library"]["sha256"]
    assert clone.verdict("first") == "correct"
    assert clone.run(*no_further) == []


def test_whatever_a_variant_is_made_of_costs_its_own_chain(clone: Clone) -> None:
    """A file with any name in any folder that a source includes, and what lies beside a Python variant."""
    clone.write("parts/more.inl", "int something_new() { return 2; }\n")
    clone.write("callables/weigh.py", WEIGH.format(" * 2"))
    clone.commit()
    ran = clone.run("--until", *(f"test_rmsnorm_{name}" for name in ("first", "second", "third")))
    assert {"build rmsnorm/first", "test rmsnorm/first", "test rmsnorm/third"} <= set(ran)
    assert set(ran) <= {"build rmsnorm/first", "test rmsnorm/first", "build rmsnorm/third", "test rmsnorm/third"}
    assert [clone.verdict(name) for name in ("first", "second", "third")] == ["correct", "correct", "wrong"]


@pytest.mark.parametrize("stage", ["build", "test", "bench"])
def test_what_a_stages_modules_import_or_start_is_part_of_it(stage: str) -> None:
    found = {Path(file).resolve() for file in workflow.module_files(stage)}
    imported = {workflow._file(name) for path in found for name in workflow._imports(path)} - {None}
    assert imported <= found
    ladder = {path for path in found if path.parent.name == "ladder"}
    assert ladder == (set((workflow.PACKAGE / "ladder").glob("*.py")) if stage == "test" else set())


def test_a_stages_module_costs_that_stage(clone: Clone) -> None:
    for module in ("capture", "bench"):  # neither imports the other: test_layers.py
        clone.append(f"src/kernelproof/{module}.py", "\n# changed\n")
    clone.commit()
    ran = clone.run()
    assert stages(ran) == {"capture", "bench", "manifest", "report", "bundle"}
    assert "bench ceilings of cpu" not in ran


@pytest.mark.parametrize(
    "deliverable",
    [
        "report.html",
        "*.tar.gz",
        # Outputs of the same rules, which Snakemake misses as it does the page.
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("summary.md", "manifest.yaml", "bundle.json")),
    ],
)
def test_a_deleted_deliverable_is_made_again(clone: Clone, deliverable: str) -> None:
    folder = clone.newest()
    (path,) = folder.glob(deliverable)
    path.unlink()
    assert stages(clone.run()) <= {"report", "bundle"}
    assert len(list(folder.glob(deliverable))) == 1


@pytest.mark.parametrize(
    ("record", "ran"),
    [
        ("results/bench/rmsnorm-cpu.json", {"bench", "manifest", "report", "bundle"}),
        pytest.param(
            "results/test/rmsnorm/first.json", {"test", "manifest", "report", "bundle"}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_deleted_record_is_made_again(clone: Clone, record: str, ran: set[str]) -> None:
    (clone.folder / record).unlink()
    assert {"manifest", "bundle"} <= stages(clone.run()) <= ran | {"bench"}
    assert (clone.folder / record).is_file()


def test_what_changes_while_a_run_is_at_work_gives_it_no_other_name(clone: Clone) -> None:
    clone.append("kernels/first.cc", "// changed\n")
    commit = clone.commit()
    process = clone.start()
    deadline = time.monotonic() + 120
    while not clone.did("start") and time.monotonic() < deadline:
        time.sleep(0.02)
    clone.write("notes.txt", "made meanwhile\n")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert (clone.newest().name, clone.facts()["provenance"]["dirty"]) == (commit[:12], False)
    assert verify.main(["--", *map(str, clone.newest().glob("*.tar.gz"))]) == 0


def test_a_dirty_tree_is_marked(clone: Clone) -> None:
    clone.append("README.md", "not committed\n")
    clone.run()
    assert "-dirty-" in clone.newest().name
    facts = clone.facts()
    assert facts["provenance"]["dirty"]
    assert facts["provenance"]["diff_sha256"]


def test_without_git(clone: Clone) -> None:
    shutil.rmtree(clone.folder / ".git")
    clone.run()
    assert clone.newest().name.startswith("no-git-")
    assert clone.facts()["provenance"]["commit"] is None


def test_a_broken_kernel_costs_its_own_chain_and_stops_nobody_else(clone: Clone) -> None:
    clone.append("kernels/first.cc", "this is no C++;\n")
    ran = clone.run()
    assert [entry for entry in ran if entry.startswith(("build", "test"))] == [
        "build rmsnorm/first",
        "test rmsnorm/first",
    ]
    assert stages(ran) == {"build", "test", "bench", "manifest", "report", "bundle"}
    assert "bench ceilings of cpu" not in ran
    verdicts = {v["variant"]: v for v in clone.facts()["verdicts"]}
    assert verdicts["first"]["build"] == "failed"
    assert verdicts["first"]["bad"]
    assert verdicts["second"]["correctness"] == "correct"
    assert (
        "this is no C++"
        in (clone.newest() / "report.html").read_text()
        + (clone.folder / "results" / "build" / "rmsnorm" / "first.json").read_text()
    )


def test_a_value_set_on_the_command_line(clone: Clone) -> None:
    ran = clone.run("--config", "bench={processes: 2}")
    assert "bench" in stages(ran)
    assert not {"build", "test"} & stages(ran)
    assert json.loads((clone.folder / "results" / "bench" / "rmsnorm-cpu.json").read_text())["processes"] == 2


def test_faults_in_the_configuration_stop_it_before_it_starts(clone: Clone) -> None:
    clone.append("config.yaml", "gaet: {}\n")
    assert clone.run(status=2) == []
    assert "gaet: unknown key" in clone.output
    assert "Traceback" not in clone.output


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--configfile", "missing.yaml"], 2)])
def test_what_only_shows_something_ends_with_2_where_it_cannot(clone: Clone, arguments: list[str], status: int) -> None:
    command = [sys.executable, "-m", "kernelproof", "run", "-n", *arguments]
    environment = {**clone.environment, "PYTHONPATH": str(clone.folder / "src")}
    done = subprocess.run(command, cwd=clone.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr


def test_a_run_that_is_to_stop_early_has_no_verdicts(clone: Clone) -> None:
    command = [sys.executable, "-m", "kernelproof", "run", "--until", "capture"]
    environment = {**clone.environment, "PYTHONPATH": str(clone.folder / "src")}
    done = subprocess.run(command, cwd=clone.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as far as was asked" in done.stdout
    assert "verdict" not in done.stdout


def test_a_second_run_says_so(clone: Clone) -> None:
    with environment.only_one(clone.folder / environment.RUN_LOCK, "at work"):
        assert clone.run(status=2) == []
    assert "another run is at work" in clone.output
    assert f"process {os.getpid()}" in clone.output
    assert clone.run() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_killed_run_is_continued_by_the_same_command(clone: Clone, how: signal.Signals) -> None:
    hold = clone.folder / "hold"  # as long as it is there the test of `first` goes no further
    hold.touch()
    clone.append("kernels/first.cc", WAITS.format(hold))
    clone.append("kernels/second.cc", "// changed\nint something_new() { return 2; }\n")
    no_further = ("--until", "test_rmsnorm_first", "test_rmsnorm_second")  # nothing is measured
    process = clone.start(*no_further)
    while "test rmsnorm/first" not in clone.did("start"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pids = {json.loads(line)["pid"] for line in clone.events.read_text().splitlines()}
    process.send_signal(how)
    hold.unlink()
    output, _ = process.communicate(timeout=600)
    assert process.returncode != 0, output
    deadline = time.monotonic() + 120
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, "processes of the killed run are still there"
    clone.run(*no_further)
    assert [clone.verdict(name) for name in ("first", "second")] == ["correct"] * 2


def test_the_machine_is_another_with_another_release_of_a_package_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent")])
    found = [workflow.machine_fingerprint(SHIPPED)]
    for name in ("nvidia_cudnn_cu13-9.19.0.56", "requests-2.32.3"):
        (tmp_path / f"{name}.dist-info").mkdir()
        found.append(workflow.machine_fingerprint(SHIPPED))
    (tmp_path / "nvidia_cudnn_cu13-9.19.0.56.dist-info").rename(tmp_path / "nvidia_cudnn_cu13-9.20.0.48.dist-info")
    found.append(workflow.machine_fingerprint(SHIPPED))
    assert found[1] == found[2]
    assert len(set(found)) == 3


def test_the_machine_is_another_with_another_package_first_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("2.12.0", "2.13.0"):
        (tmp_path / version / f"torch-{version}.dist-info").mkdir(parents=True)
    folders, found = [str(tmp_path / "2.12.0"), str(tmp_path / "2.13.0")], []
    for path in (folders, folders[::-1]):
        monkeypatch.setattr(sys, "path", path)
        found.append(workflow.machine_fingerprint(SHIPPED))
    assert found[0] != found[1]


def test_the_machine_is_another_with_another_release_of_what_was_built_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.egg-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = []
    for version in ("2.12.0", "2.13.0"):
        (tmp_path / "torch.egg-info" / "PKG-INFO").write_text(
            f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        found.append(workflow.machine_fingerprint(SHIPPED))
    assert found[0] != found[1]


def test_the_machine_is_another_with_what_a_contender_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender that was not run for the lack of a package stayed so when that was installed."""
    operator = SHIPPED.operators["attention"]
    asking = dataclasses.replace(operator.variants["cpu_naive"], requires=["Frob_pkg>=1"], entry="other.kernels:run")
    config = dataclasses.replace(
        SHIPPED, operators={"attention": dataclasses.replace(operator, variants={"v": asking})}
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = [workflow.machine_fingerprint(config)]
    for name in ("frob_pkg-1.0", "other-2.0", "otherwise-1.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
        found.append(workflow.machine_fingerprint(config))
    assert (len(set(found)), found[2]) == (3, found[3])


def test_the_machine_is_another_with_another_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that was not made for the lack of one stayed so when it was installed."""
    found = [workflow.machine_fingerprint(SHIPPED)]
    monkeypatch.setenv("CXX", str(tmp_path / "c++-99"))
    found.append(workflow.machine_fingerprint(SHIPPED))
    (tmp_path / "c++-99").write_text("#!/bin/sh\n")
    (tmp_path / "c++-99").chmod(0o755)
    found.append(workflow.machine_fingerprint(SHIPPED))
    assert len(set(found)) == 3


def test_jobs_have_names_of_their_own() -> None:
    """Of `norm_rows` in operator `l1`, and `rows` in `l1_norm`; and of a variant called what a group is."""
    operator = SHIPPED.operators["attention"]
    plain = operator.variants["cpu_naive"]

    def of(name: str, *variants: str) -> configuration.OperatorConfig:
        mine = {key: dataclasses.replace(plain, operator=name, name=key) for key in variants}
        peer = dataclasses.replace(plain, operator=name, name="peer", role="baseline", sources=[], abi="python")
        return dataclasses.replace(operator, name=name, variants=mine, baselines={"peer": peer})

    both = dataclasses.replace(
        SHIPPED, operators={"l1": of("l1", "norm_rows", "callables"), "l1_norm": of("l1_norm", "rows")}
    )
    for jobs in (workflow.build_jobs(both, driver=False), workflow.test_jobs(both, driver=False)):
        names = [job.name for job in jobs]
        assert len(set(names)) == len(names)
        assert sorted(variant.key for job in jobs for variant in job.variants) == sorted(v.key for v in both.variants())


def test_waiting_jobs_of_a_local_run_are_looked_at_when_one_has_ended() -> None:
    from snakemake.scheduling.job_scheduler import JobScheduler

    assert "self.job_rate_limiter = " in inspect.getsource(JobScheduler)
    for local, left in ((True, None), (False, "kept")):
        run = SimpleNamespace(local_exec=local, scheduler=SimpleNamespace(job_rate_limiter="kept"))
        workflow.lift_job_rate(run)
        assert run.scheduler.job_rate_limiter == left


def test_nothing_changed_nothing_runs_and_to_see_that_takes_no_pandas(clone: Clone) -> None:
    clone.events.unlink()
    look = "import sys; from snakemake.cli import main; sys.argv = ['snakemake', '-j1', 'report']\n"
    look += "try: main()\nfinally: print('pandas' in sys.modules)"
    command = [sys.executable, "-c", look]
    done = subprocess.run(command, cwd=clone.folder, env=clone.environment, capture_output=True, text=True, check=True)
    assert "Nothing to be done" in done.stderr
    assert clone.did("start") == []
    assert done.stdout.split()[-1] == "False"


def test_what_is_not_run_shares_a_job_and_so_do_baselines_on_a_cpu() -> None:
    config = configuration.load(ROOT / "config.yaml")
    names = {job.name: len(job.variants) for job in workflow.test_jobs(config, driver=False)}
    assert names["attention_on_gpu"] > 1
    apart = {job.name: len(job.variants) for job in workflow.test_jobs(config, driver=True)}
    assert apart["attention_sdpa_cudnn"] == 1
    assert "attention_on_gpu" not in apart
    assert apart["attention_baselines_cpu"] == names["attention_baselines_cpu"]
    assert sum(names.values()) == sum(apart.values())


def test_the_display_is_told_which_jobs_are_several_pieces_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration.load(ROOT / "config.yaml")
    monkeypatch.setenv("KERNELPROOF_EVENTS", str(tmp_path / "events.jsonl"))
    workflow.announce(config, driver=False)
    told = json.loads((tmp_path / "events.jsonl").read_text())
    assert (told["pieces"]["report"], told["width"]) == (0, max(len(v.key) for v in config.variants()))
    jobs = [*workflow.build_jobs(config, driver=False), *workflow.test_jobs(config, driver=False)]
    assert sum(told["pieces"].values()) == sum(len(job.variants) for job in jobs if len(job.variants) > 1)
    assert told["pieces"]["test_attention_on_gpu"] > 1


def test_what_took_longest_last_time_is_first(tmp_path: Path) -> None:
    config = dataclasses.replace(configuration.load(ROOT / "config.yaml"), root=tmp_path)

    def took(seconds: float, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"reason": None, "duration_s": seconds, "rungs": [{"duration_s": 77.0}]}))

    took(31.4, config.record("test", "attention", "sdpa_cudnn"))
    took(12.0, tmp_path / "reports/reference/nvidia-h200/records/test/attention/sdpa_cudnn.json")
    took(9.6, tmp_path / "reports/reference/nvidia-h200/records/test/attention/sdpa_math.json")
    priority = {job.name: job.priority for job in workflow.test_jobs(config, driver=True)}
    assert (priority["attention_sdpa_cudnn"], priority["attention_sdpa_math"]) == (31, 10)
    assert priority["attention_sdpa_flash"] == workflow.UNKNOWN_S  # of whom nobody knows
    build = {job.name: job.priority for job in workflow.build_jobs(config, driver=True)}
    assert build["attention_fp16_wmma"] == workflow.UNKNOWN_S
    without = {job.name: job.priority for job in workflow.test_jobs(config, driver=False)}
    assert (without["attention_cpu_flash"], without["attention_on_gpu"]) == (workflow.UNKNOWN_S, 0)


def test_four_share_a_gpu_and_one_has_the_cpu() -> None:
    assert [workflow.test_threads(cores, driver=True) for cores in (1, 2, 4, 8, 16, 32)] == [1, 1, 1, 2, 3, 6]
    assert [workflow.test_threads(cores, driver=False) for cores in (1, 2, 8, 16)] == [1, 1, 2, 4]
    for cores in range(1, 129):  # a profile claims half, and finds none beside as many tests as there can be
        tests = min(4, cores // workflow.test_threads(cores, driver=True))
        assert cores - tests * workflow.test_threads(cores, driver=True) < (cores + 1) // 2
    limited = yaml.safe_load((ROOT / "workflow/profiles/default/config.yaml").read_text())["resources"]
    assert limited == ["gpu_tests=4", "cpu_tests=1"]


def test_what_a_machine_reaches_is_measured_before_all_else() -> None:
    config = configuration.load(ROOT / "config.yaml")
    jobs = [*workflow.build_jobs(config, driver=True), *workflow.test_jobs(config, driver=True)]
    assert max(2 * job.priority for job in jobs) < workflow.FIRST
    assert "priority: support.FIRST" in (ROOT / "workflow/rules/bench.smk").read_text()


def by_hand(clone: Clone, *arguments: str) -> None:
    command = [sys.executable, "-P", "-m", "kernelproof", *arguments]
    environment = clone.environment | {"PYTHONPATH": "src"}
    subprocess.run(command, cwd=clone.folder, env=environment, capture_output=True, check=True, timeout=300)


@pytest.mark.parametrize(
    ("stage", "ran"),
    [
        pytest.param(
            ["build", "--variant", "first", "--set", "operators.rmsnorm.variants.first.flags=[-O2]"],
            "build rmsnorm/first",
            marks=pytest.mark.slow,
        ),
        (["test", "--variant", "first", "--level", "quick"], "test rmsnorm/first"),
        pytest.param(
            ["bench", "--device", "cpu", "--set", "bench.blocks=3"], "bench rmsnorm on cpu", marks=pytest.mark.slow
        ),
    ],
)
def test_what_was_made_by_hand_with_other_settings_is_made_again(clone: Clone, stage: list[str], ran: str) -> None:
    """Snakemake knows nothing of these: the bundle held records that its own configuration contradicted."""
    by_hand(clone, *stage, "--operator", "rmsnorm")
    again = clone.run()
    assert again[0] == ran
    assert {entry for entry in again if entry.split()[0] == stage[0]} == {ran}
    assert {"manifest", "report", "bundle"} <= stages(again)
    assert (clone.verdict("first"), verify.run(next(clone.newest().glob("*.tar.gz"))).problems) == ("correct", [])
    assert clone.run() == []


def test_what_was_made_by_hand_with_the_same_settings_is_kept(clone: Clone) -> None:
    by_hand(clone, "bench", "--device", "cpu", "--operator", "rmsnorm", "--set", "bench.blocks=2")
    assert stages(clone.run()) == {"manifest", "report", "bundle"}


def test_what_is_only_shown_of_a_variant_costs_no_measurement(clone: Clone) -> None:
    text = (clone.folder / "config.yaml").read_text()
    clone.write("config.yaml", text.replace("      first:\n", "      first:\n        idea: rows\n"))
    assert stages(clone.run()) == {"manifest", "report", "bundle"}


@pytest.mark.parametrize("record", ["{}", "[]", "no JSON", '{"sources": null}', '{"library": "lib.so", "cubins": 1}'])
def test_a_build_record_that_cannot_be_read_stops_nobody(tmp_path: Path, record: str) -> None:
    config = dataclasses.replace(configuration.load(ROOT / "config.yaml"), root=tmp_path)
    path = config.record("build", "rmsnorm", "naive")
    path.parent.mkdir(parents=True)
    path.write_text(record)
    workflow.drop_stale_records(config, tmp_path / "reports")


TRIALS = {"test.trials": "0" * 16}
CUT_SHORT = "the test run was cut short"


@pytest.mark.parametrize(
    ("record", "stays"),
    [
        (records.TestRecord(verdict="correct"), True),
        (records.TestRecord(verdict="wrong", status="failed", reason="sanity: no"), True),
        (records.TestRecord(verdict="not_run", status="not_run", reason="no GPU"), True),
        (records.TestRecord(verdict="not_run", status="failed", reason=CUT_SHORT, settings={}), False),
        (records.TestRecord(verdict="correct", settings=TRIALS), False),
        (records.BuildRecord(abi="python"), True),
        (records.BuildRecord(abi="python", settings=TRIALS), False),
        (records.BuildRecord(status="failed", reason="error: no", compiler_message="error: no"), True),
        (records.BuildRecord(status="not_run", reason="no nvcc"), True),
        (records.BuildRecord(status="not_run", reason="Killed", compiler_message="Killed"), False),
    ],
)
@pytest.mark.parametrize("says", [True, False])
def test_a_record_of_other_settings_or_that_is_no_result_is_made_again(
    tmp_path: Path, record: records.TestRecord | records.BuildRecord, stays: bool, says: bool
) -> None:
    """One that does not say with which it was made is kept, as far as they go."""
    config = dataclasses.replace(configuration.load(ROOT / "config.yaml"), root=tmp_path)
    stage = "test" if isinstance(record, records.TestRecord) else "build"
    kept = [config.record(stage, "rmsnorm", "naive"), config.results / "manifest" / "a.json"]
    receipt = tmp_path / "a" / "bundle.json"
    if says:
        record = dataclasses.replace(record, settings=fingerprints.of(config, stage, "rmsnorm/naive") | record.settings)
    records.write(kept[0], record)
    for path in (kept[1], receipt):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    workflow.drop_stale_records(config, tmp_path / "a")
    assert [path.exists() for path in (*kept, receipt)] == [stays] * 3
