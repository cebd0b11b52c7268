"""The build stage: one variant, from an empty folder, kept under the signature of everything that went into it.

results/store/
    build/<signature>/      lib.so, <arch>.cubin, <arch>.sass, build.json; renamed into place when complete
    object/<signature>/     one source compiled: its object, and of CUDA its cubins; a dispatcher shares its rungs'
    binding/<signature>/    binding.o of an operator, shared by its variants
    <kind>/index/<key>/     empty files named like signatures: what was built from this key
    toolkit-<fingerprint>   link to the CUDA toolkit, so that no path of this machine gets into machine code
    tmp-…/                  a build under way; never used, removed by the next build if its owner is dead

Which headers a source includes is known only after compiling it. So a lookup goes by *key* (source bytes, macros,
flags, archs, compilers); of the builds kept under it, the one whose recorded headers are unchanged is the one; and
before it is used, each of its files is compared with its recorded SHA-256.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelproof import fingerprints, own_modules, records, repository, sass, toolchain
from kernelproof.config import Config, OperatorConfig, VariantConfig
from kernelproof.errors import BuildError, ToolError
from kernelproof.privacy import scrubbed
from kernelproof.processes import run as run_process
from kernelproof.records import BudgetRow, BuildRecord, Cubin, FileHash, sha256_file
from kernelproof.repository import HERE

FORMAT = 7  # of what is kept; a change makes all earlier builds unused
TIME_LIMIT_S = 900.0
UNSEEN = re.compile(rb"\.incbin\b|#\s*embed\b|\b__has_(?:include|embed)\b|\.include\b(?=\s*\\?\")")
MESSAGE_LINES = 16

# Hidden but for what a binding exports: the loader makes one of all variables of a name that are static in inline
# functions, whatever library they are in, and contenders are loaded beside each other.
OF_A_LIBRARY = ["-fPIC", "-fvisibility=hidden"]
OF_CUDA = ",".join([*OF_A_LIBRARY, f"-ffile-prefix-map={HERE}="])
CUDA_FLAGS = ["-O3", "-lineinfo", "-Xptxas", "-v", "-Xcompiler", OF_CUDA]
HOST_FLAGS = ["-O3", *OF_A_LIBRARY]
AS_C = ["-x", "c"]  # the C++ compiler's driver makes the C compiler beside it read what follows
STANDARDS = {"c": "-std=gnu17", "c++": "-std=c++20"}  # strict C knows no M_PI, and contracts no products into sums
BINDING_FLAGS = ["-O2", *OF_A_LIBRARY, "-std=c++17"]


SOURCE_SUFFIXES = (".cc", ".cpp", ".cxx", ".c++", ".C", ".c", ".cu")
# With these a compiler ends well and makes no object, or no library.
OTHER_MODES = frozenset("-E -S -c -M -MM -fsyntax-only -### --help --version -dumpversion -dumpmachine".split())


def run(
    config: Config, operator: str, variant: str, output: Path, cuda_home: Path | None = None, cores: int | None = None
) -> BuildRecord:
    """Build one variant and write its record to `output`, its log beside it.

    A variant that does not compile gives a record with status `failed`, a missing tool one with `not_run` and the
    remedy. Raises ConfigError for an unknown name and BuildError when the results cannot be written.
    """
    try:
        return _run(config, operator, variant, output, cuda_home, cores or len(os.sched_getaffinity(0)))
    except OSError as error:
        step = (
            "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the path and its permissions"
        )
        raise BuildError(
            f"the build cannot be kept: {error.strerror}",
            subject=str(error.filename or f"{operator}/{variant}"),
            hint=f"{step} and run the same command again",
        ) from None


def _run(config: Config, operator: str, variant: str, output: Path, cuda_home: Path | None, cores: int) -> BuildRecord:
    started = time.monotonic()
    owner = config.operator(operator)
    chosen = owner.variant(variant)
    log = Log()
    record = BuildRecord(
        settings=fingerprints.of(config, "build", chosen.key),
        operator=operator,
        variant=variant,
        role=chosen.role,
        device=chosen.device,
        abi=chosen.abi,
        macros=dict(chosen.macros),
        flags=list(chosen.flags),
    )
    try:
        record = _attempt(config, owner, chosen, record, log, cuda_home, cores)
    except Unbuildable as problem:
        record.status, record.reason, record.remedy = problem.status, problem.reason, problem.remedy
        record.compiler_message = problem.compiler_message
        log.say(f"{problem.status}: {problem.reason}")
    except ToolError as error:
        record.status, record.remedy = records.NOT_RUN, error.hint
        record.reason = scrubbed(f"{error.subject}: {error.message}" if error.subject else error.message)
        log.say(f"not run: {record.reason}")
    read = [file.path for file in (*record.sources, *record.headers)]
    record.provenance = repository.of_files(config.root, [*read, *filter(None, [owner.binding])])
    record.duration_s = round(time.monotonic() - started, 3)
    log_path = output.with_suffix(".log")
    records.atomic_write(log_path, log.text())
    record.log = _relative(log_path, config.root)
    records.write(output, record)
    return record


FULL_DISK = os.strerror(errno.ENOSPC)  # a compiler on a full disk says this, and fails as if the source were wrong
SPACE_BYTES = 1 << 20  # with less than this free a failed compilation proves nothing
# What compilers say who get no memory, or are killed by the system because there is none.
OUT_OF_MEMORY = re.compile(
    r"^(?:[^\s:]+: fatal error: (?:Killed signal terminated program|ld terminated with signal 9\b)"
    r"|nvcc error\s*: '\w+' died due to signal 9\b|[^\s:]+: out of memory allocating \d+ bytes|virtual memory exhausted"
    r"|LLVM ERROR: out of memory|ptxas fatal\s*: Memory allocation failure).*",
    re.MULTILINE,
)


class Unbuildable(Exception):
    """This variant cannot be built here; the others can."""

    def __init__(
        self,
        reason: str,
        *,
        status: str = records.FAILED,
        remedy: str | None = None,
        compiler_message: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.status, self.remedy, self.compiler_message = reason, status, remedy, compiler_message


class Log:
    """The build's log in memory, scrubbed when it is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Add a line or several."""
        self.lines.append(text.rstrip("\n"))

    def text(self) -> str:
        """The whole log without names of this machine."""
        return scrubbed(without_here("\n".join(self.lines) + "\n"))


