"""What the samples of a benchmark say: its record."""

from __future__ import annotations

import functools
import io
import math
import os
import statistics as plain_statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import claims, formats, launches, methods, records
from kernelproof.config import Config
from kernelproof.contest.entrants import TIMED, Arena, Entrant
from kernelproof.contest.measurement import NEVER_CHANGED, NOT_TRIED, NOTED, OTHERS_SHARE, Measured, reasons_of
from kernelproof.records import BenchRecord, EnergyRow, OracleRow, RatioRow, TimeRow, UntimedRow
from kernelproof.samples import DISCARDED_STATES, PRIMARY

if TYPE_CHECKING:
    from kernelproof import statistics

WIDEST = 100.0  # a ratio whose interval's ends are so many times apart is no figure: of two processes, 0 to 360,000
POWER_CAP = "sw_power_cap"
NOT_SHOWN = "not known: NVML shows no process here, not even our own"
CLOCK_CHANGED = 0.05  # between the blocks of a contender in one process: their times are of two machines

Key = tuple[str, str, str, str]  # contender, case, mode, method
Samples = dict[Key, dict[int, dict[int, list[float]]]]  # … process, block: µs of each visit


class Summary:
    """From samples to the record's rows."""

    def __init__(
        self, config: Config, record: BenchRecord, entrants: list[Entrant], arenas: list[Arena], found: Measured
    ) -> None:
        from kernelproof import statistics

        self.config = config
        self.record = record
        self.entrants = entrants
        self.arenas = arenas
        self.found = found
        self.primary = PRIMARY[record.device]
        self.settings = statistics.Settings(config.bench.confidence, config.bench.bootstrap)
        self.in_case = {(name, arena.id) for arena in arenas for name in arena.names}
        self.capped: set[Key] = set()
        self.of_one_block: set[Key] = set()
        self.throttled: Counter[str] = Counter()
        self.clocks: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))  # … process: MHz
        self.estimates: dict[Key, statistics.Estimate] = {}

    def fill(self, checked: int, samples_path: Path) -> None:
        self.write_samples(samples_path)
        samples = self.usable()
        self.times(samples)
        self.untimed()
        self.ratios(samples)
        self.oracle()
        self.contenders()
        record = self.record
        record.kernels_in_interval = {
            name: [{"case": case, **kernel} for case, kernels in by_case.items() for kernel in kernels]
            for name, by_case in self.found.kernels.items()
        }
        record.discarded += [{"what": "contender", **entry} for entry in self.found.dropped]
        record.energy = [
            EnergyRow(**row) for row in self.found.energy if (row["contender"], row["case"]) in self.in_case
        ]
        record.states |= self.states(checked)
        if not record.times:
            record.status, record.reason = records.FAILED, "every contender was dropped"
            if self.found.dropped and all(entry["reason"] == NOT_TRIED for entry in self.found.dropped):
                record.status, record.reason = records.NOT_RUN, NOT_TRIED  # a failed one speaks against its variants

    def write_samples(self, path: Path) -> None:
        """Every sample, discarded ones too."""
        import pandas

        table = io.BytesIO()
        compression: Any = {"method": "gzip", "compresslevel": 6, "mtime": 0}
        frame = pandas.DataFrame(dict(self.found.samples))
        frame.to_csv(table, index=False, float_format="%.6g", compression=compression)
        records.atomic_write(path, table.getvalue())
        self.record.samples = os.path.relpath(path.resolve(), self.config.root.resolve())

    def usable(self) -> Samples:
        """Samples that count, by contender, case, mode, method, process, block; the others are listed as discarded."""
        kept: Samples = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        discarded: Counter[tuple[str, str, str, str, int, int, str]] = Counter()
        columns, place = self.found.samples, ("contender", "case", "mode", "method", "process", "block")
        names = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle", "sm_clock_mhz")
        for contender, case, mode, method, process, block, time_us, throttle, clock in zip(
            *(columns[n] for n in names), strict=True
        ):
            if (contender, case) not in self.in_case:
                continue
            if clock:
                self.clocks[contender, case, mode, method][process].append(clock)
            reasons = reasons_of(throttle)
            if bad := sorted(reasons & DISCARDED_STATES):
                discarded[contender, case, mode, method, process, block, "throttled: " + ", ".join(bad)] += 1
                self.throttled[contender] += 1
            elif not time_us > 0:
                discarded[contender, case, mode, method, process, block, "no positive slope"] += 1
            else:
                if POWER_CAP in reasons:
                    self.capped.add((contender, case, mode, method))
                kept[contender, case, mode, method][process][block].append(time_us)
        for (*where, reason), count in discarded.items():
            entry = dict(zip(place, where, strict=True))
            self.record.discarded.append({"what": "samples", **entry, "samples": count, "reason": reason})
        return kept

    def times(self, samples: Samples) -> None:
        from kernelproof import statistics

        rows: dict[Key, TimeRow] = {}
        estimates = statistics.time_estimates(list(samples.values()), self.settings)
        for (key, processes), estimate in zip(samples.items(), estimates, strict=True):
            if estimate is None:
                continue
            self.estimates[key] = estimate
            counts = [len(times) for blocks in processes.values() for times in blocks.values()]
            if len(counts) == 1:
                self.of_one_block.add(key)
            low, median, high = (_rounded(value) for value in (estimate.low, estimate.value, estimate.high))
            rows[key] = TimeRow(*key, median, low, high, sum(counts), estimate.replicates)
            if key[-1] == self.primary:
                rows[key].precise = self.precise.get(key[:3])
        for name, by_case in self.found.kernels.items():
            for case, kernels in by_case.items():
                if (name, case) in self.in_case:
                    total = _rounded(sum(kernel["duration_us"] for kernel in kernels))
                    by_binding = kernels[0]["source"].startswith(methods.TRACES["cupti"])
                    key = (name, case, self.record.modes[0], "cupti" if by_binding else "device_trace")
                    rows[key] = TimeRow(*key, total, total, total, 1, 1)
                    self.clocks[key][0] = [kernel["sm_clock_mhz"] for kernel in kernels if kernel.get("sm_clock_mhz")]
        rows |= self.counted()
        for key, row in rows.items():
            found = dict(self.flags(key, row, rows))
            row.flags, row.reasons = sorted(found), [found[flag] for flag in sorted(found) if found[flag]]
        self.record.times = [rows[key] for key in sorted(rows, key=self.order)]

    @functools.cached_property
    def precise(self) -> dict[tuple[str, str, str], int]:
        """In how many processes blocks ended since they were enough, by contender, case and mode; empty, not asked."""
        ended = Counter[tuple[str, str, str]]()
        for entry in self.found.stopping:
            ended[entry["contender"], entry["case"], entry["mode"]] += entry["ended"] == "precise"
        return dict(ended)

    def counted(self) -> dict[Key, TimeRow]:
        """Durations by Nsight Compute, and those of the floors around them; the least that a call read from memory."""
        rows: dict[Key, TimeRow] = {}
        for entry in self.found.counted:
            if (entry.contender, entry.case) not in self.in_case:
                continue
            floor_us = [] if entry.floor_us is None else [entry.floor_us]
            for method, times_us in zip(methods.COUNTED, (entry.duration_us, floor_us), strict=True):
                key = (entry.contender, entry.case, entry.mode, method)
                if times_us:
                    median, low, high = map(_rounded, (plain_statistics.median(times_us), min(times_us), max(times_us)))
                    rows[key] = TimeRow(*key, median, low, high, len(times_us), 1)
            key = (entry.contender, entry.case, entry.mode, "ncu")
            rows[key].dram_bytes = min(entry.dram_bytes)
            self.clocks[key][0] = [entry.sm_clock_mhz]
        return rows

    def order(self, key: Key) -> tuple[Any, ...]:
        """Cases and contenders as configured, the primary method first."""
        contender, case, mode, method = key
        cases = [arena.id for arena in self.arenas]
        names = [entrant.name for entrant in self.entrants]
        return cases.index(case), self.record.modes.index(mode), names.index(contender), method != self.primary, method

    def flags(self, key: Key, row: TimeRow, rows: Mapping[Key, TimeRow]) -> Iterator[tuple[str, str]]:
        """What a reader must know of a time, each with the likely reason; empty where the flag says it all."""
        contender, case, mode, method = key
        if key in self.capped:
            yield "power_capped", ""
        if method in (self.primary, *methods.TRACES) and self.others_than_sealed(contender, case):
            yield "other_kernels_than_sealed", "its host code launches something else when it is timed"
        if method == "eager":
            slope = rows.get((contender, case, mode, self.primary))
            if slope and row.median_us > methods.HOST_BOUND * slope.median_us:
                yield "host_bound", ""
        if method != self.primary:
            return
        if row.processes < self.config.bench.processes:
            yield f"only_{row.processes}_of_{self.config.bench.processes}_processes", ""
        if row.samples == 1:
            yield "one_sample", "a single sample has no interval"
        elif key in self.of_one_block:
            yield "one_block", "samples of a single block have no interval"
        if any(note["mode"] == mode for note in self.slow(contender, case)):
            yield "one_call_a_process", ""
        for note in self.found.notes:
            if note["outcome"] in NOTED and (note["contender"], note["case"]) == (contender, case):
                yield str(note["outcome"]), str(note["message"]) if note["outcome"] == NEVER_CHANGED else ""
        if changed := self.clock_change(key):
            yield "clock_changed", changed
        if shared := self.shared():
            yield records.GPU_SHARED, f"{shared} on the GPU while it was measured"
        if (share := max(self.found.others.get(case, [0.0]))) > OTHERS_SHARE:
            yield records.CORES_SHARED, f"other programs had {share:.0%} of its cores while it was measured"
        yield from methods.doubts(self.seen(key, rows))

    def slow(self, contender: str, case: str) -> list[dict[str, Any]]:
        """What was noted of a contender that was too slow for a case, by process; it was left out of later modes."""
        notes = [note for note in self.found.notes if note["outcome"] == "slow"]
        return [note for note in notes if (note["contender"], note["case"]) == (contender, case)]

    def untimed(self) -> None:
        """Every mode of a case in which somebody who took part to the end has no time."""
        self.record.untimed = [
            UntimedRow(name, arena.id, mode, *self.why_untimed(name, arena.id, mode))
            for arena in self.arenas
            for name in arena.names
            for mode in self.record.modes
            if (name, arena.id, mode, self.primary) not in self.estimates
        ]

    def why_untimed(self, contender: str, case: str, mode: str) -> tuple[str, str]:
        """Outcome and reason of an UntimedRow."""
        if slow := self.slow(contender, case):
            said, where = formats.one_line(slow[0]["message"]), slow[0]["mode"]
            before = "" if where == mode else f"already when {where}: "
            return "too slow", f"{before}{said} (bench.max_seconds sets it, for all modes together)"
        key = (contender, case, mode, self.primary)
        where = dict(zip(("contender", "case", "mode", "method"), key, strict=True))
        entries = [entry for entry in self.record.discarded if where.items() <= entry.items()]
        return ("discarded", "; ".join(dict.fromkeys(e["reason"] for e in entries))) if entries else ("no sample", "")

    def others_than_sealed(self, contender: str, case: str) -> bool:
        """Whether a timed call ran other kernels than the same call did from the cubin alone, where it did."""
        traced = self.found.kernels.get(contender, {}).get(case)
        sealed = next(entrant.sealed for entrant in self.entrants if entrant.name == contender)
        arguments = next(arena.payload["arguments"] for arena in self.arenas if arena.id == case)
        steps = sealed.get(launches.signature(launches.outlined(arguments)))
        return steps is not None and traced is not None and not launches.same_kernels(steps, traced)

    def clock_change(self, key: Key) -> str:
        """How far the SM clock moved between the blocks of one process, where that is too far; else nothing."""
        spans = [(max(clocks) / min(clocks) - 1, min(clocks), max(clocks)) for clocks in self.clocks[key].values()]
        share, low, high = max(spans, default=(0.0, 0.0, 0.0))
        return (
            f"the SM clock moved from {low:.0f} to {high:.0f} MHz between its blocks" if share > CLOCK_CHANGED else ""
        )

    def shared(self) -> str:
        """Who else was on the GPU, in words; empty where nobody was seen."""
        count = max(self.found.neighbours or 0, self.record.states.get("others_before") or 0)
        return f"{count} other process{'es' if count > 1 else ''}" if count else ""

    def seen(self, key: Key, rows: Mapping[Key, TimeRow]) -> methods.Seen:
        """All that was recorded beside a primary time."""
        contender, case, mode, _ = key
        mine = {row.method: row.median_us for row in rows.values() if (row.contender, row.case, row.mode) == key[:3]}
        if floor := rows.get((contender, case, self.record.modes[0], "floor")):
            mine.setdefault("floor", floor.median_us)  # an empty kernel reads nothing: it is as long hot as cold
        clocks = {m: [c for found in self.clocks[(*key[:3], m)].values() for c in found] for m in mine}
        hot = rows.get((contender, case, "hot", self.primary))
        launched = self.found.kernels.get(contender, {}).get(case, [])
        return methods.Seen(
            self.primary,
            mode,
            mine,
            {method: plain_statistics.median(found) for method, found in clocks.items() if found},
            sum(kernel["count"] for kernel in launched),
            sum(kernel["count"] for kernel in launched if not kernel["grid"]),
            hot.median_us if hot else None,
            self.found.rotation.get(case, {}).get(mode, {}),
            self.bytes_per_s,
            self.from_memory(rows.get((contender, case, mode, "ncu"))),
        )

    def from_memory(self, row: TimeRow | None) -> float | None:
        """Of the bytes that a call has to read, the share that came from memory at the least; None where unknown."""
        if row is None or row.dram_bytes is None:
            return None
        needed = next(arena.cost.bytes_read for arena in self.arenas if arena.id == row.case)
        return row.dram_bytes / needed if needed else None

    @functools.cached_property
    def bytes_per_s(self) -> float | None:
        """What the GPU's memory can move, by its clock and width (two transfers a clock); None where unknown."""
        if self.record.device != "cuda":
            return None
        from kernelproof import gpu

        index = gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        board = next((found for found in gpu.gpus() if found.index == index), None)
        if board is None or not board.memory_clock_max_mhz or not board.memory_bus_bits:
            return None
        return 2e6 * board.memory_clock_max_mhz * board.memory_bus_bits / 8

    def ratios(self, samples: Samples) -> None:
        """Every variant against every baseline of its case and mode, judged as one family."""
        from kernelproof import statistics

        roles = {entrant.name: entrant.variant.role for entrant in self.entrants}
        pairs = [
            (variant, baseline, arena.id, mode)
            for arena in self.arenas
            for mode in self.record.modes
            for variant in arena.names
            for baseline in arena.names
            if (roles[variant], roles[baseline]) == ("variant", "baseline")
        ]

        def timed(name: str, case: str, mode: str) -> statistics.Blocks:
            return samples.get((name, case, mode, self.primary), {})

        both = [(timed(ours, *where), timed(theirs, *where)) for ours, theirs, *where in pairs]
        found: list[tuple[str, str, str, str, statistics.Estimate]] = []
        for pair, estimate in zip(pairs, statistics.ratio_estimates(both, self.settings), strict=True):
            if estimate is None:
                continue
            if estimate.high > WIDEST * estimate.low:
                self.record.discarded.append({**_ratio_of(*pair), "reason": self.too_wide(estimate)})
            else:
                found.append((*pair, estimate))
        band = self.config.gate.same_band
        said = statistics.verdicts([entry[-1] for entry in found], band, self.settings)
        flagged = {(r.contender, r.case, r.mode): r.flags for r in self.record.times if r.method == self.primary}
        for (variant, baseline, case, mode, estimate), verdict in zip(found, said, strict=True):
            low, ratio, high = (_rounded(value) for value in (estimate.low, estimate.value, estimate.high))
            seen = statistics.minimal_detectable_difference(estimate, band, self.settings)
            detectable = None if seen is None else _rounded(seen)
            flags = sorted({flag for name in (variant, baseline) for flag in flagged.get((name, case, mode), ())})
            word = verdict if records.DECIDES_NOTHING.keys().isdisjoint(flags) else statistics.UNDECIDED
            self.record.ratios.append(
                RatioRow(variant, baseline, case, mode, ratio, low, high, word, detectable, flags)
            )
        self.replicates = {entry[:4]: entry[-1].replicates for entry in found}

    def too_wide(self, estimate: statistics.Estimate) -> str:
        """Why a ratio is not told, in words."""
        low, high = (formats.significant(float(f"{end:.2g}"), 2) for end in (estimate.low, estimate.high))
        return (
            f"the ratio is not known: {estimate.replicates} of {self.record.processes} processes timed both, and it "
            f"may lie anywhere from {low} to {high}: measure again on a quiet machine, or with more bench.processes"
        )

    def entrant(self, name: str) -> Entrant:
        return next(entrant for entrant in self.entrants if entrant.name == name)

    def role(self, name: str) -> str:
        return self.entrant(name).variant.role

    def oracle(self) -> None:
        """Each variant against the fastest correct baseline of its case and mode."""
        by_pair = {(row.variant, row.case, row.mode, row.baseline): row for row in self.record.ratios}
        for entrant in self.entrants:
            if entrant.variant.role != "variant" or not entrant.contender.correct:
                continue
            for arena in self.arenas:
                if entrant.name not in arena.names:
                    continue
                for mode in self.record.modes:
                    row = self.oracle_row(entrant.name, arena, mode, by_pair)
                    self.record.oracle.append(row)

    def why_without_baseline(self, case: str, mode: str) -> str:
        """What became of each baseline there."""
        said = {row.contender: row.why for row in self.record.untimed if (row.case, row.mode) == (case, mode)}
        each = [f"{c.name}: {said.get(c.name, c.outcome)}" for c in self.record.contenders if c.role == "baseline"]
        if not each:
            return f"{records.NO_BASELINE} for {self.record.device}"
        return f"no correct baseline was timed ({formats.one_line('; '.join(each))})"

    def oracle_row(
        self, variant: str, arena: Arena, mode: str, by_pair: Mapping[tuple[str, str, str, str], RatioRow]
    ) -> OracleRow:
        if (variant, arena.id, mode, self.primary) not in self.estimates:
            place = (variant, arena.id, mode)
            why = next(row.why for row in self.record.untimed if (row.contender, row.case, row.mode) == place)
            return OracleRow(*place, None, None, None, None, False, f"the variant has no time here: {why}")
        baselines = [
            (self.estimates[key].value, name)
            for name in arena.names
            if self.role(name) == "baseline" and (key := (name, arena.id, mode, self.primary)) in self.estimates
        ]
        if not baselines:
            why = self.why_without_baseline(arena.id, mode)
            return OracleRow(variant, arena.id, mode, None, None, None, None, False, why)
        best = min(baselines)[1]
        row = by_pair.get((variant, arena.id, mode, best))
        if row is None:
            which = _ratio_of(variant, best, arena.id, mode)
            discarded = (entry["reason"] for entry in self.record.discarded if which.items() <= entry.items())
            why = next(discarded, "never timed in the same block")
            return OracleRow(variant, arena.id, mode, best, None, None, None, False, why)
        limit = self.config.gate.max_ratio
        undecided = next((why for flag, why in records.DECIDES_NOTHING.items() if flag in row.flags), "")
        if self.replicates[variant, best, arena.id, mode] < 2:
            undecided = "one process decides nothing"
        undecided = undecided or self.lost_peer(arena)
        passed, reason = not undecided and row.high <= limit, undecided or claims.bound_reason(row.high, limit)
        interval = row.ratio, row.low, row.high
        return OracleRow(variant, arena.id, mode, best, *interval, passed, reason, row.flags, bool(undecided))

    def lost_peer(self, arena: Arena) -> str:
        """A correct baseline that left this case, or is slowed, and might have been the fastest: who, and why; or ''.

        One whose results were wrong here is no peer, one that a graph cannot hold or that refuses what it was not
        tested on has no time to give; whatever else befell it may be the doing of another in its process.
        """
        for note in self.found.notes:
            if note["outcome"] == records.IN_COMPANY and note["case"] == arena.id:
                return f"{note['contender']}: {note['message']}: {records.DECIDES_NOTHING[records.IN_COMPANY]}"
        for entry in self.found.dropped:
            entrant, reason = self.entrant(entry["contender"]), entry["reason"]
            took_part = entrant.name in arena.asked and entry["case"] in (arena.id, None)
            if entrant.variant.role != "baseline" or not took_part:
                continue
            if entry.get("check") == "outputs" or reason.startswith("not captured"):
                continue
            if not reason.startswith("refused") or entrant.took(arena.case):
                return f"{entrant.name}, correct in its test, left and might have been faster ({reason})"
        return ""

    def contenders(self) -> None:
        """Say of those that lost some cases, or a mode of them, which."""
        timed = {row.contender for row in self.record.times if row.method == self.primary}
        for entrant in self.entrants:
            untimed = [row for row in self.record.untimed if row.contender == entrant.name]
            if entrant.contender.outcome == TIMED and entrant.name not in timed and untimed:
                throttled = "every sample was taken while the GPU was throttled" if self.throttled[entrant.name] else ""
                entrant.contender.outcome = f"no time: {throttled or untimed[0].why}"
            lost = [entry for entry in self.found.dropped if entry["contender"] == entrant.name and entry["case"]]
            missing = []
            if lost:
                where, why = ", ".join(entry["case"] for entry in lost), formats.one_line(lost[0]["reason"])
                missing.append(f"dropped from {where} ({why})")
            cases = defaultdict[tuple[str, str], list[str]](list)
            for row in untimed:
                cases[row.mode, row.outcome].append(row.case)
            missing += [f"not {mode} in {', '.join(found)}: {outcome}" for (mode, outcome), found in cases.items()]
            if entrant.contender.outcome == TIMED and missing:
                entrant.contender.outcome = f"{TIMED}, but {'; '.join(missing)}"
            wrong = [entry for entry in self.found.dropped if entry["contender"] == entrant.name]
            if any(entry["reason"].startswith("wrong") for entry in wrong):
                entrant.contender.verdict, entrant.contender.correct = "wrong", False

    def states(self, checked: int) -> dict[str, Any]:
        """How the machine was, over all samples, and what else a reader may want to weigh."""
        columns = self.found.samples
        seen: dict[str, Any] = {}
        for name in ("sm_clock_mhz", "temperature_c", "power_w", "load"):
            values = [value for value in columns.get(name, []) if value is not None]
            if values:
                seen[name] = {"min": min(values), "median": plain_statistics.median(values), "max": max(values)}
        entries = Counter(entry or "" for entry in columns.get("throttle", []))
        reasons: Counter[str] = Counter()
        for entry, count in entries.items():
            reasons.update({reason: count for reason in entry.split("|") if reason})
        return {
            **seen,
            "throttle": dict(reasons),
            "rotation": self.found.rotation,
            "outputs_judged": checked,
            "samples": len(columns.get("contender", [])),
            "measuring_s": round(self.found.measuring_s, 3),
            "request_s": {action: round(seconds, 3) for action, seconds in self.found.request_s.items()},
            "notes": self.found.notes,
            "others_on_the_gpu": NOT_SHOWN if self.found.neighbours is None else self.found.neighbours,
            "state_s": round(self.found.state_s, 3),
            "stopping": self.stopping(),
            **({"counters": self.found.counters} if self.found.counters else {}),
            **({"cores": self.found.cores, "others_share": self.others_share()} if self.found.cores else {}),
        }

    def others_share(self) -> float:
        """The largest share of our cores that others had in a process, over all cases."""
        return round(max((share for shares in self.found.others.values() for share in shares), default=0.0), 3)

    def stopping(self) -> dict[str, Any]:
        """How often the asked precision was reached, how often the budget ended first, and where it was worst."""
        if not self.found.stopping:
            return {}
        known = [entry for entry in self.found.stopping if entry["half_width"] is not None]
        worst = max(known, key=lambda entry: float(entry["half_width"]), default={})
        ended = Counter(entry["ended"] for entry in self.found.stopping)
        return {"asked": self.config.bench.precision, **ended, "worst": dict(worst)}


def _ratio_of(variant: str, baseline: str, case: str, mode: str) -> dict[str, str]:
    """What an entry of `discarded` says of a ratio, but for the reason."""
    return {"what": "ratio", "variant": variant, "baseline": baseline, "case": case, "mode": mode}


def _rounded(value: float) -> float:
    """Six digits: more would be noise."""
    return float(f"{value:.6g}") if math.isfinite(value) else value
