"""A finished run, read again: from a bundle, from the results of this checkout, or from a folder that keeps records.

What can be checked is checked before anything of it is believed: a bundle as `kernelproof verify` does, and kept
records against the `manifest.yaml` that lies beside them. One that was tampered with is refused by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelproof import claims, consistency, records, samples, verify
from kernelproof.errors import BundleError, RecordError
from kernelproof.records import BenchRecord, BuildRecord, CaptureRecord, Record, TestRecord

BUNDLE, RECORDS = "bundle", "records"
CORRECT, MISSING = "correct", "missing"  # a test's verdict; there is no record of one
BAD = frozenset({"wrong", "crashed", "hung", "failed_to_build"}) | claims.FOUND
KINDS: dict[str, type[Record]] = {
    "capture": CaptureRecord,
    "build": BuildRecord,
    "test": TestRecord,
    "bench": BenchRecord,
}
CEILINGS = "bench/ceilings/"  # of the machine, not of an operator: nothing is judged or compared by them

LIBRARY_CALLS = "kernelproof/baselines.py"  # a source whose functions only call libraries


@dataclass(frozen=True)
class Unread:
    """A record that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Side:
    """A run in a few words: what it is, of which commits, when and where, under which torch."""

    name: str
    kind: str
    identity: str | None
    commits: list[str]
    utc: str
    machine: str
    torch: str


