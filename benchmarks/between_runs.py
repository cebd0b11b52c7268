"""What a run adds: how far contenders that did not change come out apart in two runs, and whether that is believed.

    python benchmarks/between_runs.py RUN RUN …      (bundles, or folders with kept records)

For every pair of runs and each device: contenders, cases and modes that are known to be the same code (an A/A
comparison each), the root mean square of their log ratios, times alone and relative to one another, how many would be
called different by the processes of the two runs alone, and how many by the interval that `compare` states. The last
figure has to be 0; `statistics.BETWEEN_RUNS` is where it comes from.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable
from pathlib import Path

from kernelproof import differences, runs, statistics
from kernelproof.differences import TimeChange

BAND = differences.SAME_BAND


def main(paths: list[str]) -> int:
    """Print a line for each pair of runs and device, and one for all pairs."""
    loaded = [runs.load(Path(path)) for path in paths]
    pairs = list(itertools.combinations(loaded, 2))
    stated = [list(same_code(before, after)) for before, after in pairs]
    honest = statistics.BETWEEN_RUNS, statistics.BETWEEN_RUNS_WEIGHT
    statistics.BETWEEN_RUNS, statistics.BETWEEN_RUNS_WEIGHT = dict.fromkeys(honest[0], 1e-9), 10**9
    naive = [list(same_code(before, after)) for before, after in pairs]
    statistics.BETWEEN_RUNS, statistics.BETWEEN_RUNS_WEIGHT = honest
    print("device, runs: A/A rows; RMS alone, relative; called different by processes alone, relative, as stated")
    for device in ("cuda", "cpu"):
        for (before, after), rows, bare in zip(pairs, stated, naive, strict=True):
            line(f"{device}, {before.name} and {after.name}", of(device, rows), of(device, bare))
        line(f"{device}, all", of(device, itertools.chain(*stated)), of(device, itertools.chain(*naive)))
    return int(any(row.verdict in ("faster", "slower") for rows in stated for row in rows))


def same_code(before: runs.Run, after: runs.Run) -> Iterable[TimeChange]:
    """The rows of a comparison whose contender did not change."""
    changes = differences.time_changes(before, after, *differences.settings_of(after))
    return (row for row in changes.rows if row.same_code)


def of(device: str, rows: Iterable[TimeChange]) -> list[TimeChange]:
    """Those of one device."""
    return [row for row in rows if row.device == device]


def line(name: str, stated: list[TimeChange], naive: list[TimeChange]) -> None:
    """One line of figures."""
    if not stated:
        return
    alone = rms(row.plain[0] for row in stated)
    relative = rms(row.ratio for row in stated)
    by_processes = sum(outside(*row.plain[1:]) for row in naive)
    by_relative = sum(outside(row.low, row.high) for row in naive)
    called = sum(row.verdict in ("faster", "slower") for row in stated)
    print(f"{name}: {len(stated)}; {alone:.2%}, {relative:.2%}; {by_processes}, {by_relative}, {called}")


def rms(ratios: Iterable[float]) -> float:
    """Root mean square of the logarithms."""
    squares = [math.log(ratio) ** 2 for ratio in ratios]
    return math.sqrt(sum(squares) / len(squares))


def outside(low: float, high: float) -> bool:
    """Does the interval exclude all that counts as the same?"""
    return low > 1 + BAND or high < 1 - BAND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
