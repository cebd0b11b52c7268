"""Mutants: the project's own kernels with one planted fault each, built and judged like any variant.

A mutant that the verifier calls correct is a hole in the verifier, unless somebody can say why it is no fault. Each is
one more variant of a temporary project, whose stages run as commands there:

OUTPUT/
    mutants.json, mutants.md    what became of each
    arguments.yaml              read: why a survivor is no fault, by `operator/variant` and id
    project/                    links to the project's files, .mutants/<id>/…, results/

Most faults show on small shapes, so a mutant meets the cases in rounds, and falls in the first that condemns it;
compute-sanitizer's tools, four processes a variant, are for the few that reach the last. The honest variant goes
through every round first: it must be correct there, and its times set the mutants' time limits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import math
import os
import re
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kernelproof import OF_A_RUN, formats, gpu, mutations, own_modules, processes, records, sass
from kernelproof import config as configuration
from kernelproof.config import Config, OperatorConfig, TimeLimits, VariantConfig
from kernelproof.errors import MutantsError, RecordError
from kernelproof.records import BuildRecord, Mutant, MutantControl, MutantsRecord, TestRecord
from kernelproof.repository import provenance

BATCH = 12  # mutants of one variant that one process builds and judges, at most
BATCHES = 6  # for each job, where there are enough mutants
TRIALS = 20  # repeats that must be bitwise equal, at most
SMALL_ELEMENTS = 26_000  # product of the dimensions of a shape that the first rounds use
FLOOR_S, SLACK = 5.0, 10.0  # a mutant may take this many times as long as the honest variant, and at least so long
BATCH_LIMIT_S = 3600.0
ENDINGS = (".cu", ".cuh", ".cc", ".cpp", ".cxx", ".h", ".hpp")
KILLED, SURVIVED, ARGUED, EQUIVALENT, STILLBORN = "killed", "survived", "argued", "equivalent", "stillborn"
LISTED = "listed"  # chosen, and nothing more yet
PLANTED = ".mutants"  # the folder of the temporary project that they lie in
# Sections of a library that hold names, hashes of names or distances to them, or what is read from the cubins.
NAMES = (".note", ".gnu.hash", ".hash", ".nv_fatbin", ".eh_frame", ".gcc_except_table")
NAME_HASH = re.compile(rb"_[0-9a-f]{8}_")  # nvcc's, of a source's path, in the names of what is local to it


@dataclass(frozen=True)
class Selection:
    """Which mutants to make; empty: all. `most` are spread evenly over variants, files and mutation operators."""

    operators: Sequence[str] = ()
    variants: Sequence[str] = ()
    only: Sequence[str] = ()
    most: int | None = None
    seed: int = 0
    headers: bool = False


@dataclass(frozen=True)
class Round:
    """One set of cases: its name, and the configuration that asks for it."""

    name: str
    config: Config


def run(
    config: Config, selection: Selection, output: Path, jobs: int, arguments: Path | None = None, say: Say = print
) -> MutantsRecord:
    """Make mutants, build and judge them; writes `mutants.json` and `mutants.md` into `output` after each batch.

    A run that was cut short goes on where it stopped. `arguments` defaults to `arguments.yaml` in `output`. Raises
    MutantsError when an honest variant is not correct (the others' mutants are judged and kept all the same), or an
    argument's mutant is no more.
    """
    started = time.monotonic()
    targets = _targets(config, selection)
    reasons = _arguments(arguments or output / "arguments.yaml", required=arguments is not None)
    workshop = Workshop(config, output.resolve() / "project")
    with _bounded_memory(targets):
        workshop.prepare({})
        honest: dict[str, BuildRecord] = {}

        def build(target: VariantConfig) -> None:
            honest[target.key] = workshop.build(target.operator, [target.name])[0]

        _in_parallel(jobs, build, targets)
        _insist_on_builds(honest)
        possible = [m for target in targets for m in _mutants(config, target, _own_files(config, honest[target.key]))]
        _insist_on_known(reasons, possible, targets)
        own = {name for target in targets for name in target.sources}
        possible = [m for m in possible if selection.headers or m.file in own]
        record = MutantsRecord(
            status=records.FAILED,
            reason="the run was cut short",
            provenance=provenance(config.root),
            project=config.project,
            seed=selection.seed,
            possible=len(possible),
            mutants=_chosen(possible, selection),
        )
        trial = Trial(config, workshop, honest, record, reasons, output, say)
        trial.resume()
        trial.judge_all(targets, jobs)
    record.status, record.reason = records.OK, None
    record.duration_s = round(time.monotonic() - started, 1)
    trial.write()
    return record


Say = Callable[[str], None]


def listed(config: Config, selection: Selection) -> MutantsRecord:
    """The chosen mutants of the variants' own sources, unbuilt."""
    if selection.headers:
        raise MutantsError(
            "which headers a variant includes is known only after it is built", subject="--list", hint="drop --headers"
        )
    possible = [m for target in _targets(config, selection) for m in _mutants(config, target, target.sources)]
    chosen = _chosen(possible, selection)
    return MutantsRecord(project=config.project, seed=selection.seed, possible=len(possible), mutants=chosen)


# --- which mutants ----------------------------------------------------------------------------------------------------


def _targets(config: Config, selection: Selection) -> list[VariantConfig]:
    """The variants whose sources are to be mutated. Raises ConfigError or MutantsError for a name that is none."""
    operators = [config.operator(name) for name in selection.operators] or list(config.operators.values())
    mutable = [v for owner in operators for v in owner.variants.values() if v.abi != "python"]
    names = {variant.name for variant in mutable}
    for name in selection.variants:
        if name not in names:
            raise MutantsError(f"no compiled variant of this name; allowed: {', '.join(sorted(names))}", subject=name)
    for name in selection.only:
        if name not in mutations.OPERATORS:
            raise MutantsError(
                f"no such mutation operator; allowed: {', '.join(sorted(mutations.OPERATORS))}", subject=name
            )
    return [variant for variant in mutable if not selection.variants or variant.name in selection.variants]


def _chosen(possible: Sequence[Mutant], selection: Selection) -> list[Mutant]:
    """`choose`, and some there must be: nothing planted is nothing that survived."""
    if not (chosen := choose(possible, selection)):
        what = formats.listed(selection.only) if selection.only else "any mutation"
        where = formats.listed(selection.variants or selection.operators) or "any variant"
        hint = "`--list` without `--only` shows what there is"
        raise MutantsError(f"no source of {where} has a place for {what}", subject="mutants", hint=hint)
    return chosen


def _mutants(config: Config, variant: VariantConfig, files: Iterable[str]) -> Iterator[Mutant]:
    """Every mutant of a variant that can be made of some files. An id holds while the lines around it do."""
    seen: dict[str, int] = {}
    for name in files:
        source = (config.root / name).read_bytes()
        for edit in _edits(source):
            diff = _diff(name, source, edit.apply(source))
            lasting = "".join(line for line in diff.splitlines(True) if not line.startswith("@@"))
            text = json.dumps([variant.key, lasting])
            seen[text] = seen.get(text, 0) + 1
            line = source.count(b"\n", 0, edit.start) + 1
            yield Mutant(
                id=hashlib.sha256(f"{text}{seen[text]}".encode()).hexdigest()[:12],
                operator=variant.operator,
                variant=variant.name,
                file=name,
                line=line,
                mutation=edit.operator,
                before=source[edit.start : edit.end].decode(),
                after=edit.text,
                diff=diff,
            )


_edits = functools.cache(mutations.edits)  # a source is parsed once for all its mutants and variants


def _diff(name: str, before: bytes, after: bytes) -> str:
    old, new = (text.decode().splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=2))