@dataclass
class Run:
    """Everything of a run that another can be held against.

    name: as it was given. kind: `bundle` or `records`. identity: the SHA-256 of its manifest, where it was checked
    against one. Records by `operator/variant`, benchmarks by `operator-device`.
    """

    name: str
    kind: str
    identity: str | None = None
    capture: CaptureRecord | None = None
    builds: dict[str, BuildRecord] = field(default_factory=dict)
    tests: dict[str, TestRecord] = field(default_factory=dict)
    benches: dict[str, BenchRecord] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    read_samples: Callable[[str], bytes | None] = lambda name: None

    @cached_property
    def _records(self) -> list[Record]:
        capture = [self.capture] if self.capture else []
        return [*capture, *self.builds.values(), *self.tests.values(), *self.benches.values()]

    @property
    def utc(self) -> str:
        """When its last record was made (ISO 8601, UTC)."""
        return max((record.provenance.utc for record in self._records), default="")

    def setting(self, part: str, name: str, default: Any = None) -> Any:
        """What the configuration that it was made with says of `part.name`; the default where that is nothing."""
        found = self.config.get(part)
        value = found.get(name) if isinstance(found, dict) else None
        return default if value is None else value

    def knows(self, key: str) -> bool:
        """Whether it has a test's or a build's record of `operator/variant`."""
        return key in self.tests or key in self.builds

    def found_by_bench(self, key: str) -> tuple[str, str] | None:
        """What the benchmark of its device found wrong with a contender, and why (claims.found_by_bench)."""
        operator, _, name = key.partition("/")
        return claims.found_by_bench(self.benches.get(f"{operator}-{self.device(key)}"), name)

    def verdict(self, key: str) -> str:
        """Its test's verdict; of a correct one what the benchmark found wrong; `missing` where there is no test."""
        test = self.tests.get(key)
        if test is None:
            return MISSING
        found = self.found_by_bench(key) if test.verdict == CORRECT else None
        return found[0] if found else test.verdict

    @property
    def commits(self) -> list[str]:
        """The commits that were measured, the last first; more than one where a stage was not run again."""
        states = sorted((record.provenance for record in self._records), key=lambda state: state.utc, reverse=True)
        return list(dict.fromkeys(filter(None, map(_commit, states))))

    def commit_of(self, key: str) -> str:
        """The commit that `operator/variant` was tested or built at, else the run's last; empty if not known."""
        record = self.tests.get(key) or self.builds.get(key)
        return _commit(record.provenance) if record else next(iter(self.commits), "")

    def declares(self, key: str, name: str, default: Any) -> Any:
        """What the configuration that it was made with says of `operator/variant`, or the default; None if unknown."""
        operator, _, variant = key.partition("/")
        groups = self.config.get("operators", {}).get(operator, {})
        found = [(groups.get(group) or {}).get(variant) for group in ("variants", "baselines")]
        value = next((one.get(name, default) for one in found if isinstance(one, dict)), None)
        return value if isinstance(value, type(default)) else None

    def probe(self, name: str) -> Any:
        """What the capture stage found out about the machine; None where it could not."""
        found = self.capture.probes.get(name) if self.capture else None
        return found.value if found is not None and found.status == records.OK else None

    @property
    def gpu(self) -> Mapping[str, Any]:
        """The first GPU's facts; empty without one."""
        boards = self.probe("gpu")
        return boards[0] if isinstance(boards, list) and boards and isinstance(boards[0], dict) else {}

    def board(self, bench: str) -> Mapping[str, Any]:
        """The facts of the GPU that a benchmark ran on: of several, the one that its record names.

        Empty where it names none of them, or none at all and they are of several models.
        """
        boards = self.probe("gpu")
        named = self.benches[bench].gpu if bench in self.benches else None
        found = [board for board in boards if isinstance(board, dict)] if isinstance(boards, list) else []
        if named is None or not any(board.get("uuid_sha256") for board in found):
            return self.gpu if len({board.get("name") for board in found}) == 1 else {}
        return next((board for board in found if board.get("uuid_sha256") == named), {})

    def facts(self, name: str) -> Mapping[str, Any]:
        """What a probe found where that is a mapping; else empty."""
        found = self.probe(name)
        return found if isinstance(found, dict) else {}

    @property
    def cpu(self) -> Mapping[str, Any]:
        """The processor's facts."""
        return self.facts("cpu")

    @property
    def packages(self) -> Mapping[str, str]:
        """Every Python package with its version."""
        return self.facts("packages")

    @property
    def decisive(self) -> dict[str, str]:
        """The packages that can change what a kernel computes, or how fast."""
        found = sorted(self.packages.items())
        return {name: version for name, version in found if name.startswith(records.DECISIVE_PACKAGES)}

    @property
    def machine(self) -> str:
        """GPU and processor in one line."""
        return ", ".join(str(name) for name in (self.gpu.get("name"), self.cpu.get("model")) if name)

    @property
    def side(self) -> Side:
        """The run in a few words."""
        return Side(
            self.name, self.kind, self.identity, self.commits, self.utc, self.machine, self.packages.get("torch", "")
        )

    def role(self, key: str) -> str:
        """`variant` or `baseline`, of `operator/variant`."""
        record = self.tests.get(key) or self.builds.get(key)
        return record.role if record else "variant"

    def device(self, key: str) -> str:
        """`cpu` or `cuda`, of `operator/variant`."""
        record = self.tests.get(key) or self.builds.get(key)
        return record.device if record else "cpu"

    def times(self, bench: str) -> Mapping[samples.Place, samples.Blocks]:
        """The samples that a benchmark's primary times were made from.

        Raises RecordError when they are not there or not readable.
        """
        record = self.benches[bench]
        method = samples.PRIMARY[record.device]
        data = self.read_samples(f"{bench}.csv.gz")
        if data is None:
            raise RecordError("its samples are not there", subject=f"{self.name}: {bench}.csv.gz")
        counted = {(row.contender, row.case, row.mode) for row in record.times if row.method == method}
        found = samples.read(data, method, f"{self.name}: {bench}.csv.gz")
        return {place: blocks for place, blocks in found.items() if place in counted}


def _commit(state: records.Provenance) -> str:
    """A state of the repository in short, `3f6de27` or with `+` where it had changes; empty where it is not known."""
    return f"{state.commit[:12]}{'+' if state.dirty else ''}" if state.commit else ""


