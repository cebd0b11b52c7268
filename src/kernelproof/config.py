"""The configuration: `config.yaml`, checked against its schema, as dataclasses.

Every fault is reported at once, each with file, line, key, value, what is allowed and the nearest valid name. The
resolved configuration (defaults and overrides applied) is also kept as JSON, which loads without YAML or a validator:
that is what the stages read.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import importlib.util
import itertools
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelproof import privacy
from kernelproof.errors import ConfigError, guide, nearest
from kernelproof.own_modules import parsed
from kernelproof.records import atomic_write, from_json
from kernelproof.traces import FAMILIES

AT_LEAST_FLOAT32 = "at_least_float32"  # a precision: float32, and of float64 that
GIVEN = "config.given.yaml"  # beside the resolved configuration: the file that it was made from, if that lay elsewhere
# Where an override was given: to a stage's own command, as strings, or to the workflow, which hands on a mapping.
SET, CONFIG = "command line (--set)", "command line (--config)"
SCHEMA_NAME = "config.schema.yaml"
MAX_VALUES = 100_000  # of a document with its aliases followed: a few nested ones can ask for any number


@dataclass(frozen=True)
class Precision:
    """Data types of the output, of the softmax weights P and of accumulation; some depend on the case's own."""

    output: str
    p: str = "float32"
    accumulate: str = "float32"

    def of(self, dtype: str) -> Precision:
        """What is declared for cases of a data type, of which no name in it depends any more."""
        case = {"input": dtype, AT_LEAST_FLOAT32: "float64" if dtype == "float64" else "float32"}
        return Precision(*(case.get(name, name) for name in (self.output, self.p, self.accumulate)))


@dataclass(frozen=True)
class Budget:
    """What one kernel may use: registers a thread, shared memory a block (bytes), spills (bytes)."""

    registers: int
    shared_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class VariantConfig:
    """One kernel, or one library function that kernels are compared with (role `baseline`)."""

    operator: str
    name: str
    role: str
    device: str
    dtypes: list[str]
    precision: Precision
    passing: str
    budget: Budget
    idea: str = ""
    abi: str = "tvm_ffi"
    sources: list[str] = field(default_factory=list)
    rungs: list[str] = field(default_factory=list)  # of a dispatcher: variants that its library holds too
    entry: str = "run"
    macros: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    archs: list[str] | None = None
    options: dict[str, list[Any]] = field(default_factory=dict)
    limits: dict[str, list[int]] = field(default_factory=dict)
    gate: bool = False
    deterministic: bool = True
    requires: list[str] = field(default_factory=list)  # what must be installed for it to be run
    calls: list[str] = field(default_factory=list)  # whose kernels it may run beside its own (traces.FAMILIES)

    @property
    def key(self) -> str:
        """`operator/variant`."""
        return f"{self.operator}/{self.name}"

    @property
    def trust(self) -> str:
        """How far a verdict on it can be trusted, unless its calls were sealed (kernelproof.ladder.sealing).

        A `python` callable shares an interpreter with its harness.
        """
        return "python" if self.abi == "python" else "library"

    @property
    def sealable(self) -> bool:
        """Whether its kernels are in cubins that can be started without its host code, as far as its settings say."""
        return self.abi == "tvm_ffi" and self.device == "cuda"


@dataclass(frozen=True)
class CaseSelection:
    """Which shapes and option values a stage goes through; empty: all there are.

    Families, their shape and seeds are the tests' own, data types the benchmark's.
    """

    shapes: list[str]
    options: dict[str, list[Any]] = field(default_factory=dict)
    families: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    family_shape: str = ""  # of the families other than normal; empty: the profiled shape
    families_also_on: list[str] = field(default_factory=list)  # further ones, on which each of them is once
    cuda_shapes: list[str] = field(default_factory=list)  # on a GPU, beside `shapes`

    def shapes_on(self, device: str) -> list[str]:
        """Names of the shapes that a variant for this device goes through."""
        return [*self.shapes, *(self.cuda_shapes if device == "cuda" else [])]


@dataclass(frozen=True)
class ProfileSelection:
    """The one case that is profiled, and the CUDA baselines that are profiled too, to hold the variants against."""

    shape: str
    options: dict[str, Any] = field(default_factory=dict)
    baselines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OperatorConfig:
    """An operator: its module, binding, shapes (elements by dimension), variants and baselines."""

    name: str
    module: str
    shapes: dict[str, dict[str, int]]
    test: CaseSelection
    bench: CaseSelection
    profile: ProfileSelection
    variants: dict[str, VariantConfig]
    baselines: dict[str, VariantConfig]
    binding: str | None = None
    include: list[str] = field(default_factory=list)

    def variant(self, name: str) -> VariantConfig:
        """A variant or baseline by name. Raises ConfigError for an unknown one."""
        known = {**self.variants, **self.baselines}
        if name not in known:
            raise ConfigError(f"no such variant; {among(name, known)}", subject=f"{self.name}/{name}")
        return known[name]

    def profiled(self) -> list[VariantConfig]:
        """Every CUDA variant, and the baselines that `profile.baselines` names."""
        named = [self.baselines[name] for name in self.profile.baselines]
        return [*(v for v in self.variants.values() if v.device == "cuda"), *named]

    def contenders(self, device: str) -> list[VariantConfig]:
        """Every variant and baseline of one device, in the order of the configuration."""
        return [v for v in (*self.variants.values(), *self.baselines.values()) if v.device == device]


@dataclass(frozen=True)
class TimeLimits:
    """Seconds that each rung of the test ladder may take for one request."""

    load: float
    launch: float
    sanity: float
    correctness: float
    determinism: float

    def first_call(self, abi: str) -> float:
        """What the first call may take: of a Python callable, which may compile then, as long as to load it."""
        return max(self.load, self.launch) if abi == "python" else self.launch


@dataclass(frozen=True)
class Tolerance:
    """Limits of criteria (a) to (c), as multiples of the unit roundoff or of the bound."""

    bound_factor: float
    rms_factor: float
    bias_case: float
    bias_suite: float

    @property
    def looser(self) -> dict[str, float]:
        """The limits that are wider than those of the criteria themselves."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value > getattr(CRITERIA, name)}


CRITERIA = Tolerance(bound_factor=1.0, rms_factor=1.5, bias_case=1 / 16, bias_suite=1 / 64)


@dataclass(frozen=True)
class SanitizerConfig:
    """compute-sanitizer's tools in the test stage: which, on how many cases at most, and seconds for each tool."""

    tools: list[str] = field(default_factory=list)  # empty: none is run
    cases: int = 8
    time_limit_s: float = 60.0


