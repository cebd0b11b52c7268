"""./repro.sh and kernelproof.environment: from a clone to an environment, and what stops it."""

import base64
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from kernelproof import environment
from kernelproof.errors import KernelproofError, ToolError

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("installer", "build", "tool", "cuda", "torch", "torch-cuda", "dev")
# A stand-in for every package that the environment is tried out with.
MODULES = "torch snakemake/cli pandas scipy/stats jinja2 jsonschema yaml pytest tvm_ffi/libinfo pynvml".split()
RUN_STUB = """\
import os, sys, time
print("AT", time.monotonic())
print("RUN", sys.prefix, *sys.argv[1:])
print("CUDA", os.environ.get("KERNELPROOF_CUDA_HOME"))
"""
# The line: from ./repro.sh to the first line of the run that it becomes, where the environment is there. Two idle cores
# take 0.12 s, and 0.5 s beside eight programs that keep them busy.
REUSE_S, TRIES = 1.0, 10


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with what repro.sh needs before anything is installed, and a stand-in for the run itself."""
    folder = tmp_path / "clone"
    package = folder / "src" / "kernelproof"
    package.mkdir(parents=True)
    for name in ("__init__", "environment", "errors", "privacy", "processes"):
        shutil.copy(ROOT / "src" / "kernelproof" / f"{name}.py", package)
    (package / "__main__.py").write_text(RUN_STUB)
    shutil.copy(ROOT / "repro.sh", folder)
    shutil.copytree(ROOT / "envs", folder / "envs")
    return folder


@pytest.fixture
def wheelhouse(clone: Path, tmp_path: Path) -> Path:
    """A folder with one wheel that stands for everything; the clone's locks ask for it, and for no uv."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    wheel = folder / "standin-1.0-py3-none-any.whl"
    files = {f"{module}.py": "" for module in MODULES}
    files |= {f"{module.split('/')[0]}/__init__.py": "" for module in MODULES if "/" in module}
    info = "standin-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,\n"]))
    pin = f"standin==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    for name in LOCKS:
        (clone / "envs" / f"{name}.txt").write_text(pin)
    (clone / "envs" / "installer.txt").write_text(f"uv==0.0.1 --hash=sha256:{'0' * 64}\n")
    return folder