def choose(possible: Sequence[Mutant], selection: Selection) -> list[Mutant]:
    """Those that the selection asks for, in the order of the sources; the same seed chooses the same ones."""
    wanted = [m for m in possible if not selection.only or m.mutation in selection.only]
    if selection.most is None or len(wanted) <= selection.most:
        return wanted
    piles: dict[tuple[str, str, str, str], list[Mutant]] = {}
    for mutant in wanted:
        piles.setdefault((mutant.operator, mutant.variant, mutant.file, mutant.mutation), []).append(mutant)

    def drawn(mutant: Mutant) -> str:
        return hashlib.sha256(f"{selection.seed} {mutant.key}".encode()).hexdigest()

    turns = [
        (turn, drawn(mutant), mutant.key)
        for pile in piles.values()
        for turn, mutant in enumerate(sorted(pile, key=drawn))
    ]
    chosen = {key for _, _, key in sorted(turns)[: selection.most]}
    return [mutant for mutant in wanted if mutant.key in chosen]


def _files(built: BuildRecord) -> list[str]:
    """The project's files that a build read."""
    own = [file.path for file in built.sources]
    found = [file.path for file in built.headers if not file.path.startswith("<") and file.path.endswith(ENDINGS)]
    return list(dict.fromkeys([*own, *found]))


