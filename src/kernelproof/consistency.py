"""Does a bundle agree with itself: its records with one another, the manifest, and the files packed beside them?

`kernelproof verify` asks this of members that it has hashed, with the standard library alone. Whoever makes a bundle
can write into it whatever agrees; found here is what was changed in one place and left in another.

Not looked at: pages, logs, JUnit XML, launches, what a profile counted, and the intervals of times and ratios, whose
bootstrap the standard library does not have.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import operator
import posixpath
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from statistics import fmean, median
from typing import Any

from kernelproof.verify import MANIFEST, strict_json

FACTS, CONFIG, MACHINE_CODE = "records/manifest.json", "config.json", "machine-code.json"
CAPTURE = "records/capture/capture.json"
RECORD = re.compile(r"records/(?P<stage>capture|build|test|bench|profile)/(?P<subject>.+)\.json")
# Facts that the manifest has from the record of its stage.
SHARED = ("project", "overall", "provenance", "measured", "verdicts", "identical_machine_code", "missing", "tools")

MAX_SAMPLES_BYTES = 256 * 1024 * 1024  # of all benchmarks together, unpacked
MAX_SAMPLES = 1_000_000  # of all benchmarks together; 78,000 in a run with 40 variants on a GPU
MAX_LINE_BYTES = 64 * 1024
TOLERANCE = 2e-5  # relative: a row has six digits, and so have the samples
COLUMNS = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle")
# As in samples.py, bench.py, methods.py, claims.py and the ladder; a test holds them together.
DISCARDED_STATES = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
PRIMARY = {"cpu": "cpu_clock", "cuda": "graph_slope"}
UNSAMPLED = frozenset({"cupti", "device_trace", "ncu", "floor_ncu"})  # methods without samples
RAN_AND_FAILED = frozenset({"wrong", "crashed", "hung"})
NEEDED_RUNGS = frozenset({"build", "load", "launch", "sanity", "correctness", "determinism"})
PRIVATE = re.compile(r"<(?:repo|home|user|host)>|\[secret\]")  # what stands in a record for a private word

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)

Key = tuple[str, str, str, str]  # contender, case, mode, method
Logs = dict[str, dict[str, float]]  # process -> block -> mean of the logarithms of its times


@dataclass(frozen=True)
class Contradiction:
    """A member, and what it says together with what it does not agree with."""

    member: str
    message: str


def wanted(name: str) -> bool:
    """Whether a member's bytes are needed here; of all others the hash is."""
    return (
        name in (MANIFEST, FACTS, CONFIG, MACHINE_CODE) or name.startswith("samples/") or bool(RECORD.fullmatch(name))
    )


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
    for whole in (_facts, _measured, _verdicts, _overall, _machine_code, _cubins):
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
        self.samples_bytes = self.samples = 0  # read so far

    @property
    def manifest(self) -> dict[str, Any]:
        return self.documents[MANIFEST]

    def record(self, stage: str, subject: str) -> dict[str, Any] | None:
        """The record of a stage about `operator/variant` and the like; None where there is none."""
        return self.documents.get(f"records/{stage}/{subject}.json")

    @property
    def without_gpu(self) -> bool:
        """Whether the machine was looked at and no GPU was seen."""
        capture = self.documents.get(CAPTURE)
        probe = capture["probes"].get("gpu", {"status": "absent"}) if capture else {"status": "failed"}
        return probe["status"] == "absent" or (probe["status"] == "ok" and not probe["value"])


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
    pattern = ".+".join(re.escape(part) for part in PRIVATE.split(says))
    if not re.fullmatch(pattern, subject):
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


# --- test -------------------------------------------------------------------------------------------------------------


