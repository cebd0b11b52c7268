"""A test's record: its verdict follows from rungs, cases and tools, and it tried what the configuration asks for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kernelproof.consistency.inside import (
    CAPTURE,
    CONFIG,
    PRIVATE,
    RAN_AND_FAILED,
    TOLERANCE,
    Bundle,
    Contradiction,
    cases_of,
    contender_of,
    id_of_case,
    in_config,
    judged_by,
    lacking_of,
    option_combinations,
    other_bytes,
    other_source,
    quoted,
    shapes_on,
)
from kernelproof.verify import strict_json

QUICK = "quick"
LEVELS = (QUICK, "default", "deep")  # of a test, the least first
QUICK_TRIALS = 10  # at most, at the quick level
NEEDED_PROPERTIES = frozenset({"fresh values", "new values"})  # whatever the operator, and the variant takes
# The limits of the criteria themselves, which test.tolerance may widen.
CRITERIA = {"bound_factor": 1.0, "rms_factor": 1.5, "bias_case": 1 / 16, "bias_suite": 1 / 64}
NEEDED_RUNGS = frozenset({"build", "load", "launch", "sanity", "correctness", "determinism"})


def trials_at(level: str, trials: int) -> int:
    """How often a test of a level repeats a case where `test.trials` is so many."""
    return min(trials, QUICK_TRIALS) if level == QUICK else trials


def check(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """The verdict follows from rungs, cases, properties and tools; what ran on a GPU had one."""
    test = bundle.documents[name]
    verdict, tolerance = test["verdict"], in_config(bundle, "test", "tolerance") or {}
    rungs = {rung["name"]: rung["status"] for rung in test["rungs"]}
    failed = [rung["name"] for rung in test["rungs"] if rung["status"] == "failed"]
    for rung, number in Counter(rung["name"] for rung in test["rungs"]).items():
        if number > 1:  # of two words each reader may take another
            yield Contradiction(name, f"the rung {quoted(rung)} stands {number} times")
    if failed and verdict not in ({"failed_to_build"} if "build" in failed else RAN_AND_FAILED):
        yield Contradiction(name, f"the verdict is {quoted(verdict)}, and the rung {quoted(failed[0])} is 'failed'")
    elif not failed and verdict not in ("correct", "not_run"):
        yield Contradiction(name, f"the verdict is {quoted(verdict)}, and no rung is 'failed'")
    if verdict == "correct":
        yield from _correct(name, test, rungs)
        yield from _counted(name, test, tolerance.get("bound_factor", 1.0))
        yield from _asked_of(bundle, name, test)
    yield from cases_of(bundle, name, test, of_test=True)
    level = in_config(bundle, "test", "level")
    less = level in LEVELS and test.get("level") in LEVELS[: LEVELS.index(level)]
    if less and verdict != "not_run":
        yield Contradiction(name, f"its level is {quoted(test['level'])}, in {CONFIG} {quoted(level)}")
    for case in test["cases"]:
        if case["status"] == "passed" and (fault := _fault(case)):
            yield Contradiction(name, f"the case {quoted(case['id'])} is 'passed', and {fault}")
    if test["device"] == "cuda" and bundle.without_gpu and verdict in (RAN_AND_FAILED | {"correct"}):
        yield Contradiction(name, f"the verdict of a CUDA variant is {quoted(verdict)}, and {CAPTURE} names no GPU")
    yield from _of_its_build(bundle, name, test)
    for file in judged_by(test):
        yield from other_source(bundle, name, file)
    wider = {what: limit for what, limit in tolerance.items() if limit > CRITERIA[what]}
    if verdict != "not_run" and test.get("looser", wider) != wider:
        yield Contradiction(name, f"its wider limits are {quoted(test['looser'])}, by {CONFIG} {quoted(wider)}")


def _of_its_build(bundle: Bundle, name: str, test: Mapping[str, Any]) -> Iterator[Contradiction]:
    """What ran is what was built; what ran from cubins alone were cubins of that build, and its launches are packed."""
    key = bundle.records[name][1]
    build, signature, sealing = bundle.record("build", key), test.get("build_signature"), test.get("sealing")
    if build and signature not in (None, build["signature"]):
        says = f"it tested the build {quoted(signature)}"
        yield Contradiction(name, f"{says}, and the build's record is of {quoted(build['signature'])}")
    if build and build["abi"] != "python" and signature is None and test["verdict"] == "correct":
        yield Contradiction(name, "the verdict is 'correct', and it does not say which build it tested")
    if test["trust"] == "sealed" and not (sealing and sealing["sealed"] and not sealing["library"]):
        calls = {what: sealing[what] for what in ("sealed", "library")} if sealing else None
        yield Contradiction(name, f"its trust is 'sealed', and of its calls from cubins alone it says {quoted(calls)}")
    if sealing:
        yield from _sealed(bundle, name, test, build, sealing)


def _sealed(
    bundle: Bundle, name: str, test: Mapping[str, Any], build: Mapping[str, Any] | None, sealing: Mapping[str, Any]
) -> Iterator[Contradiction]:
    """What ran from cubins alone were cubins of the build, and every case that was launched is in the record."""
    made = {cubin["sha256"] for cubin in build["cubins"]} if build else None
    for cubin in sealing["cubins"]:
        if made is not None and cubin["sha256"] not in made:
            says = f"what ran sealed is {quoted(cubin['path'])} of SHA-256 {quoted(cubin['sha256'])}"
            yield Contradiction(name, f"{says}, which the build's record does not have")
    launches, member = sealing.get("launches"), f"launches/{bundle.records[name][1]}.json"
    if not launches:
        return
    data = bundle.kept.get(member, b"")
    scrubbed = PRIVATE.search(data.decode())
    if bundle.sha256.get(member, launches["sha256"]) != launches["sha256"] and not scrubbed:
        yield other_bytes(bundle, member, name, launches["sha256"])
    elif data and test["verdict"] == "correct" and test.get("level") != "deep":
        calls = {call for kind in strict_json(data)["kinds"] for call in kind["calls"]}
        cases = sorted(call for call in calls if re.search(r"-s\d+$", call))  # the others are of exact calls, say
        had = {case["id"] for case in test["cases"]}
        yield from lacking_of(name, "the verdict is 'correct', and", "calls", cases, had, member)


def _fault(case: Mapping[str, Any]) -> str | None:
    """What of a case says that it cannot have passed: a finding, or a ratio above its limit."""
    for what in ("failures", "nonfinite", "unwritten", "band_damage", "inputs_changed"):
        if case.get(what):
            return f"{what} is {quoted(case[what])}"
    ratios = {what: case.get(what) for what in ("max_bound_ratio", "rms_ratio", "bias_ratio")}
    for what, ratio in ratios.items():
        if ratio is not None and not 0 <= ratio <= 1:
            return f"{what} is {quoted(ratio)} of 1" if ratio > 1 else f"{what} is {quoted(ratio)}, which is below 0"
    root, largest = case.get("rms_error"), case.get("max_abs_error")
    alone = not case.get("biases")  # of several outputs each figure may be of another
    if alone and root is not None and largest is not None and root > (1 + TOLERANCE) * largest:
        return f"the root of its mean square error is {quoted(root)}, and the largest error {quoted(largest)}"
    for output, ratio in (case.get("biases") or {}).items():  # these have a sign
        if abs(ratio) > 1:
            return f"the bias of {quoted(output)} is {quoted(ratio)} of 1"
    return None


def _asked_of(bundle: Bundle, name: str, test: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Of the cases that cases.py selects those that are known without the operator's module.

    That is: every shape, and the profiled one, where it is among those, with all options and types; the input families
    that the configuration names; some values drawn after the build; so many repeats. What a variant does not take is in
    its record as skipped.
    """
    operator = in_config(bundle, "operators", test["operator"]) or {}
    contender = contender_of(operator, test["variant"])
    if contender is None:
        return
    if (declared := contender.get("precision")) and declared != test.get("precision"):
        says = f"it was held to the precision {quoted(test.get('precision'))}"
        yield Contradiction(name, f"{says}, in {CONFIG} it is {quoted(declared)}")
    main, selection, types = operator["profile"]["shape"], operator["test"], contender["dtypes"]
    shapes = shapes_on(selection, test["device"])
    had = {id_of_case(case["shape"], case["options"], case["dtype"]) for case in test["cases"]}
    wanted = [
        id_of_case(main, options, dtype) for options in option_combinations(bundle, selection, types) for dtype in types
    ]
    correct = "the verdict is 'correct', and"
    yield from lacking_of(name, correct, "cases", wanted if main in shapes else [], had)
    drawn = test.get("fresh_seed")
    if drawn is not None and not any(case["seed"] == drawn for case in test["cases"]):
        yield Contradiction(name, f"{correct} none of its cases has the seed {drawn} that was drawn after the build")
    trials = in_config(bundle, "test", "trials")
    quick = test.get("level", QUICK) == QUICK
    asked = None if trials is None else trials_at(test.get("level", QUICK), trials)
    if asked is not None and test.get("trials") != asked:
        yield Contradiction(name, f"{correct} it was repeated {quoted(test.get('trials'))} times, by {CONFIG} {asked}")
    if not quick:
        yield from lacking_of(name, correct, "shapes", shapes, {case["shape"] for case in test["cases"]})
        families = {case["family"] for case in test["cases"]}
        yield from lacking_of(name, correct, "input families", selection.get("families") or [], families)