def _own_files(config: Config, built: BuildRecord) -> list[str]:
    """The files that a fault can be planted in; a dispatcher's rungs are compiled as they are by themselves."""
    owner = config.operator(built.operator)
    rungs = {name for rung in owner.variant(built.variant).rungs for name in owner.variant(rung).sources}
    return [name for name in _files(built) if name not in rungs]


def _arguments(path: Path, *, required: bool) -> dict[str, str]:
    """Why survivors are no faults, by `operator/variant/id`. Raises MutantsError for a file of another form."""
    import yaml

    if not path.exists() and not required:
        return {}
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return {f"{key}/{id}": reason.strip() for key, reasons in given.items() for id, reason in reasons.items()}
    except (OSError, yaml.YAMLError, AttributeError) as error:
        raise MutantsError(
            f"not a file of arguments: {error}",
            subject=str(path),
            hint="write `operator/variant:` and below it `id: why this survivor is no fault`",
        ) from None


def _insist_on_known(reasons: dict[str, str], possible: Sequence[Mutant], targets: Sequence[VariantConfig]) -> None:
    known, keys = {mutant.key for mutant in possible}, {target.key for target in targets}
    gone = sorted(key for key in reasons if key.rpartition("/")[0] in keys and key not in known)
    if gone:
        raise MutantsError(
            "there is an argument for it, but no such mutant can be made any more",
            subject=formats.listed(gone),
            hint="remove the argument; if the source was changed, look at the mutant that took its place",
        )


# --- the temporary project --------------------------------------------------------------------------------------------


