"""What `./repro.sh` does once it has found a Python: make the environment, then become the run.

This runs before anything is installed, hence on the standard library alone. The environment `.venv` is made from the
hash-locked requirements in `envs/` and stamped last; a `.venv` with another stamp or none (a run that was killed in the
middle) is made anew, and one with the right stamp is used as it is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, NoReturn

from kernelproof import privacy, processes
from kernelproof.errors import ExitCode, KernelproofError, ToolError, describe_exit, nearest

ROOT = Path(__file__).resolve().parents[2]
VENV, STAMP, INSTALL_LOG = Path(".venv"), Path(".venv/kernelproof.json"), Path(".venv/install.log")
ENVIRONMENT_LOCK, RUN_LOCK = Path(".venv.lock"), Path("results/.lock")

# Free disk space that making an environment needs, and what is said of the download, by the build of torch.
DISK_BYTES = {"cpu": 3e9, "cuda": 10e9, "host": 2e9}
DOWNLOAD = {"cpu": "0.5 GB", "cuda": "2.9 GB", "host": "0.3 GB"}
TORCH_LOCKS = {"cpu": ["torch"], "cuda": ["torch-cuda"], "host": []}
# pip's words and uv's for a version that no index offers for this Python.
NO_CPU_TORCH = re.compile(
    r"(No matching distribution found for|no version of) torch\b|torch==[\d.]+\+cpu has no "
    r"|Cannot install torch==[\d.]+\+cpu because"  # where a constraint names torch too
)
# Imported once after installation: proves that the environment works, and leaves the byte code of what every run needs
# (half of the time of the first import of torch; byte code for everything would cost more than it saves).
WARM = (
    "import torch",
    "import snakemake.cli, pandas, scipy.stats, jinja2, jsonschema, yaml, pytest, tvm_ffi.libinfo, pynvml",
)
NEEDED_MODULES = (
    "torch snakemake tvm_ffi ninja numpy pandas scipy jinja2 jsonschema yaml pynvml pytest hypothesis".split()
)

COMPILER_HINT = "install one (Debian, Ubuntu: apt install g++), or name one in CXX"
NO_CPU_BUILD = "torch's CPU build is not in this machine's package indexes: taking the default build"
CPU_BUILD_HINT = "to avoid that, name torch's CPU index in PIP_EXTRA_INDEX_URL"
VENV_HINT = "install them (Debian, Ubuntu: apt install python3-venv), or give --python PATH, or use --no-install"

EPILOG = """\
commands
  (none)            make the environment, run the workflow, print the verdicts and where report and tarball are
  wheelhouse DIR    fill DIR with all that an installation needs, for --wheelhouse DIR on a machine without a network
  selftest          run kernelproof's own tests but the slow ones; what follows -- goes to pytest: -m '' runs all

what follows -- goes to snakemake, e.g. ./repro.sh -- --dry-run

exit codes
  0  all well
  1  the workflow ran and some verdict is bad; report and tarball are made all the same
  2  it could not run
