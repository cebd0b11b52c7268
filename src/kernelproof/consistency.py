"""Does a bundle agree with itself: its records with one another, the manifest, and the files packed beside them?

`kernelproof verify` asks this of members that it has hashed, with the standard library alone. Whoever makes a bundle
can write into it whatever agrees; found here is what was changed in one place and left in another.

Not looked at: pages, logs, JUnit XML, launches, what a profile counted, and the intervals of times, whose bootstrap the
standard library does not have. Those of ratios are never narrower than Student's t, which is computed here.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
import operator
import posixpath
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from statistics import NormalDist, fmean, median, stdev
from typing import Any

from kernelproof import fingerprints
from kernelproof.verify import MANIFEST, SUMS, strict_json
from kernelproof.visits import VISIT, Visits

FACTS, CONFIG, MACHINE_CODE = "records/manifest.json", "config.json", "machine-code.json"
RESOLVED = "source/config.resolved.json"  # the same file as CONFIG, which is without private words
CAPTURE = "records/capture/capture.json"
RECORD = re.compile(r"records/(?P<stage>capture|build|test|bench|profile)/(?P<subject>.+)\.json")
# Facts that the manifest has from the record of its stage.
SHARED = ("project", "overall", "provenance", "measured", "verdicts", "identical_machine_code", "missing", "tools")

MAX_SAMPLES_BYTES = 256 * 1024 * 1024  # of all benchmarks together, unpacked
MAX_SAMPLES = 1_000_000  # of all benchmarks together; 78,000 in a run with 40 variants on a GPU
MAX_ASKED = 1_000_000  # cases that a configuration asks of all contenders together; 1,000 in such a run
MAX_LINE_BYTES = 64 * 1024
MAX_DEPTH = 8  # of a setting in the configuration
POSSIBLE_US = 1e-6, 1e12  # what is beyond was not read from a clock
TOLERANCE = 2e-5  # relative: a row has six digits, and so have the samples
MEASURED = ("samples/", "junit/", "launches/", "profile/")  # members of the class `measurement`, beside records
OF_RECORDS = (*MEASURED, "sass/")  # members that are there because a record names them; cubins are looked at apart
# What the packing makes; every other member was gathered before.
MADE = frozenset({MANIFEST, SUMS, FACTS, MACHINE_CODE, "report.html", "summary.md", "REPLAY.md"})
COLUMNS = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle")
SLOPE = ("calls", "short_calls", "short_us", "long_us")  # what a time that is a slope was made from
SLOPE_STEP_US = 0.0005  # to which the ends of a slope are rounded before they are written with six digits
CLOSED_DEGREES = 200  # up to which Student's t is summed term by term
# As in samples.py, contest/, methods.py, claims.py, records.py, privacy.py and the ladder; a test holds them together.
DISCARDED_STATES = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
PRIMARY = {"cpu": "cpu_clock", "cuda": "graph_slope"}
UNSAMPLED = frozenset({"cupti", "device_trace", "ncu", "floor_ncu"})  # methods without samples
DECISIVE_PACKAGES = (
    *("torch", "triton", "apache-tvm-ffi", "numpy", "xformers"),
    *("flash-attn", "quack", "nvidia-cu", "nvidia-nv"),
)
BOARD = ("name", "driver", "cuda_driver", "uuid_sha256")  # what the manifest says of a GPU
CORES_SHARED, OTHERS_SHARE = "cores_shared", 0.1
DECIDES_NOTHING = (CORES_SHARED, "gpu_shared", "disagrees_outside_clock", "slower_in_company")  # flags of times
CAUGHT = ("times escape", "spoils others", "library call passed off")  # a contender whose times are made up
RAN_AND_FAILED = frozenset({"wrong", "crashed", "hung"})
LEVELS = ("quick", "default", "deep")  # of a test, the least first
QUICK_TRIALS = 10  # at most, at the quick level
NEEDED_PROPERTIES = frozenset({"fresh values", "new values"})  # whatever the operator, and the variant takes
NEEDED_RUNGS = frozenset({"build", "load", "launch", "sanity", "correctness", "determinism"})
PRIVATE = re.compile(r"<(?:repo|home|prefix|user|host|gpu)>|\[secret\]")  # what stands for a private word

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)

Key = tuple[str, str, str, str]  # contender, case, mode, method
Logs = dict[int, dict[int, float]]  # process -> block -> mean of the logarithms of its times


@dataclass(frozen=True)
class Contradiction:
    """A member, and what it says together with what it does not agree with."""

    member: str
    message: str


def wanted(name: str) -> bool:
    """Whether a member's bytes are needed here; of all others the hash is."""
    return name == MANIFEST or name.startswith("samples/") or is_document(name)


def is_document(name: str) -> bool:
    """Whether a member is a record, the configuration or another document of JSON that is looked into."""
    return name in (FACTS, CONFIG, RESOLVED, MACHINE_CODE) or bool(RECORD.fullmatch(name))


def find(sha256: Mapping[str, str], kept: Mapping[str, bytes]) -> list[Contradiction]:
    """Every contradiction, from the SHA-256 of all members and the bytes of those that are wanted; never raises."""
    documents: dict[str, dict[str, Any]] = {}
    found: list[Contradiction] = []
    for name, data in kept.items():
        if wanted(name) and not name.startswith("samples/"):
            found += _guarded(name, _parsed, name, data, documents)
    bundle = Bundle(sha256, kept, documents)
    for name, (stage, _) in bundle.records.items():
        for check in CHECKS[stage]:
            found += _guarded(name, check, bundle, name)
    for whole in (*WHOLE, *(OF_A_RUN if bundle.records else ())):
        found += _guarded(MANIFEST, whole, bundle)
    return found


def _guarded(member: str, check: Callable[..., Iterable[Contradiction]], *arguments: object) -> Iterator[Contradiction]:
    try:
        yield from check(*arguments)
    except _MALFORMED as error:
        yield Contradiction(member, f"it is not of the form that its schema has ({_said(error)})")


def _parsed(name: str, data: bytes, documents: dict[str, dict[str, Any]]) -> Iterator[Contradiction]:
    """Read a document; a record of another schema than its path says is as good as none."""
    document = strict_json(data)
    if not isinstance(document, dict):
        raise TypeError(type(document).__name__)
    if place := RECORD.fullmatch(name):
        kind = "ceilings" if place["subject"].startswith("ceilings/") else place["stage"]
        if document["schema"] != f"kernelproof.{kind}/1":
            yield Contradiction(name, f"its schema is {_said(document['schema'])}, known is 'kernelproof.{kind}/1'")
            return
    documents[name] = document


class Bundle:
    """The members' hashes, and the documents among them."""

    def __init__(
        self, sha256: Mapping[str, str], kept: Mapping[str, bytes], documents: Mapping[str, dict[str, Any]]
    ) -> None:
        self.sha256 = sha256
        self.kept = kept
        self.documents = documents
        places = ((name, RECORD.fullmatch(name)) for name in documents)
        self.records = {name: (place["stage"], place["subject"]) for name, place in places if place}
        self.fingerprints: dict[str, tuple[str | None, str]] = {}  # see `fingerprint`
        self.samples_bytes = self.samples = self.asked = 0  # read so far, and cases made up

    @property
    def manifest(self) -> dict[str, Any]:
        return self.documents[MANIFEST]

    def record(self, stage: str, subject: str) -> dict[str, Any] | None:
        """The record of a stage about `operator/variant` and the like; None where there is none."""
        name = f"records/{stage}/{subject}.json"
        if name not in self.documents and PRIVATE.search(subject):
            fitting = [there for there in self.records if _alike(name, there)]
            name = fitting[0] if len(fitting) == 1 else name
        return self.documents.get(name)

    def fingerprint(self, key: str) -> tuple[str | None, str]:
        """Of a value of the configuration, and the value in short; None where private words were taken out of it."""
        if key not in self.fingerprints:
            if key.count(".") >= MAX_DEPTH:  # what lies there is read once for each level that is asked for
                raise ValueError("a setting lies deeper than a configuration goes")
            there = fingerprints.text(fingerprints.value(self.documents[CONFIG], key))
            private = PRIVATE.search(f"{key} {there}")
            found = None if private else fingerprints.digest(there)
            self.fingerprints[key] = found, there if len(there) <= 100 else f"{there[:97]}..."
        return self.fingerprints[key]

    @property
    def without_gpu(self) -> bool:
        """Whether the machine was looked at and no GPU was seen."""
        capture = self.documents.get(CAPTURE)
        probe = capture["probes"].get("gpu", {"status": "absent"}) if capture else {"status": "failed"}
        return probe["status"] == "absent" or (probe["status"] == "ok" and not probe["value"])

    @property
    def boards(self) -> list[dict[str, Any]]:
        """The GPUs that the machine was seen to have."""
        probes = self.documents[CAPTURE]["probes"] if CAPTURE in self.documents else {}
        probe = probes.get("gpu", {"status": "absent"})
        return (probe["value"] or []) if probe["status"] == "ok" else []


def _alike(said: str, there: str) -> bool:
    """Whether a name is the one that a record says, where a placeholder may stand for any part of it."""
    first, *rest = PRIVATE.split(said)
    if not rest:
        return said == there
    *middle, last = rest
    at = len(first)
    for part in middle:
        if (found := there.find(part, at + 1)) < 0:
            return False
        at = found + len(part)
    return there.startswith(first) and there.endswith(last) and len(there) > at + len(last)