class Workshop:
    """A project like the given one, with mutants as further variants. `root` is its folder."""

    def __init__(self, config: Config, root: Path) -> None:
        self.config, self.root = config, root
        self._boards = itertools.cycle(gpu.visible() if gpu.available()[0] else [])

    def prepare(self, mutants: dict[str, list[VariantConfig]]) -> list[Round]:
        """Link the project's files and write a configuration a round, with further variants by operator."""
        self.root.mkdir(parents=True, exist_ok=True)
        for entry in self.config.root.resolve().iterdir():
            link = self.root / entry.name
            skipped = entry.name in ("results", PLANTED, ".git") or self.root.is_relative_to(entry)
            if not skipped and not link.is_symlink():
                link.symlink_to(entry)
        rounds = [Round(r.name, self._config(r.config, mutants)) for r in rounds_of(self.config)]
        for each in rounds:
            configuration.save(each.config, self._path(each.name))
        return rounds

    def _config(self, config: Config, mutants: dict[str, list[VariantConfig]]) -> Config:
        operators = {
            name: dataclasses.replace(owner, variants={**owner.variants, **{v.name: v for v in mutants.get(name, [])}})
            for name, owner in config.operators.items()
        }
        return dataclasses.replace(config, operators=operators, root=self.root)

    def _path(self, round_name: str) -> Path:
        return self.root / f"{round_name.replace(' ', '-')}.json"

    def limit(self, round_name: str, variant: VariantConfig, limits: TimeLimits) -> None:
        """Write the round's configuration for one variant's mutants."""
        config = configuration.load(self._path(round_name), root=self.root)
        test = dataclasses.replace(config.test, time_limit_s=limits)
        limited = self._path(f"{round_name} {variant.operator} {variant.name}")
        configuration.save(dataclasses.replace(config, test=test), limited)

    def build(self, operator: str, names: Sequence[str]) -> list[BuildRecord]:
        """Build variants, one after the other in one process."""
        self._command("build", operator, names, EVERY)
        return [records.read(self._record("build", operator, name), BuildRecord) for name in names]

    def test(self, operator: str, names: Sequence[str], round_name: str) -> list[TestRecord]:
        """Judge variants on a round's cases; they share a worker host and a judge."""
        self._command("test", operator, names, round_name)
        return [records.read(self._record("test", operator, name), TestRecord) for name in names]

    def _record(self, stage: str, operator: str, name: str) -> Path:
        return dataclasses.replace(self.config, root=self.root).record(stage, operator, name)

    def _command(self, stage: str, operator: str, names: Sequence[str], round_name: str) -> None:
        for name in names:
            self._record(stage, operator, name).unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "kernelproof", stage, "--config", self._path(round_name).name]
        command += ["--operator", operator, *(part for name in names for part in ("--variant", name))]
        environment = {key: value for key, value in os.environ.items() if key not in OF_A_RUN}
        environment["PYTHONPATH"] = processes.python_path()
        if board := next(self._boards, None):  # GPUs take turns
            environment["CUDA_VISIBLE_DEVICES"] = board
        done = processes.run(command, cwd=self.root, env=environment, check=False, timeout_s=BATCH_LIMIT_S)
        if done.returncode != 0:
            raise MutantsError(
                f"`kernelproof {stage}` could not run: {done.stderr.strip() or done.stdout.strip()}",
                subject=f"{operator}: {', '.join(names)}",
            )

    def plant(self, mutant: Mutant, files: Sequence[str]) -> VariantConfig:
        """Copy the files that the variant is made of, one of them with the fault; gives back the mutant as a variant.

        A header is found beside the file that includes it, or before the operator's include folders.
        """
        folder = self.root / PLANTED / mutant.id
        owner = self.config.operator(mutant.operator)
        variant = owner.variant(mutant.variant)
        for name in files:
            to = folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if not to.exists():
                shutil.copyfile(self.config.root / name, to)
        mutated = folder / mutant.file
        mutated.write_bytes(_planted((self.config.root / mutant.file).read_bytes(), mutant))
        here = f"{PLANTED}/{mutant.id}"
        flags = [f"-iquote{here}/{place}" for place in owner.include]
        if variant.device == "cuda":
            quoted = [f"-iquote/proc/self/cwd/{here}/{place}" for place in owner.include]
            flags = [part for flag in quoted for part in ("-Xcompiler", flag)]
        return dataclasses.replace(
            variant,
            name=name_of(mutant),
            sources=[f"{here}/{name}" for name in variant.sources],
            flags=[*variant.flags, *flags],
            gate=False,
        )


def name_of(mutant: Mutant) -> str:
    """The mutant's name as a variant."""
    return f"{mutant.variant}-{mutant.id}"


def _planted(source: bytes, mutant: Mutant) -> bytes:
    """The file with the fault in it. Raises MutantsError when the file is no longer what the mutant was made of."""
    for edit in _edits(source):
        if edit.operator == mutant.mutation and edit.text == mutant.after:
            changed = edit.apply(source)
            if _diff(mutant.file, source, changed) == mutant.diff:
                return changed
    raise MutantsError(f"{mutant.file} was changed while its mutants were judged", hint="run the same command again")


EVERY = "every case"


def rounds_of(config: Config) -> list[Round]:
    """From few small cases to all: what falls in an early round would fall in the last, which has those cases too."""
    test = dataclasses.replace(config.test, trials=min(config.test.trials, TRIALS))
    whole = dataclasses.replace(config, test=test)
    unwatched = dataclasses.replace(test, sanitizer=dataclasses.replace(test.sanitizer, tools=[]))
    operators = {name: _small(owner) for name, owner in config.operators.items()}
    small = dataclasses.replace(config, test=unwatched, operators=operators)
    quick = dataclasses.replace(small, test=dataclasses.replace(unwatched, level="quick"))
    return [Round("quick", quick), Round("small shapes", small), Round(EVERY, whole)]