@dataclass(frozen=True)
class TestConfig:
    """Settings of the test stage."""

    __test__ = False

    seeds: list[int]
    level: str  # quick, default, deep
    trials: int
    sealed: str  # auto, never, required
    time_limit_s: TimeLimits
    tolerance: Tolerance
    sanitizer: SanitizerConfig = field(default_factory=SanitizerConfig)
    operator_limit_s: float = 600.0


@dataclass(frozen=True)
class BenchConfig:
    """Settings of the bench stage; max_seconds is per contender, case and process."""

    processes: int
    blocks: int
    sample_ms: float
    max_seconds: float
    modes: list[str]
    bootstrap: int
    confidence: float
    cpu_threads: int
    precision: float = 0.0  # half-width of a ratio's interval within a process; 0: a fixed number of blocks
    energy: bool = True
    counters: bool = True
    gpu_wait_s: float = 600.0


@dataclass(frozen=True)
class ProfileConfig:
    """Settings of the profile stage; empty lists mean the stage's own choice."""

    sections: list[str]
    metrics: list[str]
    time_limit_s: float


@dataclass(frozen=True)
class GateConfig:
    """The gate passes at ratios up to max_ratio; times within same_band of each other are the same.

    max_regression: now / kept reference; a variant that is shown to be above fails.
    """

    max_ratio: float
    same_band: float
    max_regression: float = 1.02


@dataclass(frozen=True)
class BundleConfig:
    """The bundle's size limit in bytes."""

    max_bytes: int


@dataclass(frozen=True)
class Config:
    """The whole configuration. `root` is the folder that its paths are relative to."""

    project: str
    archs: list[str]
    operators: dict[str, OperatorConfig]
    test: TestConfig
    bench: BenchConfig
    profile: ProfileConfig
    gate: GateConfig
    bundle: BundleConfig
    source: str = "config.yaml"
    root: Path = Path()

    @property
    def results(self) -> Path:
        """Where stage records go."""
        return self.root / "results"

    def record(self, stage: str, *names: str) -> Path:
        """The record of a stage: `results/build/attention/fp16_wmma.json`."""
        return self.results.joinpath(stage, *names[:-1], f"{names[-1]}.json")

    def command(self, stage: str, variant: VariantConfig | None = None) -> str:
        """What to type for a stage, of one variant if given."""
        given = "" if self.source == "config.yaml" else f" --config {shlex.quote(self.source)}"
        of = f" --operator {variant.operator} --variant {variant.name}" if variant else ""
        return f"kernelproof {stage}{given}{of}"

    def operator(self, name: str) -> OperatorConfig:
        """An operator by name. Raises ConfigError for an unknown one."""
        if name not in self.operators:
            raise ConfigError(f"no such operator; {among(name, self.operators)}", subject=name)
        return self.operators[name]

    def variants(self) -> Iterator[VariantConfig]:
        """Every variant and baseline."""
        for operator in self.operators.values():
            yield from operator.variants.values()
            yield from operator.baselines.values()


def load(
    path: Path = Path("config.yaml"),
    overrides: Sequence[str] | Mapping[str, Any] = (),
    root: Path | None = None,
    cuda_home: Path | None = None,
) -> Config:
    """Load and check a configuration.

    `path` is a YAML file, or the JSON that `save` wrote. `overrides` are `dotted.key=value` strings or a (nested)
    mapping. Paths in it are relative to `root`, by default the current folder. `cuda_home`: the toolkit that is built
    with, where it was named. Raises ConfigError with every fault.
    """
    if path.suffix == ".json":
        config = _from_resolved(path)
    else:
        config = from_json(Config, resolve(path, overrides, root or Path(), cuda_home))
    privacy.take_for_ordinary(_project_names(config))
    return dataclasses.replace(config, root=root or Path())


def _project_names(config: Config) -> Iterator[str]:
    """What a record calls things by: operators, variants, shapes and their dimensions, folders of sources."""
    yield config.project
    for operator in config.operators.values():
        yield from (operator.name, *operator.shapes, *itertools.chain(*operator.shapes.values()))
    for variant in config.variants():
        yield variant.name
        yield from (part for source in variant.sources for part in Path(source).parts if not Path(source).is_absolute())


def schema_file() -> Path:
    """The schema: beside this module in a wheel, with the workflow in a checkout."""
    here = Path(__file__).resolve()
    packed = here.with_name("schemas") / SCHEMA_NAME
    return packed if packed.is_file() else here.parents[2] / "workflow" / "schemas" / SCHEMA_NAME


def save(config: Config, path: Path) -> None:
    """Write the resolved configuration as JSON, if it differs from what is there.

    A file from outside the root is copied beside it and named by that: a path of this machine has no place in a bundle.
    """
    source, copy = config.root / config.source, path.parent / GIVEN
    if source.is_file() and not source.resolve().is_relative_to(config.root.resolve()):
        atomic_write(copy, source.read_bytes())
        config = dataclasses.replace(config, source=os.path.relpath(copy, config.root))
    payload = dataclasses.asdict(config)
    del payload["root"]
    text = json.dumps({"schema": "kernelproof.config.resolved/1", **payload}, indent=1) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        atomic_write(path, text)


def _from_resolved(path: Path) -> Config:
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _not_resolved(error, str(path)) from None
    return of_run(payload, str(path))


def of_run(payload: Mapping[str, Any], subject: str) -> Config:
    """The configuration that a run was made with, from what `save` wrote. Raises ConfigError for anything else."""
    try:
        if payload["schema"] != "kernelproof.config.resolved/1":
            raise ValueError("unknown schema")
        return from_json(Config, {key: value for key, value in payload.items() if key != "schema"})  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError) as error:
        raise _not_resolved(error, subject) from None


def _not_resolved(error: Exception, subject: str) -> ConfigError:
    return ConfigError(
        f"not a resolved configuration: {error}", subject=subject, hint="delete it; the workflow writes it again"
    )