"""


@dataclass(frozen=True)
class Stamp:
    """What an environment was made from: it is used again when all of this is still so."""

    root: str
    python: str
    base: str
    torch: str
    locks: dict[str, str]
    installer: str = ""

    def covers(self, wanted: Stamp) -> bool:
        """Is everything that `wanted` names in here, of the same content?"""
        same = replace(self, locks={}, installer="") == replace(wanted, locks={}, installer="")
        return same and wanted.locks.items() <= self.locks.items()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"repro.sh: {message}\n  next: ./repro.sh --help lists the options", file=sys.stderr)
        raise SystemExit(ExitCode.COULD_NOT_RUN)


def main(argv: Sequence[str]) -> int:
    """`argv`: the caller's folder, the caller's PYTHONPATH, then the arguments of repro.sh."""
    caller, python_path, *arguments = argv
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _main(Path(caller), python_path, arguments)
    except KernelproofError as error:
        print(f"repro.sh: {error}", file=sys.stderr)
        return ExitCode.COULD_NOT_RUN
    except OSError as error:
        full = error.errno == errno.ENOSPC
        hint = "free some space and run the same command again" if full else "check the path and its permissions"
        print(f"repro.sh: {error.filename or 'system'}: {error.strerror}\n  next: {hint}", file=sys.stderr)
        return ExitCode.COULD_NOT_RUN
    except KeyboardInterrupt:
        print("\nrepro.sh: interrupted; the same command starts over where it must", file=sys.stderr)
        return ExitCode.INTERRUPTED


def _main(caller: Path, python_path: str, arguments: list[str]) -> int:
    """Carry out the command. What runs the workflow or the tests takes this process's place and never comes back."""
    options, rest = parse(arguments)
    base = _base_python()
    if options.command == "wheelhouse":
        return fill_wheelhouse(base, caller / options.directory, _torch(options))
    check_compiler()
    if options.fresh:
        clear_results()
    python = base if options.no_install else ensure(base, caller, options)
    environment = run_environment(python, caller, options, python_path)
    if options.no_install:
        check_modules(python, environment)
    command = pytest_command(python, rest) if options.command == "selftest" else run_command(python, options, rest)
    sys.stdout.flush()
    return os.execve(command[0], command, environment)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what follows `--`. An unknown option ends the program with the nearest one that there is."""
    parser = _Parser(
        prog="./repro.sh",
        usage="./repro.sh [COMMAND] [OPTIONS] [-- ARGUMENTS]",
        description="From a fresh clone to a report and a tarball.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="?", default="run", help=argparse.SUPPRESS)
    parser.add_argument("directory", nargs="?", help=argparse.SUPPRESS)
    add = parser.add_argument
    add("--python", metavar="PY", help="the Python to use (default: the first that is 3.11 or newer)")
    add("--no-install", action="store_true", help="install nothing: use PY as it is, e.g. on a GPU host that has torch")
    add("--torch", choices=["auto", "cpu", "cuda", "host"], default="auto", metavar="BUILD", help=_TORCH_HELP)
    add("--wheelhouse", metavar="DIR", help="install from DIR and use no network (./repro.sh wheelhouse DIR fills it)")
    add("--cuda-home", metavar="DIR", help="build with this CUDA toolkit instead of the one from wheels")
    add("--fresh", action="store_true", help="make environment and results anew")
    add("--cores", type=int, metavar="N", help="jobs at a time (default: all cores)")
    add("--profile", metavar="NAME", help="a Snakemake profile of workflow/profiles")
    add("--config", action="append", default=[], metavar="KEY=VALUE", help="override one value, e.g. bench.processes=3")
    add("--level", choices=["quick", "default", "deep"], help="how much is tested (docs/explanation/correctness.md)")
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:separator])
    if unknown:
        known = [name for action in parser._actions for name in action.option_strings]
        option = unknown[0].partition("=")[0]
        meant = "; a run takes --config KEY=VALUE" if option == "--set" else nearest(option, known)
        parser.error(f"unknown option {unknown[0]}{meant}")
    if options.command not in ("run", "wheelhouse", "selftest"):
        meant = nearest(options.command, ["wheelhouse", "selftest"]) or f"; {VENV}/bin/kernelproof has all others"
        parser.error(f"unknown command {options.command}{meant}")
    if options.command == "wheelhouse" and not options.directory:
        parser.error("wheelhouse needs a folder to fill")
    if options.command != "wheelhouse" and options.directory:
        parser.error(f"what is {options.directory}?")
    if options.no_install and (options.wheelhouse or options.torch != "auto"):
        given = "--wheelhouse" if options.wheelhouse else "--torch"
        parser.error(f"--no-install takes PY as it is: leave out one of --no-install and {given}")
    if options.level:
        options.config.append(f"test.level={options.level}")
    for entry in options.config:
        if not re.fullmatch(r"[a-zA-Z_][\w-]*\w(\.[\w-]+)*=.*", entry, re.DOTALL):
            file = f"; a file is named so: ./repro.sh -- --configfile {entry}" if looks_like_a_file(entry) else ""
            parser.error(f"--config {entry}: not of the form key=value, e.g. bench.processes=3{file}")
    if options.cores is not None and options.cores < 1:
        parser.error(f"--cores {options.cores}: at least 1")
    return options, arguments[separator + 1 :]


_TORCH_HELP = "auto (default: cuda when there is an NVIDIA driver, else cpu), cpu, cuda, or host: the one that PY has"


def looks_like_a_file(entry: str) -> bool:
    """Whether what was given as KEY=VALUE is a configuration file's name."""
    return "=" not in entry and entry.endswith((".yaml", ".yml", ".json"))