def _small(owner: OperatorConfig) -> OperatorConfig:
    """The operator with its small shapes only, the largest of them as the main one."""
    sizes = {name: math.prod(dims.values()) for name, dims in owner.shapes.items()}
    asked = owner.test.shapes or list(sizes)
    kept = [name for name in asked if sizes[name] <= SMALL_ELEMENTS] or [min(asked, key=lambda n: sizes[n])]
    on_gpu = [name for name in owner.test.cuda_shapes if sizes[name] <= SMALL_ELEMENTS]
    main = max(kept, key=lambda name: sizes[name])
    return dataclasses.replace(
        owner,
        test=dataclasses.replace(owner.test, shapes=kept, cuda_shapes=on_gpu, family_shape=main, families_also_on=[]),
        profile=dataclasses.replace(owner.profile, shape=main),
    )


def _limits(record: TestRecord, given: TimeLimits) -> TimeLimits:
    """What a mutant may take, by what the honest variant took; never more than the configuration allows."""
    took = {rung.name: rung.duration_s for rung in record.rungs}
    took["correctness"] = max((case.duration_s for case in record.cases), default=took.get("correctness", 0.0))
    return dataclasses.replace(
        given,
        **{
            field.name: min(getattr(given, field.name), max(FLOOR_S, SLACK * took.get(field.name, 0.0)))
            for field in dataclasses.fields(given)
            if field.name != "load"  # of a process beside many others, most of it is the wait for its context
        },
    )


