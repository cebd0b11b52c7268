"""A benchmark's samples: times, ratios and the least width of their intervals, computed again."""

from __future__ import annotations

import csv
import gzip
import io
import math
import operator
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from statistics import NormalDist, fmean, median, stdev
from typing import Any

from kernelproof.consistency.inside import (
    CAPTURE,
    MALFORMED,
    PRIMARY,
    PRIVATE,
    TOLERANCE,
    Bundle,
    Contradiction,
    alike,
    in_config,
    quoted,
)
from kernelproof.visits import VISIT, Visits

MAX_SAMPLES_BYTES = 256 * 1024 * 1024  # of all benchmarks together, unpacked
MAX_SAMPLES = 1_000_000  # of all benchmarks together; 78,000 in a run with 40 variants on a GPU
MAX_LOOKED = 200_000  # keys held against names with placeholders
MAX_LINE_BYTES = 64 * 1024
POSSIBLE_US = 1e-6, 1e12  # what is beyond was not read from a clock
COLUMNS = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle")
SLOPE = ("calls", "short_calls", "short_us", "long_us")  # what a time that is a slope was made from
SLOPE_STEP_US = 0.0005  # to which the ends of a slope are rounded before they are written with six digits
STATES = ("sm_clock_mhz", "temperature_c", "power_w")  # of the device beside each sample
HIGHEST_BOOST = 1.05  # beyond what a board calls its highest clock
CLOSED_DEGREES = 200  # up to which Student's t is summed term by term
# As in samples.py, contest/, methods.py, claims.py, records.py, privacy.py and the ladder; a test holds them together.
DISCARDED_STATES = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
UNSAMPLED = frozenset({"cupti", "device_trace", "ncu", "floor_ncu"})  # methods without samples
Key = tuple[str, str, str, str]  # contender, case, mode, method
Logs = dict[int, dict[int, float]]  # process -> block -> mean of the logarithms of its times


