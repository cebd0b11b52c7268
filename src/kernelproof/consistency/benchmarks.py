"""A benchmark's record: who took part in which cases, and what is said of the times."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernelproof.consistency.inside import (
    CAPTURE,
    CONFIG,
    PRIMARY,
    RAN_AND_FAILED,
    TOLERANCE,
    Bundle,
    Contradiction,
    cases_of,
    contender_of,
    id_of_case,
    in_config,
    lacking_of,
    named_among,
    option_combinations,
    quoted,
    shapes_on,
)
from kernelproof.consistency.samples import decided_by_nothing, of_samples

CORES_SHARED, OTHERS_SHARE = "cores_shared", 0.1
DISAGREES_WALL, DISAGREE_SHARE, DISAGREE_US = "disagrees_wall_slope", 0.03, 0.1
DECIDES_NOTHING = (CORES_SHARED, "gpu_shared", "disagrees_outside_clock", "slower_in_company")  # flags of times


def check(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """Times and ratios are those of the packed samples, and what is said of them follows from them."""
    bench = bundle.documents[name]
    if bundle.records[name][1].startswith("ceilings/"):
        models = {board.get("name") for board in bundle.boards}
        if bench["device"] == "cuda" and bench.get("model") is not None and models and bench["model"] not in models:
            yield Contradiction(
                name, f"the model is {quoted(bench['model'])}, in {CAPTURE} {quoted(sorted(models, key=str))}"
            )
        return
    yield from cases_of(bundle, name, bench)
    yield from _timed_cases(bundle, name, bench)
    yield from _board(bundle, name, bench)
    if bench["times"] and bench["device"] == "cuda" and bundle.without_gpu:
        yield Contradiction(name, f"{len(bench['times'])} times were taken on a GPU, and {CAPTURE} names none")
    for contender in bench["contenders"]:
        yield from _contender(bundle, name, bench, contender)
    for what in ("modes", "processes"):
        asked = in_config(bundle, "bench", what)
        if asked is not None and bench["times"] and bench.get(what) not in (asked, 0):  # 0: in older records
            yield Contradiction(name, f"its {what} are {quoted(bench.get(what))}, in {CONFIG} {quoted(asked)}")
    yield from _plausible(name, bench)
    yield from _dropped(name, bench)
    yield from of_samples(bundle, name, bench)
    yield from _judged(bundle, name, bench)
    yield from _doubtful(name, bench)
    yield from _opposed(name, bench)


def _contender(
    bundle: Bundle, name: str, bench: Mapping[str, Any], contender: Mapping[str, Any]
) -> Iterator[Contradiction]:
    """A contender took part as what its test says that it is."""
    who, outcome = quoted(contender["name"]), contender["outcome"]
    test = bundle.record("test", f"{bench['operator']}/{contender['name']}")
    verdict = test and test["verdict"]
    if contender["correct"] and verdict != "correct":
        yield Contradiction(name, f"{who} was timed as correct, and its test's verdict is {quoted(verdict)}")
    if contender["correct"] and contender["verdict"] != "correct":
        yield Contradiction(name, f"{who} was timed as correct, and its verdict is {quoted(contender['verdict'])}")
    timed, tested = contender.get("build_signature"), test and test.get("build_signature")
    if contender["correct"] and None not in (timed, tested) and timed != tested:
        yield Contradiction(name, f"{who} was timed as the build {quoted(timed)}, and tested as {quoted(tested)}")
    if test and test["role"] != contender["role"]:
        says = f"{who} took part as a {quoted(contender['role'])}"
        yield Contradiction(name, f"{says}, and its test's role is {quoted(test['role'])}")
    why = outcome.removeprefix("not benchmarked: ").replace(" ", "_")
    if why != outcome and why in (*RAN_AND_FAILED, "failed_to_build") and test and verdict != why:
        yield Contradiction(name, f"{who} was {quoted(outcome)}, and its test's verdict is {quoted(verdict)}")


def _plausible(name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """A time lies in its interval, the wall's agrees with it or that is flagged, and what was cold fits no cache."""
    primary = PRIMARY[bench["device"]]
    walls = {
        (row["contender"], row["case"], row["mode"]): row["median_us"]
        for row in bench["times"]
        if row["method"] == "wall_slope"
    }
    for row in bench["times"]:
        what, time_us = quoted(" ".join((row["contender"], row["case"], row["mode"], row["method"]))), row["median_us"]
        if not row["low_us"] <= time_us * (1 + TOLERANCE) or not time_us <= row["high_us"] * (1 + TOLERANCE):
            interval = f"{quoted(row['low_us'])} to {quoted(row['high_us'])}"
            yield Contradiction(name, f"{what}: {quoted(time_us)} µs lies outside of its interval, {interval}")
        if row["method"] != primary or DISAGREES_WALL in row["flags"]:
            continue
        wall_us = walls.get((row["contender"], row["case"], row["mode"]), time_us)
        slack_us = TOLERANCE * (wall_us + time_us)
        if abs(wall_us - time_us) > max(DISAGREE_SHARE * time_us, DISAGREE_US) + slack_us:
            says = f"{what}: {quoted(time_us)} µs, by wall_slope {quoted(wall_us)}"
            yield Contradiction(name, f"{says}, and the time is not flagged {DISAGREES_WALL!r}")
    for case, of_modes in bench["states"].get("rotation", {}).items():
        cold = of_modes.get("cold") or {}
        if cold.get("exceeds_cache") and cold["sets"] * cold["set_bytes"] <= cold["cache_bytes"]:
            says = f"{quoted(case)} cold: {quoted(cold['sets'])} sets of {quoted(cold['set_bytes'])} bytes"
            yield Contradiction(name, f"{says} are said to exceed a cache of {quoted(cold['cache_bytes'])}")