@dataclass(frozen=True)
class Declared:
    """What an operator's module says that it takes; see kernelproof.operators.declared.

    dims: with their defaults; None is required. bytes: of the inputs and the output of each shape. refused: shapes that
    the operator refuses, and why. None in place of the first four: not known, see `stated`.
    """

    dims: dict[str, int | str | None] | None = None
    options: dict[str, list[Any]] | None = None
    families: list[str] | None = None
    dtypes: list[str] | None = None
    bytes: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def check_declared(config: Config, operator: OperatorConfig, declared: Declared) -> None:
    """Hold an operator's shapes, options, families and data types against what its module declares.

    Only a process that has loaded the module knows all of it. Raises ConfigError with every fault.
    """
    if found := list(_undeclared(operator, declared)):
        raise _invalid([Fault(place_of(config, *key), _dotted(key), message) for key, message in found])


def place_of(config: Config, *key: str | int) -> str:
    """Where a key of a loaded configuration stands: `config.yaml:12`; the file alone if its lines cannot be told."""
    path = config.root / config.source
    try:
        lines = _compose(_read(path), path).lines
    except ConfigError:
        return config.source
    return _Places(Path(config.source), lines, set(), SET).of(key)


def _undeclared(operator: OperatorConfig, declared: Declared) -> Iterator[tuple[Key, str]]:
    """Keys of the configuration and what is wrong with each."""
    here: Key = ("operators", operator.name)

    def unknown(key: Key, kind: str, names: Iterable[Any], known: Iterable[Any] | None) -> Iterator[tuple[Key, str]]:
        allowed = [plain(value) for value in known or ()]
        for name in map(plain, names):
            if known is not None and name not in allowed:
                listed = among(name, allowed) if allowed else "it has none"
                yield key, f"{operator.name} has no {kind} {name}; {listed}"

    def options(key: Key, chosen: Mapping[str, Iterable[Any]]) -> Iterator[tuple[Key, str]]:
        for name, values in chosen.items():
            if declared.options is None or name not in declared.options:
                yield from unknown((*key, name), "option", [name], declared.options)
            else:
                yield from unknown((*key, name), f"value of {name}", values, declared.options[name])

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for shape, dims in operator.shapes.items():
        at: Key = (*here, "shapes", shape)
        for name in dims:
            yield from unknown((*at, name), "dimension", [name], declared.dims)
        for name, default in (declared.dims or {}).items():
            if default is None and name not in dims:
                yield at, f"the shape does not give {name}"
        if shape in declared.refused:
            yield at, declared.refused[shape]
        if (size := declared.bytes.get(shape, 0)) > memory:
            yield at, f"one call takes {size / 2**30:,.0f} GiB; this machine has {memory / 2**30:,.0f} GiB of memory"
    yield from unknown((*here, "test", "families"), "family", operator.test.families, declared.families)
    yield from options((*here, "test", "options"), operator.test.options)
    yield from options((*here, "bench", "options"), operator.bench.options)
    yield from options((*here, "profile", "options"), {name: [v] for name, v in operator.profile.options.items()})
    yield from unknown((*here, "bench", "dtypes"), "data type", operator.bench.dtypes, declared.dtypes)
    for group, variants in (("variants", operator.variants), ("baselines", operator.baselines)):
        for variant in variants.values():
            at = (*here, group, variant.name)
            yield from unknown((*at, "dtypes"), "data type", variant.dtypes, declared.dtypes)
            yield from options((*at, "options"), variant.options)
            for name in variant.limits:
                yield from unknown((*at, "limits", name), "dimension", [name], declared.dims)


def stated(module: str, root: Path) -> Declared:
    """What an operator's module states in so many words: it is read and not run, for that takes torch and seconds.

    That is what a class without bases, whose instance `OPERATOR` is, assigns in its body, once and as a literal, and
    what nothing in the file changes. All else is None, and a stage asks the module itself.
    """
    try:
        tree = parsed(_module_file(module, root).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return Declared()
    nodes = list(ast.walk(tree))
    operator = _class_of_operator(tree, nodes)
    changed = {name for node in nodes for name in _changed(node)}
    if operator is None or "setattr" in changed:
        return Declared()
    return Declared(**{name: form(_literal(operator, name)) for name, form in _FORMS.items() if name not in changed})


def _module_file(module: str, root: Path) -> Path:
    """The file of an operator's module, of which nothing is imported. Raises ImportError or ValueError for none."""
    if module.endswith(".py"):
        return root / module
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, *rest)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if rest and candidate.is_file():
                return candidate
    raise ImportError(module)


def _class_of_operator(tree: ast.Module, nodes: Sequence[ast.AST]) -> ast.ClassDef | None:
    """The class of OPERATOR, where one line says which that is, and the class's own body what it has."""
    made = [node for node in nodes if isinstance(node, ast.Name) and node.id == "OPERATOR" and _stored(node)]
    for line in tree.body:
        match line:
            case ast.Assign([ast.Name("OPERATOR")], ast.Call(ast.Name(name), [], [])) if len(made) == 1:
                found = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
                plain = not any(kind.bases or kind.keywords or kind.decorator_list for kind in found)
                return found[0] if plain and len(found) == 1 else None
    return None


def _changed(node: ast.AST) -> Iterator[str]:
    """The attribute, of whatever object, that something assigns or changes in place; `setattr` for any of them."""
    match node:
        case ast.Attribute(_, name) | ast.Subscript(ast.Attribute(_, name)) if _stored(node):
            yield name
        case ast.Call(ast.Attribute(ast.Attribute(_, name), method)) if method not in _READS:
            yield name
        case ast.Name("setattr"):
            yield node.id


_READS = ("get", "items", "keys", "values", "copy", "index", "count")  # methods that leave a mapping or list as it is


def _stored(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Load)


def _literal(operator: ast.ClassDef, name: str) -> Any:
    """What the body assigns to a name that it mentions nowhere else, if that is a literal; else None."""
    methods = [line for line in operator.body if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = [line for line in operator.body if line not in methods]
    mentions = [node for line in lines for node in ast.walk(line) if isinstance(node, ast.Name) and node.id == name]
    if len(mentions) != 1 or any(method.name == name for method in methods):
        return None
    for line in lines:
        match line:
            case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value) if target is mentions[0]:
                with contextlib.suppress(ValueError, TypeError, RecursionError):
                    return ast.literal_eval(value)
    return None


