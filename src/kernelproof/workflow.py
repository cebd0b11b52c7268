"""What the Snakefile asks: the files a stage depends on, and which machine this is.

Parsed at every `snakemake` call, also when there is nothing to do, so everything here costs milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelproof import EVENTS, fingerprints, gpu, manifest, own_modules, toolchain
from kernelproof.config import Config, OperatorConfig, VariantConfig
from kernelproof.errors import RecordError
from kernelproof.processes import SHARED_FROM
from kernelproof.records import (
    DECISIVE_PACKAGES,
    FAILED,
    NOT_RUN,
    BuildRecord,
    Cubin,
    FileHash,
    ManifestRecord,
    Record,
    TestRecord,
    read,
    sha256_file,
)

DRIVER = Path("/proc/driver/nvidia/version")

PACKAGE = Path(__file__).resolve().parent

INCLUDED = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".inc", ".ipp", ".tcc", ".tpp", ".def")  # what sources include

HEAD_BYTES = 4 << 10  # of a record, in which it says how long it took
EVERYBODY = 1000  # of a resource: all that there is; more jobs than this do not run at a time
FIRST = 1_000_000  # a priority above all that are seconds
UNKNOWN_S = 60.0  # what a test takes of which nobody knows

_IMPORT = re.compile(r"^\s*from kernelproof(?:\.([\w.]+))? import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_STARTED = re.compile(r'"kernelproof\.([\w.]+)"')  # "-P", "-m", "kernelproof.worker"


def will_run(arguments: Sequence[str]) -> bool:
    """Whether a call of snakemake is going to make something, and not just to look at the workflow."""
    looks = {"-n", "--dry-run", "--dryrun", "--lint", "--dag", "--rulegraph", "--filegraph", "--summary", "-D"}
    looks |= {"--detailed-summary", "--list-rules", "--list", "-l", "--unlock"}
    return not looks & set(arguments)


def lift_job_rate(workflow: Any) -> None:
    """Let Snakemake's scheduler look at the waiting jobs of a local run when one has ended, and at no other time.

    To keep to its 100 jobs a second it looks again a second after every look, at all inputs of all jobs that wait, and
    each job that ends adds a look of its own: after 60 jobs that is a third of a core. No option turns it off.
    """
    if workflow.local_exec and hasattr(workflow.scheduler, "job_rate_limiter"):
        workflow.scheduler.job_rate_limiter = None


def limit_claims(workflow: Any) -> None:
    """Let nothing that may run on any core (resource `anywhere`) run while a CPU is measured, which claims all of it.

    Said before the rules are, and not in a profile: with one's own profile it has to hold too. Jobs of a cluster are on
    machines of their own.
    """
    if workflow.local_exec:
        workflow.register_resource("anywhere", EVERYBODY)


def compare_plain_parameters() -> None:
    """Have Snakemake compare rules' parameters, which are plain values here, without importing pandas for that.

    Where pandas is installed it does so to look whether one is a table; it is a sixth of the time of a run with nothing
    to do. No option turns it off.
    """
    from snakemake import persistence

    base: Any = getattr(persistence, "PersistenceBase", None)
    if hasattr(base, "_serialize_param_pandas") and hasattr(base, "_serialize_param_builtin"):
        base._serialize_param_pandas = base._serialize_param_builtin


def has_driver() -> bool:
    """Whether this machine has NVIDIA's driver."""
    return DRIVER.exists()