def _attempt(
    config: Config,
    owner: OperatorConfig,
    variant: VariantConfig,
    record: BuildRecord,
    log: Log,
    cuda_home: Path | None,
    cores: int,
) -> BuildRecord:
    """Reuse or make a build. Raises Unbuildable or ToolError."""
    root = config.root.resolve()
    record.sources = _hash_sources(root, _source_names(variant, root))
    if variant.abi == "python":
        record.signature = _digest([FORMAT, variant.entry, _plain(record.sources), _version_of("torch")])
        return record
    plan = _plan(config, owner, variant, record.sources, cuda_home, cores)
    record.sources = [source for each in plan.parts for source in each.sources]
    record.archs = plan.archs
    record.compiler = plan.cuda.compiler() if plan.cuda else None
    record.host_compiler = plan.host.compiler()
    store = Store(plan.store, "build", plan.places, log)
    bindings = Store(plan.store, "binding", plan.places, log)
    store.sweep()
    binding = bindings.find(plan.binding_key) if plan.binding else None
    extra = binding.signature if binding else ""
    entry = store.find(plan.key, extra) if binding or not plan.binding else None
    if entry is None:
        entry = _build(plan, store, bindings, binding, log)
    else:
        log.say(f"reused {entry.signature}: sources, {len(entry.headers)} headers, tools and files are unchanged")
        log.say(entry.facts["log"])
    return _fill(record, entry, plan, variant)


def _fill(record: BuildRecord, entry: Entry, plan: Plan, variant: VariantConfig) -> BuildRecord:
    """The record of this variant from what is kept of its build."""
    folder = _relative(entry.folder, plan.root)
    record.signature = entry.signature
    record.headers = _summarised(entry.headers)
    if plan.binding:
        record.binding = [plan.binding, *_summarised(entry.facts["binding"]["headers"])]
        record.binding_code_sha256 = entry.facts["binding"]["host"]
    own_files = [*(source.path for source in plan.sources), *(h for h in entry.headers if not h.startswith("<"))]
    words = {word for name in own_files for word in re.findall(rb"\w+", (plan.root / name).read_bytes())}
    record.unread_macros = [name for name in variant.macros if name.encode() not in words]
    record.commands = list(entry.facts["commands"])
    record.host_code_sha256 = entry.facts["host_code_sha256"]
    library = FileHash(**entry.facts["library"])
    record.library = dataclasses.replace(library, path=f"{folder}/{library.path}")
    record.cubins = [records.from_json(Cubin, cubin) for cubin in entry.facts["cubins"]]
    for cubin in record.cubins:
        cubin.path = f"{folder}/{cubin.path}"
    record.advice = sass.parse_advice(entry.facts["log"])
    record.warnings = warnings_in(entry.facts["log"])
    # A rung's kernels are held to the rung's own budget, where it is a variant by itself.
    own = len(plan.archs) * sum(_is_cuda(source) for source in plan.sources)
    record.budget = budget_rows(variant, record.cubins[:own])
    return record


def budget_rows(variant: VariantConfig, cubins: Sequence[Cubin]) -> list[BudgetRow]:
    """Each kernel's registers, static shared memory (bytes) and spills (bytes stored and loaded) against the budget."""
    rows = []
    for cubin in cubins:
        for kernel in cubin.kernels:
            spill_bytes = kernel.spill_store_bytes + kernel.spill_load_bytes
            for what, limit, value in (
                ("registers", variant.budget.registers, kernel.registers),
                ("shared_bytes", variant.budget.shared_bytes, kernel.shared_bytes),
                ("spill_bytes", variant.budget.spill_bytes, spill_bytes),
            ):
                rows.append(BudgetRow(cubin.arch, kernel.demangled, what, limit, value, value <= limit))
    return rows


# --- what goes into a build -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Everything that a build depends on and that is known before it starts. Paths are relative to the root."""

    root: Path
    store: Path  # absolute
    variant: VariantConfig
    archs: list[str]
    sources: list[FileHash]
    include: list[str]
    binding: FileHash | None
    host: toolchain.HostCompiler
    cuda: toolchain.CudaToolchain | None
    toolkit: str | None  # the link to cuda.home
    places: Places
    target: str  # what -march=native means here
    cores: int
    rungs: list[Plan] = field(default_factory=list)  # of a dispatcher: each compiled as it is by itself

    @property
    def parts(self) -> list[Plan]:
        """All that the library is made of: this plan and its rungs'."""
        return [self, *self.rungs]

    @property
    def key(self) -> str:
        """A hash over all of it but the headers' contents."""
        return _digest([part.key_of(part.sources) for part in self.parts])

    def key_of(self, sources: Sequence[FileHash]) -> str:
        """The same for some sources of the variant."""
        variant = self.variant
        return _digest(
            [
                FORMAT,
                variant.abi,
                variant.device,
                _plain(sources),
                macro_flags(variant.macros),
                variant.flags,
                self.archs,
                self.include,
                [CUDA_FLAGS, HOST_FLAGS, AS_C, STANDARDS],
                self.cuda.fingerprint if self.cuda else None,
                self.host.fingerprint,
                self.target,
                _version_of("torch") if variant.abi == "torch" else None,
            ]
        )

    @property
    def binding_key(self) -> str:
        """The same for the operator's binding object, which no variant's macro reaches."""
        binding = self.binding
        return _digest([FORMAT, binding and _plain([binding]), self.include, BINDING_FLAGS, self.host.fingerprint])