def _said(value: object) -> str:
    """A stranger's value, short and harmless to a terminal."""
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


# --- a record by itself -----------------------------------------------------------------------------------------------


def _identity(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """A record lies where its operator and variant, or device, say."""
    stage, subject = bundle.records[name]
    record = bundle.documents[name]
    if subject.startswith("ceilings/"):
        says = f"ceilings/{record['device']}"
    elif stage == "capture":
        says = "capture"
    else:
        says = (
            f"{record['operator']}-{record['device']}" if stage == "bench" else "{operator}/{variant}".format(**record)
        )
    if not _alike(says, subject):
        yield Contradiction(name, f"it is the record of {_said(says)}, and lies where that of {_said(subject)} belongs")


def _state(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """The manifest says of which state of the repository a record is."""
    stage, subject = bundle.records[name]
    measured = bundle.manifest["measured"]
    said = measured.get(stage) or measured.get(f"{stage} {subject}")
    if said is None:
        yield Contradiction(name, f"{MANIFEST} does not say which state of the repository it measured")
        return
    mine = bundle.documents[name]["provenance"]
    for what in ("commit", "dirty", "diff_sha256"):
        if mine[what] != said[what]:
            yield Contradiction(name, f"{what} is {_said(mine[what])}, in {MANIFEST} it measured {_said(said[what])}")


def made_with_others(bundle: Bundle) -> Iterator[Contradiction]:
    """Every record was made with the settings that the configuration has; older ones do not say with which."""
    for name in (*bundle.records, FACTS) if CONFIG in bundle.documents else ():
        for key, made in bundle.documents.get(name, {}).get("settings", {}).items():
            there, said = bundle.fingerprint(key)
            if there not in (None, made):
                yield Contradiction(name, f"it was made with another {_said(key)[1:-1]} than {CONFIG} has, {said}")


# --- test -------------------------------------------------------------------------------------------------------------


def _test(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """The verdict follows from rungs, cases, properties and tools; what ran on a GPU had one."""
    test = bundle.documents[name]
    verdict = test["verdict"]
    rungs = {rung["name"]: rung["status"] for rung in test["rungs"]}
    failed = [rung["name"] for rung in test["rungs"] if rung["status"] == "failed"]
    for rung, number in Counter(rung["name"] for rung in test["rungs"]).items():
        if number > 1:  # of two words each reader may take another
            yield Contradiction(name, f"the rung {_said(rung)} stands {number} times")
    if failed and verdict not in ({"failed_to_build"} if "build" in failed else RAN_AND_FAILED):
        yield Contradiction(name, f"the verdict is {_said(verdict)}, and the rung {_said(failed[0])} is 'failed'")
    elif not failed and verdict not in ("correct", "not_run"):
        yield Contradiction(name, f"the verdict is {_said(verdict)}, and no rung is 'failed'")
    if verdict == "correct":
        yield from _correct(name, test, rungs)
        yield from _asked_of(bundle, name, test)
    yield from _cases(bundle, name, test, of_test=True)
    level = _configured(bundle, "test", "level")
    less = level in LEVELS and test.get("level") in LEVELS[: LEVELS.index(level)]
    if less and verdict != "not_run":
        yield Contradiction(name, f"its level is {_said(test['level'])}, in {CONFIG} {_said(level)}")
    for case in test["cases"]:
        if case["status"] == "passed" and (fault := _fault(case)):
            yield Contradiction(name, f"the case {_said(case['id'])} is 'passed', and {fault}")
    if test["device"] == "cuda" and bundle.without_gpu and verdict in (RAN_AND_FAILED | {"correct"}):
        yield Contradiction(name, f"the verdict of a CUDA variant is {_said(verdict)}, and {CAPTURE} names no GPU")
    build = bundle.record("build", bundle.records[name][1])
    if build and test.get("build_signature") not in (None, build["signature"]):
        says = f"it tested the build {_said(test['build_signature'])}"
        yield Contradiction(name, f"{says}, and the build's record is of {_said(build['signature'])}")


def _fault(case: Mapping[str, Any]) -> str | None:
    """What of a case says that it cannot have passed: a finding, or a ratio above its limit."""
    for what in ("failures", "nonfinite", "unwritten", "band_damage", "inputs_changed"):
        if case.get(what):
            return f"{what} is {_said(case[what])}"
    ratios = {what: case.get(what) for what in ("max_bound_ratio", "rms_ratio", "bias_ratio")}
    for what, ratio in ratios.items():
        if ratio is not None and not 0 <= ratio <= 1:
            return f"{what} is {_said(ratio)} of 1" if ratio > 1 else f"{what} is {_said(ratio)}, which is below 0"
    root, largest = case.get("rms_error"), case.get("max_abs_error")
    if root is not None and largest is not None and root > (1 + TOLERANCE) * largest:
        return f"the root of its mean square error is {_said(root)}, and the largest error {_said(largest)}"
    for output, ratio in (case.get("biases") or {}).items():  # these have a sign
        if abs(ratio) > 1:
            return f"the bias of {_said(output)} is {_said(ratio)} of 1"
    return None


def _cases(bundle: Bundle, name: str, record: Mapping[str, Any], *, of_test: bool = False) -> Iterator[Contradiction]:
    """A case's name says its shape, options and data type, and a shape has the dimensions of the configuration."""
    shapes = _configured(bundle, "operators", record["operator"], "shapes") or {}
    for case in record["cases"]:
        built = _case_id(case["shape"], case["options"], case["dtype"])
        built = f"{built}-{case['family']}-s{case['seed']}" if of_test else built
        if case["id"] != built and not _alike(case["id"], built):
            yield Contradiction(name, f"the case {_said(case['id'])} is by its shape, options and type {_said(built)}")
        sizes = shapes.get(_among(case["shape"], shapes))
        drawn = case["shape"] == ",".join(f"{what}={size}" for what, size in case["dims"].items())
        exact = of_test and case["status"] != "passed"  # an exact call, which has a shape of its own
        if sizes is None and not (of_test and drawn) and not exact:
            yield Contradiction(name, f"{_said(case['id'])}: its shape {_said(case['shape'])} is not in {CONFIG}")
        differing = {} if sizes is None else {what for what, _ in case["dims"].items() ^ sizes.items()}
        for what in sorted(differing):
            says = f"{_said(case['id'])}: {_said(what)} is {_said(case['dims'].get(what))}"
            yield Contradiction(name, f"{says}, in {CONFIG} {_said((sizes or {}).get(what))}")
    counted = Counter(case["id"] for case in record["cases"] if not of_test or case["status"] == "passed")
    for case_id, number in counted.items():
        if number > 1:
            yield Contradiction(name, f"the case {_said(case_id)} stands {number} times")


def _case_id(shape: str, options: Mapping[str, Any], dtype: str) -> str:
    """As records.Case has it, without the input family and the seed."""
    chosen = [what if value is True else str(value) for what, value in options.items() if value is not False]
    return "-".join([shape, *chosen, dtype])


def _asked_of(bundle: Bundle, name: str, test: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Of the cases that cases.py selects those that are known without the operator's module.

    That is: every shape, and the profiled one, where it is among those, with all options and types; the input families
    that the configuration names; some values drawn after the build; so many repeats. What a variant does not take is in
    its record as skipped.
    """
    operator = _configured(bundle, "operators", test["operator"]) or {}
    contender = _contender(operator, test["variant"])
    if contender is None:
        return
    if (declared := contender.get("precision")) and declared != test.get("precision"):
        says = f"it was held to the precision {_said(test.get('precision'))}"
        yield Contradiction(name, f"{says}, in {CONFIG} it is {_said(declared)}")
    main, selection, types = operator["profile"]["shape"], operator["test"], contender["dtypes"]
    shapes = _shapes_on(selection, test["device"])
    had = {_case_id(case["shape"], case["options"], case["dtype"]) for case in test["cases"]}
    wanted = [_case_id(main, options, dtype) for options in _combined(bundle, selection, types) for dtype in types]
    correct = "the verdict is 'correct', and"
    yield from _lacking(name, correct, "cases", wanted if main in shapes else [], had)
    drawn = test.get("fresh_seed")
    if drawn is not None and not any(case["seed"] == drawn for case in test["cases"]):
        yield Contradiction(name, f"{correct} none of its cases has the seed {drawn} that was drawn after the build")
    trials = _configured(bundle, "test", "trials")
    quick = test.get("level", "quick") == "quick"
    asked = min(trials, QUICK_TRIALS) if quick and trials is not None else trials
    if asked is not None and test.get("trials") != asked:
        yield Contradiction(name, f"{correct} it was repeated {_said(test.get('trials'))} times, by {CONFIG} {asked}")
    if not quick:
        yield from _lacking(name, correct, "shapes", shapes, {case["shape"] for case in test["cases"]})
        families = {case["family"] for case in test["cases"]}
        yield from _lacking(name, correct, "input families", selection.get("families") or [], families)


def _lacking(name: str, who: str, what: str, wanted: Iterable[str], had: Collection[str]) -> Iterator[Contradiction]:
    """What the configuration asks for and a record does not have."""
    private = [said for said in had if PRIVATE.search(said)]
    lacking = [one for one in wanted if one not in had and not any(_alike(said, one) for said in private)]
    if lacking:
        says = f"{who} of the {what} of {CONFIG} it has not {_said(lacking[0])}"
        yield Contradiction(name, f"{says}, and {len(lacking) - 1} more" if len(lacking) > 1 else says)


def _counted(name: str, test: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The largest error that was counted, in units of its bound, is the largest of a case."""
    histogram = test.get("error_histogram") or {"edges": [], "counts": []}
    edges, counts = histogram["edges"], histogram["counts"]
    ratios = [case.get("max_bound_ratio") for case in test["cases"] if case["status"] == "passed"]
    largest = max((ratio for ratio in ratios if ratio is not None), default=None)
    counted = [bin for bin, count in enumerate(counts) if count]
    if largest is None:
        return
    if not counted:
        yield Contradiction(name, f"its largest error is {_said(largest)} of the bound, and no error was counted")
        return
    low, high = edges[counted[-1]], edges[counted[-1] + 1]
    if not low * (1 - TOLERANCE) <= largest <= high * (1 + TOLERANCE):
        says = f"errors were counted up to {low:.3g} to {high:.3g} of their bound"
        yield Contradiction(name, f"{says}, and the largest of a case is {_said(largest)}")


def _among(said: str, there: Iterable[str]) -> str:
    """The one of several names that is said, where a placeholder may stand for a part of it; else what is said."""
    return next((name for name in there if _alike(said, name)), said) if PRIVATE.search(said) else said


def _contender(operator: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A variant or baseline of an operator's configuration."""
    there = {**operator.get("variants", {}), **operator.get("baselines", {})}
    found: Mapping[str, Any] | None = there.get(name)
    return found


def _combined(bundle: Bundle, selection: Mapping[str, Any], *further: Collection[Any]) -> list[dict[str, Any]]:
    """Every combination of the options that a stage goes through, as in cases.py; `further`: what each is taken with.

    Raises ValueError for so many that a stranger's configuration would keep us for ever.
    """
    options = selection.get("options") or {}
    bundle.asked += math.prod(map(len, (*options.values(), *further)))
    if bundle.asked > MAX_ASKED:
        raise ValueError(f"{CONFIG} asks for more than {MAX_ASKED} cases")
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def _shapes_on(selection: Mapping[str, Any], device: str) -> list[str]:
    """The shapes that a variant for this device goes through, as in config.CaseSelection."""
    return [*selection["shapes"], *(selection.get("cuda_shapes") or [] if device == "cuda" else [])]


def _correct(name: str, test: Mapping[str, Any], rungs: Mapping[str, str]) -> Iterator[Contradiction]:
    """What else a variant that is called correct has to show."""
    needed = NEEDED_RUNGS | (set() if test.get("level", "quick") == "quick" else {"properties"})
    for rung in sorted(needed):
        if rungs.get(rung) not in ("passed", "failed"):  # of a failed one there is a word already
            yield Contradiction(name, f"the verdict is 'correct', and the rung {rung!r} is {_said(rungs.get(rung))}")
    if test["status"] != "ok":
        yield Contradiction(name, f"the verdict is 'correct', and the status is {_said(test['status'])}")
    if not any(case["status"] == "passed" for case in test["cases"]):
        there = f"none of its {len(test['cases'])} cases is 'passed'" if test["cases"] else "there is no case"
        yield Contradiction(name, f"the verdict is 'correct', and {there}")
    if rungs.get("properties") == "passed":
        shown = {found["name"] for found in test.get("properties", []) if found["status"] == "passed"}
        for lacking in sorted(NEEDED_PROPERTIES - shown):
            yield Contradiction(name, f"the rung 'properties' is 'passed', and the property {lacking!r} is not")
    yield from _counted(name, test)
    tools = (test.get("sanitizer") or {"runs": []})["runs"]
    parts = [
        *(("case", case["id"], case["status"]) for case in test["cases"]),
        *(("property", f"{found['name']} of {found['case']}", found["status"]) for found in test.get("properties", [])),
        *(("tool", run["tool"], run["status"]) for run in tools),
    ]
    for what, which, status in parts:
        if status not in ("passed", "skipped"):
            yield Contradiction(name, f"the verdict is 'correct', and the {what} {_said(which)} is {_said(status)}")


# --- build ------------------------------------------------------------------------------------------------------------


def _build(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """What was built is what is packed and what is configured, and within the budget where that is said."""
    build, key = bundle.documents[name], bundle.records[name][1]
    for what in ("role", "device", "abi", *(("macros", "flags") if build["abi"] != "python" else ())):
        asked = _setting(bundle, key, what)
        if asked is not None and build[what] != asked:
            yield Contradiction(name, f"{what} is {_said(build[what])}, in {CONFIG} {_said(asked)}")
    rungs = [f"{build['operator']}/{rung}" for rung in _setting(bundle, key, "rungs") or ()]  # of a dispatcher
    asked = {posixpath.normpath(path) for each in (key, *rungs) for path in _setting(bundle, each, "sources") or ()}
    built = {posixpath.normpath(file["path"]) for file in build["sources"]}
    if asked and built and asked != built:  # nothing was read where it was not built
        yield Contradiction(name, f"sources is {_said(sorted(built))}, in {CONFIG} {_said(sorted(asked))}")
    for file in (*build["sources"], *build["headers"]):
        member = f"source/{posixpath.normpath(file['path'])}"
        if bundle.sha256.get(member, file["sha256"]) != file["sha256"]:
            yield _other_bytes(bundle, member, name, file["sha256"])
    for row in build["budget"]:
        if row["ok"] != (row["value"] <= row["limit"]):
            what = _said(f"{row['kernel']} on {row['arch']}: {row['what']}")
            says = f"{what} is {_said(row['value'])} of {_said(row['limit'])}"
            yield Contradiction(name, f"{says}, and that this is within the budget is {_said(row['ok'])}")


def _same_machine_code(bundle: Bundle) -> Iterator[Contradiction]:
    """Which variants are one binary, as in sass.identical_machine_code."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name, (stage, _) in bundle.records.items():
        build = bundle.documents[name]
        if stage != "build" or build["status"] != "ok" or build["role"] != "variant" or build["abi"] == "python":
            continue
        device_code = tuple(sorted((cubin["arch"], cubin["sass_sha256"]) for cubin in build["cubins"]))
        host_code = build.get("host_code_sha256")
        if device_code or host_code is not None:
            key = (build["operator"], build["device"], device_code, host_code)
            groups[key].append(f"{build['operator']}/{build['variant']}")
    ours = {tuple(group) for group in bundle.manifest["identical_machine_code"]}
    theirs = {tuple(sorted(group)) for group in groups.values() if len(group) > 1}
    for group in sorted(ours ^ theirs):
        how = "called identical, and differs" if group in ours else "identical, and is not called so,"
        yield Contradiction(MANIFEST, f"the machine code of {_said(', '.join(group))} is {how} by the builds' records")


def _gathered(bundle: Bundle) -> Iterator[Contradiction]:
    """What the run gathered is packed as it was, or listed among what was dropped; and nothing else is packed."""
    facts = bundle.documents.get(FACTS)
    if facts is None:
        return
    for name in sorted(bundle.sha256.keys() - {member["path"] for member in facts["members"]} - MADE):
        yield Contradiction(name, f"it is packed, and is not among the members of {FACTS}")
    there = {entry["path"]: entry["sha256"] for entry in bundle.manifest["dropped"]} | dict(bundle.sha256)
    for member in facts["members"]:
        if member["path"] not in there:
            yield Contradiction(
                member["path"], f"it is a member in {FACTS}, and neither packed nor among what was dropped"
            )
        elif there[member["path"]] != member["sha256"]:
            says = f"SHA-256 {_said(there[member['path']])[1:-1]}"
            yield Contradiction(member["path"], f"{says}, in {FACTS} {_said(member['sha256'])}")


def _classes(bundle: Bundle) -> Iterator[Contradiction]:
    """What has to be the same on a replay, and what is measured, is called so."""
    for row in bundle.manifest["members"]:
        stage = place["stage"] if (place := RECORD.fullmatch(row["path"])) else ""
        if row["path"] in (CONFIG, MACHINE_CODE) or row["path"].startswith("source/"):
            expected = "identity"
        elif stage in ("test", "bench", "profile") and not row["path"].startswith("records/bench/ceilings/"):
            expected = "measurement"
        else:
            expected = "measurement" if row["path"].startswith(MEASURED) else "context"
        if row["class"] != expected:
            yield Contradiction(row["path"], f"its class is {_said(row['class'])}, and what it is is {expected!r}")


def _left_out(bundle: Bundle) -> Iterator[Contradiction]:
    """What a record names is packed, or listed among what was dropped; what belongs to records is named by one."""
    dropped = {entry["path"]: entry["sha256"] for entry in bundle.manifest["dropped"]}
    hashes, named = {*bundle.sha256.values(), *dropped.values()}, set()
    for name, (stage, subject) in bundle.records.items():
        for member, sha256 in _named(stage, subject, bundle.documents[name]):
            named.add(member)
            # A source that is a link is packed where it points to.
            if member not in bundle.sha256 and member not in dropped and (sha256 is None or sha256 not in hashes):
                says = f"it names {_said(member)}, which is neither packed nor among what was dropped"
                if not member.startswith("sass/"):  # there is none where nothing was disassembled
                    yield Contradiction(name, says)
    for name in sorted(bundle.sha256):
        if name.startswith(OF_RECORDS) and name not in named:
            yield Contradiction(name, "no record names it")


def _named(stage: str, subject: str, record: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The members that a record names, as in members.py; a source with its hash."""
    if stage == "build":
        for cubin in record["cubins"]:
            yield f"cubins/{subject}/{cubin['arch']}.cubin", None
            yield f"sass/{subject}/{cubin['arch']}.sass", None
        for file in (*record["sources"], *record["headers"]):
            if not file["path"].startswith(("<", "/", "..")):  # a toolkit's, or outside of the repository
                yield f"source/{posixpath.normpath(file['path'])}", file["sha256"]
    elif stage == "test":
        if record.get("junit"):
            yield f"junit/{subject}.xml", None
        if (record.get("sealing") or {}).get("launches"):
            yield f"launches/{subject}.json", None
    elif stage == "bench" and record.get("samples"):
        yield f"samples/{subject}.csv.gz", None
    elif stage == "profile":
        if record.get("report"):
            yield f"profile/{subject}.ncu-rep", None
        if record.get("csv"):
            yield f"profile/{subject}.csv", None


def _cubins(bundle: Bundle) -> Iterator[Contradiction]:
    """Every cubin is one that its variant's build made."""
    for member in bundle.sha256:
        if not member.startswith("cubins/"):
            continue
        path = PurePosixPath(member.removeprefix("cubins/"))
        build = bundle.record("build", str(path.parent))
        made = [cubin["sha256"] for cubin in build["cubins"] if cubin["arch"] == path.stem] if build else []
        if not made:
            yield Contradiction(member, "no build's record has machine code of this name")
        elif bundle.sha256[member] not in made:
            yield _other_bytes(bundle, member, f"records/build/{path.parent}.json", made[-1])


def _other_bytes(bundle: Bundle, member: str, record: str, sha256: object) -> Contradiction:
    return Contradiction(member, f"SHA-256 {bundle.sha256[member]}, in {_said(record)[1:-1]} {_said(sha256)}")


def _machine_code(bundle: Bundle) -> Iterator[Contradiction]:
    """The hashes of normalised machine code are those of the builds."""
    expected = {}
    for name, (stage, _) in bundle.records.items():
        build = bundle.documents[name]
        if stage == "build" and build["cubins"]:
            hashes = {PurePosixPath(cubin["path"]).stem: cubin["sass_sha256"] for cubin in build["cubins"]}
            expected[f"{build['operator']}/{build['variant']}"] = hashes
    said = bundle.documents.get(MACHINE_CODE, {})
    for key in sorted(expected.keys() | said.keys()):
        if expected.get(key) != said.get(key):
            message = f"{_said(key)} is {_said(said.get(key))}, in the build's record {_said(expected.get(key))}"
            yield Contradiction(MACHINE_CODE, message)


# --- bench ------------------------------------------------------------------------------------------------------------


def _bench(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """Times and ratios are those of the packed samples, and what is said of them follows from them."""
    bench = bundle.documents[name]
    if bundle.records[name][1].startswith("ceilings/"):
        models = {board.get("name") for board in bundle.boards}
        if bench["device"] == "cuda" and bench.get("model") is not None and models and bench["model"] not in models:
            yield Contradiction(
                name, f"the model is {_said(bench['model'])}, in {CAPTURE} {_said(sorted(models, key=str))}"
            )
        return
    yield from _cases(bundle, name, bench)
    yield from _timed_cases(bundle, name, bench)
    yield from _board(bundle, name, bench)
    if bench["times"] and bench["device"] == "cuda" and bundle.without_gpu:
        yield Contradiction(name, f"{len(bench['times'])} times were taken on a GPU, and {CAPTURE} names none")
    for contender in bench["contenders"]:
        test = bundle.record("test", f"{bench['operator']}/{contender['name']}")
        if contender["correct"] and (test is None or test["verdict"] != "correct"):
            says = f"{_said(contender['name'])} was timed as correct"
            yield Contradiction(name, f"{says}, and its test's verdict is {_said(test and test['verdict'])}")
        if contender["correct"] and contender["verdict"] != "correct":
            says = f"{_said(contender['name'])} was timed as correct"
            yield Contradiction(name, f"{says}, and its verdict is {_said(contender['verdict'])}")
        if test and test["role"] != contender["role"]:
            says = f"{_said(contender['name'])} took part as a {_said(contender['role'])}"
            yield Contradiction(name, f"{says}, and its test's role is {_said(test['role'])}")
    yield from _dropped(name, bench)
    yield from _sampled(bundle, name, bench)
    yield from _judged(bundle, name, bench)
    yield from _doubtful(name, bench)
    yield from _opposed(name, bench)


def _timed_cases(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The cases are those that cases.py selects for the contenders; whoever is correct has a fate in each of his."""
    had = {case["id"] for case in bench["cases"]}
    rows = [*bench["times"], *bench["ratios"], *bench["oracle"], *bench.get("untimed", [])]
    for case_id in sorted({row["case"] for row in rows} - had):
        yield Contradiction(name, f"it has rows of the case {_said(case_id)}, which is not among its cases")
    operator = _configured(bundle, "operators", bench["operator"])
    if not operator or not had:  # it was not run
        return
    fates = _fates(bench)
    wanted: set[str] = set()
    for contender in bench["contenders"]:
        settings, who = _contender(operator, contender["name"]), _said(contender["name"])
        asked = sorted(_selected(bundle, operator, settings, bench["device"])) if settings else []
        wanted.update(asked)
        if contender["correct"]:
            yield from _lacking(name, f"{who} is correct, and", "cases", asked, had)
            yield from _without_fate(name, bench, contender["name"], had.intersection(asked), fates)
    for case_id in sorted(had - wanted):
        if _among(case_id, wanted) not in wanted:
            yield Contradiction(name, f"the case {_said(case_id)} is asked of no contender by {CONFIG}")


def _fates(bench: Mapping[str, Any]) -> set[tuple[str, str | None, str | None]]:
    """Contender, case and mode of every time, and of whatever is said to have none; None stands for all."""
    primary = PRIMARY[bench["device"]]
    rows = [*(row for row in bench["times"] if row["method"] == primary), *bench.get("untimed", [])]
    dropped = [entry for entry in bench["discarded"] if entry["what"] == "contender"]
    return {(row["contender"], row["case"], row["mode"]) for row in rows} | {
        (entry["contender"], entry["case"], None) for entry in dropped
    }


def _without_fate(
    name: str,
    bench: Mapping[str, Any],
    contender: str,
    cases: Iterable[str],
    fates: set[tuple[str, str | None, str | None]],
) -> Iterator[Contradiction]:
    """A contender that could be timed in a case was so in every mode, or it is said why not."""
    for case, mode in itertools.product(sorted(cases), bench["modes"]):
        if fates.isdisjoint({(contender, case, mode), (contender, case, None), (contender, None, None)}):
            says = f"{_said(f'{contender} {case} {mode}')}: it is correct and has no time"
            yield Contradiction(name, f"{says}, and it is not said why")


def _selected(bundle: Bundle, operator: Mapping[str, Any], contender: Mapping[str, Any], device: str) -> Iterator[str]:
    """The ids of a contender's cases in a benchmark, without those that it declares not to take."""
    selection, taken, limits = operator["bench"], contender.get("options") or {}, contender.get("limits") or {}
    shapes, types = _shapes_on(selection, device), contender["dtypes"]
    for options, shape in itertools.product(_combined(bundle, selection, shapes, types), shapes):
        sizes = operator["shapes"][shape]
        refused = any(value not in taken.get(what, [value]) for what, value in options.items())
        refused |= any(what in sizes and sizes[what] not in allowed for what, allowed in limits.items())
        for dtype in types if not refused else ():
            if not selection.get("dtypes") or dtype in selection["dtypes"]:
                yield _case_id(shape, options, dtype)


def _board(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The GPU that was measured on is one that the machine was seen to have, and of several models it is named."""
    if bench["device"] != "cuda" or not bench["times"]:
        return
    known = [board["uuid_sha256"] for board in bundle.boards if board.get("uuid_sha256")]
    models = sorted({str(board.get("name")) for board in bundle.boards})
    named = bench.get("gpu")
    if named is not None and known and named not in known:
        yield Contradiction(name, f"it was measured on the GPU {_said(named)}, and {CAPTURE} names {_said(known)}")
    if named is None and len(models) > 1:
        says = "it does not say on which GPU it was measured"
        yield Contradiction(name, f"{says}, and {CAPTURE} names several models, {_said(models)}")


def _dropped(name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """What a contender was dropped from, its own outcome says too; one that was wrong is not correct."""
    contenders = {contender["name"]: contender for contender in bench["contenders"]}
    for entry in bench["discarded"]:
        if entry["what"] != "contender":
            continue
        contender = contenders.get(entry["contender"], {"outcome": None, "correct": False})
        outcome, case = contender["outcome"] or "", entry["case"]
        of_one = case is not None and (
            ("dropped from" in outcome and case in outcome) or outcome.startswith("no time: ")
        )
        if not (outcome.startswith("dropped: ") or of_one):
            says = f"{_said(entry['contender'])} is said to be dropped from {_said(case) if case else 'every case'}"
            yield Contradiction(name, f"{says}, and its outcome is {_said(outcome)}")
        if str(entry["reason"]).startswith("wrong") and contender["correct"]:
            says = f"{_said(entry['contender'])} is said to be dropped ({_said(entry['reason'])})"
            yield Contradiction(name, f"{says}, and was timed as correct")


def _sampled(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Medians, ratios and the least width of their intervals, computed again."""
    times = [row for row in bench["times"] if row["method"] not in UNSAMPLED]
    if not (times or bench["ratios"]):
        return
    own = f"{bundle.records[name][1]}.csv.gz"  # by this name every command reads them
    told = PurePosixPath(bench["samples"] or "").name
    member = f"samples/{own if _alike(told, own) else told}"
    if member not in bundle.kept:
        yield Contradiction(name, f"its samples are not in the bundle ({_said(bench['samples'])})")
        return
    if member != f"samples/{own}":
        yield Contradiction(name, f"its samples are {_said(bench['samples'])}, and belong into 'samples/{own}'")
    try:
        samples = _samples(bundle, bundle.kept[member], PRIMARY[bench["device"]])
    except (OSError, EOFError, zlib.error, csv.Error, *_MALFORMED) as error:
        yield Contradiction(member, f"the samples cannot be read: {_said(error)}")
        return
    if samples.no_slope:
        more = f"; so it is in {samples.no_slopes} rows" if samples.no_slopes > 1 else ""
        yield Contradiction(member, f"{samples.no_slope}{more}")
    left = any(entry.get("what") == "contender" for entry in bench["discarded"])
    stayed = all(entry["outcome"].startswith(("timed", "not benchmarked")) for entry in bench["contenders"])
    for where, said in samples.visits.contradictions(whole=stayed and not left):
        yield Contradiction(member, f"{_said(where)}: {said}")
    yield from _timed_again(name, bench, times, samples)
    yield from _divided_again(bundle, name, bench, samples)
    yield from _all_told(name, bench, times, samples)


def _timed_again(
    name: str, bench: Mapping[str, Any], times: Iterable[Mapping[str, Any]], samples: Samples
) -> Iterator[Contradiction]:
    """Times, and in how many of the processes they were taken."""
    for row in times:
        told = (row["contender"], row["case"], row["mode"], row["method"])
        if (key := samples.key(told)) is None:
            yield _unclear(name, told)
            continue
        found = samples.logs.get(key, {})
        again = {"median_us": _time(found), "samples": samples.counts[key], "processes": len(found)}
        yield from _compared(name, " ".join(told), row, again)
        asked, had = bench.get("processes", 0), row["processes"]  # 0: a record from before it was written down
        primary = row["method"] == PRIMARY[bench["device"]]
        fewer = primary and had < asked and f"only_{had}_of_{asked}_processes" not in row["flags"]
        if asked and (had > asked or fewer):
            says = f"{_said(' '.join(told))}: it was timed in {_said(had)} processes"
            yield Contradiction(name, f"{says}, and by the record there were {_said(asked)}")


def _divided_again(bundle: Bundle, name: str, bench: Mapping[str, Any], samples: Samples) -> Iterator[Contradiction]:
    """Ratios; what is decided by them rests on two processes, and their intervals are as wide as Student's t."""
    method, confidence = PRIMARY[bench["device"]], _configured(bundle, "bench", "confidence") or 0.95
    for row in bench["ratios"]:
        both = [(row[who], row["case"], row["mode"], method) for who in ("variant", "baseline")]
        mine, other = map(samples.key, both)
        if mine is None or other is None:
            yield _unclear(name, both[mine is not None])
            continue
        what = f"{row['variant']} / {row['baseline']} {row['case']} {row['mode']}"
        paired = _paired(samples.logs.get(mine, {}), samples.logs.get(other, {}))
        figures = _figures(paired)
        yield from _compared(name, what, row, {"ratio": math.exp(fmean(figures)) if figures else None})
        if len(paired) < 2:
            yield from _decided(name, bench, row, f"processes that timed both are {len(paired)} of 2")
        yield from _too_narrow(name, _said(what), row, figures, confidence)


def _too_narrow(
    name: str, what: str, row: Mapping[str, Any], figures: list[float], confidence: float
) -> Iterator[Contradiction]:
    """An interval that Student's t over the figures is wider than, beyond what six digits of a sample can make."""
    if len(figures) < 2:
        return
    quantile, root = _student_t(confidence, len(figures) - 1), math.sqrt(len(figures))
    middle, reach = fmean(figures), quantile * stdev(figures) / root
    slack = TOLERANCE * (1 + quantile / math.sqrt(len(figures) - 1))
    for end, low_side, bound in (("low", True, middle - reach), ("high", False, middle + reach)):
        value = math.log(row[end]) if row[end] > 0 else -math.inf
        if value > bound + slack if low_side else value < bound - slack:
            limit = f"at {'most' if low_side else 'least'} {math.exp(min(bound, 700.0)):.6g}"
            says = f"{what}: {end} is {_said(row[end])}, by Student's t over the samples {limit}"
            yield Contradiction(name, says)


@cache
def _student_t(confidence: float, degrees: int) -> float:
    """The t within ±which Student's distribution has `confidence`; of many degrees the normal one's, which is less.

    Abramowitz & Stegun, *Handbook of Mathematical Functions* (1964), 26.7.3 and 26.7.4: a finite sum in the angle
    atan(t/√degrees), whose inverse is found by halving.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}")
    if degrees > CLOSED_DEGREES:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < confidence else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """The probability of |t| < √degrees · tan(angle)."""
    odd = degrees % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
    total = 0.0
    for step in range(2 + odd, degrees + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (step - 1) / step
    return 2 / math.pi * (angle + total) if odd else total


def _all_told(
    name: str, bench: Mapping[str, Any], times: Iterable[Mapping[str, Any]], samples: Samples
) -> Iterator[Contradiction]:
    """Samples without a time are those of a contender that was dropped; the record counts those discarded."""
    told = {samples.key((row["contender"], row["case"], row["mode"], row["method"])) for row in times}
    dropped, noted = set(), Counter[Key]()
    named = {contender["name"] for contender in bench["contenders"]}
    unnamed = {key[0] for key in samples.keys} - named
    for entry in bench["discarded"]:
        if entry["what"] == "contender":
            fitting = [who for who in unnamed if _alike(entry["contender"], who)]  # samples have names as they were
            dropped |= {(who, entry["case"]) for who in (fitting if len(fitting) == 1 else [entry["contender"]])}
        elif entry["what"] == "samples":
            said = (entry["contender"], entry["case"], entry["mode"], entry["method"])
            if (key := samples.key(said)) is None:
                yield _unclear(name, said)
            else:
                noted[key] += entry["samples"]
    private = [(who, case) for who, case in dropped if case and PRIVATE.search(case)]
    for key in sorted({*samples.keys, *noted}):
        if not dropped.isdisjoint({(key[0], key[1]), (key[0], None)}):
            continue
        if any(key[0] == who and _alike(case, key[1]) for who, case in private):
            continue
        if key in samples.logs and key not in told:
            says = f"{_said(' '.join(key))}: there are {samples.counts[key]} samples that count"
            yield Contradiction(name, f"{says}, no time, and no word of why it was dropped")
        if noted[key] != samples.discarded[key]:
            says = f"{_said(' '.join(key))}: {_said(noted[key])} samples are said to be discarded"
            yield Contradiction(name, f"{says}, and {samples.discarded[key]} do not count")


def _unclear(name: str, told: Key) -> Contradiction:
    """A placeholder that hides which samples are meant hides what was made of them."""
    return Contradiction(name, f"{_said(' '.join(told))}: the samples of several have such a name; it has to fit one")


def _compared(
    name: str, what: str, row: Mapping[str, Any], again: Mapping[str, float | None]
) -> Iterator[Contradiction]:
    for figure, value in again.items():
        tolerance = 0 if isinstance(value, int) else TOLERANCE
        if value is None or not math.isclose(row[figure], value, rel_tol=tolerance):
            shown = "none" if value is None else f"{value:.6g}"
            yield Contradiction(name, f"{_said(what)}: {figure} is {_said(row[figure])}, by the samples {shown}")


@dataclass
class Samples:
    """What counts of a file of samples: mean logarithms, how many samples, how many that do not count.

    Of rows whose time is not their slope what is said of the first, and how many there are.
    """

    logs: dict[Key, Logs] = field(default_factory=dict)
    counts: Counter[Key] = field(default_factory=Counter)
    discarded: Counter[Key] = field(default_factory=Counter)
    no_slope: str = ""
    no_slopes: int = 0
    visits: Visits = field(default_factory=Visits)

    def is_no_slope(self, where: str, said: str) -> None:
        self.no_slope = self.no_slope or f"{_said(where)}: {said}"
        self.no_slopes += 1

    @property
    def keys(self) -> set[Key]:
        """Whatever has samples, those that count or others."""
        return {*self.logs, *self.discarded}

    def key(self, told: Key) -> Key | None:
        """The key here of what a record names so; None where a placeholder leaves several to choose from."""
        if not any(map(PRIVATE.search, told)):
            return told
        fitting = [key for key in self.keys if all(map(_alike, told, key))]
        return fitting[0] if len(fitting) == 1 else None if fitting else told


def _samples(bundle: Bundle, data: bytes, primary: str) -> Samples:
    """The samples that count, as kernelproof.samples says, and how many; never inflated as a whole."""
    logs: dict[Key, dict[int, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    found, single = Samples(), Counter[tuple[Key, int]]()  # single: what a slow contender's one sample may be
    rows = csv.reader(_lines(bundle, data))
    head = next(rows, [])
    columns = operator.itemgetter(*(head.index(name) for name in COLUMNS))
    ends = operator.itemgetter(*map(head.index, SLOPE)) if set(SLOPE) <= set(head) else None
    visit = operator.itemgetter(*map(head.index, VISIT)) if set(VISIT) <= set(head) else None
    for row in rows:
        contender, case, mode, method, process_text, block_text, time_us, throttle = columns(row)
        process, block = int(process_text), int(block_text)  # by the text `0` and `00` would be two processes
        bundle.samples += 1
        if bundle.samples > MAX_SAMPLES:
            raise ValueError(f"there are more than {MAX_SAMPLES}")
        if visit and method == primary:
            about = dict(zip(VISIT, visit(row), strict=True))
            found.visits.processes[process].take(contender, (case, mode), block, time_us, about)
        key = contender, case, mode, method
        throttled = throttle and DISCARDED_STATES.intersection(throttle.split("|"))
        if throttled or not (time := float(time_us or 0)) > 0:
            found.discarded[key] += 1
        else:
            if not POSSIBLE_US[0] <= time <= POSSIBLE_US[1]:
                raise ValueError(f"{time_us} µs is no time of {contender}")
            found.counts[key] += 1
            logs[key][process][block].append(math.log(time))
            if ends and all(lengths := ends(row)):
                if (said := _no_slope(time, *lengths)) is not None:
                    where = f"{contender} {case} {mode} {method}, process {process}, block {block}"
                    found.is_no_slope(where, f"time_us is {_said(time_us)}, {said}")
            elif method == PRIMARY["cuda"]:
                single[key, process] += 1
    found.logs = {
        key: {
            process: {block: fmean(times) for block, times in blocks.items()} for process, blocks in processes.items()
        }
        for key, processes in logs.items()
    }
    for (key, process), without in single.items():
        count = sum(map(len, logs[key][process].values()))
        if count > 1:
            said = f"{without} of {count} times do not say what they are the slope of"
            found.is_no_slope(f"{' '.join(key)}, process {process}", said)
    return found


def _no_slope(time_us: float, calls: str, short_calls: str, short_us: str, long_us: str) -> str | None:
    """What the two lengths of a row say of one call, where that is not its time, within the digits that are written."""
    more, short, long = int(calls) - int(short_calls), float(short_us), float(long_us)
    if more <= 0:
        return f"for {_said(calls)} calls less {_said(short_calls)}"
    each_us = (long - short) / more
    slack_us = (2 * SLOPE_STEP_US + 5e-6 * (abs(long) + abs(short))) / more + 5e-6 * time_us
    if abs(each_us - time_us) <= 1.01 * slack_us:
        return None
    return f"by its lengths {each_us:.6g} ({_said(long_us)} less {_said(short_us)} µs for {more} calls)"


def _lines(bundle: Bundle, data: bytes) -> Iterator[str]:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        while line := stream.readline(MAX_LINE_BYTES):
            bundle.samples_bytes += len(line)
            if bundle.samples_bytes > MAX_SAMPLES_BYTES:
                raise ValueError(f"they unpack to more than {MAX_SAMPLES_BYTES} bytes: a bomb")
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):  # one row to others, and two to us
                raise ValueError(f"a line is longer than {MAX_LINE_BYTES} bytes")
            yield line.decode("utf-8")


def _time(processes: Logs) -> float | None:
    """The median over processes of the median over blocks, as in statistics.time_estimate."""
    figures = [median(blocks.values()) for blocks in processes.values()]
    return math.exp(median(figures)) if figures else None


def _paired(ours: Logs, theirs: Logs) -> list[list[float]]:
    """By process, the differences of the blocks in which both were timed."""
    found = []
    for process in sorted(ours.keys() & theirs.keys()):
        common = ours[process].keys() & theirs[process].keys()
        if common:
            found.append([ours[process][block] - theirs[process][block] for block in common])
    return found


def _figures(paired: list[list[float]]) -> list[float]:
    """A figure a process, the median over its blocks; of one process its blocks', as in statistics._estimate."""
    return paired[0] if len(paired) == 1 else [median(differences) for differences in paired]


def _judged(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The word for a ratio follows from its interval, and so does the gate's."""
    gate = bundle.documents[CONFIG]["gate"] if bench["ratios"] or bench["oracle"] else {}
    for row in bench["ratios"]:
        what = _said(f"{row['variant']} / {row['baseline']} {row['case']} {row['mode']}")
        interval = f"{_said(row['ratio'])} ({_said(row['low'])} to {_said(row['high'])})"
        if not row["low"] <= row["ratio"] <= row["high"]:
            yield Contradiction(name, f"{what}: the ratio lies outside of its interval, {interval}")
        if not _follows(row["verdict"], row["low"], row["high"], gate["same_band"]):
            yield Contradiction(name, f"{what}: the word is {_said(row['verdict'])}, and the ratio {interval}")
    by_pair = {(row["variant"], row["baseline"], row["case"], row["mode"]): row for row in bench["ratios"]}
    for row in bench["oracle"]:
        pair = by_pair.get((row["variant"], row["best_baseline"], row["case"], row["mode"]), {})
        what = _said(f"{row['variant']} {row['case']} {row['mode']}")
        for figure in ("ratio", "low", "high"):
            if row[figure] != pair.get(figure):
                says = f"{what} before the gate: {figure} is {_said(row[figure])}"
                yield Contradiction(name, f"{says}, against {_said(row['best_baseline'])} {_said(pair.get(figure))}")
        if row["passed"] and row.get("undecided"):
            yield Contradiction(name, f"{what} passes the gate, and is undecided")
        if row["passed"] and (row["high"] is None or row["high"] > gate["max_ratio"] + TOLERANCE):
            says = f"{what} passes the gate"
            yield Contradiction(name, f"{says}, and its upper bound is {_said(row['high'])} of {gate['max_ratio']}")


def _decided(name: str, bench: Mapping[str, Any], row: Mapping[str, Any], why: str) -> Iterator[Contradiction]:
    """What is decided by a ratio that decides nothing."""
    said = [f"the word is {_said(row['verdict'])}"] if row["verdict"] != "undecided" else []
    place = (row["variant"], row["baseline"], row["case"], row["mode"])
    for before in bench["oracle"]:
        if (before["variant"], before["best_baseline"], before["case"], before["mode"]) == place:
            said += ["it passes the gate"] if before["passed"] else []
            said += [] if before.get("undecided", True) else ["it is not undecided before the gate"]
    what = _said("{variant} / {baseline} {case} {mode}".format(**row))
    for one in said:
        yield Contradiction(name, f"{what}: {one}, and {why}")


def _doubtful(name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """By times that our own clock does not confirm nothing is decided, nor by those beside other programs."""
    times = [row for row in bench["times"] if row["method"] == PRIMARY[bench["device"]]]
    flags = {(row["contender"], row["case"], row["mode"]): row["flags"] for row in times}
    for row in bench["ratios"]:
        for who, flag in itertools.product(("variant", "baseline"), DECIDES_NOTHING):
            if flag in flags.get((row[who], row["case"], row["mode"]), ()):
                yield from _decided(name, bench, row, f"the time of {_said(row[who])} is flagged {flag!r}")
                break
    share = bench["states"].get("others_share", 0.0)
    everywhere = {row["case"] for row in times} >= {case["id"] for case in bench["cases"]}
    if share > OTHERS_SHARE and everywhere and not any(CORES_SHARED in found for found in flags.values()):
        says = f"other programs had {_said(share)} of the cores in a case, and no time is flagged {CORES_SHARED!r}"
        yield Contradiction(name, says)


def _opposed(name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Every variant stands before the gate wherever it was timed, against the fastest baseline that was timed there."""
    roles = {contender["name"]: contender["role"] for contender in bench["contenders"]}
    timed: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in bench["times"]:
        if row["contender"] not in roles:
            yield Contradiction(name, f"{_said(row['contender'])} has a time, and is not among the contenders")
        if row["method"] == PRIMARY[bench["device"]]:
            timed[row["case"], row["mode"]][row["contender"]] = row["median_us"]
    standing = Counter((row["variant"], row["case"], row["mode"]) for row in bench["oracle"])
    needed = {(who, *where) for where, times in timed.items() for who in times}
    needed |= {(row["contender"], row["case"], row["mode"]) for row in bench.get("untimed", [])}
    for place in sorted(needed):
        if roles.get(place[0]) == "variant" and standing[place] != 1:
            says = f"{_said(' '.join(place))}: it took part, and stands before the gate"
            yield Contradiction(name, f"{says} {standing[place]} times")
    for row in bench["oracle"]:
        yield from _fastest(name, row, roles, timed[row["case"], row["mode"]])


def _fastest(
    name: str, row: Mapping[str, Any], roles: Mapping[str, str], times: Mapping[str, float]
) -> Iterator[Contradiction]:
    """The baseline that a variant is held against; none where there is no time of its own, or of any baseline."""
    what = f"{_said('{variant} {case} {mode}'.format(**row))} before the gate: best_baseline is"
    best, theirs = row["best_baseline"], {who: time for who, time in times.items() if roles.get(who) == "baseline"}
    least = min(theirs, key=lambda who: (theirs[who], who), default=None) if row["variant"] in times else None
    if best is None and least is not None:
        yield Contradiction(name, f"{what} None, and {_said(least)} took {theirs[least]:.6g} µs")
    elif best is not None and best not in theirs:
        role = _said(roles.get(best))
        yield Contradiction(name, f"{what} {_said(best)}, and the record has no such baseline's time (role {role})")
    elif best is not None and least is None:
        yield Contradiction(name, f"{what} {_said(best)}, and the variant has no time there")
    elif best is not None and least is not None and theirs[best] > theirs[least]:
        times_us = f"with {theirs[best]:.6g} µs, and {_said(least)} took {theirs[least]:.6g}"
        yield Contradiction(name, f"{what} {_said(best)} {times_us}")


def _follows(word: str, low: float, high: float, band: float) -> bool:
    """Whether an interval can have been given a word: statistics.verdict, where a doubtful one is undecided."""
    may_be = {
        "faster": high < 1 - band + TOLERANCE,
        "slower": low > 1 + band - TOLERANCE,
        "same": low >= 1 - band - TOLERANCE and high <= 1 + band + TOLERANCE,
        "undecided": True,
    }
    return may_be[word]


# --- the manifest -----------------------------------------------------------------------------------------------------


def _facts(bundle: Bundle) -> Iterator[Contradiction]:
    """The manifest says what the record of its stage says, and all records that this one names are packed."""
    facts = bundle.documents.get(FACTS)
    if facts is None:
        if FACTS not in bundle.sha256:  # of one that cannot be read there is a word already
            yield Contradiction(FACTS, "it is not packed")
        return
    if not bundle.records and not bundle.manifest["missing"]:
        yield Contradiction(MANIFEST, "no record is packed, and none is said to be missing")
    for what in SHARED:
        if facts[what] != bundle.manifest[what]:
            ours, theirs = _first_difference(bundle.manifest[what], facts[what])
            yield Contradiction(MANIFEST, f"{what} is {ours}, in {FACTS} {theirs}")
    named = {f"records/{path.removeprefix('results/')}" for path in facts["records"]}
    for name in sorted(named ^ {name for name in bundle.sha256 if RECORD.fullmatch(name)}):
        how = "is not packed, and is" if name in named else "is packed, and is not"
        yield Contradiction(name, f"it {how} among the records of {FACTS}")


def _first_difference(ours: object, theirs: object) -> tuple[str, str]:
    """Where two lists differ, the first entries that do; else both whole."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        ours, theirs = next(pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1])
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
        ours, theirs = ({key: side.get(key) for key in sorted(keys)} for side in (ours, theirs))
    return _said(ours), _said(theirs)


def _measured(bundle: Bundle) -> Iterator[Contradiction]:
    """Whatever the manifest says was measured has a record."""
    there = {word for stage, subject in bundle.records.values() for word in (stage, f"{stage} {subject}")}
    for what in bundle.manifest["measured"]:
        if what not in there:
            yield Contradiction(MANIFEST, f"{_said(what)} was measured, and no record of it is packed")


def _settled(bundle: Bundle) -> Iterator[Contradiction]:
    """The configuration is there, and the one to run again with is the one to read."""
    if CONFIG not in bundle.sha256:
        yield Contradiction(CONFIG, "it is not packed")
    elif bundle.sha256.get(RESOLVED, bundle.sha256[CONFIG]) != bundle.sha256[CONFIG]:
        (again,) = (row for row in bundle.manifest["members"] if row["path"] == RESOLVED)
        if again.get("source") == PurePosixPath(RESOLVED).name:  # it was what this run was made with: another's
            return
        for where, ours, theirs in _unlike(bundle.documents[CONFIG], bundle.documents[RESOLVED]):
            yield Contradiction(CONFIG, f"{_said(where)} is {_said(ours)}, in {RESOLVED} {_said(theirs)}")
            return


def _unlike(said: object, there: object, where: str = "") -> Iterator[tuple[str, object, object]]:
    """Where two documents differ by more than private words that the first is without: the place and both values."""
    if isinstance(said, dict) and isinstance(there, dict) and len(said) == len(there):
        for (key, value), (other, its) in zip(said.items(), there.items(), strict=True):
            yield from _unlike(key, other, f"{where}.{key}".lstrip("."))
            yield from _unlike(value, its, f"{where}.{key}".lstrip("."))
    elif isinstance(said, list) and isinstance(there, list) and len(said) == len(there):
        for index, (value, its) in enumerate(zip(said, there, strict=True)):
            yield from _unlike(value, its, f"{where}[{index}]")
    elif said != there and not (isinstance(said, str) and isinstance(there, str) and _alike(said, there)):
        yield where, said, there


def _called_for(bundle: Bundle) -> Iterator[Contradiction]:
    """Every variant and baseline of the configuration has a verdict, and every record is packed or called missing."""
    verdicts = {f"{verdict['operator']}/{verdict['variant']}": verdict for verdict in bundle.manifest["verdicts"]}
    configured = {
        f"{operator}/{name}": {**variant, "role": kind[:-1]}
        for operator, settings in (_configured(bundle, "operators") or {}).items()
        for kind in ("variants", "baselines")
        for name, variant in settings[kind].items()
    }
    for key in sorted(verdicts.keys() ^ configured.keys()):
        how = "it has a verdict, and is not in" if key in verdicts else "it has no verdict, and is in"
        yield Contradiction(MANIFEST, f"{_said(key)}: {how} {CONFIG}")
    for key in sorted(verdicts.keys() & configured.keys()):
        for what in ("role", "device"):
            ours, theirs = verdicts[key][what], configured[key][what]
            if ours != theirs:
                yield Contradiction(MANIFEST, f"{_said(key)}: {what} is {_said(ours)}, in {CONFIG} {_said(theirs)}")
    packed = {f"{stage} {subject}" for stage, subject in bundle.records.values()}
    missing = {f"{entry['stage']} {entry['subject']}" for entry in bundle.manifest["missing"]}
    for record in sorted(_expected(bundle, configured) - packed - missing):
        if not any(_alike(record, there) for there in packed | missing):
            says = f"the record {_said(record)} is called for by {CONFIG}"
            yield Contradiction(MANIFEST, f"{says}, and is neither packed nor said to be missing")
    for record in sorted(packed & missing):
        yield Contradiction(MANIFEST, f"the record {_said(record)} is said to be missing, and is packed")


def _expected(bundle: Bundle, configured: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Stage and subject of every record of a whole run, as in manifest.expected."""
    found = {"capture capture"}
    for key, variant in configured.items():
        operator, _, name = key.partition("/")
        found |= {f"build {key}", f"test {key}", f"bench {operator}-{variant['device']}"}
        found.add(f"bench ceilings/{variant['device']}")
        named = _configured(bundle, "operators", operator, "profile", "baselines") or ()
        if variant["device"] == "cuda" if variant["role"] == "variant" else name in named:
            found.add(f"profile {key}")
    return found


def _verdicts(bundle: Bundle) -> Iterator[Contradiction]:
    """Each line of the manifest is what the variant's records say."""
    listed: Counter[str] = Counter()
    for verdict in bundle.manifest["verdicts"]:
        key = f"{verdict['operator']}/{verdict['variant']}"
        listed[key] += 1
        for what, said in _line(bundle, key, verdict):
            yield Contradiction(
                MANIFEST, f"{_said(key)}: {what} is {_said(verdict[what])}, by its records {_said(said)}"
            )
        why = None if verdict["bad"] or verdict["role"] != "variant" else next(_faults(bundle, key, verdict), None)
        if why:
            yield Contradiction(MANIFEST, f"{_said(key)}: bad is {_said(verdict['bad'])}, and {why}")
    tested = {subject for stage, subject in bundle.records.values() if stage in ("build", "test")}
    private = [key for key in listed if PRIVATE.search(key)]
    unlisted = {subject for subject in tested if not any(_alike(key, subject) for key in private)}
    for key in sorted({*unlisted, *listed}):
        if listed[key] != 1:
            yield Contradiction(MANIFEST, f"{_said(key)}: it has {listed[key]} verdicts")


def _configured(bundle: Bundle, *steps: str) -> Any:
    """A value of the configuration; None where that says nothing."""
    found: Any = bundle.documents.get(CONFIG)
    for step in steps:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _setting(bundle: Bundle, key: str, what: str) -> Any:
    """What the configuration says of `operator/variant`, or baseline; None where that is nothing."""
    operator, _, name = key.partition("/")
    both = (_configured(bundle, "operators", operator, kind, name, what) for kind in ("variants", "baselines"))
    return next((found for found in both if found is not None), None)


def _line(bundle: Bundle, key: str, verdict: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """What of a verdict is not as the records have it: the field, and what it would be."""
    build, test, profile = (bundle.record(stage, key) for stage in ("build", "test", "profile"))
    bench = bundle.record("bench", f"{verdict['operator']}-{verdict['device']}")
    expected: dict[str, object] = {"correctness": test["verdict"] if test else "missing"}
    if test and test["verdict"] == "correct" and verdict["correctness"] in {"wrong", "crashed", "hung"}:
        del expected["correctness"]  # by the benchmark, and older manifests have the test's word there
        found = _found_by_bench(bench, verdict["variant"])
        if verdict["correctness"] not in [word for word, said in found if not said.startswith("not benchmarked")]:
            yield "correctness", test["verdict"]
    if (build["abi"] if build else _setting(bundle, key, "abi")) != "python":
        expected["build"] = build["status"] if build else "missing"
    if profile:
        expected["profile"] = profile["status"]
    elif verdict["profile"] not in ("missing", "not_needed"):
        expected["profile"] = "missing"
    for record in filter(None, (build, test)):
        expected |= {"device": record["device"], "role": record["role"]}
    yield from ((what, said) for what, said in expected.items() if verdict[what] != said)
    if verdict["role"] == "variant":
        speeds = _speeds(bench, verdict["variant"], _configured(bundle, "operators", verdict["operator"], "profile"))
        if (verdict["speed"], verdict["ratio"]) not in speeds:
            what = "speed" if verdict["speed"] not in [speed for speed, _ in speeds] else "ratio"
            yield what, [entry[what == "ratio"] for entry in speeds]
        claimed = _setting(bundle, key, "gate")
        if claimed is not None and verdict["gate"].partition(",")[0] != (word := _claim(claimed, test, bench, verdict)):
            yield "gate", word
        rows = [row for row in bench["oracle"] if row["variant"] == verdict["variant"]] if bench else []
        if verdict["gate"].startswith("passes") and not (rows and all(row["passed"] for row in rows)):
            yield "gate", "not passed in every case"


def _claim(
    claimed: bool, test: Mapping[str, Any] | None, bench: Mapping[str, Any] | None, verdict: Mapping[str, Any]
) -> str:
    """The gate's word for a variant, as in claims.judge."""
    unjudged = "not run" if claimed else "no claim"
    if not test or test["verdict"] != "correct" or any(_found_by_bench(bench, verdict["variant"])):
        return unjudged
    if not claimed or bench is None or bench["status"] == "not_run":
        return unjudged
    rows = [row["passed"] for row in bench["oracle"] if row["variant"] == verdict["variant"]]
    return "passes" if rows and all(rows) else "fails"


def _found_by_bench(bench: Mapping[str, Any] | None, variant: str) -> Iterator[tuple[str, str]]:
    """A benchmark's word for a variant that is at fault (wrong, crashed, hung, caught), and what says so."""
    for entry in bench["discarded"] if bench else []:
        if entry["what"] == "contender" and entry["contender"] == variant and entry["reason"].startswith(CAUGHT):
            yield entry["reason"].partition(":")[0], entry["reason"]
    for contender in bench["contenders"] if bench else []:
        dropped = re.match("dropped: (crashed|hung|failed)", contender["outcome"])
        wrong = not contender["correct"] and contender["verdict"] == "wrong"
        if contender["name"] == variant and (wrong or dropped):
            yield dropped[1] if dropped and not wrong and dropped[1] != "failed" else "wrong", contender["outcome"]


def _speeds(
    bench: Mapping[str, Any] | None, variant: str, profiled: Mapping[str, Any] | None
) -> list[tuple[str, float | None]]:
    """Word and ratio of every case that could stand for a variant: by the profile's shape and options one does."""
    if bench is None:
        return [("missing", None)]
    words = {(r["variant"], r["baseline"], r["case"], r["mode"]): r["verdict"] for r in bench["ratios"]}
    none = "not_compared" if bench["status"] == "ok" else bench["status"]
    rows = [row for row in bench["oracle"] if row["variant"] == variant]
    if rows and profiled is not None:
        ranked = [(_rank(bench, row, profiled), row) for row in rows]
        rows = [min(ranked, key=lambda entry: entry[0])[1]]
    return [
        (words.get((variant, r["best_baseline"], r["case"], r["mode"]), "undecided"), r["ratio"])
        if r["best_baseline"]
        else (none, r["ratio"])
        for r in rows
    ] or [(none, None)]


def _rank(bench: Mapping[str, Any], row: Mapping[str, Any], profiled: Mapping[str, Any]) -> tuple[bool, int, bool]:
    """How far a row is from the one that stands for its variant, as in manifest._representative."""
    case = next((case for case in bench["cases"] if case["id"] == row["case"]), None)
    if case is None:
        return True, 0, True
    wanted, options = profiled["options"], case["options"]
    different = sum(options.get(name) != value for name, value in wanted.items())
    further = sum(value is True for name, value in options.items() if name not in wanted)
    return case["shape"] != profiled["shape"], 10 * different + further, row["mode"] != "hot"


def _faults(bundle: Bundle, key: str, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Why a variant would have to be bad."""
    build, test, profile = (bundle.record(stage, key) for stage in ("build", "test", "profile"))
    bench = bundle.record("bench", f"{verdict['operator']}-{verdict['device']}")
    if test is None:
        yield "there is no record of its test"
    elif test["verdict"] in RAN_AND_FAILED | {"failed_to_build"}:
        yield f"its test's verdict is {_said(test['verdict'])}"
    for stage, record in (("build", build), ("test", test), ("bench", bench), ("profile", profile)):
        if record and record["status"] == "failed":
            yield f"the status of its {stage} is 'failed'"
    if build and not all(row["ok"] for row in build["budget"]):
        yield "its build is over the budget"
    if verdict["gate"].startswith("fails"):
        yield f"its gate is {_said(verdict['gate'])}"
    for _, outcome in _found_by_bench(bench, verdict["variant"]):
        yield f"its benchmark says {_said(outcome)}"


def _surroundings(bundle: Bundle) -> Iterator[Contradiction]:
    """The machine of the manifest is the one that was captured, as in manifest.tools."""
    probes = bundle.documents[CAPTURE]["probes"] if CAPTURE in bundle.documents else {}
    values = {name: probe["value"] for name, probe in probes.items() if probe["status"] == "ok"}
    boards, packages = values.get("gpu") or [], values.get("packages") or {}
    there = {
        "gpu": [{what: board.get(what) for what in BOARD} for board in boards],
        "cpu": (values.get("cpu") or {}).get("model"),
        "os": values.get("os"),
        "python": (values.get("python") or {}).get("version"),
        "packages": {name: version for name, version in packages.items() if name.startswith(DECISIVE_PACKAGES)},
    }
    for what, found in there.items():
        said = bundle.manifest["tools"].get(what)
        if (said or None) != (found or None):
            ours, theirs = _first_difference(said, found)
            yield Contradiction(MANIFEST, f"{_said(what)} of its tools is {ours}, in {CAPTURE} {theirs}")


def _when(bundle: Bundle) -> Iterator[Contradiction]:
    """The run is as old as its last record, and the bundle's name says so."""
    state, name = bundle.manifest["provenance"], bundle.manifest["bundle"]
    records = [bundle.documents[record]["provenance"]["utc"] for record in bundle.records]
    last = max(filter(None, records), default=state["utc"])
    if state["utc"] != last:
        yield Contradiction(MANIFEST, f"the time of the run is {_said(state['utc'])}, its last record's {_said(last)}")
    time = re.sub(r"[^0-9TZ]", "", state["utc"])
    if not name.endswith(time):
        yield Contradiction(MANIFEST, f"the bundle's name is {_said(name)}, and the time of the run {_said(time)}")
    folder = bundle.documents[FACTS]["folder"] if FACTS in bundle.documents else None
    if folder is not None and not re.fullmatch(rf"kernelproof-{re.escape(folder)}-[0-9TZ]*", name):
        yield Contradiction(MANIFEST, f"the bundle's name is {_said(name)}, and the folder in {FACTS} {_said(folder)}")
    of_commit = re.fullmatch(r"kernelproof-([0-9a-f]{12})(?:-dirty-([0-9a-f]{8}))?-[0-9TZ]+", name)
    if not of_commit or not state["commit"]:  # a folder may be given, and there may be no git
        return
    if not state["commit"].startswith(of_commit[1]):
        yield Contradiction(MANIFEST, f"the bundle's name is {_said(name)}, and the commit {_said(state['commit'])}")
    if of_commit[2] != ((state["diff_sha256"] or "")[:8] if state["dirty"] else None):
        says = f"dirty is {_said(state['dirty'])}, of the difference {_said(state['diff_sha256'])}"
        yield Contradiction(MANIFEST, f"the bundle's name is {_said(name)}, and {says}")


def _overall(bundle: Bundle) -> Iterator[Contradiction]:
    """The word for the whole run follows from the verdicts, as manifest.overall says."""
    verdicts, missing = bundle.manifest["verdicts"], bundle.manifest["missing"]
    waiting = any(v["role"] == "variant" and v["correctness"] in ("not_run", "missing") for v in verdicts)
    expected = "incomplete" if waiting or missing else "good"
    if any(verdict["bad"] for verdict in verdicts):
        expected = "bad"
    if bundle.manifest["overall"] != expected:
        message = f"overall is {_said(bundle.manifest['overall'])}, by its verdicts {expected!r}"
        yield Contradiction(MANIFEST, message)


Check = Callable[[Bundle, str], Iterable[Contradiction]]
CHECKS: dict[str, tuple[Check, ...]] = {
    "capture": (_identity, _state),
    "build": (_identity, _state, _build),
    "test": (_identity, _state, _test),
    "bench": (_identity, _state, _bench),
    "profile": (_identity, _state),
}
Whole = Callable[[Bundle], Iterable[Contradiction]]
WHOLE: tuple[Whole, ...] = (made_with_others, _facts, _measured, _verdicts, _overall, _machine_code, _cubins, _gathered)
OF_A_RUN: tuple[Whole, ...] = (_settled, _called_for, _surroundings, _when, _same_machine_code, _classes, _left_out)
