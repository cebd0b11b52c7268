"""`kernelproof doctor`: what this machine can do, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelproof import gpu, nsight, processes, repository, sanitizer, toolchain
from kernelproof.errors import ExitCode, KernelproofError

OK, LIMITED, MISSING = "ok", "limited", "missing"

# Below this a run may end in the middle of packing, in bytes.
MIN_FREE_BYTES = 1e9
PACKAGES = {
    "snakemake": "snakemake",
    "apache-tvm-ffi": "tvm_ffi",
    "pandas": "pandas",
    "scipy": "scipy",
    "jinja2": "jinja2",
    "jsonschema": "jsonschema",
    "pyyaml": "yaml",
    "nvidia-ml-py": "pynvml",
    "pytest": "pytest",
}
INSTALL = "./repro.sh installs it"


@dataclass(frozen=True)
class Check:
    """One thing that a stage needs: `status` ok, limited or missing; `remedy` unless ok."""

    name: str
    status: str
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class Ability:
    """Something that kernelproof can do here or not, and the missing things that stand in its way."""

    name: str
    possible: bool
    lacking: list[str]


CUDA_TOOLS = ["CUDA compiler", "cuobjdump, nvdisasm"]
# What each ability rests on, by the names of the checks.
NEEDS = {
    "run the workflow": ["Python", "packages", "disk", "workflow"],
    "build and measure CPU variants": ["C++ compiler", "ninja", "torch"],
    "build CUDA variants and analyse their machine code": ["C++ compiler", "ninja", *CUDA_TOOLS],
    "test and measure CUDA variants": ["GPU", "torch for CUDA", *CUDA_TOOLS],
    "profile CUDA variants": ["GPU", "torch for CUDA", "Nsight Compute", "GPU counters"],
}
ESSENTIAL = ["run the workflow", "build and measure CPU variants"]


def main(*, as_json: bool) -> int:
    """Look, print, and give back 0 when a run is possible here, else 2."""
    checks = [_looked(name, look) for name, look in CHECKS.items()]
    abilities = judge(checks)
    if as_json:
        found = {"checks": [asdict(check) for check in checks], "abilities": [asdict(ability) for ability in abilities]}
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(_lines(checks, abilities)))
    possible = all(ability.possible for ability in abilities if ability.name in ESSENTIAL)
    return ExitCode.WELL if possible else ExitCode.COULD_NOT_RUN


def judge(checks: list[Check]) -> list[Ability]:
    """What the checks allow."""
    missing = {check.name for check in checks if check.status == MISSING}
    return [
        Ability(name, not missing & set(needed), [part for part in needed if part in missing])
        for name, needed in NEEDS.items()
    ]


def _looked(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except KernelproofError as error:
        detail = f"{error.subject}: {error.message}" if error.subject else error.message
        return Check(name, MISSING, detail, error.hint)
    except Exception as error:  # a probe that fails is a finding, not the end of the examination
        return Check(name, MISSING, f"cannot be examined: {type(error).__name__}: {error}", "report this as a bug")


def _lines(checks: list[Check], abilities: list[Ability]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.status:8} {check.name:{width}}  {check.detail}"
        if check.remedy:
            yield f"{'':8} {'':{width}}  → {check.remedy}"
    yield ""
    for ability in abilities:
        reason = "" if ability.possible else f" (missing: {', '.join(ability.lacking)})"
        yield f"{'can' if ability.possible else 'cannot':8} {ability.name}{reason}"


# --- the checks -------------------------------------------------------------------------------------------------------


def python() -> Check:
    """The interpreter. ./repro.sh refuses one that is too old before any of this is read."""
    return Check("Python", OK, platform.python_version())


def packages() -> Check:
    """What kernelproof imports."""
    absent = [name for name, module in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if absent:
        return Check("packages", MISSING, f"not installed: {', '.join(absent)}", INSTALL)
    return Check("packages", OK, f"snakemake {importlib.metadata.version('snakemake')} and {len(PACKAGES) - 1} more")


def git() -> Check:
    """Names the commit that is measured; a folder without git works too."""
    if shutil.which("git") is None:
        return Check("git", LIMITED, "not installed: reports cannot name a commit", "install git")
    return Check("git", OK, "installed")


def host_compiler() -> Check:
    """Compiles CPU variants and bindings."""
    found = toolchain.find_host_compiler()
    return Check("C++ compiler", OK, f"{found.tool.name} {found.tool.version}")


def ninja() -> Check:
    """Runs the builds."""
    return Check("ninja", OK, toolchain.tool_version(toolchain.find_ninja()))


def cuda_compiler() -> Check:
    """Compiles CUDA variants, GPU or not."""
    nvcc = toolchain.find_compile_tools(_cuda_home())["nvcc"]
    return Check("CUDA compiler", OK, f"nvcc {nvcc.version} ({nvcc.origin})")


def binary_tools() -> Check:
    """Read the machine code; they may come from elsewhere than the compiler."""
    found = toolchain.find_binary_tools(_cuda_home())
    return Check("cuobjdump, nvdisasm", OK, ", ".join(f"{tool.version} ({tool.origin})" for tool in found.values()))


def _cuda_home() -> Path | None:
    home = os.environ.get("KERNELPROOF_CUDA_HOME")
    return Path(home) if home else None


def torch() -> Check:
    """Makes the inputs and the references."""
    version = _torch_version()
    if version is None:
        return Check("torch", MISSING, "not installed", f"{INSTALL}; --python PATH uses an interpreter that has it")
    return Check("torch", OK, version)


def torch_for_cuda() -> Check:
    """torch must be a CUDA build where CUDA variants are to run."""
    version = _torch_version()
    if version is None or not _torch_has_cuda():
        detail = "torch is not installed" if version is None else f"torch {version} is a CPU build"
        return Check("torch for CUDA", MISSING, detail, "./repro.sh --torch cuda --fresh installs one")
    return Check("torch for CUDA", OK, version)


def nvidia_gpu() -> Check:
    """The GPU, as NVML sees it."""
    present, why = gpu.available()
    if not present:
        return Check("GPU", MISSING, why or "none", "run on a machine with an NVIDIA GPU and its driver")
    boards = gpu.gpus()
    return Check("GPU", OK, ", ".join(f"{board.name} (driver {board.driver})" for board in boards))


def nsight_compute() -> Check:
    """Profiles."""
    ncu = nsight.find_ncu()
    if ncu is None:
        return Check("Nsight Compute", MISSING, "ncu not found", "install it, or name it in KERNELPROOF_NCU")
    nsight.reader()
    return Check("Nsight Compute", OK, f"ncu {nsight.version(ncu)}")


def gpu_counters() -> Check:
    """Whether the driver lets this user read performance counters."""
    parameters = Path("/proc/driver/nvidia/params")
    if not parameters.exists():
        return Check("GPU counters", MISSING, "no NVIDIA driver", "run on a machine with an NVIDIA GPU")
    restricted = "RmProfilingAdminOnly: 1" in parameters.read_text()
    if restricted and os.geteuid() != 0:
        return Check(
            "GPU counters",
            MISSING,
            "for administrators only",
            "ask for the driver option NVreg_RestrictProfilingToAdminUsers=0",
        )
    return Check("GPU counters", OK, "permitted by the driver")


def compute_sanitizer() -> Check:
    """The last rung of the ladder of a CUDA variant; without it the others are climbed, and the record says so."""
    name = "compute-sanitizer"
    try:
        found = sanitizer.find()
    except KernelproofError as error:
        return Check(name, LIMITED, f"{error.message}: CUDA variants are tested without its four tools", error.hint)
    return Check(name, OK, f"{found.version} ({found.path})")


def isolation() -> Check:
    """What a candidate is kept from: tried in a process that is confined as its worker is."""
    done = processes.run(
        [sys.executable, "-P", "-m", "kernelproof.sandbox"], env=processes.own_environment(), timeout_s=30
    )
    found = json.loads(done.stdout)
    if not found["permitted"]:
        return Check("isolation", OK, found["level"])
    return Check(
        "isolation",
        LIMITED,
        f"{found['level']}; a candidate is not kept from: {', '.join(found['permitted'])}",
        "a kernel with Landlock (5.13 or newer, and `landlock` among its security modules), and a container that "
        "allows its system calls",
    )


def disk() -> Check:
    """Room for results."""
    free = shutil.disk_usage(Path.cwd()).free
    if free < MIN_FREE_BYTES:
        return Check("disk", MISSING, f"{free / 1e9:.1f} GB free", "free some space: a run needs 1 GB")
    return Check("disk", OK, f"{free / 1e9:.0f} GB free")


def workflow() -> Check:
    """What `kernelproof run` runs in this folder: its own workflow, or a clone's, which the command has to name."""
    name, clone = "workflow", _clone()
    try:
        repository.check_folder(snakefile=clone is None, configuration=False)
    except KernelproofError as error:
        return Check(name, MISSING, error.message, error.hint)
    absent = {} if repository.has_snakefile() else {"Snakefile": f"--snakefile {clone}"}
    absent |= {} if Path("config.yaml").is_file() else {"config.yaml": "--configfile FILE"}
    if not absent:
        return Check(name, OK, "Snakefile and config.yaml are here, and results/ and reports/ can be written")
    detail = f"no {' and no '.join(absent)} here: a run has to name {'it' if len(absent) == 1 else 'both'}"
    makes = "; `kernelproof init` makes a FILE" if "config.yaml" in absent else ""
    return Check(name, LIMITED, detail, f"kernelproof run -- {' '.join(absent.values())}{makes}")