def load(path: Path) -> Run:
    """Read a run: a bundle's tarball, a report's folder that holds one, `results`, or a folder with kept records.

    Raises BundleError for a bundle or kept records that are not as they were packed, RecordError where there is no
    run to read. A single record that cannot be read is listed in the run, with the reason.
    """
    if path.is_file():
        return _of_bundle(path)
    if not path.is_dir():
        raise RecordError("there is no such bundle or folder", subject=str(path))
    root = next((root for root in (path, path / "records", path / "results") if _has_records(root)), None)
    if root is not None:
        return _of_folder(path, root)
    tarballs = sorted(path.glob("kernelproof-*.tar.gz"))
    if len(tarballs) != 1:
        found = "no records and no bundle" if not tarballs else f"{len(tarballs)} bundles"
        raise RecordError(f"there are {found} in it", subject=str(path), hint="name a tarball or a folder of records")
    return _of_bundle(tarballs[0], str(path))


def _has_records(folder: Path) -> bool:
    return any((folder / stage).is_dir() for stage in ("build", "test", "bench"))


_REFUSED = {
    verify.TAMPERED: "is tampered with",
    verify.UNREADABLE: "is unreadable",
    verify.CONTRADICTORY: "contradicts itself",
}


def _of_bundle(path: Path, name: str | None = None) -> Run:
    result, found = verify.contents(path, _wanted)
    if not result.good:
        problem = str(result.problems[0]) if result.problems else result.status
        more = f" (and {len(result.problems) - 1} more)" if len(result.problems) > 1 else ""
        raise BundleError(
            f"it {_REFUSED[result.status]}: {problem.removeprefix(f'{result.status}: ')}{more}",
            subject=str(path),
            hint=f"nothing of it was believed; see `kernelproof verify {path}`",
        )
    run = Run(name or str(path), BUNDLE, result.identity)
    run.read_samples = lambda sample: found.get(f"samples/{sample}")
    _fill(run, {name.removeprefix("records/"): data for name, data in found.items() if name.startswith("records/")})
    _configure(run, found.get("config.json"))
    return run


def _wanted(name: str) -> bool:
    return name.startswith(("records/", "samples/")) or name == "config.json"


def _of_folder(folder: Path, root: Path) -> Run:
    run = Run(str(folder), RECORDS)
    if root == folder and folder.name == "records" and (folder.parent / verify.MANIFEST).is_file():
        folder = folder.parent  # the manifest lies beside them, as where that folder is named
    # Beside a manifest everything counts that it could be held against; of results only what is read.
    places = [root] if (folder / verify.MANIFEST).is_file() else [root / stage for stage in KINDS]
    files, kept, run.identity = _read(folder, root, places)
    run.read_samples = lambda name: kept.get(f"samples/{name}")
    _fill(run, files)
    _configure(run, kept.get("config.json"))
    return run


def kept_records(folder: Path) -> dict[str, bytes]:
    """The records that a folder keeps in `records/`, by their path there, each read once.

    Raises BundleError where they are not those of the manifest beside them.
    """
    files, _, _ = _read(folder, folder / "records", [folder / "records"])
    return files


def _read(folder: Path, root: Path, places: Iterable[Path]) -> tuple[dict[str, bytes], dict[str, bytes], str | None]:
    """Records by their path below `root`; all that is kept by a member's name; the manifest's identity, if any.

    Raises BundleError where they are not those of that manifest.
    """
    files = {str(path.relative_to(root)): path.read_bytes() for place in places for path in place.rglob("*.json")}
    kept = {f"records/{name}": data for name, data in files.items() if name != "config.json"}
    for samples_folder in (root / "bench", folder / "samples"):  # as it is kept, and as it lies in a bundle
        kept |= {f"samples/{path.name}": path.read_bytes() for path in samples_folder.glob("*.csv.gz")}
    config = next((path for path in (root / "config.json", folder / "config.json") if path.is_file()), None)
    if config is not None:
        kept["config.json"] = config.read_bytes()
    manifest = folder / verify.MANIFEST
    return files, kept, _held_against(manifest, kept) if manifest.is_file() else None