def _torch(options: argparse.Namespace) -> str:
    return ("cuda" if has_nvidia_driver() else "cpu") if options.torch == "auto" else options.torch


def has_nvidia_driver() -> bool:
    """Does this machine have an NVIDIA driver, whether or not a GPU answers?"""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def check_compiler() -> None:
    """Raises ToolError when there is no C++ compiler."""
    named = os.environ.get("CXX", "").split()
    candidates = named[:1] if named else ["c++", "g++", "clang++"]
    if not any(shutil.which(candidate) for candidate in candidates):
        raise ToolError("no C++ compiler found", subject=", ".join(candidates), hint=COMPILER_HINT)


def check_modules(python: Path, environment: Mapping[str, str]) -> None:
    """Raises ToolError naming what the interpreter of --no-install lacks."""
    probe = "import importlib.util, sys; print(*[m for m in sys.argv[1:] if not importlib.util.find_spec(m)])"
    missing = processes.run([python, "-P", "-c", probe, *NEEDED_MODULES], env=environment).stdout.split()
    if missing:
        raise ToolError(
            f"lacks {', '.join(missing)}",
            subject=f"--no-install with {python}",
            hint="install the requirements of envs/tool.txt there, or leave --no-install out "
            "(--torch host makes an environment that uses this Python's own torch)",
        )


# --- locks between runs -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def only_one(path: Path, what: str) -> Iterator[IO[str]]:
    """Hold a lock file; KernelproofError when another process holds it. The kernel frees it however that one ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as stream:
        _flock(stream, fcntl.LOCK_EX, what)
        stream.truncate(0)
        stream.write(f"process {os.getpid()}")
        stream.flush()
        yield stream


@contextlib.contextmanager
def beside_no_run() -> Iterator[None]:
    """For a stage that was started by hand, beside which others may be at work, but no run: that would take its record
    for its own. Raises KernelproofError where one is.
    """
    RUN_LOCK.parent.mkdir(parents=True, exist_ok=True)
    with RUN_LOCK.open("a+") as stream:
        _flock(stream, fcntl.LOCK_SH, "at work")
        yield


def _flock(stream: IO[str], how: int, what: str) -> None:
    try:
        fcntl.flock(stream, how | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.seek(0)
        holder = stream.read().strip() or "another process"
        raise KernelproofError(
            f"another run is {what} in this folder ({holder})", hint="wait until it ends, or use a second copy of it"
        ) from None


def clear_results() -> None:
    """Remove what runs have made, reports excepted."""
    with only_one(RUN_LOCK, "at work"):
        for path in RUN_LOCK.parent.iterdir():
            if path != RUN_LOCK:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.rmtree(".snakemake", ignore_errors=True)


# --- the environment --------------------------------------------------------------------------------------------------


def ensure(base: Path, caller: Path, options: argparse.Namespace) -> Path:
    """The environment's Python; makes the environment unless its stamp says that it is the one wanted."""
    wheelhouse = _folder(caller, options.wheelhouse, "--wheelhouse")
    with only_one(ENVIRONMENT_LOCK, "making the environment"):
        present = read_stamp()
        torch = _torch(options)
        if present and options.torch == "auto" and (present.torch, torch) != ("cpu", "cuda"):
            torch = present.torch  # asked for before, or what stood in where the CPU build was not to be had
        wanted = wanted_stamp(base, torch, dev=options.command == "selftest")
        if present and not options.fresh and _python().exists():
            _link_command()  # an environment of before has another
            if present.covers(wanted):
                return _python().absolute()
            without_dev = wanted_stamp(base, torch, dev=False)
            if present.covers(without_dev):
                _add(base, present, {"dev": wanted.locks["dev"]}, wheelhouse)
                return _python().absolute()
        _make(base, wanted, wheelhouse)
    return _python().absolute()


def read_stamp() -> Stamp | None:
    """The stamp of the environment that is there; None when there is none or it is not finished."""
    try:
        fields = json.loads(STAMP.read_text())
        return Stamp(**fields)
    except (OSError, ValueError, TypeError):
        return None