def _listed(value: Any) -> list[str] | None:
    """Names as `Declared` has them; None for what a stage will refuse."""
    return list(value) if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value) else None


def _keyed(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else None


def _options(value: Any) -> dict[str, list[Any]] | None:
    found = _keyed(value)
    lists = found is not None and all(isinstance(values, tuple | list) for values in found.values())
    return {name: list(values) for name, values in found.items()} if found is not None and lists else None


_FORMS: dict[str, Callable[[Any], Any]] = {"dims": _keyed, "options": _options, "families": _listed, "dtypes": _listed}


def plain(value: Any) -> str:
    """A value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


NO_ELEMENT = "has a size of 0, and a call of it does nothing; allowed: in test.shapes alone"
OURS = "kernelproof.operators."  # modules; of others only whoever imports them can say whether they exist


@dataclass(frozen=True)
class Fault:
    """One thing wrong with the configuration: where it is, and what. lacks: the key that is missing, if one is."""

    place: str
    key: str
    message: str
    lacks: str = ""

    @property
    def order(self) -> tuple[int, str]:
        """By the line; what is in none, such as the command line's, last."""
        line = self.place.rpartition(":")[2]
        return int(line) if line.isdecimal() else sys.maxsize, self.key

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.message}" if self.key else f"{self.place}: {self.message}"


def resolve(
    path: Path, overrides: Sequence[str] | Mapping[str, Any], root: Path, cuda_home: Path | None = None
) -> dict[str, Any]:
    """The configuration as plain data, defaults and overrides applied, ready for `Config`."""
    import yaml

    text = _read(path)
    document = _compose(text, path)
    data, lines, faults = document.data, document.lines, document.faults
    if faults and data is None:
        raise _invalid(faults)
    named = {key: names for key in (("operators",), *_groups(data)) if (names := _names_at(data, key))}
    overridden, override_faults = _apply_overrides(data, overrides)
    schema = yaml.load(schema_file().read_text(encoding="utf-8"), Loader=_safe_loader())
    places = _Places(path, lines, overridden, SET if isinstance(overrides, Sequence) else CONFIG)
    faults += override_faults
    data = _with_numbers(data, schema, schema)
    known = {fault.key for fault in faults}  # what is not finite is out of range as well
    for error in _violations(data, schema, cuda_home):
        faults += [fault for fault in _schema_faults(error, places) if not fault.key or fault.key not in known]
    faults += _faults_across(data, schema, places, root, faults)
    if faults:
        left = _without_what_merges_lack(faults, document.merged)
        raise _invalid(_told_once(left, overridden, named, places))
    resolved: dict[str, Any] = data
    resolved.pop("schema")
    inside = path.resolve().is_relative_to(root.resolve())
    resolved["source"] = os.path.relpath(path, root) if inside else str(path.absolute())
    return resolved


def _violations(data: Any, schema: dict[str, Any], cuda_home: Path | None) -> list[Any]:
    """What the schema forbids. An architecture that it does not list is no fault where the toolkit in use has it."""
    from jsonschema import Draft202012Validator

    validator, known = Draft202012Validator(schema), schema["$defs"]["arch"]["enum"]
    found = list(validator.iter_errors(data))
    if any(error.validator_value is known for error in found):
        from kernelproof import toolchain

        known[:] = {*known, *toolchain.compiled_archs(cuda_home)}
        found = list(validator.iter_errors(data))
    return found


def _invalid(faults: Sequence[Fault]) -> ConfigError:
    distinct = sorted(dict.fromkeys(faults), key=lambda fault: fault.order)  # jsonschema has an order of its own
    count = f"{len(distinct)} fault{'s' if len(distinct) > 1 else ''} in the configuration"
    listed = "\n".join(str(fault) for fault in distinct)
    return ConfigError(f"{count}\n{listed}", hint=f"{guide('reference/config.md')} describes every key")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            "the configuration does not exist",
            subject=str(path),
            hint="run in the repository's folder, or name another file: --config FILE (snakemake: --configfile FILE)",
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"the configuration is not UTF-8: byte 0x{error.object[error.start]:02x}"
        raise ConfigError(message, subject=f"{path}:{line}", hint="save the file as UTF-8") from None
    except OSError as error:
        hint = "check the path and its permissions"
        raise ConfigError(f"the configuration cannot be read: {error.strerror}", subject=str(path), hint=hint) from None


def _safe_loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


Key = tuple[str | int, ...]


@dataclass
class _Document:
    """A YAML document as data, the line of each key, and its faults; the data are None where they are beyond use.

    merged: what lacks the keys that a merge key would have brought.
    """

    data: Any
    lines: dict[Key, int]
    faults: list[Fault]
    merged: set[Key]


def _compose(text: str, path: Path) -> _Document:
    """Read a document as far as that goes. Raises ConfigError for what is no YAML."""
    import yaml

    loader = _safe_loader()(text)
    lines: dict[Key, int] = {}
    faults: list[Fault] = []
    merged: set[Key] = set()
    merging: set[int] = set()  # nodes
    count = 0

    def walk(node: Any, key: Key, above: tuple[int, ...]) -> None:
        nonlocal count
        line = node.start_mark.line + 1
        lines.setdefault(key, line)
        place = f"{path}:{lines[key]}"
        count += 1
        if id(node) in above:
            raise _Unusable(Fault(place, _dotted(key), "an alias (*) to what it is a part of has no end"))
        if count > MAX_VALUES:
            raise _Unusable(
                Fault(place, _dotted(key), f"the document has more than {MAX_VALUES} values, aliases followed")
            )
        above = (*above, id(node))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for name, value in node.value:
                if not isinstance(name, yaml.ScalarNode):
                    where = f"{path}:{name.start_mark.line + 1}"
                    raise _Unusable(Fault(where, _dotted(key), "a key is text, and no list or mapping"))
                child = (*key, name.value)
                lines[child] = name.start_mark.line + 1
                place = f"{path}:{lines[child]}"
                if name.tag == "tag:yaml.org,2002:merge":
                    faults.append(Fault(place, _dotted(child), "a merge key is not taken; write the keys out"))
                    merging.add(id(node))
                    continue
                if name.tag != "tag:yaml.org,2002:str":
                    faults.append(Fault(place, _dotted(child), "YAML does not read this key as text; put it in quotes"))
                if name.value in seen:
                    faults.append(Fault(place, _dotted(child), "the key stands twice; keep one"))
                seen.add(name.value)
                walk(value, child, above)
            merged.update([key] if id(node) in merging else [])
            # What is no text is told, and nothing more is to be said of it.
            node.value = [pair for pair in node.value if pair[0].tag == "tag:yaml.org,2002:str"]
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                walk(value, (*key, index), above)
        elif node.tag == "tag:yaml.org,2002:float" and node.value.lower().lstrip("+-") in (".nan", ".inf"):
            faults.append(Fault(f"{path}:{line}", _dotted(key), f"{node.value} is not a finite number"))
        elif isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:str":
            try:
                _scalar(node.value)
            except ValueError:  # a date that there is not, and the like
                faults.append(Fault(f"{path}:{line}", _dotted(key), f"{node.value!r} is not a YAML value"))
                node.tag = "tag:yaml.org,2002:str"

    try:
        node = loader.get_single_node()
        if node is None:
            return _Document(None, lines, [Fault(str(path), "", "the file is empty")], merged)
        walk(node, (), ())
        return _Document(_unshared(loader.construct_document(node)), lines, faults, merged)
    except _Unusable as error:
        return _Document(None, lines, [*faults, error.fault], merged)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        hint = "look at brackets, quotes and indentation in this line and above it"
        if mark and "\t" in "".join(text.splitlines()[mark.line : mark.line + 1]):
            hint = "there is a tab in this line: YAML is indented with spaces"
        raise ConfigError(f"not valid YAML: {error.problem}", subject=place, hint=hint) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", subject=str(path), hint="save it as plain text") from None
    finally:
        loader.dispose()