def _timed_cases(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The cases are those that cases.py selects for the contenders; whoever is correct has a fate in each of his."""
    had = {case["id"] for case in bench["cases"]}
    rows = [*bench["times"], *bench["ratios"], *bench["oracle"], *bench.get("untimed", [])]
    for case_id in sorted({row["case"] for row in rows} - had):
        yield Contradiction(name, f"it has rows of the case {quoted(case_id)}, which is not among its cases")
    operator = in_config(bundle, "operators", bench["operator"])
    if not operator or not had:  # it was not run
        return
    fates = _fates(bench)
    wanted: set[str] = set()
    for contender in bench["contenders"]:
        settings, who = contender_of(operator, contender["name"]), quoted(contender["name"])
        asked = sorted(_selected(bundle, operator, settings, bench["device"])) if settings else []
        wanted.update(asked)
        if contender["correct"]:
            yield from lacking_of(name, f"{who} is correct, and", "cases", asked, had)
            yield from _without_fate(name, bench, contender["name"], had.intersection(asked), fates)
    for case_id in sorted(had - wanted):
        if named_among(case_id, wanted) not in wanted:
            yield Contradiction(name, f"the case {quoted(case_id)} is asked of no contender by {CONFIG}")


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
            says = f"{quoted(f'{contender} {case} {mode}')}: it is correct and has no time"
            yield Contradiction(name, f"{says}, and it is not said why")


def _selected(bundle: Bundle, operator: Mapping[str, Any], contender: Mapping[str, Any], device: str) -> Iterator[str]:
    """The ids of a contender's cases in a benchmark, without those that it declares not to take."""
    selection, taken, limits = operator["bench"], contender.get("options") or {}, contender.get("limits") or {}
    shapes, types = shapes_on(selection, device), contender["dtypes"]
    for options, shape in itertools.product(option_combinations(bundle, selection, shapes, types), shapes):
        sizes = operator["shapes"][shape]
        refused = any(value not in taken.get(what, [value]) for what, value in options.items())
        refused |= any(what in sizes and sizes[what] not in allowed for what, allowed in limits.items())
        for dtype in types if not refused else ():
            if not selection.get("dtypes") or dtype in selection["dtypes"]:
                yield id_of_case(shape, options, dtype)


def _board(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The GPU that was measured on is one that the machine was seen to have, and of several models it is named.

    An instance of a board in MIG mode has an identity of its own, which is in no probe.
    """
    if bench["device"] != "cuda" or not bench["times"]:
        return
    known = [board["uuid_sha256"] for board in bundle.boards if board.get("uuid_sha256")]
    models = sorted({str(board.get("name")) for board in bundle.boards})
    named, shared = bench.get("gpu"), any(board.get("mig") for board in bundle.boards)
    if named is not None and known and named not in known and not shared:
        yield Contradiction(name, f"it was measured on the GPU {quoted(named)}, and {CAPTURE} names {quoted(known)}")
    if named is None and len(models) > 1:
        says = "it does not say on which GPU it was measured"
        yield Contradiction(name, f"{says}, and {CAPTURE} names several models, {quoted(models)}")


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
            says = f"{quoted(entry['contender'])} is said to be dropped from {quoted(case) if case else 'every case'}"
            yield Contradiction(name, f"{says}, and its outcome is {quoted(outcome)}")
        if str(entry["reason"]).startswith("wrong") and contender["correct"]:
            says = f"{quoted(entry['contender'])} is said to be dropped ({quoted(entry['reason'])})"
            yield Contradiction(name, f"{says}, and was timed as correct")


def _judged(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The word for a ratio follows from its interval, and so does the gate's."""
    gate = bundle.documents[CONFIG]["gate"] if bench["ratios"] or bench["oracle"] else {}
    for row in bench["ratios"]:
        what = quoted(f"{row['variant']} / {row['baseline']} {row['case']} {row['mode']}")
        interval = f"{quoted(row['ratio'])} ({quoted(row['low'])} to {quoted(row['high'])})"
        if not row["low"] <= row["ratio"] <= row["high"]:
            yield Contradiction(name, f"{what}: the ratio lies outside of its interval, {interval}")
        if not _follows(row["verdict"], row["low"], row["high"], gate["same_band"]):
            yield Contradiction(name, f"{what}: the word is {quoted(row['verdict'])}, and the ratio {interval}")
    by_pair = {(row["variant"], row["baseline"], row["case"], row["mode"]): row for row in bench["ratios"]}
    for row in bench["oracle"]:
        pair = by_pair.get((row["variant"], row["best_baseline"], row["case"], row["mode"]), {})
        what = quoted(f"{row['variant']} {row['case']} {row['mode']}")
        for figure in ("ratio", "low", "high"):
            if row[figure] != pair.get(figure):
                says = f"{what} before the gate: {figure} is {quoted(row[figure])}"
                yield Contradiction(name, f"{says}, against {quoted(row['best_baseline'])} {quoted(pair.get(figure))}")
        if row["passed"] and row.get("undecided"):
            yield Contradiction(name, f"{what} passes the gate, and is undecided")
        if row["passed"] and (row["high"] is None or row["high"] > gate["max_ratio"] + TOLERANCE):
            says = f"{what} passes the gate"
            yield Contradiction(name, f"{says}, and its upper bound is {quoted(row['high'])} of {gate['max_ratio']}")


def _doubtful(name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """By times that our own clock does not confirm nothing is decided, nor by those beside other programs."""
    times = [row for row in bench["times"] if row["method"] == PRIMARY[bench["device"]]]
    flags = {(row["contender"], row["case"], row["mode"]): row["flags"] for row in times}
    for row in bench["ratios"]:
        for who, flag in itertools.product(("variant", "baseline"), DECIDES_NOTHING):
            if flag in flags.get((row[who], row["case"], row["mode"]), ()):
                yield from decided_by_nothing(name, bench, row, f"the time of {quoted(row[who])} is flagged {flag!r}")
                break
    share = bench["states"].get("others_share", 0.0)
    everywhere = {row["case"] for row in times} >= {case["id"] for case in bench["cases"]}
    if share > OTHERS_SHARE and everywhere and not any(CORES_SHARED in found for found in flags.values()):
        says = f"other programs had {quoted(share)} of the cores in a case, and no time is flagged {CORES_SHARED!r}"
        yield Contradiction(name, says)


def _opposed(name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Every variant stands before the gate wherever it was timed, against the fastest baseline that was timed there."""
    roles = {contender["name"]: contender["role"] for contender in bench["contenders"]}
    timed: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in bench["times"]:
        if row["contender"] not in roles:
            yield Contradiction(name, f"{quoted(row['contender'])} has a time, and is not among the contenders")
        if row["method"] == PRIMARY[bench["device"]]:
            timed[row["case"], row["mode"]][row["contender"]] = row["median_us"]
    standing = Counter((row["variant"], row["case"], row["mode"]) for row in bench["oracle"])
    needed = {(who, *where) for where, times in timed.items() for who in times}
    needed |= {(row["contender"], row["case"], row["mode"]) for row in bench.get("untimed", [])}
    for place in sorted(needed):
        if roles.get(place[0]) == "variant" and standing[place] != 1:
            says = f"{quoted(' '.join(place))}: it took part, and stands before the gate"
            yield Contradiction(name, f"{says} {standing[place]} times")
    for row in bench["oracle"]:
        yield from _fastest(name, row, roles, timed[row["case"], row["mode"]])


def _fastest(
    name: str, row: Mapping[str, Any], roles: Mapping[str, str], times: Mapping[str, float]
) -> Iterator[Contradiction]:
    """The baseline that a variant is held against; none where there is no time of its own, or of any baseline."""
    what = f"{quoted('{variant} {case} {mode}'.format(**row))} before the gate: best_baseline is"
    best, theirs = row["best_baseline"], {who: time for who, time in times.items() if roles.get(who) == "baseline"}
    least = min(theirs, key=lambda who: (theirs[who], who), default=None) if row["variant"] in times else None
    if best is None and least is not None:
        yield Contradiction(name, f"{what} None, and {quoted(least)} took {theirs[least]:.6g} µs")
    elif best is not None and best not in theirs:
        role = quoted(roles.get(best))
        yield Contradiction(name, f"{what} {quoted(best)}, and the record has no such baseline's time (role {role})")
    elif best is not None and least is None:
        yield Contradiction(name, f"{what} {quoted(best)}, and the variant has no time there")
    elif best is not None and least is not None and theirs[best] > theirs[least]:
        times_us = f"with {theirs[best]:.6g} µs, and {quoted(least)} took {theirs[least]:.6g}"
        yield Contradiction(name, f"{what} {quoted(best)} {times_us}")


def _follows(word: str, low: float, high: float, band: float) -> bool:
    """Whether an interval can have been given a word: statistics.verdict, where a doubtful one is undecided."""
    may_be = {
        "faster": high < 1 - band + TOLERANCE,
        "slower": low > 1 + band - TOLERANCE,
        "same": low >= 1 - band - TOLERANCE and high <= 1 + band + TOLERANCE,
        "undecided": True,
    }
    return may_be[word]
