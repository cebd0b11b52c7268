"""The manifest: each line is what the records say, of the machine that was captured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kernelproof.consistency.inside import (
    CAPTURE,
    CONFIG,
    FACTS,
    PRIVATE,
    RAN_AND_FAILED,
    RECORD,
    Bundle,
    Contradiction,
    alike,
    found_by_bench,
    in_config,
    quoted,
    setting_of,
)
from kernelproof.verify import MANIFEST

# Facts that the manifest has from the record of its stage.
SHARED = ("project", "overall", "provenance", "measured", "verdicts", "identical_machine_code", "missing", "tools")
DECISIVE_PACKAGES = (
    *("torch", "triton", "apache-tvm-ffi", "numpy", "xformers"),
    *("flash-attn", "quack", "nvidia-cu", "nvidia-nv"),
)
BOARD = ("name", "driver", "cuda_driver", "uuid_sha256")  # what the manifest says of a GPU


def facts(bundle: Bundle) -> Iterator[Contradiction]:
    """The manifest says what the record of its stage says, and all records that this one names are packed."""
    facts = bundle.documents.get(FACTS)
    if facts is None:
        if FACTS not in bundle.sha256:  # of one that cannot be read there is a word already
            yield Contradiction(FACTS, "it is not packed")
        return
    if not bundle.records and not bundle.manifest["missing"]:
        yield Contradiction(MANIFEST, "no record is packed, and none is said to be missing")
    project = in_config(bundle, "project")
    if project is not None and not alike(bundle.manifest["project"], project):
        yield Contradiction(
            MANIFEST, f"the project is {quoted(bundle.manifest['project'])}, in {CONFIG} {quoted(project)}"
        )
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
    return quoted(ours), quoted(theirs)


def measured(bundle: Bundle) -> Iterator[Contradiction]:
    """Whatever the manifest says was measured has a record."""
    there = {word for stage, subject in bundle.records.values() for word in (stage, f"{stage} {subject}")}
    for what in bundle.manifest["measured"]:
        if what not in there:
            yield Contradiction(MANIFEST, f"{quoted(what)} was measured, and no record of it is packed")


def called_for(bundle: Bundle) -> Iterator[Contradiction]:
    """Every variant and baseline of the configuration has a verdict, and every record is packed or called missing."""
    verdicts = {f"{verdict['operator']}/{verdict['variant']}": verdict for verdict in bundle.manifest["verdicts"]}
    configured = {
        f"{operator}/{name}": {**variant, "role": kind[:-1]}
        for operator, settings in (in_config(bundle, "operators") or {}).items()
        for kind in ("variants", "baselines")
        for name, variant in settings[kind].items()
    }
    for key in sorted(verdicts.keys() ^ configured.keys()):
        how = "it has a verdict, and is not in" if key in verdicts else "it has no verdict, and is in"
        yield Contradiction(MANIFEST, f"{quoted(key)}: {how} {CONFIG}")
    for key in sorted(verdicts.keys() & configured.keys()):
        for what in ("role", "device"):
            ours, theirs = verdicts[key][what], configured[key][what]
            if ours != theirs:
                yield Contradiction(MANIFEST, f"{quoted(key)}: {what} is {quoted(ours)}, in {CONFIG} {quoted(theirs)}")
    packed = {f"{stage} {subject}" for stage, subject in bundle.records.values()}
    missing = {f"{entry['stage']} {entry['subject']}" for entry in bundle.manifest["missing"]}
    for record in sorted(_expected(bundle, configured) - packed - missing):
        if not any(alike(record, there) for there in packed | missing):
            says = f"the record {quoted(record)} is called for by {CONFIG}"
            yield Contradiction(MANIFEST, f"{says}, and is neither packed nor said to be missing")
    for record in sorted(packed & missing):
        yield Contradiction(MANIFEST, f"the record {quoted(record)} is said to be missing, and is packed")


def _expected(bundle: Bundle, configured: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Stage and subject of every record of a whole run, as in manifest.expected."""
    found = {"capture capture"}
    for key, variant in configured.items():
        operator, _, name = key.partition("/")
        found |= {f"build {key}", f"test {key}", f"bench {operator}-{variant['device']}"}
        found.add(f"bench ceilings/{variant['device']}")
        named = in_config(bundle, "operators", operator, "profile", "baselines") or ()
        if variant["device"] == "cuda" if variant["role"] == "variant" else name in named:
            found.add(f"profile {key}")
    return found