def wanted_stamp(base: Path, torch: str, *, dev: bool) -> Stamp:
    """The stamp of an environment made now from `envs/` with this Python and this build of torch."""
    names = ["build", "tool", "cuda", *TORCH_LOCKS[torch], *(["dev"] if dev else [])]
    locks = {name: hashlib.sha256(_lock(name).read_bytes()).hexdigest() for name in names}
    return Stamp(str(ROOT), sys.version.split()[0], str(base), torch, locks)


def _lock(name: str) -> Path:
    return ROOT / "envs" / f"{name}.txt"


def _python() -> Path:
    return VENV / "bin" / "python"


def _base_python() -> Path:
    """The interpreter to make an environment with: this one, or the one behind it if this is the environment's own."""
    if Path(sys.prefix).resolve() == (ROOT / VENV).resolve():
        return Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    # Another virtual environment's interpreter is a link that must not be followed: it is known by its folder.
    return Path(sys.executable) if sys.prefix != sys.base_prefix else Path(sys.executable).resolve()


def _is_virtual(python: Path) -> bool:
    return (python.parent.parent / "pyvenv.cfg").exists()


def _make(base: Path, wanted: Stamp, wheelhouse: Path | None) -> None:
    _refuse_foreign()
    if wanted.torch == "host" and _is_virtual(base):
        raise KernelproofError(
            "is in a virtual environment, whose torch another one cannot use",
            subject=f"--torch host with {base}",
            hint="use it as it is (--no-install), or give the Python behind it",
        )
    _check_disk(wanted.torch)
    source = f"{wheelhouse}, no network" if wheelhouse else f"up to {DOWNLOAD[wanted.torch]} to download"
    _say(f"making .venv with Python {wanted.python}: the tool, torch ({wanted.torch}), the CUDA compiler ({source})")
    started = time.monotonic()
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir()
    STAMP.write_text("{}\n")  # ours, but not finished
    system = ["--system-site-packages"] if wanted.torch == "host" else []
    processes.run([base, "-P", "-m", "venv", "--without-pip", *system, VENV])
    installer = _Installer(base, wheelhouse)
    try:
        installer.install(list(wanted.locks))
    except ToolError as error:
        if wanted.torch != "cpu" or not NO_CPU_TORCH.search(error.output):
            raise
        _say(f"{NO_CPU_BUILD} ({DOWNLOAD['cuda']} to download, 7 GB on disk; {CPU_BUILD_HINT})")
        _make(base, wanted_stamp(base, "cuda", dev="dev" in wanted.locks), wheelhouse)
        return
    _link_project()
    _warm()
    _write_stamp(replace(wanted, installer=installer.name))
    _say(f"environment ready in {time.monotonic() - started:.1f} s ({installer.name})")


def _add(base: Path, present: Stamp, locks: dict[str, str], wheelhouse: Path | None) -> None:
    """Install further locks into a finished environment. It stays finished: packages are added, none is changed."""
    _say(f"adding {', '.join(locks)} to .venv")
    _Installer(base, wheelhouse).install(list(locks))
    _write_stamp(replace(present, locks=present.locks | locks))


def _write_stamp(stamp: Stamp) -> None:
    partial = STAMP.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(stamp), indent=1, sort_keys=True) + "\n")
    partial.replace(STAMP)


def _refuse_foreign() -> None:
    if VENV.is_symlink() or (VENV.exists() and not STAMP.exists() and any(VENV.iterdir())):
        raise KernelproofError(
            "is there, and ./repro.sh did not make it",
            subject=".venv",
            hint="move it away, or use it: ./repro.sh --no-install --python .venv/bin/python",
        )


def _check_disk(torch: str) -> None:
    free = shutil.disk_usage(ROOT).free
    if free < DISK_BYTES[torch]:
        raise KernelproofError(
            f"{free / 1e9:.1f} GB free, the environment needs {DISK_BYTES[torch] / 1e9:.0f} GB",
            subject=str(ROOT),
            hint="free some space, or use an interpreter that has everything: --no-install --python PATH",
        )


def _link_project() -> None:
    """Make `import kernelproof` and the command `kernelproof` work, from the sources where they are."""
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(VENV), "platbase": str(VENV)}))
    (site / "kernelproof.pth").write_text(os.path.relpath(ROOT / "src", site.resolve()) + "\n")
    _link_command()