class _Unusable(Exception):
    """The document cannot be read to its end, because of this fault."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _unshared(value: Any) -> Any:
    """The same data with nothing in two places: what an alias repeats can then be changed in one of them."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


@dataclass
class _Places:
    """Where a key was given: a line of the file, or the command line."""

    path: Path
    lines: dict[Key, int]
    overridden: set[Key]
    command_line: str

    def of(self, key: Key) -> str:
        within = any(key[: len(given)] == given for given in self.overridden)
        made = key not in self.lines and any(given[: len(key)] == key for given in self.overridden)
        if within or made:
            return self.command_line
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines.get(key, 1)}"


def _apply_overrides(data: Any, overrides: Sequence[str] | Mapping[str, Any]) -> tuple[set[Key], list[Fault]]:
    if not isinstance(data, dict):
        return set(), []
    pairs, faults = _override_pairs(overrides)
    for key, value in pairs:
        try:
            json.dumps(value, allow_nan=False, default=str)
        except ValueError:
            place = SET if isinstance(overrides, Sequence) else CONFIG
            faults.append(Fault(place, _dotted(key), f"{value} is not a finite number"))
        target = data
        for name in key[:-1]:
            if not isinstance(target.get(name), dict):
                target[name] = {}
            target = target[name]
        target[key[-1]] = value
    return {key for key, _ in pairs}, faults


def _groups(data: Any) -> Iterator[Key]:
    """Where an operator's own things have names of their own."""
    for operator in _names_at(data, ("operators",)):
        for group in ("shapes", "variants", "baselines"):
            yield "operators", operator, group


def _names_at(data: Any, key: Key) -> list[str]:
    for name in key:
        data = data.get(name) if isinstance(data, dict) else None
    return [name for name in data if isinstance(name, str)] if isinstance(data, dict) else []


def _without_what_merges_lack(faults: Sequence[Fault], merged: Collection[Key]) -> list[Fault]:
    """The faults without those of keys, shapes and baselines that may be in what was to be merged."""
    keys = {_dotted(key) for key in merged}
    roots = {_dotted(key[:2]) for key in merged}  # the operator: what its parts name may be in what was to be merged

    def follows(fault: Fault) -> bool:
        unknown = fault.message.startswith(("no shape ", "no baseline ")) and any(
            f"{fault.key}.".startswith(f"{root}.") for root in roots
        )
        return fault.key in keys or unknown

    return [fault for fault in faults if not follows(fault)]


def _told_once(
    faults: Sequence[Fault], overridden: set[Key], named: Mapping[Key, list[str]], places: _Places
) -> list[Fault]:
    """What is wrong with a thing that an override brought in is its name, if that is nearly another's.

    If not, it is that or what a new one lacks; and then that is one fault.
    """
    left = list(faults)
    for key in sorted({given[: len(group) + 1] for group in named for given in overridden if len(given) > len(group)}):
        group, name = key[:-1], key[-1]
        known = named.get(group, [])
        mine = [fault for fault in left if f"{fault.key}.".startswith(f"{_dotted(key)}.")]
        lacking = [fault for fault in mine if fault.lacks and fault.key == _dotted(key)]
        is_slip = bool(_nearest(name, known))
        if not mine or not known or name in known or not (lacking or is_slip):
            continue
        what = "operator" if len(group) == 1 else str(group[-1]).removesuffix("s")
        message = f"there is no {what} {name!r}; {among(name, known)}"
        if not is_slip:
            mine = lacking
            message += f"; a new one needs {', '.join(dict.fromkeys(fault.lacks for fault in lacking))} too"
        left = [fault for fault in left if fault not in mine]
        left.append(Fault(places.of(key), _dotted(key), message))
    return left


def _override_pairs(overrides: Sequence[str] | Mapping[str, Any]) -> tuple[list[tuple[Key, Any]], list[Fault]]:
    import yaml

    given: list[tuple[Key, Any]] = []
    pairs: list[tuple[Key, Any]] = []
    faults: list[Fault] = []
    place = CONFIG if isinstance(overrides, Mapping) else SET
    if isinstance(overrides, Mapping):
        given = list(_flatten(overrides, ()))
    else:
        for entry in overrides:
            key, separator, text = entry.partition("=")
            if separator and all(key.split(".")):
                given.append((tuple(key.split(".")), text))
            else:
                faults.append(Fault(SET, entry, "not of the form key=value, e.g. bench.processes=3"))
    for parts, value in given:
        try:
            read = _scalar(value)  # Snakemake too hands over the values of nested mappings as strings
        except (yaml.YAMLError, ValueError):  # the latter of a date that there is not
            faults.append(Fault(place, _dotted(parts), f"{value!r} is not a YAML value"))
            continue
        if wrong := ["null" if name is None else plain(name) for name in _names(read) if not isinstance(name, str)]:
            message = f"YAML does not read the key {wrong[0]} in {value!r} as text; put it in quotes"
            faults.append(Fault(place, _dotted(parts), message))
        else:
            pairs.append((parts, read))
    return pairs, faults