def _held_against(manifest: Path, kept: Mapping[str, bytes]) -> str:
    """The manifest's identity, when what is kept are those of its members that a run is read from, as packed, and they
    agree with one another.

    Sources, logs, machine code and reports need not be kept; a record or samples that are listed must be. Raises
    BundleError.
    """
    data = manifest.read_bytes()
    found = records.loads(data, str(manifest))
    try:
        everything = {row["path"]: row["sha256"] for row in found["members"]}
        listed = {path: sha256 for path, sha256 in everything.items() if _wanted(path)}
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"it cannot be read: {type(error).__name__}: {error}", subject=str(manifest)) from None
    for name in sorted({*listed, *kept}):
        if name not in kept:
            what = "is missing"
        elif name not in listed:
            what = "is not in it"
        elif listed[name] != hashlib.sha256(kept[name]).hexdigest():
            what = "is not what was packed"
        else:
            continue
        raise BundleError(
            f"the kept records are tampered with: {name} {what}, by {manifest.name} beside them",
            subject=str(manifest.parent),
            hint="nothing of them was believed; take them from the bundle again",
        )
    identity = hashlib.sha256(data).hexdigest()
    documents = {**kept, verify.MANIFEST: data}
    for fault in consistency.find({**everything, verify.MANIFEST: identity}, documents):
        if fault.member in documents:  # what is not kept says nothing
            raise BundleError(
                f"the kept records contradict one another: {fault.member}: {fault.message}",
                subject=str(manifest.parent),
                hint="nothing of them was believed; take them from the bundle again",
            )
    return identity


def _fill(run: Run, files: Mapping[str, bytes]) -> None:
    """Sort records in, by their path below the records' folder. Raises RecordError when none can be read."""
    for path, data in sorted(files.items()):
        stage, _, rest = path.partition("/")
        if stage not in KINDS or path.startswith(CEILINGS) or path.endswith(records.LAUNCHES):
            continue
        try:
            _file(run, rest.removesuffix(".json"), records.parse(data, KINDS[stage], path))
        except RecordError as error:
            run.unread.append(Unread(path, error.message))
    if not (run.builds or run.tests or run.benches):
        why = f"; {run.unread[0].path}: {run.unread[0].reason}" if run.unread else ""
        raise RecordError(f"no record in it can be read{why}", subject=run.name)


def _file(run: Run, key: str, record: Record) -> None:
    match record:
        case CaptureRecord():
            run.capture = record
        case BuildRecord():
            run.builds[key] = record
        case TestRecord():
            run.tests[key] = record
        case BenchRecord():
            run.benches[key] = record


def _configure(run: Run, data: bytes | None) -> None:
    """Take over the configuration, if what is read of it is of the right kind; else it is listed as not read."""
    try:
        run.config = _checked(records.loads(data or b"{}", "config.json"))
    except (RecordError, TypeError) as error:
        run.unread.append(Unread("config.json", error.message if isinstance(error, RecordError) else str(error)))


def _checked(config: Any) -> Mapping[str, Any]:
    """The configuration itself. Raises TypeError where a part of it that is read here is of another kind."""
    known = _parts(config, "operators", "gate", "bench")
    for settings in known.get("operators", {}).values():
        _parts(_parts(settings, "variants", "baselines", "profile").get("profile", {}), "options")
    for part, key, least, below in (("gate", "same_band", 0, 1), ("bench", "confidence", 0, 1)):
        value = known.get(part, {}).get(key)
        if value is not None and not least < records.from_json(float, value) < below:
            raise TypeError(f"{part}.{key}: {value} is not between {least} and {below}")
    return records.from_json(dict[str, Any], config)  # type: ignore[no-any-return]