def _counted(name: str, test: Mapping[str, Any], factor: float) -> Iterator[Contradiction]:
    """The largest error that was counted, in units of its bound, is the largest of a case, in units of `factor` bounds.

    What is known exactly is not counted: cases without an RMS, and outputs beside others (`biases` has several).
    """
    histogram = test.get("error_histogram") or {"edges": [], "counts": []}
    edges, counts = histogram["edges"], histogram["counts"]
    passed = [case for case in test["cases"] if case["status"] == "passed" and case.get("rms_ratio") is not None]
    largest = max((case["max_bound_ratio"] or 0.0 for case in passed), default=None)
    counted = [bin for bin, count in enumerate(counts) if count]
    if largest is None:
        return
    if not counted:
        yield Contradiction(name, f"its largest error is {quoted(largest)} of the bound, and no error was counted")
        return
    low, high = edges[counted[-1]], edges[counted[-1] + 1]
    alone = not any(case.get("biases") for case in passed)
    if alone and not low * (1 - TOLERANCE) <= largest * factor <= high * (1 + TOLERANCE):
        says = f"errors were counted up to {low:.3g} to {high:.3g} of their bound"
        yield Contradiction(name, f"{says}, and the largest of a case is {quoted(largest * factor)}")


def _correct(name: str, test: Mapping[str, Any], rungs: Mapping[str, str]) -> Iterator[Contradiction]:
    """What else a variant that is called correct has to show."""
    needed = NEEDED_RUNGS | (set() if test.get("level", QUICK) == QUICK else {"properties"})
    for rung in sorted(needed):
        if rungs.get(rung) not in ("passed", "failed"):  # of a failed one there is a word already
            yield Contradiction(name, f"the verdict is 'correct', and the rung {rung!r} is {quoted(rungs.get(rung))}")
    if test["status"] != "ok":
        yield Contradiction(name, f"the verdict is 'correct', and the status is {quoted(test['status'])}")
    if not any(case["status"] == "passed" for case in test["cases"]):
        there = f"none of its {len(test['cases'])} cases is 'passed'" if test["cases"] else "there is no case"
        yield Contradiction(name, f"the verdict is 'correct', and {there}")
    if rungs.get("properties") == "passed":
        shown = {found["name"] for found in test.get("properties", []) if found["status"] == "passed"}
        for lacking in sorted(NEEDED_PROPERTIES - shown):
            yield Contradiction(name, f"the rung 'properties' is 'passed', and the property {lacking!r} is not")
    for case in test["cases"]:
        if case["status"] == "skipped" and not case["reason"]:
            yield Contradiction(name, f"the case {quoted(case['id'])} is 'skipped', and it is not said why")
        if case["status"] == "passed" and case.get("max_bound_ratio") is None:
            yield Contradiction(name, f"the case {quoted(case['id'])} is 'passed', and no error of it is told")
    if abs(ratio := test.get("bias_suite_ratio") or 0.0) > 1:
        yield Contradiction(name, f"the verdict is 'correct', and the bias over all cases is {quoted(ratio)} of 1")
    if not test["isolation"]:
        yield Contradiction(name, "the verdict is 'correct', and it does not say what its process was kept from")
    tools = (test.get("sanitizer") or {"runs": []})["runs"]
    for run in tools:
        if run["status"] == "passed" and (run["failures"] or not run["calls"]):
            what = f"failures {quoted(run['failures'])}" if run["failures"] else "no call"
            yield Contradiction(name, f"the tool {quoted(run['tool'])} is 'passed', with {what}")
    if rungs.get("sanitizer") == "passed" and not any(run["status"] == "passed" for run in tools):
        yield Contradiction(name, "the rung 'sanitizer' is 'passed', and no tool is")
    parts = [
        *(("case", case["id"], case["status"]) for case in test["cases"]),
        *(("property", f"{found['name']} of {found['case']}", found["status"]) for found in test.get("properties", [])),
        *(("tool", run["tool"], run["status"]) for run in tools),
    ]
    for what, which, status in parts:
        if status not in ("passed", "skipped"):
            yield Contradiction(name, f"the verdict is 'correct', and the {what} {quoted(which)} is {quoted(status)}")