def _names(value: Any) -> Iterator[Any]:
    """The keys of all mappings in a value."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(inner)
    yield from value if isinstance(value, dict) else ()


def _flatten(mapping: Mapping[str, Any], prefix: Key) -> Iterator[tuple[Key, Any]]:
    for name, value in mapping.items():
        key = (*prefix, *str(name).split("."))
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, key)
        else:
            yield key, value


def _scalar(value: Any) -> Any:
    import yaml

    if isinstance(value, str):
        return yaml.load(value, Loader=_safe_loader())
    if isinstance(value, list):
        return [_scalar(item) for item in value]
    return value


def _dotted(key: Key) -> str:
    text = ""
    for part in key:
        name = part if isinstance(part, int) or part.isprintable() else json.dumps(part)
        text += f"[{part}]" if isinstance(part, int) else f".{name}" if text else str(name)
    return text


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _allowed(names: Iterable[str]) -> str:
    return "allowed: " + ", ".join(sorted(str(name) for name in names))


def among(name: Any, names: Iterable[str]) -> str:
    """For a message on a name that is not one of these: `allowed: a, b; did you mean 'b'?`."""
    listed = list(names)
    return f"{_allowed(listed)}{_nearest(name, listed)}"


_SYNONYMS = {"gpu": "cuda", "nvidia": "cuda", "host": "cpu"}  # what is written for what is meant, near it or not
_SYNONYMS |= dict.fromkeys(("fp32", "f32", "float", "single"), "float32") | {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_SYNONYMS |= dict.fromkeys(("fp16", "f16", "half"), "float16") | dict.fromkeys(("fp64", "f64", "double"), "float64")


def _nearest(name: Any, names: Iterable[str]) -> str:
    known = [str(n) for n in names]
    meant = _SYNONYMS.get(str(name).lower())
    return nearest(meant if meant in known else str(name), known)


_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


_ENDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _schema_faults(error: Any, places: _Places) -> Iterator[Fault]:
    """One schema violation in words; unknown keys become one fault each."""
    key: Key = tuple(error.absolute_path)
    value, limit = error.instance, error.validator_value

    def fault(message: str, at: Key = key) -> Fault:
        return Fault(places.of(at), _dotted(at), message)

    match error.validator:
        case "additionalProperties":
            known = error.schema.get("properties", {})
            for name in sorted(set(value) - set(known), key=str):
                yield fault(f"unknown key; {among(name, known)}", (*key, name))
        case "required":
            for name in limit:
                if name not in value:
                    yield dataclasses.replace(fault(f"the key {name!r} is missing"), lacks=name)
        case "type":
            kinds = [limit] if isinstance(limit, str) else limit
            meant = ""
            if kinds == ["array"] and isinstance(value, str | int | float) and not isinstance(value, bool):
                meant = f": write [{', '.join(str(value).split())}]"
            if kinds == ["object"] and isinstance(value, list) and key[-1:] == ("macros",):
                meant = f": write {{{', '.join(f'{name}: null' for name in value)}}}"
            if kinds == ["object"] and isinstance(value, str) and len(needed := error.schema.get("required", [])) == 1:
                meant = f": write {{{needed[0]}: {value}}}"
            yield fault(f"{_shown(value)} is not {' or '.join(_TYPE_NAMES[kind] for kind in kinds)}{meant}")
        case "enum":
            yield fault(f"{_shown(value)} is not known; {among(value, limit)}")
        case "const":
            yield fault(f"{_shown(value)} is not {_shown(limit)}, which this kernelproof reads")
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
            ends = [f"{words} {error.schema[end]}" for end, words in _ENDS.items() if end in error.schema]
            yield fault(f"{_shown(value)} is out of range; allowed: {' and '.join(ends)}")
        case "minItems" | "minProperties" | "minLength":
            yield fault("must not be empty")
        case "uniqueItems":
            yield fault(f"{_shown(value)} names something twice")
        case "pattern":
            # Of a key's name the place is the mapping that holds it.
            at = (*key, value) if "propertyNames" in error.absolute_schema_path else key
            yield fault(f"{_shown(value)} is not {error.schema['description']}", at)
        case _:
            yield fault(error.message)


# What everybody but YAML 1.1 takes for a number: that wants a point and a sign, as in 1.0e+7.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def _with_numbers(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> Any:
    """The same data with 1e7 as a number where the schema asks for one, and 2.0 as 2 where it asks for a whole one.

    Not where text may stand: there 1e7 is what it looks like.
    """
    schema = _followed(schema, whole)
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        return {name: _with_numbers(item, known.get(name, others), whole) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item, schema.get("items", {}), whole) for item in value]
    kind = schema.get("type")
    if kind in ("integer", "number") and isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value) if math.isfinite(float(value)) else value
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _followed(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """The schema, or what its `$ref` refers to."""
    if "$ref" not in schema:
        return schema
    target: Any = whole
    for part in schema["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    found: dict[str, Any] = target
    return found


def _fill_defaults(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> None:
    """Put the schema's defaults where a key is absent, all the way down."""
    schema = _followed(schema, whole) | {name: item for name, item in schema.items() if name != "$ref"}
    if not isinstance(value, dict):
        return
    for name, inner in schema.get("properties", {}).items():
        if name not in value and "default" in inner:
            value[name] = json.loads(json.dumps(inner["default"]))
        if name in value:
            _fill_defaults(value[name], inner, whole)
    inner = schema.get("additionalProperties")
    if isinstance(inner, dict):
        for name in value:
            if name not in schema.get("properties", {}):
                _fill_defaults(value[name], inner, whole)


def _name_members(data: dict[str, Any]) -> None:
    """Tell operators and variants their own names, and give them what they inherit."""
    for operator_name, operator in data["operators"].items():
        operator["name"] = operator_name
        operator["test"]["seeds"] = operator["test"]["seeds"] or data["test"]["seeds"]
        operator["bench"]["seeds"] = data["test"]["seeds"][:1]  # another seed would not change the work
        operator.setdefault("profile", {"shape": operator["bench"]["shapes"][0], "options": {}, "baselines": []})
        for role, group in (("variant", operator["variants"]), ("baseline", operator["baselines"])):
            for name, variant in group.items():
                variant |= {"name": name, "operator": operator_name, "role": role}
                variant.setdefault("passing", "destination" if variant["abi"] == "tvm_ffi" else "return")
                _fill_precision(variant["precision"], {*variant["dtypes"]})