def _parts(settings: Any, *names: str) -> dict[str, dict[str, Any]]:
    """Some parts of a configuration, each a mapping. Raises TypeError."""
    whole = records.from_json(dict[str, Any], settings)
    found: dict[str, dict[str, Any]] = records.from_json(
        dict[str, dict[str, Any]], {name: whole[name] for name in names if name in whole}
    )
    return found


# --- may their times be compared --------------------------------------------------------------------------------------


@dataclass
class Comparability:
    """Why the times of two runs cannot be compared, and what to bear in mind where they can.

    strict: why a gate may not compare them, though a person may: another branch of the driver, other clocks.
    """

    refusal: str | None = None
    cautions: list[str] = field(default_factory=list)
    strict: str | None = None


CLOCK_IN_NAME = re.compile(r"@.*|version .*")  # digits of a processor's name that are no model's
CLOCK_SHARE = 0.03  # median SM clocks of two benchmarks that differ by more are different clocks


def comparability(before: Run, after: Run, bench: str) -> Comparability:
    """Whether a benchmark's times in two runs are of the same kind of machine.

    Another GPU model, or for CPU benchmarks another processor or number of threads, is refused. Whatever else differs
    and moves times is a caution.
    """
    device = (after.benches.get(bench) or before.benches[bench]).device
    return _of_gpus(before, after, bench) if device == "cuda" else _of_cpus(before, after, bench)


def _of_gpus(before: Run, after: Run, bench: str) -> Comparability:
    ours, theirs = after.board(bench), before.board(bench)
    for run, board in ((before, theirs), (after, ours)):
        if not board.get("name"):
            return Comparability(f"no GPU is on record in {run.name}, or another than the benchmark names")
    for key, what in (("name", "GPU models"), ("mig", "MIG modes")):
        if theirs.get(key) != ours.get(key):
            return Comparability(f"the {what} differ: {theirs.get(key)} and {ours.get(key)}")
    clocks = [
        _both(what, theirs.get(key), ours.get(key))
        for key, what in (
            ("sm_clock_max_mhz", "highest SM clock (MHz)"),
            ("memory_clock_max_mhz", "highest memory clock (MHz)"),
            ("power_limit_w", "power limit (W)"),
        )
        if theirs.get(key) != ours.get(key)
    ]
    old, new = (_median_clock(run, bench) for run in (before, after))
    if old and new and abs(new / old - 1) > CLOCK_SHARE:
        clocks.append(_both("median SM clock while measuring (MHz)", f"{old:.0f}", f"{new:.0f}"))
    others = [
        _both(key, theirs.get(key), ours.get(key)) for key in ("driver", "ecc") if theirs.get(key) != ours.get(key)
    ]
    if theirs.get("uuid_sha256") != ours.get("uuid_sha256"):
        others.append("another board of the same model")
    branches = [str(board.get("driver", "")).partition(".")[0] for board in (theirs, ours)]
    strict = f"the driver's branches differ: {branches[0]} and {branches[1]}" if branches[0] != branches[1] else None
    return Comparability(None, clocks + others, strict or (f"the clocks differ: {clocks[0]}" if clocks else None))


def _both(what: str, before: Any, after: Any) -> str:
    return f"{what} {before} and {after}"


def _median_clock(run: Run, bench: str) -> float | None:
    found = run.benches[bench].states.get("sm_clock_mhz") if bench in run.benches else None
    median = found.get("median") if isinstance(found, dict) else None
    return float(median) if isinstance(median, int | float) and median > 0 else None