@contextlib.contextmanager
def _bounded_memory(targets: Sequence[VariantConfig]) -> Iterator[None]:
    """A mutant that asks for absurd amounts of memory gets none, and not the machine's; CUDA needs address space."""
    if any(target.device != "cpu" for target in targets):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    resource.setrlimit(resource.RLIMIT_AS, (half if soft == resource.RLIM_INFINITY else min(soft, half), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# --- judging ----------------------------------------------------------------------------------------------------------


def _insist_on_builds(honest: dict[str, BuildRecord]) -> None:
    for key, built in honest.items():
        if built.status != records.OK:
            raise MutantsError(f"the variant itself does not build: {built.reason}", subject=key, hint=built.remedy)


def _fingerprint(config: Config, built: BuildRecord) -> str:
    """What outcomes of a variant's mutants depend on."""
    ours = {
        str(path.relative_to(Path(__file__).parent)): records.sha256_file(path)
        for path in sorted(Path(__file__).parent.rglob("*.py"))
    }
    owner = config.operator(built.operator)
    own = {name: records.sha256_file(config.root / name) for name in own_modules.files_of(owner.module, config.root)}
    asked = [
        owner.module,
        own,
        owner.shapes,
        *(dataclasses.asdict(part) for part in (owner.test, owner.profile, config.test)),
    ]
    parts = [built.signature, dataclasses.asdict(owner.variant(built.variant)), asked, ours]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _key(of: Mutant | MutantControl) -> str:
    """`operator/variant` of the honest variant."""
    return f"{of.operator}/{of.variant}"


class Trial:
    """All mutants of one run on their way through the rounds."""

    def __init__(
        self,
        config: Config,
        workshop: Workshop,
        honest: dict[str, BuildRecord],
        record: MutantsRecord,
        reasons: dict[str, str],
        output: Path,
        say: Say,
    ) -> None:
        self.config, self.workshop, self.honest = config, workshop, honest
        self.record, self.reasons, self.output, self.say = record, reasons, output, say
        self.codes = {key: machine_code(workshop.root, built) for key, built in honest.items()}
        self.fingerprints = {key: _fingerprint(config, built) for key, built in honest.items()}
        self._lock = threading.Lock()

    def resume(self) -> None:
        """Take over what an earlier run found of variants whose fingerprint is the same."""
        try:
            before = records.read(self.output / "mutants.json", MutantsRecord)
        except RecordError:
            return
        self.record.controls = [c for c in before.controls if self.fingerprints.get(_key(c)) == c.fingerprint]
        current = {_key(control) for control in self.record.controls}
        known = {m.key: m for m in before.mutants if m.outcome != LISTED and _key(m) in current}
        self.record.mutants = [known.get(mutant.key, mutant) for mutant in self.record.mutants]

    def judge_all(self, targets: Sequence[VariantConfig], jobs: int) -> None:
        """Take every mutant without an outcome through the rounds, in batches; writes the record after each.

        Those of an honest variant that is not correct keep none, nor those that could not be judged. Raises the first
        MutantsError, after all others are judged.
        """
        left = [mutant for mutant in self.record.mutants if mutant.outcome == LISTED]
        planted: dict[str, list[VariantConfig]] = {}
        for mutant in left:
            files = _files(self.honest[_key(mutant)])
            planted.setdefault(mutant.operator, []).append(self.workshop.plant(mutant, files))
        self.workshop.prepare(planted)
        batches = _batches(left, jobs)
        wanted = {_key(mutant) for mutant in left}
        faults: list[MutantsError] = []

        def control(target: VariantConfig) -> None:
            try:
                self._control(target)
            except MutantsError as fault:
                faults.append(fault)

        # Compilers leave a GPU alone, so they work ahead of it, from the controls on.
        with _pool(jobs) as builders:
            built = {id(batch): builders.submit(self._build, batch) for batch in batches}
            _in_parallel(jobs, control, [target for target in targets if target.key in wanted])
            self.write()
            honest = {_key(control) for control in self.record.controls}
            judged = [batch for batch in batches if _key(batch[0]) in honest]

            def judge(batch: list[Mutant]) -> None:
                try:
                    self._judge(batch, built[id(batch)].result(), alone=jobs == 1)
                except MutantsError as fault:
                    self.say(f"{_key(batch[0])}: {len(batch)} not judged: {fault.message}")
                    faults.append(fault)

            _in_parallel(jobs, judge, judged)
        for mutant in [m for batch in judged for m in batch if m.outcome == LISTED and m.verdict == "hung"]:
            self._judge_alone(mutant)
        if faults:
            self.record.reason = faults[0].message
        self.write()
        if faults:
            raise faults[0]

    def _control(self, variant: VariantConfig) -> None:
        """The honest variant through every round. Raises MutantsError when it is not correct in one."""
        control = next((known for known in self.record.controls if _key(known) == variant.key), None)
        if control is None:
            control = MutantControl(variant.operator, variant.name, self.fingerprints[variant.key])
            for each in rounds_of(self.config):
                self._control_round(variant, control, each.name)
            with self._lock:
                self.record.controls.append(control)
        for name, seconds in control.time_limit_s.items():
            self.workshop.limit(name, variant, TimeLimits(**seconds))

    def _control_round(self, variant: VariantConfig, control: MutantControl, name: str) -> None:
        found = self.workshop.test(variant.operator, [variant.name], name)[0]
        why = f": {found.reason}" if found.reason else ""
        self.say(f"{variant.key}, without a fault: {found.verdict} ({name}, {found.duration_s:.1f} s){why}")
        if found.verdict not in ("correct", "not_run"):
            raise MutantsError(
                f"the variant itself is not correct ({name}): {found.reason}",
                subject=variant.key,
                hint="mend it, or leave it out with --variant",
            )
        control.verdicts[name] = found.verdict
        control.time_limit_s[name] = dataclasses.asdict(_limits(found, self.config.test.time_limit_s))

    def _build(self, batch: list[Mutant]) -> list[BuildRecord]:
        return self.workshop.build(batch[0].operator, [name_of(mutant) for mutant in batch])

    def _judge(self, batch: list[Mutant], built: list[BuildRecord], *, alone: bool) -> None:
        left = [m for m, record in zip(batch, built, strict=True) if self._born(m, record)]
        for each in rounds_of(self.config):
            left = self._round(left, each.name, alone=alone)
        for mutant in left:
            mutant.outcome = SURVIVED
        self._done(batch)

    def _judge_alone(self, mutant: Mutant) -> None:
        """Judge again, and by itself, what hung beside others: who waits for a turn on the GPU does not hang."""
        names = [each.name for each in rounds_of(self.config)]
        assert mutant.round is not None
        if all(self._round([mutant], name, alone=True) for name in names[names.index(mutant.round) :]):
            mutant.outcome = SURVIVED
        self._done([mutant])

    def _round(self, mutants: list[Mutant], name: str, *, alone: bool) -> list[Mutant]:
        """Take one variant's mutants through a round; those that go on to the next. `alone`: no job runs beside it."""
        if not mutants:
            return []
        operator, variant = mutants[0].operator, mutants[0].variant
        found = self.workshop.test(operator, [name_of(m) for m in mutants], f"{name} {operator} {variant}")
        return [m for m, record in zip(mutants, found, strict=True) if self._stands(m, record, name, alone=alone)]

    def _done(self, batch: list[Mutant]) -> None:
        """Write the record, say how far it came, and remove the files of those that have an outcome."""
        for mutant in batch:
            if mutant.outcome != LISTED:
                shutil.rmtree(self.workshop.root / PLANTED / mutant.id, ignore_errors=True)
        with self._lock:
            self.write()
        done = sum(mutant.outcome != LISTED for mutant in self.record.mutants)
        self.say(f"{_key(batch[0])}: {_counted(batch)} ({done} of {len(self.record.mutants)})")

    def _born(self, mutant: Mutant, built: BuildRecord) -> bool:
        """Whether it compiles, and to something else than the honest variant."""
        if built.status != records.OK:
            mutant.outcome, mutant.message = STILLBORN, (built.compiler_message or built.reason or "").strip()
            return False
        read = _files(built)
        if f"{PLANTED}/{mutant.id}/{mutant.file}" not in read:
            raise MutantsError(f"the compiler did not read the mutated {mutant.file}", subject=mutant.key)
        # Constants of CUDA code lie in several places, not all of which can be told from names: let it be judged.
        sure = not built.cubins or mutant.mutation != "perturb_constant"
        if sure and machine_code(self.workshop.root, built) == self.codes[_key(mutant)]:
            mutant.outcome = EQUIVALENT
            return False
        return True

    def _stands(self, mutant: Mutant, found: TestRecord, round_name: str, *, alone: bool) -> bool:
        """Whether it goes on to the next round; what killed it is noted. One that hung beside others has no outcome."""
        mutant.verdict, mutant.round = found.verdict, round_name
        if found.verdict == "hung" and not alone:
            return False
        if found.verdict == "not_run":
            mutant.outcome, mutant.message = records.NOT_RUN, found.reason
            return False
        if found.verdict == "correct":
            return True
        mutant.outcome = KILLED
        mutant.rung, mutant.criterion, mutant.message = killed_by(found)
        return False

    def write(self) -> None:
        """Write the record and its page."""
        for mutant in self.record.mutants:
            if mutant.outcome in (SURVIVED, ARGUED):
                mutant.argument = self.reasons.get(mutant.key)
                mutant.outcome = ARGUED if mutant.argument else SURVIVED
        self.record.kill_rate = kill_rate(self.record.mutants)
        self.record.controls.sort(key=_key)
        records.write(self.output / "mutants.json", self.record)
        records.atomic_write(self.output / "mutants.md", page(self.record))


T = TypeVar("T")


def _in_parallel(jobs: int, do: Callable[[T], None], subjects: Sequence[T]) -> None:
    """Do it to each; after an error or an interrupt nothing more is begun, and what is under way ends."""
    with _pool(jobs) as pool:
        for done in [pool.submit(do, subject) for subject in subjects]:
            done.result()


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads; who leaves waits for what they have begun, and the rest is not begun."""
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(mutants: Sequence[Mutant], jobs: int) -> list[list[Mutant]]:
    """Groups of one variant's mutants, some for each job where there are so many; variants take turns.

    A process costs some seconds, and a large batch leaves the other jobs without work at the end.
    """
    by_variant: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in mutants:
        by_variant.setdefault((mutant.operator, mutant.variant), []).append(mutant)
    most = min(BATCH, max(1, math.ceil(len(mutants) / (BATCHES * jobs))))
    cut = []
    for group in by_variant.values():
        count = math.ceil(len(group) / most)
        cut.append([group[place::count] for place in range(count)])
    longest = max((len(batches) for batches in cut), default=0)
    return [batches[turn] for turn in range(longest) for batches in cut if turn < len(batches)]


def machine_code(root: Path, built: BuildRecord) -> str:
    """A hash over what the processor will be given: of linked libraries, where every call and constant is resolved.

    A CUDA library's cubins count by their normalised instructions and their constants. Raises MutantsError when the
    library is gone.
    """
    if built.library is None or not (root / built.library.path).is_file():
        raise MutantsError("its library is gone", subject=f"{built.operator}/{built.variant}")
    digest = hashlib.sha256()
    for section in sass.read_elf((root / built.library.path).read_bytes()):
        if section.flags & sass.SHF_ALLOC and not section.name.startswith(NAMES):
            data = NAME_HASH.sub(b"_00000000_", section.data) if built.cubins else section.data
            digest.update(f"{section.name} {section.size}\n".encode() + data)
    for cubin in built.cubins:
        digest.update(f"{cubin.arch} {cubin.sass_sha256}\n".encode())
        for section in sass.read_elf((root / cubin.path).read_bytes()):
            if section.name.startswith((".nv.constant", ".nv.global.init")):
                digest.update(section.data)
    return digest.hexdigest()


def killed_by(found: TestRecord) -> tuple[str, str, str]:
    """The rung that condemned a variant, the criterion, and the sentence."""
    name = found.told.name if found.told else found.verdict
    if found.verdict in ("crashed", "hung"):
        criterion = "crash" if found.verdict == "crashed" else "hang"
    elif name in ("sanity", "correctness"):
        failures = [failure.criterion for case in found.cases for failure in case.failures]
        criterion = failures[0] if failures else "suite"
    elif name == "sanitizer" and found.sanitizer is not None:
        criterion = next(failure.criterion for run in found.sanitizer.runs for failure in run.failures)
    else:
        criterion = name
    return name, criterion, (found.reason or "").strip()


def kill_rate(mutants: Sequence[Mutant]) -> float | None:
    """killed / (killed + survived + argued); None where nothing was judged."""
    judged = [mutant for mutant in mutants if mutant.outcome in (KILLED, SURVIVED, ARGUED)]
    return sum(mutant.outcome == KILLED for mutant in judged) / len(judged) if judged else None


# --- the page ---------------------------------------------------------------------------------------------------------

OUTCOMES = (KILLED, SURVIVED, ARGUED, EQUIVALENT, STILLBORN, records.NOT_RUN, LISTED)


def _counted(mutants: Sequence[Mutant]) -> str:
    counts = {name: sum(mutant.outcome == name for mutant in mutants) for name in OUTCOMES}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def summary(record: MutantsRecord, output: Path) -> Iterator[str]:
    """The survivors, and one line over all, for a terminal."""
    for mutant in record.mutants:
        if mutant.outcome == SURVIVED:
            yield f"{mutant.key} survived: {mutant.mutation}, {mutant.file}:{mutant.line}\n{mutant.diff}"
    rate = "nothing was judged" if record.kill_rate is None else f"kill rate {100 * record.kill_rate:.1f} %"
    yield f"{len(record.mutants)} mutants: {_counted(record.mutants)}; {rate}; see {output / 'mutants.md'}"


def page(record: MutantsRecord) -> str:
    """`mutants.md`: totals, what killed them, and each survivor with its diff."""
    from kernelproof import rendering

    return rendering.render(
        "mutants.md.j2",
        record=record,
        total=_row("all", record.mutants),
        by_variant=_table(record.mutants, _key),
        by_mutation=_table(record.mutants, lambda m: m.mutation),
        killers=_table([m for m in record.mutants if m.outcome == KILLED], lambda m: f"{m.rung}: {m.criterion}"),
        survivors=[m for m in record.mutants if m.outcome == SURVIVED],
        argued=[m for m in record.mutants if m.outcome == ARGUED],
        plants=mutations.OPERATORS,
    )


def _table(mutants: Sequence[Mutant], of: Callable[[Mutant], str]) -> list[dict[str, Any]]:
    groups: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(of(mutant), []).append(mutant)
    return [_row(name, groups[name]) for name in sorted(groups)]


def _row(name: str, mutants: Sequence[Mutant]) -> dict[str, Any]:
    counts = {outcome: sum(mutant.outcome == outcome for mutant in mutants) for outcome in OUTCOMES}
    rate = kill_rate(mutants)
    return {"name": name, "made": len(mutants), **counts, "rate": "–" if rate is None else f"{100 * rate:.1f} %"}