def of_samples(bundle: Bundle, name: str, bench: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Medians, ratios and the least width of their intervals, computed again."""
    times = [row for row in bench["times"] if row["method"] not in UNSAMPLED]
    if not (times or bench["ratios"]):
        return
    own = f"{bundle.records[name][1]}.csv.gz"  # by this name every command reads them
    told = PurePosixPath(bench["samples"] or "").name
    member = f"samples/{own if alike(told, own) else told}"
    if member not in bundle.kept:
        yield Contradiction(name, f"its samples are not in the bundle ({quoted(bench['samples'])})")
        return
    if member != f"samples/{own}":
        yield Contradiction(name, f"its samples are {quoted(bench['samples'])}, and belong into 'samples/{own}'")
    try:
        samples = _samples(bundle, bundle.kept[member], PRIMARY[bench["device"]])
    except (OSError, EOFError, zlib.error, csv.Error, *MALFORMED) as error:
        yield Contradiction(member, f"the samples cannot be read: {quoted(error)}")
        return
    if samples.no_slope:
        more = f"; so it is in {samples.no_slopes} rows" if samples.no_slopes > 1 else ""
        yield Contradiction(member, f"{samples.no_slope}{more}")
    left = any(entry.get("what") == "contender" for entry in bench["discarded"])
    stayed = all(entry["outcome"].startswith(("timed", "not benchmarked")) for entry in bench["contenders"])
    for where, said in samples.visits.contradictions(whole=stayed and not left, lasted_s=bench["duration_s"]):
        yield Contradiction(member, f"{quoted(where)}: {said}")
    yield from _states(bundle, name, bench, samples)
    yield from _timed_again(name, bench, times, samples)
    yield from _divided_again(bundle, name, bench, samples)
    yield from _all_told(name, bench, times, samples)


def _states(bundle: Bundle, name: str, bench: Mapping[str, Any], samples: Samples) -> Iterator[Contradiction]:
    """How many samples there are and in which states of the device they were taken; no clock beyond the highest."""
    states = bench["states"]
    rows = samples.counts.total() + samples.discarded.total()
    if states.get("samples", rows) != rows:
        yield Contradiction(name, f"its states are of {quoted(states['samples'])} samples, and there are {rows}")
    for what, (least, most) in samples.states.items():
        said = states.get(what)
        if said and not all(map(_near, (said["min"], said["max"]), (least, most))):
            says = f"{quoted(what)} is {quoted(said['min'])} to {quoted(said['max'])}"
            yield Contradiction(name, f"{says}, by the samples {least:g} to {most:g}")
    highest = [board["sm_clock_max_mhz"] for board in bundle.boards if board.get("sm_clock_max_mhz")]
    clock = samples.states.get("sm_clock_mhz", (0.0, 0.0))[1]
    if highest and clock > HIGHEST_BOOST * max(highest):
        yield Contradiction(name, f"samples are at {clock:g} MHz, and {CAPTURE} has at most {max(highest):g} MHz")


def _near(said: float, there: float) -> bool:
    """Whether two figures are one, as far as six digits say."""
    return math.isclose(said, there, rel_tol=TOLERANCE)


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
            says = f"{quoted(' '.join(told))}: it was timed in {quoted(had)} processes"
            yield Contradiction(name, f"{says}, and by the record there were {quoted(asked)}")


def _divided_again(bundle: Bundle, name: str, bench: Mapping[str, Any], samples: Samples) -> Iterator[Contradiction]:
    """Ratios; what is decided by them rests on two processes, and their intervals are as wide as Student's t."""
    method, confidence = PRIMARY[bench["device"]], in_config(bundle, "bench", "confidence") or 0.95
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
            yield from decided_by_nothing(name, bench, row, f"processes that timed both are {len(paired)} of 2")
        yield from _too_narrow(name, quoted(what), row, figures, confidence)


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
            says = f"{what}: {end} is {quoted(row[end])}, by Student's t over the samples {limit}"
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
            fitting = [who for who in unnamed if alike(entry["contender"], who)]  # samples have names as they were
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
        if any(key[0] == who and alike(case, key[1]) for who, case in private):
            continue
        if key in samples.logs and key not in told:
            says = f"{quoted(' '.join(key))}: there are {samples.counts[key]} samples that count"
            yield Contradiction(name, f"{says}, no time, and no word of why it was dropped")
        if noted[key] != samples.discarded[key]:
            says = f"{quoted(' '.join(key))}: {quoted(noted[key])} samples are said to be discarded"
            yield Contradiction(name, f"{says}, and {samples.discarded[key]} do not count")


def _unclear(name: str, told: Key) -> Contradiction:
    """A placeholder that hides which samples are meant hides what was made of them."""
    return Contradiction(name, f"{quoted(' '.join(told))}: the samples of several have such a name; it has to fit one")


def _compared(
    name: str, what: str, row: Mapping[str, Any], again: Mapping[str, float | None]
) -> Iterator[Contradiction]:
    for figure, value in again.items():
        tolerance = 0 if isinstance(value, int) else TOLERANCE
        if value is None or not math.isclose(row[figure], value, rel_tol=tolerance):
            shown = "none" if value is None else f"{value:.6g}"
            yield Contradiction(name, f"{quoted(what)}: {figure} is {quoted(row[figure])}, by the samples {shown}")


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
    # Keys by their clear parts, for each way in which parts may be hidden, and how many were compared.
    fitting: dict[tuple[bool, ...], dict[tuple[str, ...], list[Key]]] = field(default_factory=dict)
    looked: int = 0
    states: dict[str, tuple[float, float]] = field(default_factory=dict)  # least and most of each of STATES

    def is_no_slope(self, where: str, said: str) -> None:
        self.no_slope = self.no_slope or f"{quoted(where)}: {said}"
        self.no_slopes += 1

    @property
    def keys(self) -> set[Key]:
        """Whatever has samples, those that count or others."""
        return {*self.logs, *self.discarded}

    def key(self, told: Key) -> Key | None:
        """The key here of what a record names so; None where a placeholder leaves several to choose from."""
        hidden = tuple(bool(PRIVATE.search(part)) for part in told)
        if not any(hidden):
            return told
        if hidden not in self.fitting:
            groups = self.fitting[hidden] = defaultdict(list)
            for key in self.keys:
                groups[_clear(key, hidden)].append(key)
        candidates = self.fitting[hidden].get(_clear(told, hidden), [])
        self.looked += len(candidates)
        if self.looked > MAX_LOOKED:
            raise ValueError(f"private words hide which of more than {MAX_LOOKED} samples are meant")
        fitting = [key for key in candidates if all(map(alike, told, key))]
        return fitting[0] if len(fitting) == 1 else None if fitting else told


def _clear(key: Key, hidden: tuple[bool, ...]) -> tuple[str, ...]:
    """The parts of a key that no placeholder hides."""
    return tuple(part for part, private in zip(key, hidden, strict=True) if not private)


def _samples(bundle: Bundle, data: bytes, primary: str) -> Samples:
    """The samples that count, as kernelproof.samples says, and how many; never inflated as a whole."""
    logs: dict[Key, dict[int, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    found, single = Samples(), Counter[tuple[Key, int]]()  # single: what a slow contender's one sample may be
    rows = csv.reader(_lines(bundle, data))
    head = next(rows, [])
    columns = operator.itemgetter(*(head.index(name) for name in COLUMNS))
    ends = operator.itemgetter(*map(head.index, SLOPE)) if set(SLOPE) <= set(head) else None
    visit = operator.itemgetter(*map(head.index, VISIT)) if set(VISIT) <= set(head) else None
    states = {what: head.index(what) for what in STATES if what in head}
    for row in rows:
        for what, column in states.items():
            if text := row[column]:
                value, (least, most) = float(text), found.states.get(what, (math.inf, -math.inf))
                found.states[what] = min(least, value), max(most, value)
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
                    found.is_no_slope(where, f"time_us is {quoted(time_us)}, {said}")
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
        return f"for {quoted(calls)} calls less {quoted(short_calls)}"
    each_us = (long - short) / more
    slack_us = (2 * SLOPE_STEP_US + 5e-6 * (abs(long) + abs(short))) / more + 5e-6 * time_us
    if abs(each_us - time_us) <= 1.01 * slack_us:
        return None
    return f"by its lengths {each_us:.6g} ({quoted(long_us)} less {quoted(short_us)} µs for {more} calls)"


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


def decided_by_nothing(
    name: str, bench: Mapping[str, Any], row: Mapping[str, Any], why: str
) -> Iterator[Contradiction]:
    """What is decided by a ratio that decides nothing."""
    said = [f"the word is {quoted(row['verdict'])}"] if row["verdict"] != "undecided" else []
    place = (row["variant"], row["baseline"], row["case"], row["mode"])
    for before in bench["oracle"]:
        if (before["variant"], before["best_baseline"], before["case"], before["mode"]) == place:
            said += ["it passes the gate"] if before["passed"] else []
            said += [] if before.get("undecided", True) else ["it is not undecided before the gate"]
    what = quoted("{variant} / {baseline} {case} {mode}".format(**row))
    for one in said:
        yield Contradiction(name, f"{what}: {one}, and {why}")