def _of_cpus(before: Run, after: Run, bench: str) -> Comparability:
    facts = [
        (run.cpu.get("model"), run.cpu.get("usable_cores"), record.threads if (record := run.benches.get(bench)) else 0)
        for run in (before, after)
    ]
    for what, theirs, ours in zip(("processors", "usable cores", "numbers of threads"), *facts, strict=True):
        if theirs != ours:
            return Comparability(f"the {what} differ: {theirs} and {ours}")
    if before.capture == after.capture:
        return Comparability()
    cautions = [
        f"the processor's {key.replace('_', ' ')} differs"
        for key in ("architecture", "flags", "max_mhz", "physical_cores", "smt")
        if None not in (was := before.cpu.get(key), now := after.cpu.get(key)) and was != now
    ]
    model = str(before.cpu.get("model"))
    if not any(character.isdigit() for character in CLOCK_IN_NAME.sub("", model)):
        cautions.append(f"{model!r} names no model: these may be different processors")
    return Comparability(None, cautions)


def strictly(before: Run, after: Run, bench: str) -> str | None:
    """Why a regression gate may not compare a benchmark of two runs; None where it may."""
    found = comparability(before, after, bench)
    return found.refusal or found.strict


# --- what did not change ----------------------------------------------------------------------------------------------


def same_code(before: Run, after: Run, key: str) -> bool:
    """Is a contender known to be the same code in both runs?

    The same packages that decide (torch, Triton, cuDNN, …), and: of a compiled one the same machine code for host and
    every GPU architecture; of a callable the same sources or, where these only call libraries, the same kernels on the
    GPU.
    """
    ours, theirs = after.builds.get(key), before.builds.get(key)
    if ours is None or theirs is None or not before.packages or not after.packages:
        return False
    if before.decisive != after.decisive or ours.abi != theirs.abi or ours.macros != theirs.macros:
        return False
    if ours.abi == "python":
        return hashes(ours) == hashes(theirs) or _same_library_calls(before, after, ours)
    return same_machine_code(theirs, ours) is True


def _same_library_calls(before: Run, after: Run, build: BuildRecord) -> bool:
    """Are a library baseline's kernels by name and number the same in both benchmarks?"""
    if not build.sources or not all(file.path.endswith(LIBRARY_CALLS) for file in build.sources):
        return False
    name = f"{build.operator}-{build.device}"
    launched = [
        [
            (str(entry.get("case")), entry.get("name"), entry.get("count"))
            for entry in bench.kernels_in_interval[build.variant]
        ]
        for bench in (run.benches.get(name) for run in (before, after))
        if bench and bench.kernels_in_interval.get(build.variant)
    ]
    if len(launched) < 2:
        return False
    common = {case for case, *_ in launched[0]} & {case for case, *_ in launched[1]}
    ours, theirs = ([entry for entry in entries if entry[0] in common] for entries in launched)
    return bool(common) and sorted(map(str, ours)) == sorted(map(str, theirs))


def hashes(build: BuildRecord) -> dict[str, str]:
    """SHA-256 of every source and header, the binding's among them, by path."""
    return {file.path: file.sha256 for file in build.files}


def same_machine_code(before: BuildRecord, after: BuildRecord) -> bool | None:
    """Without paths and names, the GPU's, the host's and the binding's; None when nothing is known of one of them."""
    codes = [
        (tuple(sorted((cubin.arch, cubin.sass_sha256) for cubin in build.cubins)), build.host_code_sha256)
        for build in (before, after)
    ]
    if not all(any(code) for code in codes):
        return None
    bindings = [build.binding_code_sha256 for build in (before, after)]  # earlier records have none
    return codes[0] == codes[1] and (bindings[0] == bindings[1] or None in bindings)


def keys(*found: Run) -> Iterator[str]:
    """Every `operator/variant` of some runs, in the order of the first configuration that has it."""
    configured = [
        f"{operator}/{name}"
        for run in reversed(found)
        for operator, settings in run.config.get("operators", {}).items()
        for name in (*settings.get("variants", {}), *settings.get("baselines", {}))
    ]
    recorded = sorted({key for run in found for key in (*run.builds, *run.tests)})
    known = set(recorded)
    yield from dict.fromkeys([*(key for key in configured if key in known), *recorded])