def _link_command() -> None:
    """Its own folder alone is on the command's path (-P): a user's operator.py must not stand in for Python's."""
    script, text = VENV / "bin" / "kernelproof", '#!/bin/sh\nexec "$(dirname "$0")/python" -P -m kernelproof "$@"\n'
    if not script.is_file() or script.read_text() != text:
        partial = script.with_suffix(".partial")
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(script)


def _warm() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with INSTALL_LOG.open("a") as log:
        commands: list[list[str | Path]] = [[_python(), "-P", "-c", code] for code in WARM]
        trials = [processes.spawn(command, env=environment, stdout=log, stderr=log) for command in commands]
    for code, trial in zip(WARM, trials, strict=True):
        if trial.wait() != 0:
            raise ToolError(
                f"`{code}` fails in the new environment:\n{_tail(INSTALL_LOG)}",
                log=INSTALL_LOG,
                hint="the last lines above name what is missing on this machine",
            )


# --- installing -------------------------------------------------------------------------------------------------------


class _Installer:
    """uv where it can be had, since it takes a tenth of pip's time; else pip. Both check every file's hash."""

    def __init__(self, base: Path, wheelhouse: Path | None) -> None:
        self._wheelhouse = wheelhouse
        self._pip = _pip_command(base)
        self._uv = self._install_uv()
        self.name = "uv" if self._uv else "pip"

    def install(self, names: list[str]) -> None:
        """Install locks, the build backend first: nothing that is not in a lock is ever fetched."""
        groups = [["build"], [name for name in names if name != "build"]] if "build" in names else [names]
        if self._uv:
            offline, environment = self._uv_sources()
            command: list[str | Path] = [
                self._uv,
                "pip",
                "install",
                "--python",
                _python(),
                *(["--no-index"] if offline else []),
            ]
            try:
                for group in groups:
                    _follow([*command, *_requirements(group)], environment)
                return
            except ToolError as error:
                if NO_CPU_TORCH.search(error.output) or "No space left" in error.output:
                    raise
                _say(f"uv could not install (log: {INSTALL_LOG}); trying pip, which is slower")
                self.name = "pip"
        for group in groups:
            arguments = ["--no-compile", "--no-build-isolation", *_requirements(group)]
            _follow([*self._pip, *self._pip_isolation(), "install", *arguments, *self._pip_sources()], os.environ)

    def _install_uv(self) -> Path | None:
        folder = VENV / "installer"
        command = [*self._pip, *self._pip_isolation(), "install", "--quiet", "--no-deps", "--target", folder]
        try:
            _follow([*command, *_requirements(["installer"]), *self._pip_sources()], os.environ)
        except ToolError:
            _say(f"uv is not to be had here (log: {INSTALL_LOG}); using pip, which is slower")
            return None
        return folder / "bin" / "uv"

    def _pip_isolation(self) -> list[str]:
        return ["--isolated"] if self._wheelhouse else []  # else pip.conf would add its own sources

    def _pip_sources(self) -> list[str | Path]:
        return ["--no-index", "--find-links", self._wheelhouse] if self._wheelhouse else []

    def _uv_sources(self) -> tuple[bool, dict[str, str]]:
        """Whether uv must ask no index, and its environment variables.

        uv does not read pip's configuration, so what pip would use is handed to it, and not on the command line, which
        is logged: an index's address may hold a password.
        """
        kept = ("UV_CACHE_DIR", "UV_LINK_MODE", "UV_HTTP_TIMEOUT")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("UV_") or key in kept}
        environment |= {"UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1"}
        environment |= {"UV_NO_BUILD_ISOLATION": "1", "UV_PYTHON_DOWNLOADS": "never"}
        if self._wheelhouse:
            return True, environment | {"UV_FIND_LINKS": str(self._wheelhouse)}
        # Any index may hold a locked file, as with pip; the hashes say which files are the right ones.
        environment["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        pip = pip_settings(processes.run([*self._pip, "config", "list"], check=False).stdout)
        offline = pip.get("no-index", "").lower() in ("1", "true", "yes", "on")
        return offline, environment | uv_settings(pip, environment)


def pip_settings(listing: str) -> dict[str, str]:
    """What `pip config list` says of where packages come from; the sources of several files add up."""
    found: dict[str, str] = {}
    for line in listing.splitlines():
        if match := re.fullmatch(r"(?:global|install|:env:)\.([\w.-]+)=('.*'|\".*\")", line):
            key, value = match[1].lower().replace("_", "-").lstrip("."), str(ast.literal_eval(match[2]))
            adds_up = key in ("find-links", "extra-index-url") and key in found
            found[key] = f"{found[key]} {value}" if adds_up else value
    return found


def uv_settings(pip: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables with which uv uses the sources that pip would."""
    settings = {}
    for key, name in (("index-url", "UV_INDEX_URL"), ("extra-index-url", "UV_EXTRA_INDEX_URL")):
        if urls := [url for url in pip.get(key, "").split() if not _is_missing_folder(url)]:
            settings[name] = " ".join(urls)
    if links := pip.get("find-links", "").split():
        settings["UV_FIND_LINKS"] = ",".join(dict.fromkeys(links))
    if hosts := pip.get("trusted-host", "").split():
        settings["UV_INSECURE_HOST"] = " ".join(hosts)
    if "cert" in pip and "SSL_CERT_FILE" not in environment:
        settings["SSL_CERT_FILE"] = pip["cert"]
    if "proxy" in pip:
        settings |= {"HTTP_PROXY": pip["proxy"], "HTTPS_PROXY": pip["proxy"]}
    return settings


def _is_missing_folder(url: str) -> bool:
    return url.startswith("file://") and not Path(url.removeprefix("file://")).exists()


def _requirements(names: Sequence[str]) -> list[str | Path]:
    return ["--require-hashes", *(part for name in names for part in ("-r", _lock(name)))]


def _pip_command(base: Path) -> list[str | Path]:
    """A pip that installs into the environment: the base Python's own if it can, else one put into the environment."""
    probe = processes.run([base, "-P", "-c", "import pip; print(pip.__version__)"], check=False)
    version = [int(part) for part in re.findall(r"\d+", probe.stdout)[:2]]
    if version >= [22, 3]:
        return [base, "-P", "-m", "pip", "--python", _python()]
    if processes.run([_python(), "-P", "-m", "ensurepip"], check=False, log=INSTALL_LOG).returncode == 0:
        return [_python(), "-P", "-m", "pip"]
    raise ToolError("has neither pip nor the modules to make one (venv, ensurepip)", subject=str(base), hint=VENV_HINT)


def _into_the_venv(environment: Mapping[str, str]) -> dict[str, str]:
    """Without a user's wishes as to where pip installs; PIP_USER counts before what pip.conf says."""
    elsewhere = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV")
    return {key: value for key, value in environment.items() if key not in elsewhere} | {"PIP_USER": "0"}


def _follow(command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
    """Run an installer with its output in the log and, on a terminal, the time and its last line on the screen."""
    started = time.monotonic()
    INSTALL_LOG.parent.mkdir(parents=True, exist_ok=True)
    with INSTALL_LOG.open("a") as log:
        print("$", *command, file=log, flush=True)
        start = INSTALL_LOG.stat().st_size
        process = processes.spawn(command, env=_into_the_venv(environment), stdout=log, stderr=log)
        try:
            while process.poll() is None:
                if time.monotonic() - started > 1:
                    _live(f"  {time.monotonic() - started:4.0f} s  {_tail(INSTALL_LOG, 1)}")
                time.sleep(0.05)
        except BaseException:
            processes.kill_group(process)
            raise
        finally:
            _live("")
    if process.returncode == 0:
        return
    with INSTALL_LOG.open(errors="replace") as stream:
        stream.seek(start)
        output = stream.read()
    raise ToolError(
        f"installing {describe_exit(process.returncode)}\n{_last_lines(output)}",
        log=INSTALL_LOG,
        returncode=process.returncode,
        output=output,
        hint=_install_hint(output, offline="--no-index" in command),
    )


def _install_hint(output: str, *, offline: bool) -> str:
    if "No space left" in output:
        return "free some space and run the same command again"
    if re.search(r"hash(es)? .*mismatch|DO NOT MATCH", output, re.IGNORECASE):
        return "a downloaded file is not the one that was locked: do not use it; try another index"
    if offline:
        return "fill the wheelhouse on a machine with the same Python: ./repro.sh wheelhouse DIR"
    return "check the network and the package index, then run the same command again"


def _tail(path: Path, lines: int = 12) -> str:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 8000))
        return _last_lines(stream.read().decode(errors="replace"), lines)
    return ""


def _last_lines(text: str, lines: int = 12) -> str:
    return privacy.scrubbed("\n".join(text.strip().splitlines()[-lines:]))


def _live(text: str) -> None:
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def fill_wheelhouse(base: Path, folder: Path, torch: str) -> int:
    """Download every file that an installation on a machine like this one needs, checked against the locks."""
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    global VENV, INSTALL_LOG
    with only_one(folder / ".lock", "filling this folder"):
        # A source distribution is only accepted with its build backend at hand, hence a small environment of its own.
        VENV, INSTALL_LOG = folder / ".venv", folder / "download.log"
        shutil.rmtree(VENV, ignore_errors=True)
        INSTALL_LOG.unlink(missing_ok=True)
        processes.run([base, "-P", "-m", "venv", "--without-pip", VENV])
        pip = _pip_command(base)
        _follow([*pip, "install", "--quiet", *_requirements(["build"])], os.environ)
        _download(pip, folder, ["installer", "build", "tool", "cuda", "dev"])
        try:
            if torch != "host":
                _download(pip, folder, ["torch" if torch == "cpu" else "torch-cuda"])
        except ToolError as error:
            if torch != "cpu" or not NO_CPU_TORCH.search(error.output):
                raise
            _say(f"{NO_CPU_BUILD} ({DOWNLOAD['cuda']})")
            _download(pip, folder, ["torch-cuda"])
        shutil.rmtree(VENV)
    files = [path for path in folder.iterdir() if path.suffix in (".whl", ".gz", ".zip")]
    size = sum(path.stat().st_size for path in files) / 1e9
    _say(f"{len(files)} files, {size:.2f} GB in {time.monotonic() - started:.0f} s")
    _say(f"next: ./repro.sh --wheelhouse {folder}")
    return ExitCode.WELL


def _download(pip: list[str | Path], folder: Path, names: list[str]) -> None:
    _say(f"downloading {', '.join(names)}")
    arguments = ["--quiet", "--no-deps", "--no-build-isolation", "--dest", folder, *_requirements(names)]
    _follow([*pip, "download", *arguments], os.environ)


# --- becoming the run -------------------------------------------------------------------------------------------------


def run_environment(python: Path, caller: Path, options: argparse.Namespace, python_path: str) -> dict[str, str]:
    """The environment variables of the run."""
    environment = dict(os.environ)
    # The first run leaves byte code behind: without it, each of a run's many imports of torch takes twice as long.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("PYTHONHOME", None)
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    # The user's own path may hide locked packages; an interpreter that is used as it is may need it.
    own = [python_path] if options.no_install and python_path else []
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *own])
    if not options.no_install:
        environment["VIRTUAL_ENV"] = str(ROOT / VENV)
    cache = Path(environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")).absolute()
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):  # a user whom the machine does not know
        environment["XDG_CACHE_HOME"] = str(ROOT / RUN_LOCK.parent / "cache")
    if cuda_home := _folder(caller, options.cuda_home, "--cuda-home"):
        if not (cuda_home / "bin" / "nvcc").exists():
            raise ToolError("has no bin/nvcc", subject=f"--cuda-home {cuda_home}", hint="give the toolkit's top folder")
        environment["KERNELPROOF_CUDA_HOME"] = str(cuda_home)
    return environment


def _folder(caller: Path, given: str | None, option: str) -> Path | None:
    if given is None:
        return None
    folder = (caller / given).resolve()
    if not folder.is_dir():
        raise KernelproofError("no such folder", subject=f"{option} {given}", hint=f"relative paths start at {caller}")
    return folder


def pytest_command(python: Path, rest: list[str]) -> list[str]:
    """The project's own tests, a file at a time on each of two processes, in the order of tests/conftest.py.

    Slow ones are for who asks for them (`-m ''`).
    """
    beside = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    return [str(python), "-P", "-m", "pytest", *beside, "-m", "not slow", *rest]


def run_command(python: Path, options: argparse.Namespace, rest: list[str]) -> list[str]:
    """The run with its progress display."""
    command = [str(python), "-P", "-m", "kernelproof", "run"]
    command += ["--cores", str(options.cores)] if options.cores else []
    command += ["--profile", options.profile] if options.profile else []
    command += [part for entry in options.config for part in ("--config", entry)]
    return [*command, *(["--", *rest] if rest else [])]


if __name__ == "__main__":
    processes.prepare_output()
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