def machine_fingerprint(config: Config) -> str:
    """A hash that changes when a measurement would have to be repeated: CPU, GPU, driver, compiler, Python, packages.

    Those too that a contender asks for or is in: one that was not run for the lack of it can be when it is installed.
    """
    facts: list[str] = [platform.machine(), platform.python_version(), os.environ.get("KERNELPROOF_CUDA_HOME", "")]
    for path in (DRIVER, *sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))):
        facts.append(_text(path))
    facts += re.findall(r"^model name.*$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    facts.append(_host_compiler())
    entries = {variant.entry.partition(":")[0] for variant in config.variants() if variant.entry}
    asked = {re.split(r"[^\w.-]", name)[0] for variant in config.variants() for name in variant.requires}
    asked |= {entry.split(".")[0] for entry in entries if not entry.endswith(".py")}
    facts += _packages({_plain(name) for name in asked})
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _host_compiler() -> str:
    """Which C++ compiler a build would take: another one, or one that is there now, builds again."""
    path = toolchain.host_compiler_path()
    return f"{path} ({path.stat().st_size} bytes)" if path else "absent"


def _packages(asked: Collection[str]) -> list[str]:
    """`torch-2.13.0+cpu` and the like, by the names of their folders: all metadata take 80 ms to read."""
    found: dict[str, str] = {}
    for folder in sys.path:
        for entry in sorted(Path(folder or ".").glob("*-info")):
            name, _, version = entry.stem.partition("-")
            known = _plain(name)
            wanted = known.startswith(DECISIVE_PACKAGES) or known in asked
            if wanted and known not in found:  # what is first on the path is imported
                found[known] = f"{known}-{version or _text(entry / 'PKG-INFO')}"  # what is built in place has it there
    return sorted(found.values())


def _plain(name: str) -> str:
    """A package's name as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sanitizer_identity(variants: Sequence[VariantConfig]) -> str:
    """Which compute-sanitizer a test of these variants would use: one that is installed later makes them run again."""
    from kernelproof.sanitizer import locate

    if not any(variant.device == "cuda" and variant.role == "variant" for variant in variants):
        return ""
    path = locate()
    return f"{path} ({path.stat().st_size} bytes)" if path else "absent"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def module_files(stage: str, operator_module: str | None = None) -> list[str]:
    """The files of kernelproof's module `stage` and of all it imports or starts, and of an operator's module.

    Of a project's own with what that imports of the project's.
    """
    found = _closure(stage)
    own = own_modules.files_of(operator_module, Path()) if operator_module else []
    if operator_module and operator_module.startswith("kernelproof."):
        found = found | _closure(operator_module.removeprefix("kernelproof."))
    return sorted({*(_shown(path) for path in found), *own})


@functools.cache
def module_digest(stage: str, operator_module: str | None = None) -> str:
    """A hash over what `module_files` names."""
    return content_digest(module_files(stage, operator_module))


def content_digest(files: Sequence[str]) -> str:
    """A hash that changes when one of these files does, or when there are others."""
    return hashlib.sha256("\n".join(f"{file} {_sha256(Path(file))}" for file in files).encode()).hexdigest()[:16]


@functools.cache
def _sha256(path: Path) -> str | None:
    """Of a file as this process first saw it; None where there is none."""
    return sha256_file(path) if path.is_file() else None


def template_files() -> list[str]:
    """The templates that the report is rendered from."""
    return sorted(_shown(path) for path in (PACKAGE / "templates").rglob("*.j2"))


@functools.cache
def _closure(module: str) -> frozenset[Path]:
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = _file(waiting.pop())
        if path is None or path in found:
            continue
        found.add(path)
        if path == PACKAGE / "ladder" / "__init__.py":  # pytest imports some that nobody else does
            waiting += [f"ladder.{other.stem}" for other in path.parent.glob("*.py") if other != path]
        waiting += _imports(path)
    return frozenset(found)


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    text = path.read_text(encoding="utf-8")
    names = [match.group(1) for match in _STARTED.finditer(text)]
    for match in _IMPORT.finditer(text):
        package = match.group(1)
        imported = re.findall(r"\w+", re.sub(r"\bas \w+|#.*", "", match.group(2)))
        names += [package] if package else []
        names += [f"{package}.{name}" if package else name for name in imported]
    return tuple(names)


@functools.cache
def _file(module: str) -> Path | None:
    path = PACKAGE.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _shown(path: Path) -> str:
    return os.path.relpath(path)


def source_files(operator: OperatorConfig, variant: VariantConfig) -> list[str]:
    """A variant's sources, and those of the rungs that its library holds too."""
    parts = [variant, *(operator.variant(name) for name in variant.rungs)]
    return [source for part in parts for source in part.sources]


def binding_files(operator: OperatorConfig, variant: VariantConfig) -> list[str]:
    """The binding and every header that a variant's sources may include.

    Too many on purpose: the build stage knows from the compiler which were read, and keeps a build that is current. And
    too few, for any file can be included: see `drop_stale_records`.
    """
    if not variant.sources:
        return []
    files = [operator.binding] if operator.binding and variant.abi == "tvm_ffi" else []
    folders = {*operator.include, *(os.path.dirname(source) for source in source_files(operator, variant))}
    for folder in folders:
        files += [str(p) for p in Path(folder).rglob("*") if p.suffix in INCLUDED]
    return sorted(set(files))


@dataclass(frozen=True)
class Job:
    """What one command of a stage goes through: variants of one operator. priority: higher is started first."""

    name: str
    operator: OperatorConfig
    variants: list[VariantConfig]
    priority: int

    @property
    def arguments(self) -> str:
        """`--variant first --variant second`."""
        return " ".join(f"--variant {variant.name}" for variant in self.variants)

    @property
    def on_gpu(self) -> bool:
        """Whether it is about a kernel for a GPU; a job's variants are all for one device, or are not run."""
        return any(variant.device == "cuda" for variant in self.variants)


def build_jobs(config: Config, *, driver: bool) -> list[Job]:
    """One job for each variant with sources, and one an operator for those without."""
    jobs: list[Job] = []
    for operator in config.operators.values():
        everything = [*operator.variants.values(), *operator.baselines.values()]
        jobs += [_job(config, operator, v.name, [v], driver) for v in everything if v.sources]
        if callables := [v for v in everything if not v.sources]:
            jobs.append(_job(config, operator, "callables", callables, driver))
    return _named_apart(jobs)


def test_jobs(config: Config, *, driver: bool) -> list[Job]:
    """One job for each variant, and one for the baselines of an operator on the CPU.

    With an NVIDIA driver each baseline on the GPU is a job of its own: libraries that compile or search while they are
    called (cuDNN, Triton) would keep the others waiting for most of a minute. Without one, what an operator has for a
    GPU is one job, which says of each that there is none.
    """
    jobs: list[Job] = []
    for operator in config.operators.values():
        together: dict[str, list[VariantConfig]] = {}
        for variant in (*operator.variants.values(), *operator.baselines.values()):
            name = variant.name
            if variant.device == "cuda" and not driver:
                name = "on_gpu"
            elif variant.device == "cpu" and variant.role == "baseline":
                name = "baselines_cpu"
            together.setdefault(name, []).append(variant)
        jobs += [_job(config, operator, name, variants, driver) for name, variants in together.items()]
    return _named_apart(jobs)


def _named_apart(jobs: Sequence[Job]) -> list[Job]:
    """Jobs with a number where names are the same: of `norm_rows` in operator `l1`, say, and `rows` in `l1_norm`."""
    taken = Counter[str]()
    found = []
    for job in jobs:
        taken[job.name] += 1
        found.append(job if taken[job.name] == 1 else replace(job, name=f"{job.name}.{taken[job.name]}"))
    return found


def announce(config: Config, *, driver: bool) -> None:
    """Tell the progress display which jobs are not one piece of work, and how wide the names are: the first event."""
    jobs = {f"build_{job.name}": job for job in build_jobs(config, driver=driver)}
    jobs |= {f"test_{job.name}": job for job in test_jobs(config, driver=driver)}
    pieces = {"report": 0} | {rule: len(job.variants) for rule, job in jobs.items() if len(job.variants) != 1}
    line = {"t": time.time(), "stage": "workflow", "subject": config.project, "event": "plan", "pid": os.getpid()}
    line |= {"pieces": pieces, "width": max((len(variant.key) for variant in config.variants()), default=0)}
    with open(os.environ[EVENTS], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def _job(config: Config, operator: OperatorConfig, name: str, variants: list[VariantConfig], driver: bool) -> Job:
    """First comes what takes longest, so that nobody waits for it in the end; without a GPU that is on the CPU."""
    tested = [variant for variant in variants if driver or variant.device == "cpu"]
    priority = round(sum(_tested_in_s(config, variant) for variant in tested))
    return Job(f"{operator.name}_{name}", operator, variants, priority)


def _tested_in_s(config: Config, variant: VariantConfig) -> float:
    """What a variant's test took: by the last run's record, else by one that is kept, else unknown and taken for long.

    Only the head of the record is read: it can be large, and all are looked at whenever the workflow is.
    """
    kept = config.root.glob(f"reports/reference/*/records/test/{variant.key}.json")
    for path in (config.record("test", variant.operator, variant.name), *sorted(kept)):
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as stream:
            if found := re.search(r'"duration_s": ([\d.]+)', stream.read(HEAD_BYTES)):
                return float(found[1])
    return UNKNOWN_S


def test_threads(cores: int | None, *, driver: bool) -> int:
    """Cores that one test job claims: four tests run beside each other, and with a GPU one more, on the CPU.

    More on a GPU are slower: its contexts take turns, and each call of a test waits for several of its own. The
    resources `gpu_tests` and `cpu_tests` say so as well, limited in workflow/profiles/default. Four leave less than
    half the cores, which a profile claims.
    """
    count = cores or 1
    return max(count // 5, count // 8 + 1) if driver else max(1, count // 4)


def measuring_threads(cores: int | None, device: str) -> int:
    """Cores that a measurement claims: all, or with several GPUs one's share; leases keep those apart.

    Where there is no GPU no kernel is timed on one: to write a record that says so takes no more than its own core.
    Where there is one, and cores for both (`processes.cores_beside`), those who measure on a CPU and those who do on
    GPUs are beside each other: of these two for each board, of which one gets ready while the other measures.
    """
    count = cores or 1
    if not gpu.available()[0]:
        return 1 if device == "cuda" else count
    beside = count >= SHARED_FROM
    if device == "cpu":
        return 1 if beside else count  # what is not to run meanwhile is kept away by the resource `anywhere`
    boards = max(1, len(gpu.visible()))
    return max(1, (count - 1) // (2 * boards) if beside else count // boards)


def drop_stale_records(config: Config, folder: Path) -> None:
    """Remove every record whose chain has to be made again, of which Snakemake would not know.

    It was made by hand with other settings, its test did not end, its build was stopped by the machine or read other
    bytes than its files have now: the record knows what the compiler read, whatever its name and wherever it lies, and
    the file of a Python variant. Or a build's library or a cubin is not what was made. The run's manifest and the
    receipt of its bundle, in `folder`, go too.
    """
    ends = [config.record("manifest", folder.name), folder / "bundle.json"]
    made: list[tuple[str, str, type[Record]]] = [("manifest", folder.name, ManifestRecord), *manifest.expected(config)]
    for stage, subject, kind in made:
        path = config.record(stage, *subject.split("/"))
        with contextlib.suppress(RecordError):  # of one that cannot be read its stages tell
            record = read(path, kind)
            others = fingerprints.changed(record.settings, fingerprints.of(config, stage, subject))
            if others or _is_unfinished(record) or _is_outdated(config, path, record):
                for stale in (path, *ends):
                    stale.unlink(missing_ok=True)


def _is_unfinished(record: Record) -> bool:
    """Whether a test was cut short, or the machine stopped a compiler."""
    match record:
        case TestRecord():
            return record.status == FAILED and record.verdict == NOT_RUN
        case BuildRecord():
            return record.status == NOT_RUN and record.compiler_message is not None
    return False


def _is_outdated(config: Config, path: Path, build: Record) -> bool:
    """Whether files that a build read or made have other bytes than they had then."""
    if not isinstance(build, BuildRecord):
        return False
    # To a compiler's and a system's (<…>) the build and the machine's fingerprint see.
    known = [file for file in build.files if not file.path.startswith("<")]
    made = [file for file in (build.library, *build.cubins) if file]
    return any(_is_damaged(config.root / file.path, file, path) for file in made) or any(
        _sha256(config.root / file.path) != file.sha256 for file in known
    )


def _is_damaged(path: Path, known: FileHash | Cubin, record: Path) -> bool:
    """Whether a file is not what a record says; the bytes are only looked at where it is newer than the record."""
    try:
        status = path.stat()
    except OSError:
        return True
    if known.bytes not in (None, status.st_size):
        return True
    return status.st_mtime_ns > record.stat().st_mtime_ns and sha256_file(path) != known.sha256


def drop_orphaned_receipt(folder: Path) -> None:
    """Remove a bundle's receipt when the tarball that it names is gone, so that both are made again."""
    receipt = folder / "bundle.json"
    try:
        tarball = json.loads(receipt.read_text(encoding="utf-8"))["tarball"]
    except (OSError, ValueError, KeyError):
        return
    if not (folder / Path(tarball).name).is_file():
        receipt.unlink()