def _test(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """The verdict follows from rungs, cases, properties and tools; what ran on a GPU had one."""
    test = bundle.documents[name]
    verdict = test["verdict"]
    rungs = {rung["name"]: rung["status"] for rung in test["rungs"]}
    failed = [rung for rung, status in rungs.items() if status == "failed"]
    if failed and verdict not in ({"failed_to_build"} if "build" in failed else RAN_AND_FAILED):
        yield Contradiction(name, f"the verdict is {_said(verdict)}, and the rung {_said(failed[0])} is 'failed'")
    elif not failed and verdict not in ("correct", "not_run"):
        yield Contradiction(name, f"the verdict is {_said(verdict)}, and no rung is 'failed'")
    if verdict == "correct":
        yield from _correct(name, test, rungs)
    if test["device"] == "cuda" and bundle.without_gpu and verdict in (RAN_AND_FAILED | {"correct"}):
        yield Contradiction(name, f"the verdict of a CUDA variant is {_said(verdict)}, and {CAPTURE} names no GPU")
    build = bundle.record("build", bundle.records[name][1])
    if build and test.get("build_signature") not in (None, build["signature"]):
        says = f"it tested the build {_said(test['build_signature'])}"
        yield Contradiction(name, f"{says}, and the build's record is of {_said(build['signature'])}")


def _correct(name: str, test: Mapping[str, Any], rungs: Mapping[str, str]) -> Iterator[Contradiction]:
    """What else a variant that is called correct has to show."""
    needed = NEEDED_RUNGS | (set() if test.get("level", "quick") == "quick" else {"properties"})
    for rung in sorted(needed):
        if rungs.get(rung) not in ("passed", "failed"):  # of a failed one there is a word already
            yield Contradiction(name, f"the verdict is 'correct', and the rung {rung!r} is {_said(rungs.get(rung))}")
    if test["status"] != "ok":
        yield Contradiction(name, f"the verdict is 'correct', and the status is {_said(test['status'])}")
    if not test["cases"]:
        yield Contradiction(name, "the verdict is 'correct', and there is no case")
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
    """What was built is what is packed."""
    build = bundle.documents[name]
    for file in (*build["sources"], *build["headers"]):
        member = f"source/{posixpath.normpath(file['path'])}"
        if bundle.sha256.get(member, file["sha256"]) != file["sha256"]:
            yield _other_bytes(bundle, member, name, file["sha256"])


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
    if bundle.records[name][1].startswith("ceilings/"):
        return
    bench = bundle.documents[name]
    if bench["times"] and bench["device"] == "cuda" and bundle.without_gpu:
        yield Contradiction(name, f"{len(bench['times'])} times were taken on a GPU, and {CAPTURE} names none")
    for contender in bench["contenders"]:
        test = bundle.record("test", f"{bench['operator']}/{contender['name']}")
        if contender["correct"] and (test is None or test["verdict"] != "correct"):
            says = f"{_said(contender['name'])} was timed as correct"
            yield Contradiction(name, f"{says}, and its test's verdict is {_said(test and test['verdict'])}")
    yield from _sampled(bundle, name, bench)
    yield from _judged(bundle, name, bench)


def _sampled(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Medians and ratios, computed again."""
    times = [row for row in bench["times"] if row["method"] not in UNSAMPLED and not PRIVATE.search(str(row))]
    ratios = [row for row in bench["ratios"] if not PRIVATE.search(str(row))]
    if not (times or ratios):
        return
    member = f"samples/{PurePosixPath(bench['samples'] or '').name}"
    if member not in bundle.kept:
        yield Contradiction(name, f"its samples are not in the bundle ({_said(bench['samples'])})")
        return
    try:
        samples, counts = _samples(bundle, bundle.kept[member])
    except (OSError, EOFError, zlib.error, csv.Error, *_MALFORMED) as error:
        yield Contradiction(member, f"the samples cannot be read: {_said(error)}")
        return
    for row in times:
        key = (row["contender"], row["case"], row["mode"], row["method"])
        again = {
            "median_us": _time(samples.get(key, {})),
            "samples": counts[key],
            "processes": len(samples.get(key, {})),
        }
        yield from _compared(name, " ".join(key), row, again)
    method = PRIMARY[bench["device"]]
    for row in ratios:
        ours, theirs = (
            samples.get((row[who], row["case"], row["mode"], method), {}) for who in ("variant", "baseline")
        )
        what = f"{row['variant']} / {row['baseline']} {row['case']} {row['mode']}"
        yield from _compared(name, what, row, {"ratio": _ratio(ours, theirs)})


def _compared(
    name: str, what: str, row: Mapping[str, Any], again: Mapping[str, float | None]
) -> Iterator[Contradiction]:
    for figure, value in again.items():
        tolerance = 0 if isinstance(value, int) else TOLERANCE
        if value is None or not math.isclose(row[figure], value, rel_tol=tolerance):
            shown = "none" if value is None else f"{value:.6g}"
            yield Contradiction(name, f"{_said(what)}: {figure} is {_said(row[figure])}, by the samples {shown}")


def _samples(bundle: Bundle, data: bytes) -> tuple[dict[Key, Logs], Counter[Key]]:
    """The samples that count, as kernelproof.samples says, and how many; never inflated as a whole."""
    logs: dict[Key, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    counts: Counter[Key] = Counter()
    rows = csv.reader(_lines(bundle, data))
    head = next(rows, [])
    columns = operator.itemgetter(*(head.index(name) for name in COLUMNS))
    for row in rows:
        contender, case, mode, method, process, block, time_us, throttle = columns(row)
        bundle.samples += 1
        if bundle.samples > MAX_SAMPLES:
            raise ValueError(f"there are more than {MAX_SAMPLES}")
        if throttle and DISCARDED_STATES.intersection(throttle.split("|")):
            continue
        if (time := float(time_us or 0)) > 0:
            counts[contender, case, mode, method] += 1
            logs[contender, case, mode, method][process][block].append(math.log(time))
    means = {
        key: {
            process: {block: fmean(found) for block, found in blocks.items()} for process, blocks in processes.items()
        }
        for key, processes in logs.items()
    }
    return means, counts


def _lines(bundle: Bundle, data: bytes) -> Iterator[str]:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        while line := stream.readline(MAX_LINE_BYTES):
            bundle.samples_bytes += len(line)
            if bundle.samples_bytes > MAX_SAMPLES_BYTES:
                raise ValueError(f"they unpack to more than {MAX_SAMPLES_BYTES} bytes: a bomb")
            yield line.decode("utf-8")


def _time(processes: Logs) -> float | None:
    """The median over processes of the median over blocks, as in statistics.time_estimate."""
    figures = [median(blocks.values()) for blocks in processes.values()]
    return math.exp(median(figures)) if figures else None


def _ratio(ours: Logs, theirs: Logs) -> float | None:
    """The mean over processes of the median over common blocks, as in statistics.ratio_estimate."""
    paired = []
    for process in ours.keys() & theirs.keys():
        common = ours[process].keys() & theirs[process].keys()
        if common:
            paired.append([ours[process][block] - theirs[process][block] for block in common])
    figures = paired[0] if len(paired) == 1 else [median(differences) for differences in paired]
    return math.exp(fmean(figures)) if figures else None


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
        if row["passed"] and (row["high"] is None or row["high"] > gate["max_ratio"] + TOLERANCE):
            says = f"{what} passes the gate"
            yield Contradiction(name, f"{says}, and its upper bound is {_said(row['high'])} of {gate['max_ratio']}")


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
        return
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
    for key in sorted({*tested, *listed}):
        if listed[key] != 1:
            yield Contradiction(MANIFEST, f"{_said(key)}: it has {listed[key]} verdicts")


def _configured_abi(bundle: Bundle, key: str) -> object:
    """The ABI of `operator/variant` by the configuration; None where that says nothing."""
    operator, _, name = key.partition("/")
    for kind in ("variants", "baselines"):
        found: object = bundle.documents.get(CONFIG)
        for step in ("operators", operator, kind, name, "abi"):
            found = found.get(step) if isinstance(found, dict) else None
        if found is not None:
            return found
    return None


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
    if (build["abi"] if build else _configured_abi(bundle, key)) != "python":
        expected["build"] = build["status"] if build else "missing"
    if profile:
        expected["profile"] = profile["status"]
    elif verdict["profile"] not in ("missing", "not_needed"):
        expected["profile"] = "missing"
    for record in filter(None, (build, test)):
        expected |= {"device": record["device"], "role": record["role"]}
    yield from ((what, said) for what, said in expected.items() if verdict[what] != said)
    if verdict["role"] == "variant":
        speeds = _speeds(bench, verdict["variant"])
        if (verdict["speed"], verdict["ratio"]) not in speeds:
            what = "speed" if verdict["speed"] not in [speed for speed, _ in speeds] else "ratio"
            yield what, [entry[what == "ratio"] for entry in speeds]
        rows = [row for row in bench["oracle"] if row["variant"] == verdict["variant"]] if bench else []
        if verdict["gate"].startswith("passes") and not (rows and all(row["passed"] for row in rows)):
            yield "gate", "not passed in every case"


def _found_by_bench(bench: Mapping[str, Any] | None, variant: str) -> Iterator[tuple[str, str]]:
    """A benchmark's word for a variant that is at fault (wrong, crashed, hung), and the outcome that says so."""
    for contender in bench["contenders"] if bench else []:
        dropped = re.match("dropped: (crashed|hung|failed)", contender["outcome"])
        wrong = not contender["correct"] and contender["verdict"] == "wrong"
        if contender["name"] == variant and (wrong or dropped):
            yield dropped[1] if dropped and not wrong and dropped[1] != "failed" else "wrong", contender["outcome"]


def _speeds(bench: Mapping[str, Any] | None, variant: str) -> list[tuple[str, float | None]]:
    """Word and ratio of every case that could stand for a variant."""
    if bench is None:
        return [("missing", None)]
    words = {(r["variant"], r["baseline"], r["case"], r["mode"]): r["verdict"] for r in bench["ratios"]}
    none = "not_compared" if bench["status"] == "ok" else bench["status"]
    rows = [row for row in bench["oracle"] if row["variant"] == variant]
    return [
        (words.get((variant, r["best_baseline"], r["case"], r["mode"]), "undecided"), r["ratio"])
        if r["best_baseline"]
        else (none, r["ratio"])
        for r in rows
    ] or [(none, None)]


def _faults(bundle: Bundle, key: str, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Why a variant would have to be bad."""
    build, test, profile = (bundle.record(stage, key) for stage in ("build", "test", "profile"))
    bench = bundle.record("bench", f"{verdict['operator']}-{verdict['device']}")
    if test is None:
        yield "there is no record of its test"
    elif test["verdict"] in RAN_AND_FAILED | {"failed_to_build"}:
        yield f"its test's verdict is {_said(test['verdict'])}"
    for stage, record in (("build", build), ("bench", bench), ("profile", profile)):
        if record and record["status"] == "failed":
            yield f"the status of its {stage} is 'failed'"
    if build and not all(row["ok"] for row in build["budget"]):
        yield "its build is over the budget"
    if verdict["gate"].startswith("fails"):
        yield f"its gate is {_said(verdict['gate'])}"
    for _, outcome in _found_by_bench(bench, verdict["variant"]):
        yield f"its benchmark says {_said(outcome)}"


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