def _plan(
    config: Config,
    owner: OperatorConfig,
    variant: VariantConfig,
    sources: list[FileHash],
    cuda_home: Path | None,
    cores: int,
) -> Plan:
    root, store = config.root.resolve(), config.results.resolve() / "store"
    tools = store / "tools.json"
    host = toolchain.find_host_compiler(tools)
    cuda = toolchain.find_cuda(cuda_home, tools) if variant.device == "cuda" else None
    archs = _archs(config, variant) if cuda else []
    places = Places(root)
    toolkit = None
    if cuda:
        toolkit = _link_toolkit(cuda, store, root)
        places.add("<toolkit>", cuda.home, root / toolkit)
    binding = None
    if variant.abi == "tvm_ffi":
        places.add("<tvm_ffi>", toolchain.tvm_ffi_folder())
        if owner.binding is None:
            raise Unbuildable(f"operator {owner.name} names no binding, which abi tvm_ffi needs")
        binding = _hash_sources(root, [owner.binding])[0]
    else:
        places.add("<torch>", _torch_folder(variant))
        places.add("<python>", Path(sysconfig.get_path("include")))
    target = toolchain.resolved_target(host, variant.flags)
    include = list(owner.include)
    plan = Plan(root, store, variant, archs, sources, include, binding, host, cuda, toolkit, places, target, cores)
    return dataclasses.replace(plan, rungs=[_rung_plan(config, plan, owner.variant(name)) for name in variant.rungs])


def _archs(config: Config, variant: VariantConfig) -> list[str]:
    archs = toolchain.resolve_archs(variant.archs or config.archs)
    if not archs:
        raise Unbuildable(
            "archs lists only 'native', and there is no GPU here",
            status=records.NOT_RUN,
            remedy="name an architecture in archs, e.g. sm_90a",
        )
    return archs


def _rung_plan(config: Config, plan: Plan, rung: VariantConfig) -> Plan:
    """The plan of a variant that a dispatcher's library holds too: its own sources, flags, macros and architectures."""
    return dataclasses.replace(
        plan,
        variant=rung,
        archs=_archs(config, rung) if plan.cuda else [],
        sources=_hash_sources(plan.root, rung.sources),
        target=toolchain.resolved_target(plan.host, rung.flags),
    )


def _torch_folder(variant: VariantConfig) -> Path:
    folder = toolchain.package_folder("torch")
    if folder is None:
        raise ToolError(
            "torch is missing, and abi torch compiles against it", subject="torch", hint="pip install torch"
        )
    if variant.device == "cuda" and not (folder / "lib" / "libtorch_cuda.so").is_file():
        raise ToolError(
            "this PyTorch is built without CUDA, and abi torch with device cuda needs it",
            subject="torch",
            hint="install a CUDA build of PyTorch (envs/torch-cuda.txt)",
        )
    return folder


def _source_names(variant: VariantConfig, root: Path) -> list[str]:
    """The files that a variant is made of, its own first; of a Python callable's module what that imports of them.

    Of one that can import more than its text says, all Python files beside it.
    """
    names = list(variant.sources)
    module = variant.entry.rpartition(":")[0]
    if variant.abi != "python" or not module or names:
        return names
    if module.startswith("kernelproof."):
        ours = [f"{prefix}{module.replace('.', '/')}.py" for prefix in ("", "src/")]
        return [name for name in ours if (root / name).is_file()]
    for folder in (root, root / "src"):
        if first := own_modules.file_of(module, folder):
            names = [str((folder / name).relative_to(root)) for name in own_modules.files_of(module, folder)]
            names.sort(key=str((folder / first).relative_to(root)).__ne__)
            break
    if any(own_modules.may_import_more(root / name) for name in names):
        beside = [path for name in names for path in sorted((root / name).parent.glob("*.py"))]
        names += dict.fromkeys(name for path in beside if (name := str(path.relative_to(root))) not in names)
    return names


def _hash_sources(root: Path, names: Sequence[str]) -> list[FileHash]:
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise Unbuildable(
            f"source file {missing[0]} does not exist", remedy="correct the path in config.yaml, or restore the file"
        )
    return [records.file_hash(root, name) for name in names]


def macro_flags(macros: dict[str, Any]) -> list[str]:
    """Macros as compiler flags: `-DNAME=VALUE`, true and false as 1 and 0, a null as `-DNAME`."""
    flags = []
    for name, value in sorted(macros.items()):
        text = "" if value is None else f"={int(value) if isinstance(value, bool) else value}"
        flags.append(f"-D{name}{text}")
    return flags