def _clone() -> str | None:
    """The Snakefile of the clone that a repository without one can use, as a shell reads it; None without a clone."""
    named = os.environ.get("KERNELPROOF")
    folder = Path(named) if named else Path(__file__).resolve().parents[2]
    if not (folder / "Snakefile").is_file():
        return None
    return '"$KERNELPROOF/Snakefile"' if named else shlex.quote(str(folder / "Snakefile"))


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch") if importlib.util.find_spec("torch") else None
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _torch_has_cuda() -> bool:
    # Importing torch to ask it takes two seconds; its CUDA library is there or not.
    folder = toolchain.package_folder("torch")
    return folder is not None and (folder / "lib" / "libtorch_cuda.so").exists()


CHECKS: dict[str, Callable[[], Check]] = {
    "Python": python,
    "packages": packages,
    "git": git,
    "C++ compiler": host_compiler,
    "ninja": ninja,
    "torch": torch,
    "CUDA compiler": cuda_compiler,
    "cuobjdump, nvdisasm": binary_tools,
    "GPU": nvidia_gpu,
    "torch for CUDA": torch_for_cuda,
    "Nsight Compute": nsight_compute,
    "GPU counters": gpu_counters,
    "compute-sanitizer": compute_sanitizer,
    "isolation": isolation,
    "disk": disk,
    "workflow": workflow,
}