def _fill_precision(precision: dict[str, Any], dtypes: set[str]) -> None:
    """What is not declared is float32, and where results of float64 are promised, that."""
    output = precision["output"]
    usual = "float64" if output == "float64" else "float32"
    if output == "input" and "float64" in dtypes:
        usual = AT_LEAST_FLOAT32
    for name in ("p", "accumulate"):
        precision.setdefault(name, usual)


def _faults_across(
    data: dict[str, Any], schema: dict[str, Any], places: _Places, root: Path, known: Sequence[Fault]
) -> list[Fault]:
    """Make the data whole, and check what a schema cannot say (`_cross_check`).

    Where the schema found faults it goes as far as the data lets it, and says nothing above or below what is known.
    """
    found: list[Fault] = []

    def apart(fault: Fault, other: Fault) -> bool:
        ours, theirs = (key.replace("[", ".[").split(".") for key in (fault.key, other.key))
        return any(a != b for a, b in zip(ours, theirs, strict=False))

    with contextlib.suppress(Exception) if known else contextlib.nullcontext():
        _fill_defaults(data, schema, schema)
        _name_members(data)
        for fault in _cross_check(data, places, root, schema["$defs"]["dtype"]["enum"]):
            if all(apart(fault, other) for other in known):
                found.append(fault)
    return found


def _cross_check(data: dict[str, Any], places: _Places, root: Path, dtypes: Sequence[str]) -> Iterator[Fault]:
    """What a schema cannot say: files exist, names refer to something, parts fit together."""

    def fault(key: Key, message: str) -> Fault:
        return Fault(places.of(key), _dotted(key), message)

    def missing(key: Key, path: str, folder: bool = False, *, anywhere: bool = False) -> Iterator[Fault]:
        if not (root / path).exists():
            siblings = [str(p.relative_to(root)) for p in sorted((root / path).parent.glob("*"))]
            above = next((folder for folder in root.resolve().parents[:3] if (folder / path).exists()), None)
            elsewhere = (
                f", but does in {os.path.relpath(above, root)}: a command is run where paths start" if above else ""
            )
            name = Path(path).name
            below = sorted(str(p.relative_to(root)) for depth in ("*", "*/*") for p in root.glob(f"{depth}/{name}"))
            begins = f"; did you mean {below[0]!r}? paths start at the repository's root" if below else ""
            yield fault(key, f"{path!r} does not exist{elsewhere or _nearest(path, siblings) or begins}")
        elif not anywhere and not (root / path).resolve().is_relative_to(root.resolve()):
            yield fault(key, f"{path!r} leads out of the repository, whose files alone are packed; copy it here")
        elif folder != (root / path).is_dir():
            yield fault(key, f"{path!r} is {'not ' if folder else ''}a folder")

    for name, operator in data["operators"].items():
        here: Key = ("operators", name)
        if operator["module"].endswith(".py"):
            yield from missing((*here, "module"), operator["module"])
        elif operator["module"].startswith(OURS):
            ours = [OURS + path.stem for path in sorted(Path(__file__).with_name("operators").glob("[!_]*.py"))]
            if operator["module"] not in ours:
                message = f"no module {operator['module']!r}{_nearest(operator['module'], ours)}"
                yield fault((*here, "module"), message)
        if "binding" in operator:
            yield from missing((*here, "binding"), operator["binding"])
        for index, folder in enumerate(operator["include"]):
            yield from missing((*here, "include", index), folder, folder=True)
        lists = [*itertools.product(("test", "bench"), ("shapes", "cuda_shapes")), ("test", "families_also_on")]
        for stage, shapes in lists:
            for index, shape in enumerate(operator[stage][shapes]):
                if shape not in operator["shapes"]:
                    message = f"no shape {shape!r}; {among(shape, operator['shapes'])}"
                    yield fault((*here, stage, shapes, index), message)
                elif stage == "bench" and 0 in operator["shapes"][shape].values():
                    yield fault((*here, stage, shapes, index), f"{shape} {NO_ELEMENT}")
        family_shape = operator["test"]["family_shape"]
        if family_shape and family_shape not in operator["shapes"]:
            message = f"no shape {family_shape!r}; {among(family_shape, operator['shapes'])}"
            yield fault((*here, "test", "family_shape"), message)
        shape = operator["profile"]["shape"]
        if shape not in operator["shapes"]:
            message = f"no shape {shape!r}; {among(shape, operator['shapes'])}"
            yield fault((*here, "profile", "shape"), message)
        elif 0 in operator["shapes"][shape].values():
            yield fault((*here, "profile", "shape"), f"{shape} {NO_ELEMENT}")
        for index, baseline in enumerate(operator["profile"]["baselines"]):
            on_gpu = [name for name, other in operator["baselines"].items() if other["device"] == "cuda"]
            if baseline not in on_gpu:
                known = among(baseline, on_gpu) if on_gpu else "the operator has none"
                message = f"no baseline {baseline!r} on cuda; {known}"
                yield fault((*here, "profile", "baselines", index), message)
        for twice in sorted(set(operator["variants"]) & set(operator["baselines"])):
            yield fault((*here, "baselines", twice), "a variant has this name too; rename one")
        for group in ("variants", "baselines"):
            for variant_name, variant in operator[group].items():
                at: Key = (*here, group, variant_name)
                for index, source in enumerate(variant["sources"]):
                    yield from missing((*at, "sources", index), source)
                for index, why in _no_flags(variant["flags"]) if variant["device"] == "cuda" else ():
                    yield fault((*at, "flags", index), f"{variant['flags'][index]!r} {why}")
                for index, rung in enumerate(variant["rungs"]):
                    if wrong := _rung_fault(rung, variant, operator["variants"]):
                        yield fault((*at, "rungs", index), wrong)
                device = variant["device"]
                if variant["gate"] and device not in [other["device"] for other in operator["baselines"].values()]:
                    message = f"it claims to be faster than the best baseline, and {name} has none on {device}"
                    yield fault(
                        (*at, "gate"), f"{message}: add one to {_dotted((*here, 'baselines'))}, or claim nothing"
                    )
                if variant["abi"] == "python":
                    entered = variant["entry"].rpartition(":")[0]
                    if entered.endswith(".py"):
                        yield from missing((*at, "entry"), entered, anywhere=True)
                    if wrong := _entry_fault(variant["entry"], root):
                        yield fault((*at, "entry"), wrong)
                yield from (fault(at, message) for message in _variant_faults(variant, operator))
    for operator in data["operators"].values():
        declared = stated(operator["module"], root)
        if unknown := [name for name in declared.dtypes or () if name not in dtypes]:
            place = _place_in_module(operator["module"], root, unknown[0])
            message = f"OPERATOR.dtypes has {unknown[0]!r}, which is no data type; {among(unknown[0], dtypes)}"
            yield Fault(place, "", message)
            declared = dataclasses.replace(declared, dtypes=None)  # the configuration's are not to blame
        found = _undeclared(from_json(OperatorConfig, operator), declared)
        yield from (fault(key, message) for key, message in found)