def verdicts(bundle: Bundle) -> Iterator[Contradiction]:
    """Each line of the manifest is what the variant's records say."""
    listed: Counter[str] = Counter()
    for verdict in bundle.manifest["verdicts"]:
        key = f"{verdict['operator']}/{verdict['variant']}"
        listed[key] += 1
        for what, said in _line(bundle, key, verdict):
            yield Contradiction(
                MANIFEST, f"{quoted(key)}: {what} is {quoted(verdict[what])}, by its records {quoted(said)}"
            )
        why = None if verdict["bad"] or verdict["role"] != "variant" else next(_faults(bundle, key, verdict), None)
        if why:
            yield Contradiction(MANIFEST, f"{quoted(key)}: bad is {quoted(verdict['bad'])}, and {why}")
    tested = {subject for stage, subject in bundle.records.values() if stage in ("build", "test")}
    private = [key for key in listed if PRIVATE.search(key)]
    unlisted = {subject for subject in tested if not any(alike(key, subject) for key in private)}
    for key in sorted({*unlisted, *listed}):
        if listed[key] != 1:
            yield Contradiction(MANIFEST, f"{quoted(key)}: it has {listed[key]} verdicts")


def _line(bundle: Bundle, key: str, verdict: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """What of a verdict is not as the records have it: the field, and what it would be."""
    build, test, profile = (bundle.record(stage, key) for stage in ("build", "test", "profile"))
    bench = bundle.record("bench", f"{verdict['operator']}-{verdict['device']}")
    expected: dict[str, object] = {"correctness": test["verdict"] if test else "missing"}
    if test and test["verdict"] == "correct" and verdict["correctness"] in {"wrong", "crashed", "hung"}:
        del expected["correctness"]  # by the benchmark, and older manifests have the test's word there
        found = found_by_bench(bench, verdict["variant"])
        if verdict["correctness"] not in [word for word, said in found if not said.startswith("not benchmarked")]:
            yield "correctness", test["verdict"]
    if (build["abi"] if build else setting_of(bundle, key, "abi")) != "python":
        expected["build"] = build["status"] if build else "missing"
    if profile:
        expected["profile"] = profile["status"]
    elif verdict["profile"] not in ("missing", "not_needed"):
        expected["profile"] = "missing"
    for record in filter(None, (build, test)):
        expected |= {"device": record["device"], "role": record["role"]}
    yield from ((what, said) for what, said in expected.items() if verdict[what] != said)
    if verdict["role"] == "variant":
        speeds = _speeds(bench, verdict["variant"], in_config(bundle, "operators", verdict["operator"], "profile"))
        if (verdict["speed"], verdict["ratio"]) not in speeds:
            what = "speed" if verdict["speed"] not in [speed for speed, _ in speeds] else "ratio"
            yield what, [entry[what == "ratio"] for entry in speeds]
        claimed = setting_of(bundle, key, "gate")
        if claimed is not None and verdict["gate"].partition(",")[0] != (word := _claim(claimed, test, bench, verdict)):
            yield "gate", word
        untimed = bench.get("untimed", []) if bench else []
        left = [row["outcome"] for row in untimed if row["contender"] == verdict["variant"]]
        if left and not verdict.get("untimed", left):
            yield "untimed", left[0]
        rows = [row for row in bench["oracle"] if row["variant"] == verdict["variant"]] if bench else []
        if verdict["gate"].startswith("passes") and not (rows and all(row["passed"] for row in rows)):
            yield "gate", "not passed in every case"


def _claim(
    claimed: bool, test: Mapping[str, Any] | None, bench: Mapping[str, Any] | None, verdict: Mapping[str, Any]
) -> str:
    """The gate's word for a variant, as in claims.judge."""
    unjudged = "not run" if claimed else "no claim"
    if not test or test["verdict"] != "correct" or any(found_by_bench(bench, verdict["variant"])):
        return unjudged
    if not claimed or bench is None or bench["status"] == "not_run":
        return unjudged
    rows = [row["passed"] for row in bench["oracle"] if row["variant"] == verdict["variant"]]
    return "passes" if rows and all(rows) else "fails"


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
        yield f"its test's verdict is {quoted(test['verdict'])}"
    for stage, record in (("build", build), ("test", test), ("bench", bench), ("profile", profile)):
        if record and record["status"] == "failed":
            yield f"the status of its {stage} is 'failed'"
    if build and not all(row["ok"] for row in build["budget"]):
        yield "its build is over the budget"
    if verdict["gate"].startswith("fails"):
        yield f"its gate is {quoted(verdict['gate'])}"
    for _, outcome in found_by_bench(bench, verdict["variant"]):
        yield f"its benchmark says {quoted(outcome)}"


def surroundings(bundle: Bundle) -> Iterator[Contradiction]:
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
            yield Contradiction(MANIFEST, f"{quoted(what)} of its tools is {ours}, in {CAPTURE} {theirs}")


def when_made(bundle: Bundle) -> Iterator[Contradiction]:
    """The run is as old as its last record, and the bundle's name says so."""
    state, name = bundle.manifest["provenance"], bundle.manifest["bundle"]
    records = [bundle.documents[record]["provenance"]["utc"] for record in bundle.records]
    last = max(filter(None, records), default=state["utc"])
    if state["utc"] != last:
        yield Contradiction(
            MANIFEST, f"the time of the run is {quoted(state['utc'])}, its last record's {quoted(last)}"
        )
    time = re.sub(r"[^0-9TZ]", "", state["utc"])
    if not name.endswith(time):
        yield Contradiction(MANIFEST, f"the bundle's name is {quoted(name)}, and the time of the run {quoted(time)}")
    folder = bundle.documents[FACTS]["folder"] if FACTS in bundle.documents else None
    if folder is not None and not re.fullmatch(rf"kernelproof-{re.escape(folder)}-[0-9TZ]*", name):
        yield Contradiction(
            MANIFEST, f"the bundle's name is {quoted(name)}, and the folder in {FACTS} {quoted(folder)}"
        )
    of_commit = re.fullmatch(r"kernelproof-([0-9a-f]{12})(?:-dirty-([0-9a-f]{8}))?-[0-9TZ]+", name)
    if not of_commit or not state["commit"]:  # a folder may be given, and there may be no git
        return
    if not state["commit"].startswith(of_commit[1]):
        yield Contradiction(MANIFEST, f"the bundle's name is {quoted(name)}, and the commit {quoted(state['commit'])}")
    if of_commit[2] != ((state["diff_sha256"] or "")[:8] if state["dirty"] else None):
        says = f"dirty is {quoted(state['dirty'])}, of the difference {quoted(state['diff_sha256'])}"
        yield Contradiction(MANIFEST, f"the bundle's name is {quoted(name)}, and {says}")


def overall(bundle: Bundle) -> Iterator[Contradiction]:
    """The word for the whole run follows from the verdicts, as manifest.overall says."""
    verdicts, missing = bundle.manifest["verdicts"], bundle.manifest["missing"]
    waiting = any(v["role"] == "variant" and v["correctness"] in ("not_run", "missing") for v in verdicts)
    expected = "incomplete" if waiting or missing else "good"
    if any(verdict["bad"] for verdict in verdicts):
        expected = "bad"
    if bundle.manifest["overall"] != expected:
        message = f"overall is {quoted(bundle.manifest['overall'])}, by its verdicts {expected!r}"
        yield Contradiction(MANIFEST, message)