def _link_toolkit(cuda: toolchain.CudaToolchain, store: Path, root: Path) -> str:
    """A link to the toolkit below the root, named by what the toolkit is and not by where it lies."""
    link = store / f"toolkit-{cuda.fingerprint[:12]}"
    store.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink() or link.readlink() != cuda.home:
        temporary = link.with_name(f".{link.name}.{os.getpid()}.{threading.get_ident()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(cuda.home)
        temporary.replace(link)
    return _relative(link, root)


class Places:
    """Names for files that mean the same on every machine: `csrc/a.h`, `<toolkit>/include/b.h`, `<system>/usr/…`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: dict[str, Path] = {}
        self.aliases: list[tuple[str, str]] = []

    def add(self, name: str, folder: Path, *aliases: Path) -> None:
        """Call `folder` (also known as `aliases`) by a name in angle brackets."""
        self.folders[name] = folder
        self.aliases += [(f"{path}/", f"{name}/") for path in (*aliases, folder, folder.resolve())]

    def named(self, path: str) -> str:
        """The name of a file as a compiler wrote its path."""
        absolute = os.path.normpath(self.root / path.removeprefix(HERE))
        for prefix, name in (*self.aliases, (f"{self.root}/", "")):
            if absolute.startswith(prefix):
                return name + absolute[len(prefix) :]
        return f"<system>{absolute}"

    def path(self, name: str) -> Path:
        """The file of a name that `named` gave."""
        if name.startswith("<system>"):
            return Path(name.removeprefix("<system>"))
        place, _, rest = name.partition("/")
        return self.folders[place] / rest if place in self.folders else self.root / name

    def shown(self, text: str) -> str:
        """A command line with names in place of paths."""
        for prefix, name in self.aliases:
            text = re.sub(
                re.escape(prefix.rstrip("/")) + r"(?=[/=:'\"\s]|$)", name.rstrip("/"), text, flags=re.MULTILINE
            )
        text = text.replace(f"{self.root}/", "")
        return without_here(text)


def without_here(text: str) -> str:
    """The text with paths below the repository as relative ones."""
    return re.sub(re.escape(HERE) + r"(?=[\w.<])", "", text)


# --- what is kept -----------------------------------------------------------------------------------------------------


@dataclass
class Entry:
    """Something kept: its folder, signature, every header that went into it by name, and the facts about it."""

    folder: Path
    signature: str
    headers: dict[str, str]  # name → SHA-256
    facts: dict[str, Any]


class Store:
    """Finished builds of one kind, found by key and used only when whole and current."""

    def __init__(self, base: Path, kind: str, places: Places, log: Log) -> None:
        self.base, self.folder, self.places, self.log = base, base / kind, places, log
        self.kind = kind

    def find(self, key: str, extra: str = "") -> Entry | None:
        """The build of this key whose headers are unchanged and whose files are intact, if there is one."""
        for marker in sorted((self.folder / "index" / key).glob("*")):
            folder = self.folder / marker.name
            entry, damage = self._load(folder)
            if entry is None:
                self.log.say(f"the kept {self.kind} {marker.name} is damaged: {damage}; it is removed and built again")
                shutil.rmtree(folder, ignore_errors=True)
                marker.unlink(missing_ok=True)
            elif unseen := entry.facts["unseen"]:
                self.log.say(f"the kept {self.kind} {entry.signature} is not reused: {unseen}")
            elif entry.facts["extra"] == extra and self._headers_unchanged(entry):
                return entry
        return None

    def _load(self, folder: Path) -> tuple[Entry | None, str]:
        """What is kept in a folder, or None and what is wrong with it."""
        try:
            stored = json.loads((folder / "build.json").read_text(encoding="utf-8"))
            if stored.pop("digest") != _digest(stored):
                return None, "build.json does not have its recorded digest"
            for name, expected in stored["files"].items():
                path = folder / name
                if not path.is_file():
                    return None, f"{name} is missing"
                if sha256_file(path) != expected:
                    return None, f"{name} does not have its recorded SHA-256"
            return Entry(folder, folder.name, stored["headers"], stored["facts"]), ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return None, f"its build.json cannot be used ({type(error).__name__})"

    def _headers_unchanged(self, entry: Entry) -> bool:
        for name, expected in entry.headers.items():
            path = self.places.path(name)
            if not path.is_file() or sha256_file(path) != expected:
                self.log.say(f"the kept {self.kind} {entry.signature} is of another {name}")
                return False
        return True

    def keep(
        self, temporary: Path, files: Sequence[str], key: str, headers: dict[str, str], facts: dict[str, Any]
    ) -> Entry:
        """Move a finished build's files into place, all at once."""
        made = {name: sha256_file(temporary / name) for name in files}
        # What files the compiler does not tell of are like is known by what came of them alone.
        signature = _digest([key, headers, facts["extra"], *([made] if facts["unseen"] else [])])
        finished = Path(tempfile.mkdtemp(prefix="finished-", dir=temporary))
        for name in files:
            (temporary / name).rename(finished / name)
        payload = {"headers": headers, "facts": facts, "files": made}
        text = json.dumps({**payload, "digest": _digest(payload)}, indent=1, sort_keys=True)
        records.atomic_write(finished / "build.json", text + "\n")
        finished.chmod(0o755)
        folder = self.folder / signature
        folder.parent.mkdir(parents=True, exist_ok=True)
        entry = Entry(folder, signature, headers, facts)
        try:
            finished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            entry = self._load(folder)[0] or self._replace(entry, finished, temporary)
        marker = self.folder / "index" / key / signature
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        return entry

    def _replace(self, entry: Entry, finished: Path, temporary: Path) -> Entry:
        """Put a build in the place of a damaged one that no key led to."""
        entry.folder.rename(temporary / "replaced")
        finished.rename(entry.folder)
        return entry

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder for a build, on the same file system; gone afterwards. The lock in it says that we live."""
        with contextlib.ExitStack() as ends:
            with self._handing_out():
                folder = Path(tempfile.mkdtemp(prefix="tmp-", dir=self.base))
                ends.callback(shutil.rmtree, folder, ignore_errors=True)
                fcntl.flock(ends.enter_context((folder / ".lock").open("w")), fcntl.LOCK_EX)
            yield folder

    def sweep(self) -> None:
        """Remove what builds left that were killed: their lock went with them."""
        with self._handing_out():
            for folder in self.base.glob("tmp-*"):
                with contextlib.suppress(OSError):
                    with (folder / ".lock").open() as lock:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                    self.log.say(f"removed {folder.name}, left by a build that was killed")

    @contextlib.contextmanager
    def _handing_out(self) -> Iterator[None]:
        """Nobody sweeps between the making of a folder and its lock."""
        self.base.mkdir(parents=True, exist_ok=True)
        with (self.base / ".tmp.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """One process at a time for this key."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f".{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


# --- compiling --------------------------------------------------------------------------------------------------------


@dataclass
class Edge:
    """One step of a build: a shell command line that makes `outputs` from `inputs` (all relative to the root)."""

    what: str
    command: str
    inputs: list[str]
    outputs: list[str]
    log: str
    depfile: str | None = None


@dataclass
class Steps:
    """The steps that make one object, and of CUDA the machine code by arch."""

    target: str
    edges: list[Edge] = field(default_factory=list)
    cubins: list[tuple[str, str, str]] = field(default_factory=list)  # arch, cubin, sass


def _build(plan: Plan, store: Store, bindings: Store, binding: Entry | None, log: Log) -> Entry:
    """Compile, link and analyse one variant. Raises Unbuildable with the compiler's message when that fails."""
    with store.scratch() as temporary, ThreadPoolExecutor(1) as beside:
        pending = beside.submit(_binding, plan, bindings, log) if plan.binding and binding is None else None
        kept = Store(plan.store, "object", plan.places, log)
        objects = [_object(part, source, kept, log) for part in plan.parts for source in part.sources]
        binding = pending.result() if pending else binding
        link = _link_step(plan, objects, binding, temporary)
        shown = _shown_places(plan, temporary)
        _ninja(plan, [link], temporary, "link", shown, log)
        facts, files = _facts(plan, objects, link, temporary)
        facts["commands"] = [
            *(line for entry in objects for line in entry.facts["commands"]),
            shown.shown(link.command),
        ]
        facts["extra"] = binding.signature if binding else ""
        if binding:
            facts["binding"] = {"headers": binding.headers, "host": binding.facts["host"]}
        facts["log"] = log.text()
        parts = [*objects, binding] if binding else objects
        facts["unseen"] = next((part.facts["unseen"] for part in parts if part.facts["unseen"]), "")
        headers = {name: digest for entry in objects for name, digest in entry.headers.items()}
        entry = store.keep(temporary, files, plan.key, dict(sorted(headers.items())), facts)
    log.say(f"built {entry.signature}")
    return entry


def _object(plan: Plan, source: FileHash, store: Store, log: Log) -> Entry:
    """One source, compiled with a variant's settings: once, by whichever build comes first."""
    key, started_ns = plan.key_of([source]), time.time_ns()
    with store.locked(key):
        if (entry := store.find(key)) is not None:
            log.say(f"took {entry.signature}: the object of {source.path}\n{entry.facts['log']}")
            return entry
        with store.scratch() as temporary:
            steps, said = _compile_steps(plan, source, temporary), Log()
            shown = _shown_places(plan, temporary)
            try:
                _ninja(plan, steps.edges, temporary, "compile", shown, said)
            finally:
                log.say(said.text())
            headers = _headers(plan, steps.edges, started_ns, [source])
            cubins = [_cubin(plan, steps.target, *step) for step in steps.cubins]
            data = (plan.root / steps.target).read_bytes()
            facts = {
                "object": Path(steps.target).name,
                "cubins": [dataclasses.asdict(cubin) for cubin in cubins],
                "host": sass.host_code_sha256(data, constants=not _is_cuda(source)),
                "commands": [shown.shown(edge.command) for edge in steps.edges],
                "log": said.text(),
                "extra": "",
                "unseen": _unseen(plan, [source.path, *headers]),
            }
            made = [path for _, cubin, listing in steps.cubins for path in (cubin, listing)]
            return store.keep(temporary, [Path(path).name for path in (steps.target, *made)], key, headers, facts)


def _shown_places(plan: Plan, temporary: Path) -> Places:
    """Names for what a log shows: the plan's, and `<build>` for the folder of a build under way."""
    shown = Places(plan.root)
    shown.aliases = [*plan.places.aliases, (f"{_relative(temporary, plan.root)}/", "<build>/")]
    return shown


def _binding(plan: Plan, store: Store, log: Log) -> Entry:
    """The operator's binding object: compiled once, by whichever build comes first."""
    assert plan.binding is not None
    started_ns = time.time_ns()
    with store.locked(plan.binding_key):
        if (entry := store.find(plan.binding_key)) is not None:
            return entry
        with store.scratch() as temporary:
            step = _host_step(plan, plan.binding.path, _relative(temporary / "binding.o", plan.root), BINDING_FLAGS, [])
            _ninja(plan, [step], temporary, "binding", _shown_places(plan, temporary), log)
            headers = _headers(plan, [step], started_ns, [plan.binding])
            code = sass.host_code_sha256((temporary / "binding.o").read_bytes(), constants=True)
            facts = {"extra": "", "unseen": _unseen(plan, [plan.binding.path, *headers]), "host": code}
            return store.keep(temporary, ["binding.o"], plan.binding_key, headers, facts)


def _compile_steps(plan: Plan, source: FileHash, temporary: Path) -> Steps:
    folder = _relative(temporary, plan.root)
    steps = Steps(f"{folder}/{Path(source.path).stem}.o")
    if _is_cuda(source):
        steps.edges.append(_cuda_step(plan, source.path, steps.target))
        _machine_code_steps(plan, steps, folder)
    else:
        language = "c" if source.path.endswith(".c") else "c++"
        # An nvcc option would not be understood here; a CUDA variant's flags are for its .cu files.
        flags = plan.variant.flags if plan.variant.device == "cpu" else []
        flags = [flag for flag in flags if not re.match("--?std=", flag) or ("++" in flag) == (language == "c++")]
        standard = [] if _sets_standard(flags) else [STANDARDS[language]]
        more = [*macro_flags(plan.variant.macros), *flags, *(AS_C if language == "c" else [])]
        steps.edges.append(_host_step(plan, source.path, steps.target, [*HOST_FLAGS, *standard], more))
    return steps


def _is_cuda(source: FileHash) -> bool:
    return source.path.endswith(".cu")


def _cuda_step(plan: Plan, source: str, target: str) -> Edge:
    """One nvcc call for all archs. `--keep` gives temporary files fixed names, which otherwise get into the object."""
    assert plan.cuda is not None
    keep = f"{target}.keep"
    archs = [f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}" for arch in plan.archs]
    standard = [] if _sets_standard(plan.variant.flags) else ["-std=c++17"]
    command = [
        f"{HERE}{plan.toolkit}/bin/nvcc", "-ccbin", str(plan.host.path), *CUDA_FLAGS, *standard, *archs,
        "--threads", str(max(1, min(len(plan.archs), plan.cores))),
        *macro_flags(plan.variant.macros), *_includes(plan, HERE), *_torch_flags(plan),
        *[flag for flag in plan.variant.flags if not _is_library(flag)],
        "-c", f"{HERE}{source}", "-o", target, "-MD", "-MF", f"{target}.d", "--keep", "--keep-dir", keep,
    ]  # fmt: skip
    line = f"mkdir -p {shlex.quote(keep)} && {shlex.join(command)}"
    return Edge(f"nvcc {source}", line, [source], [target], f"{target}.log", f"{target}.d")


def _machine_code_steps(plan: Plan, steps: Steps, folder: str) -> None:
    """Take the cubins out of the object, so that they are the embedded ones, and disassemble each once."""
    assert plan.cuda is not None
    made = {arch: f"{folder}/{arch}.cubin" for arch in plan.archs}
    cuobjdump, nvdisasm = (shlex.quote(str(plan.cuda.tools[name].path)) for name in ("cuobjdump", "nvdisasm"))
    moves = " && ".join(f"mv ./*.{arch}.cubin ../{arch}.cubin" for arch in plan.archs)
    target = shlex.quote(f"../{Path(steps.target).name}")
    line = f"mkdir -p {folder}/elf && cd {folder}/elf && {cuobjdump} -xelf all {target} && {moves}"
    steps.edges.append(Edge("cuobjdump", line, [steps.target], list(made.values()), f"{folder}/elf.log"))
    for arch, cubin in made.items():
        listing = cubin.removesuffix(".cubin") + ".sass"
        # Without data-flow analysis it takes half the time; that only serves to annotate indirect branches.
        line = f"{nvdisasm} -ndf -c {cubin} > {listing}"
        steps.edges.append(Edge(f"nvdisasm {arch}", line, [cubin], [listing], f"{listing}.log"))
        steps.cubins.append((arch, cubin, listing))


def _host_step(plan: Plan, source: str, target: str, flags: list[str], more: list[str]) -> Edge:
    maps = [f"-ffile-prefix-map={folder}={name.strip('<>')}" for name, folder in plan.places.folders.items()]
    command = [
        str(plan.host.path), *flags, *maps, *_includes(plan, ""), *_torch_flags(plan), *more,
        "-c", source, "-o", target, "-MD", "-MF", f"{target}.d",
    ]  # fmt: skip
    return Edge(f"g++ {source}", shlex.join(command), [source], [target], f"{target}.log", f"{target}.d")


def _link_step(plan: Plan, entries: Sequence[Entry], binding: Entry | None, temporary: Path) -> Edge:
    target = _relative(temporary / "lib.so", plan.root)
    objects = [_relative(entry.folder / entry.facts["object"], plan.root) for entry in entries]
    if binding is not None:
        objects.append(_relative(binding.folder / "binding.o", plan.root))
    libraries: list[str] = []
    if plan.cuda is not None:
        libraries += [f"-L{plan.cuda.library_folder}", "-lcudart_static", "-ldl", "-lpthread", "-lrt"]
    if plan.variant.abi == "tvm_ffi":
        # A symbol that nobody defines is a build error here, not a crash at load.
        libraries += [f"-L{plan.places.folders['<tvm_ffi>'] / 'lib'}", "-ltvm_ffi", "-Wl,-z,defs"]
    else:
        names = ["c10", "torch_cpu", "torch", "torch_python", *(["c10_cuda", "torch_cuda"] if plan.cuda else [])]
        libraries += [f"-L{plan.places.folders['<torch>'] / 'lib'}", *[f"-l{name}" for name in names]]
    # On the host every flag may matter to the linker (-fopenmp, -flto); nvcc's do not, but for libraries.
    flags = [flag for flag in plan.variant.flags if plan.cuda is None or _is_library(flag)]
    command = [str(plan.host.path), "-shared", *objects, "-o", target, *libraries, *flags]
    return Edge("link", shlex.join(command), objects, [target], f"{target}.log")


def _includes(plan: Plan, prefix: str) -> list[str]:
    folders = [f"-I{prefix}{folder}" for folder in plan.include]
    if plan.variant.abi == "tvm_ffi":
        folders += ["-isystem", str(plan.places.folders["<tvm_ffi>"] / "include")]
    return folders


def _torch_flags(plan: Plan) -> list[str]:
    """What torch.utils.cpp_extension passes, without importing it."""
    if plan.variant.abi != "torch":
        return []
    torch = plan.places.folders["<torch>"]
    cmake = torch / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    text = cmake.read_text(encoding="utf-8") if cmake.is_file() else ""
    abi = re.search(r"_GLIBCXX_USE_CXX11_ABI=([01])", text)
    folders = [torch / "include", torch / "include/torch/csrc/api/include", plan.places.folders["<python>"]]
    if plan.cuda is not None:
        folders.append(plan.cuda.include)
    system = [part for folder in folders for part in ("-isystem", str(folder))]
    name = [f"-DTORCH_EXTENSION_NAME={extension_name(plan.variant)}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    return [*system, *name, f"-D_GLIBCXX_USE_CXX11_ABI={abi[1] if abi else 1}"]


def extension_name(variant: VariantConfig) -> str:
    """What TORCH_EXTENSION_NAME is for a variant: pybind11 and torch's registry hold two of one name for the same."""
    return re.sub(r"\W", "_", f"kernelproof_{variant.operator}_{variant.name}")


def _remedy(message: str, variant: VariantConfig) -> str:
    """What to do about a compiler's or linker's words, where they do not say that themselves."""
    whole = "the log has the compiler's whole output"
    if missing := re.search(r"fatal error: '?([^':\s]+)'?(: No such file| file not found)", message):
        key = f"operators.{variant.operator}.include"
        return f"add the folder from which {missing[1]} is included to {key}, if it is in the project; {whole}"
    if "undefined reference to" in message:
        of_c = [
            f'{name} is compiled as C: declare what C++ calls of it extern "C"'
            for name in variant.sources
            if name.endswith(".c")
        ]
        declared = 'hold its definition against its declaration: name, namespace, arguments, const, extern "C"'
        return "; ".join([declared, *of_c[:1], whole])
    return whole


def _sets_standard(flags: Sequence[str]) -> bool:
    return any(flag.startswith(("-std=", "--std=", "--std")) for flag in flags)


def _is_library(flag: str) -> bool:
    return flag.startswith("-l") and flag != "-lineinfo"


def _ninja(plan: Plan, edges: Sequence[Edge], temporary: Path, name: str, shown: Places, log: Log) -> None:
    """Run the steps with ninja from the root. Raises Unbuildable with the compiler's words when one fails."""
    file = temporary / f"{name}.ninja"
    folder = _relative(temporary, plan.root)
    file.write_text(ninja_file(edges, folder), encoding="utf-8")
    done = run_process(
        [toolchain.find_ninja(), "-f", _relative(file, plan.root), "-j", str(plan.cores), "-k", "0"],
        cwd=plan.root,
        # Flags that no record and no key of the store would know.
        env={key: value for key, value in os.environ.items() if key not in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")},
        check=False,
        timeout_s=TIME_LIMIT_S,
        stop_signal=signal.SIGTERM,  # ninja's children have process groups of their own; it passes the signal on
    )
    said = ""
    for edge in edges:
        path = plan.root / edge.log
        output = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        output = shown.shown(output)
        log.say(f"$ {shown.shown(edge.command)}\n{output}")
        said += output
    if done.returncode != 0:
        log.say(done.stdout + done.stderr)
        _blame_a_full_disk(said + done.stdout + done.stderr, temporary)
        message = scrubbed(first_errors(said) or first_errors(shown.shown(done.stdout + done.stderr)))
        if stopped := OUT_OF_MEMORY.search(said):
            raise Unbuildable(
                f"this machine had not the memory for its compiler: {stopped[0]}",
                status=records.NOT_RUN,
                remedy="run the same command again when less else runs, or on a machine with more memory",
                compiler_message=message,
            )
        first = message.strip().partition("\n")[0]
        raise Unbuildable(
            first or "the compiler failed and said nothing",
            compiler_message=message,
            remedy=_remedy(message, plan.variant),
        )
    for edge in edges:
        _check_made(plan, edge)
    log.say(f"{name}: {done.duration_s:.2f} s")


def _check_made(plan: Plan, edge: Edge) -> None:
    """Raises Unbuildable where a compiler ended well and made something else: of a header, or told to by a flag."""
    missing = [path for path in (*edge.outputs, edge.depfile) if path and not (plan.root / path).is_file()]
    if not missing and all(_is_machine_code(plan.root / path) for path in edge.outputs):
        return
    made = "nothing" if missing else "no machine code"
    source, flags = edge.inputs[0], plan.variant.flags
    if edge.what != "link" and Path(source).suffix not in SOURCE_SUFFIXES:
        message = f"{source} is no source: the compiler makes {made} of it"
        remedy = f"name files of C, C++ or CUDA ({', '.join(SOURCE_SUFFIXES)}) as sources"
    else:
        likely = [flag for flag in flags if flag in OTHER_MODES or flag.startswith("-o")] or flags
        step = "the linker" if edge.what == "link" else f"the compiler, of {source},"
        message = f"{step} ended well and made {made}; the likely reason is in its flags: {' '.join(likely) or 'none'}"
        remedy = "take out of flags what has the compiler do something else than compile and link"
    raise Unbuildable(message, compiler_message=message, remedy=remedy)


def _is_machine_code(path: Path) -> bool:
    if path.suffix not in (".o", ".so"):
        return True
    with path.open("rb") as file:
        return file.read(len(sass.ELF_MAGIC)) == sass.ELF_MAGIC


def _blame_a_full_disk(said: str, temporary: Path) -> None:
    """Raises OSError where a step failed for want of space: no variant's fault, and to be tried again, so no record.

    The compiler's words are not enough: on a full disk they are not written either.
    """
    if FULL_DISK in said:
        raise OSError(errno.ENOSPC, FULL_DISK, str(temporary))
    for folder in (str(temporary), tempfile.gettempdir()):  # a compiler's own files lie in the latter
        with tempfile.TemporaryFile(dir=folder) as probe:
            os.posix_fallocate(probe.fileno(), 0, SPACE_BYTES)


def ninja_file(edges: Sequence[Edge], folder: str) -> str:
    """The steps in ninja's language; each step's output goes to a file of its own."""
    lines = [f"builddir = {_ninja_path(folder)}", "rule step", "  command = $line", "  description = $what"]
    for edge in edges:
        outputs, inputs = (" ".join(_ninja_path(path) for path in paths) for paths in (edge.outputs, edge.inputs))
        line = f"({edge.command}) > {shlex.quote(edge.log)} 2>&1"
        lines += [
            f"build {outputs}: step {inputs}",
            f"  line = {line.replace('$', '$$')}",
            f"  what = {edge.what.replace('$', '$$')}",
        ]
    return "\n".join(lines) + "\n"


def _ninja_path(path: str) -> str:
    return re.sub(r"([$ :])", r"$\1", path)


_ERROR = re.compile(r"\berror\b|\bfatal\b|undefined reference|multiple definition|cannot find|catastrophic", re.I)
_NOISE = re.compile(r"^ptxas info|^\s*\d+ bytes stack frame|^ninja:|^\[\d+/\d+\]|^FAILED:|warning", re.I)


def first_errors(text: str) -> str:
    """The compiler's first errors with the lines that belong to them, at most 16 lines."""
    lines = [line for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
    first = next((index for index, line in enumerate(lines) if _ERROR.search(line)), None)
    chosen = lines[-MESSAGE_LINES:] if first is None else lines[first : first + MESSAGE_LINES]
    return "\n".join(chosen)


# As g++ and clang write it, and as nvcc does.
_WARNING = re.compile(r"^([^\s:(][^:(]*)(?::(\d+)(?::\d+)?: warning: |\((\d+)\): warning #[\w-]+: )(.*)$", re.M)


def warnings_in(text: str) -> list[str]:
    """What compilers warn of, each once: `file:line: words`."""
    return list(dict.fromkeys(f"{m[1]}:{m[2] or m[3]}: {m[4]}" for m in _WARNING.finditer(text)))


def _headers(plan: Plan, edges: Sequence[Edge], started_ns: int, compiled: Sequence[FileHash]) -> dict[str, str]:
    """Every file that the compilers read but the sources, by name, with its SHA-256.

    Raises Unbuildable when a source or header was changed during the build: nobody could say what was compiled.
    """
    own = {source.path for source in compiled}
    found: dict[str, str] = {}
    for edge in edges:
        if edge.depfile:
            for path in parse_depfile((plan.root / edge.depfile).read_text(encoding="utf-8")):
                name = plan.places.named(path)
                if name not in own and name not in found:
                    found[name] = sha256_file(plan.places.path(name))
    changed = [source.path for source in compiled if sha256_file(plan.root / source.path) != source.sha256]
    headers = [name for name in found if not name.startswith("<")]
    changed += [name for name in headers if (plan.root / name).stat().st_mtime_ns > started_ns]
    if changed:
        raise Unbuildable(f"{changed[0]} was changed while it was compiled", remedy="run the same command again")
    return dict(sorted(found.items()))


def parse_depfile(text: str) -> list[str]:
    """The prerequisites in a Makefile fragment that a compiler wrote with -MD."""
    _, _, rest = text.replace("\\\n", " ").partition(": ")
    return [re.sub(r"\\([ #:])|(\$)\$", r"\1\2", part) for part in re.findall(r"(?:\\ |\S)+", rest)]


# --- facts ------------------------------------------------------------------------------------------------------------


def _facts(plan: Plan, objects: Sequence[Entry], link: Edge, temporary: Path) -> tuple[dict[str, Any], list[str]]:
    """What is to be recorded of a finished build, and the names of the files to keep.

    Machine code is kept again under the variant's name: of several sources as `0-sm_90a.cubin`, …
    """
    library = plan.root / link.outputs[0]
    several = sum(bool(entry.facts["cubins"]) for entry in objects) > 1
    cubins, files = [], ["lib.so"]
    for index, entry in enumerate(objects):
        for cubin in entry.facts["cubins"]:
            stem = Path(cubin["path"]).stem
            named = f"{index}-{stem}" if several else stem
            for suffix in (".cubin", ".sass"):
                os.link(entry.folder / f"{stem}{suffix}", temporary / f"{named}{suffix}")
                files.append(f"{named}{suffix}")
            cubins.append({**cubin, "path": f"{named}.cubin"})
    facts = {
        "library": dataclasses.asdict(FileHash("lib.so", sha256_file(library), library.stat().st_size)),
        "cubins": cubins,
        "host_code_sha256": _digest([entry.facts["host"] for entry in objects]),
    }
    return facts, files


def _cubin(plan: Plan, target: str, arch: str, cubin: str, listing: str) -> Cubin:
    path = plan.root / cubin
    data = path.read_bytes()
    output = (plan.root / f"{target}.log").read_text(encoding="utf-8", errors="replace")
    resources = [entry for entry in sass.parse_ptxas(output) if entry.arch == arch]
    try:
        found = sass.analyse(data, (plan.root / listing).read_text(encoding="utf-8"))
        kernels = sass.match_kernels(found, resources)
    except ValueError as error:
        raise Unbuildable(f"the machine code for {arch} cannot be analysed: {error}") from None
    return Cubin(
        arch=arch,
        path=path.name,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        sass_sha256=found.sass_sha256,
        instruction_mix=found.instruction_mix,
        opcodes=found.opcodes,
        kernels=kernels,
    )


def _unseen(plan: Plan, read: Sequence[str]) -> str:
    """Why a build depends on files that no compiler names: what the project's own sources say; else an empty text."""
    for name in read:
        if not name.startswith("<") and (found := UNSEEN.search((plan.root / name).read_bytes())):
            return f"{name} has {found[0].decode()}, and compilers do not say which files that takes in or looks for"
    return ""


def _summarised(headers: dict[str, str]) -> list[FileHash]:
    """The project's own headers one by one, everybody else's as one line a place."""
    own = [FileHash(name, digest) for name, digest in headers.items() if not name.startswith("<")]
    others: dict[str, dict[str, str]] = {}
    for name, digest in headers.items():
        if name.startswith("<"):
            others.setdefault(name.partition("/")[0], {})[name] = digest
    foreign = [FileHash(f"{place}/ ({len(files)} headers)", _digest(files)) for place, files in sorted(others.items())]
    return own + foreign


def _plain(files: Sequence[FileHash]) -> list[tuple[str, str]]:
    return [(file.path, file.sha256) for file in files]


def _digest(value: Any) -> str:
    """32 hexadecimal digits over plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _relative(path: Path, root: Path) -> str:
    return os.path.relpath(path.resolve() if not path.is_symlink() else path, root.resolve())


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