_NO_FLAGS = {
    re.compile(r"--?(gpu-architecture|gpu-code|generate-code|gencode|arch|code)(?=[=\s]|$)"): (
        "asks for machine code that no record would know of; list architectures under `archs`"
    ),
    re.compile(r"--?(rdc|relocatable-device-code)([=\s]\s*true|$)|--?(dc|device-c|dw|device-w|dlto|dlink-time-opt)$"): (
        "needs a device linker, which no build here runs; put what belongs together into one .cu file"
    ),
    re.compile(r"--?(options-file|optf)(?=[=\s]|$)"): "hides flags in a file, of which no record knows; list them here",
}


def _no_flags(flags: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Those of nvcc's flags that a build here cannot take, by their place, and why."""
    for index, flag in enumerate(flags):
        for_another = index > 0 and re.fullmatch(
            r"-X\w+|--(compiler|linker|ptxas|nvlink|archive)-options", flags[index - 1]
        )
        off = flag in ("-rdc", "--relocatable-device-code") and flags[index + 1 : index + 2] == ["false"]
        why = next((why for pattern, why in _NO_FLAGS.items() if pattern.match(flag)), None)
        if why and not for_another and not off:
            yield index, why


def _place_in_module(module: str, root: Path, text: str) -> str:
    """`op.py:12`: where an operator's module, whose file can be read, first has this string."""
    path = _module_file(module, root)
    strings = (node for node in ast.walk(parsed(path.read_bytes())) if isinstance(node, ast.Constant))
    line = min(node.lineno for node in strings if node.value == text)
    return f"{os.path.relpath(path, root) if module.endswith('.py') else module}:{line}"


def _rung_fault(rung: str, variant: dict[str, Any], variants: dict[str, Any]) -> str | None:
    """Why a variant cannot be a rung of another, or None."""
    others = {name for name, other in variants.items() if not other["rungs"] and name != variant["name"]}
    if rung not in others:
        return f"no other variant {rung!r}; {among(rung, others)}"
    kind = variant["device"], variant["abi"]
    found = variants[rung]["device"], variants[rung]["abi"]
    return None if found == kind else f"{rung} is of {' '.join(found)}, {variant['name']} of {' '.join(kind)}"


def _entry_fault(entry: str, root: Path) -> str | None:
    """Why there is no such callable, as far as its file says: it is read and not run.

    A module that is not ours is left to who imports it, and so is a file that can make names while it runs.
    """
    module, _, name = entry.rpartition(":")
    if not module.endswith(".py") and module.partition(".")[0] != "kernelproof":
        return None
    try:
        names, functions = _names_in(_module_file(module, root).read_bytes())
    except ImportError:
        return f"no module {module!r}"
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # a file that is missing is told as that, and one that is no Python by its build
    if name in names or names & _MAKE_NAMES:
        return None
    return f"{module} has no {name!r}; {among(name, functions) if functions else 'it has no function'}"


_MAKE_NAMES = {"*", "globals", "locals", "vars", "exec", "eval", "setattr", "modules", "__dict__", "__getattr__"}


@functools.lru_cache
def _names_in(source: bytes) -> tuple[frozenset[str], tuple[str, ...]]:
    """Every name that a file binds or mentions, and the functions that it gives others. Raises as `ast.parse` does."""
    tree = parsed(source)
    nodes = list(ast.walk(tree))
    names = {node.name for node in nodes if isinstance(node, _DEFINES)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imported = [name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names]
    names |= {alias.asname or alias.name for alias in imported}
    functions = [node.name for node in tree.body if isinstance(node, _DEFINES) and not node.name.startswith("_")]
    return frozenset(names), tuple(functions)


_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _variant_faults(variant: dict[str, Any], operator: dict[str, Any]) -> Iterator[str]:
    from packaging.requirements import InvalidRequirement, Requirement

    if variant["abi"] == "python":
        if ":" not in variant["entry"]:
            yield f"abi python needs entry: 'module:function' or 'file.py:function', not {variant['entry']!r}"
    elif not variant["sources"]:
        yield f"abi {variant['abi']} needs at least one source file"
    if variant["abi"] == "tvm_ffi" and "binding" not in operator:
        yield "abi tvm_ffi needs the operator to name its binding"
    for pattern in variant["calls"]:
        try:
            re.compile(pattern)
        except re.error as error:
            yield (
                f"calls: {pattern!r} is no regular expression ({error}); {_allowed(FAMILIES)}, or a regular expression "
                "that is searched for in a kernel's name"
            )
        else:
            slip = pattern.isalpha() and difflib.get_close_matches(pattern, FAMILIES, cutoff=0.8)
            if pattern not in FAMILIES and (slip or variant["device"] == "cpu"):  # there kernels have no names
                yield f"calls: no library {pattern!r}; {among(pattern, FAMILIES)}"
    for requirement in variant["requires"]:
        try:
            Requirement(requirement)
        except InvalidRequirement:
            yield (
                f"requires: {requirement!r} is no requirement; allowed: a distribution as `pip list` names it, and "
                "versions, e.g. 'flash-attn-4>=4.0.0b1'"
            )
    if variant["device"] == "cpu" and any(source.endswith(".cu") for source in variant["sources"]):
        yield "device cpu, but a source is CUDA (.cu); set device: cuda"