def repro(clone: Path, *arguments: str, path: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    variables = _variables(path, variables)
    return subprocess.run(_command(clone, *arguments), capture_output=True, text=True, env=variables, check=False)


def reused_s(clone: Path, *arguments: str) -> float:
    """Seconds from the command to the run's first line, on the clock of the machine; nothing of the run is in it."""
    started = time.monotonic()
    done = repro(clone, *arguments)
    assert done.returncode == 0, done.stderr
    assert "making" not in done.stdout
    begun = re.search(r"^AT (\S+)$", done.stdout, re.MULTILINE)
    assert begun
    return float(begun[1]) - started


def _command(clone: Path, *arguments: str) -> list[str]:
    bash = shutil.which("bash")
    assert bash
    return [bash, str(clone / "repro.sh"), *arguments]


def _variables(path: str | None, variables: dict[str, str]) -> dict[str, str]:
    own = str(Path(sys.executable).resolve().parent)
    return {**os.environ, "PATH": path if path is not None else f"{own}:{os.environ['PATH']}", **variables}


def tools(folder: Path, *names: str) -> str:
    """A PATH with these programs alone."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    return str(folder)


# --- options ----------------------------------------------------------------------------------------------------------


def test_help_lists_every_option_and_exit_code(clone: Path) -> None:
    done = repro(clone, "--help")
    assert done.returncode == 0
    documented = "--python --no-install --torch --wheelhouse --cuda-home --fresh --cores --profile --config selftest"
    for word in [*documented.split(), "wheelhouse DIR", "exit codes"]:
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--coers", "3"], "unknown option --coers; did you mean '--cores'?"),
        (["--wheelhose=x"], "unknown option --wheelhose=x; did you mean '--wheelhouse'?"),
        (["--core", "3"], "unknown option --core; did you mean '--cores'?"),
        (["--set", "a=b"], "unknown option --set; a run takes --config KEY=VALUE"),
        (["--config", "own.yaml"], "e.g. bench.processes=3; a file is named so: ./repro.sh -- --configfile own.yaml"),
        (["selftset"], "unknown command selftset; did you mean 'selftest'?"),
        (["wheelhouse"], "wheelhouse needs a folder"),
        (["--cores", "many"], "invalid int value: 'many'"),
        (["--cores", "0"], "--cores 0: at least 1"),
        (["--config", "bench"], "--config bench: not of the form key=value"),
        (["--config", "x.y=1"], "--config x.y=1: not of the form key=value"),  # Snakemake takes no key of one letter
        (["--torch", "rocm"], "invalid choice: 'rocm'"),
        (["--no-install", "--wheelhouse", "."], "leave out one of --no-install and --wheelhouse"),
        (["--no-install", "--torch", "cuda"], "leave out one of --no-install and --torch"),
        (["--wheelhouse", "nowhere"], "--wheelhouse nowhere: no such folder"),
        (["--cuda-home", "nowhere", "--no-install"], "--cuda-home nowhere: no such folder"),
    ],
)
def test_bad_options_are_named(clone: Path, arguments: list[str], said: str) -> None:
    done = repro(clone, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# --- what a bare machine may lack -------------------------------------------------------------------------------------


def test_no_python(clone: Path, tmp_path: Path) -> None:
    done = repro(clone, path=tools(tmp_path / "bin", "bash", "dirname", "head"))
    assert done.returncode == 2
    assert "no Python found" in done.stderr
    assert "apt install python3" in done.stderr


def test_python_too_old(clone: Path, tmp_path: Path) -> None:
    path = tools(tmp_path / "bin", "bash", "dirname", "head")
    old = Path(path, "python3")
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = repro(clone, path=path)
    assert done.returncode == 2
    assert "Python 3.9.2 is too old: 3.11 or newer is needed" in done.stderr
    named = repro(clone, "--python", str(old), path=path)
    assert named.returncode == 2
    assert "Python 3.9.2 is too old" in named.stderr


def test_no_such_python(clone: Path) -> None:
    done = repro(clone, "--python", "./nowhere/python")
    assert done.returncode == 2
    assert "no such interpreter" in done.stderr


@pytest.mark.parametrize("named", ["", " "])
def test_no_compiler(clone: Path, tmp_path: Path, named: str) -> None:
    path = tools(tmp_path / "bin", "bash", "dirname", "head")
    Path(path, "python3").symlink_to(Path(sys.executable).resolve())
    done = repro(clone, path=path, CXX=named, PYTHONHOME="/nonexistent")
    assert done.returncode == 2
    assert "no C++ compiler found" in done.stderr
    assert "apt install g++" in done.stderr
    assert not (clone / ".venv").exists()


def test_neither_pip_nor_ensurepip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(bare, tmp_path / ".venv" / "bin" / "python")
    with pytest.raises(ToolError, match="neither pip nor") as caught:
        environment._pip_command(bare)
    assert "python3-venv" in str(caught.value)


def test_a_home_that_is_nobodys_has_its_cache_in_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, rest = environment.parse([])
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home, cache in ((tmp_path / "new", None), (Path(os.devnull), str(environment.ROOT / "results" / "cache"))):
        monkeypatch.setenv("HOME", str(home))
        found = environment.run_environment(Path(sys.executable), tmp_path, options, "")
        assert found.get("XDG_CACHE_HOME") == cache
    assert rest == []


def test_pip_installs_into_the_environment_wherever_else_a_user_wants_it(tmp_path: Path) -> None:
    asked = {"PIP_USER": "1", "PIP_TARGET": str(tmp_path), "PIP_INDEX_URL": "x"}
    assert environment._into_the_venv(asked) == {"PIP_USER": "0", "PIP_INDEX_URL": "x"}


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(KernelproofError, match=r"1\.0 GB free, the environment needs 3 GB"):
        environment._check_disk("cpu")


def test_no_install_names_missing_modules(clone: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    done = repro(clone, "--no-install", "--python", str(bare / "bin" / "python"))
    assert done.returncode == 2
    assert "lacks torch, snakemake" in done.stderr
    assert not (clone / ".venv").exists()


def test_no_install_runs_with_that_interpreter(clone: Path, tmp_path: Path) -> None:
    toolkit = tmp_path / "cuda" / "bin"
    toolkit.mkdir(parents=True)
    (toolkit / "nvcc").touch()
    arguments = ["--cuda-home", str(toolkit.parent), "--cores", "3", "--config", "a1.b=2", "--", "--dry-run"]
    done = repro(clone, "--no-install", "--python", sys.executable, *arguments)
    assert done.returncode == 0, done.stderr
    assert f"RUN {sys.prefix} run --cores 3 --config a1.b=2 -- --dry-run" in done.stdout
    assert f"CUDA {toolkit.parent}" in done.stdout


def test_toolkit_without_nvcc(clone: Path, tmp_path: Path) -> None:
    done = repro(clone, "--no-install", "--python", sys.executable, "--cuda-home", str(tmp_path))
    assert done.returncode == 2
    assert "has no bin/nvcc" in done.stderr


# --- the environment --------------------------------------------------------------------------------------------------


def test_a_venv_of_the_users_is_left_alone(clone: Path) -> None:
    own = clone / ".venv" / "bin" / "tool"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    done = repro(clone, "--python", str(Path(sys.executable).resolve()))
    assert done.returncode == 2
    assert ".venv: is there, and ./repro.sh did not make it" in done.stderr
    assert own.read_text() == "mine"


def test_two_at_once(clone: Path) -> None:
    with (clone / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 4711")
        lock.flush()
        done = repro(clone)
    assert done.returncode == 2
    assert "another run is making the environment in this folder (process 4711)" in done.stderr


def test_fresh_leaves_a_running_workflow_alone(clone: Path) -> None:
    results = clone / "results"
    results.mkdir()
    (results / "kept.json").touch()
    with (results / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = repro(clone, "--fresh", "--no-install", "--python", sys.executable)
    assert done.returncode == 2
    assert "another run is at work" in done.stderr
    assert (results / "kept.json").exists()


def test_what_cannot_be_installed(clone: Path, wheelhouse: Path) -> None:
    for wheel in wheelhouse.iterdir():
        wheel.unlink()
    done = repro(clone, "--wheelhouse", str(wheelhouse))
    assert done.returncode == 2
    assert "No matching distribution found for standin==1.0" in done.stderr
    assert "log:  .venv/install.log" in done.stderr
    assert "./repro.sh wheelhouse DIR" in done.stderr


def test_a_wheel_with_another_hash_is_refused(clone: Path, wheelhouse: Path) -> None:
    with next(wheelhouse.iterdir()).open("ab") as wheel:
        wheel.write(b"\0")
    done = repro(clone, "--wheelhouse", str(wheelhouse))
    assert done.returncode == 2
    assert "not the one that was locked" in done.stderr


def test_torch_of_a_virtual_environment_is_for_no_install(clone: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    done = repro(clone, "--torch", "host", "--python", str(tmp_path / "own" / "bin" / "python"))
    assert done.returncode == 2
    assert "is in a virtual environment" in done.stderr
    assert "--no-install" in done.stderr


def test_the_command_works_in_a_folder_whose_files_are_named_as_the_standard_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may have an operator.py. An environment that an older one made is given the new command."""
    script = tmp_path / "venv/bin/kernelproof"
    script.parent.mkdir(parents=True)
    script.write_text("an older one's")
    monkeypatch.setattr(environment, "VENV", tmp_path / "venv")
    environment._link_command()
    (script.parent / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (script.parent / "python").chmod(0o755)
    for name in ("operator", "random", "select", "types"):
        (tmp_path / f"{name}.py").write_text("X = 1\n")
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([script, "--version"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kernelproof ")


@pytest.mark.slow
def test_killed_in_the_middle_then_made_then_reused_then_made_anew(clone: Path, wheelhouse: Path) -> None:
    offline = ["--wheelhouse", str(wheelhouse)]
    stamp = clone / ".venv" / "kernelproof.json"
    victim = subprocess.Popen(_command(clone, *offline), env=_variables(None, {}), stdout=subprocess.DEVNULL)
    while not (clone / ".venv" / "install.log").exists():
        assert victim.poll() is None
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert stamp.read_text() == "{}\n", "it was killed too late"

    done = repro(clone, *offline)  # the same command again
    assert done.returncode == 0, done.stderr
    assert f"RUN {clone / '.venv'} run" in done.stdout
    assert json.loads(stamp.read_text())["installer"] == "pip"

    # The best of some tries, for other programs only add to a time; the first below the line ends them.
    assert any(reused_s(clone, *offline) < REUSE_S for _ in range(TRIES)), f"every try took {REUSE_S:g} s or more"

    tested = repro(clone, *offline, "selftest", "--", "-q")
    assert "adding dev to .venv" in tested.stdout
    assert json.loads(stamp.read_text())["locks"].keys() >= {"tool", "dev"}

    with (clone / "envs" / "tool.txt").open("a") as lock:
        lock.write("# changed\n")
    changed = repro(clone, *offline, "--torch", "host")
    assert changed.returncode == 0
    assert "making .venv" in changed.stdout
    assert json.loads(stamp.read_text())["locks"].keys() == {"build", "tool", "cuda"}
    assert "making" not in repro(clone, *offline).stdout  # what was asked for stays


@pytest.mark.slow
def test_default_build_of_torch_stands_in_for_the_cpu_build(clone: Path, wheelhouse: Path) -> None:
    (clone / "envs" / "torch.txt").write_text(f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}\n")
    done = repro(clone, "--wheelhouse", str(wheelhouse), "--torch", "cpu")
    assert done.returncode == 0, done.stderr
    assert "torch's CPU build is not in this machine's package indexes: taking the default build" in done.stdout
    assert json.loads((clone / ".venv" / "kernelproof.json").read_text())["torch"] == "cuda"
    again = repro(clone, "--wheelhouse", str(wheelhouse))
    assert "making" not in again.stdout


# --- sources of packages ----------------------------------------------------------------------------------------------


def test_uv_is_told_what_pip_would_use(tmp_path: Path) -> None:
    listing = "\n".join(
        [
            ":env:.disable-pip-version-check='1'",
            f":env:.find-links='{tmp_path}'",
            "global.index-url='https://user:secret@example.org/simple'",
            f"global.extra-index-url='https://a.example/simple file://{tmp_path}/missing'",
            f"global.find-links='{tmp_path}'",
            "install.trusted-host='a.example'",
            "freeze.exclude='x'",
        ]
    )
    assert environment.uv_settings(environment.pip_settings(listing), {}) == {
        "UV_INDEX_URL": "https://user:secret@example.org/simple",
        "UV_EXTRA_INDEX_URL": "https://a.example/simple",
        "UV_FIND_LINKS": str(tmp_path),
        "UV_INSECURE_HOST": "a.example",
    }


def test_certificates_of_pip_are_used_unless_others_are_set() -> None:
    pip = environment.pip_settings("global.cert='/etc/own.pem'")
    assert environment.uv_settings(pip, {}) == {"SSL_CERT_FILE": "/etc/own.pem"}
    assert environment.uv_settings(pip, {"SSL_CERT_FILE": "/x"}) == {}


# --- the locks --------------------------------------------------------------------------------------------------------

PIN = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; (.*?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pins(name: str) -> dict[tuple[str, str], str]:
    """(package, marker): version. The same package may be pinned twice, for different Pythons."""
    text = (ROOT / "envs" / f"{name}.txt").read_text()
    found = {(match[1], match[3] or ""): match[2] for match in PIN.finditer(text)}
    left = [line for line in PIN.sub("", text).splitlines() if line and not line.lstrip().startswith("#")]
    assert not left, f"{name}.txt has lines that are no hashed pin"
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_what_is_asked_for(name: str) -> None:
    wanted = (ROOT / "envs" / f"{name}.in").read_text()
    locked = {package for package, _ in pins(name)}
    for line in wanted.splitlines():
        if requirement := re.match(r"[\w-]+", line):
            assert requirement[0].lower() in locked


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_place(name: str) -> None:
    for path in (ROOT / "envs").glob(f"{name}.*"):
        assert not re.search(r"https?:|file:|--(extra-)?index|--find-links|@ ", path.read_text()), path


def test_each_build_of_torch_has_its_own_lock() -> None:
    assert {version for (name, _), version in pins("torch").items() if name == "torch"} == {"2.13.0+cpu"}
    assert {version for (name, _), version in pins("torch-cuda").items() if name == "torch"} == {"2.13.0"}
    libraries = {"nvidia-cudnn-cu13", "nvidia-cublas", "triton"}
    assert libraries <= {name for name, _ in pins("torch-cuda")}
    assert not libraries & {name for name, _ in pins("torch")}


@pytest.mark.parametrize("torch", ["torch", "torch-cuda"])
def test_the_locks_of_one_environment_agree(torch: str) -> None:
    versions: dict[str, set[str]] = {}
    for name in ("build", "tool", "cuda", torch, "dev"):
        for (package, marker), version in pins(name).items():
            python = re.search(r"python_full_version [<>=]+ '3\.12'", marker)
            versions.setdefault(f"{package} {python[0] if python else ''}", set()).add(version)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}
