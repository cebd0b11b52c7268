"""The samples of a benchmark as they lie in its `.csv.gz`: read again, by the rules by which they counted.

The benchmark writes every sample, those that it discarded too. What is read here is what its medians and ratios were
made from.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import defaultdict
from collections.abc import Mapping

from kernelproof.errors import RecordError

# Slowed by heat or by the board's protection: these clocks tell nothing. A power cap is the steady state of a heavy
# kernel, falls on everybody in a block alike, and is flagged instead.
DISCARDED_STATES = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
COLUMNS = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle")

Place = tuple[str, str, str]  # contender, case, mode
Blocks = dict[int, dict[int, list[float]]]  # process -> block -> µs of each visit


def read(data: bytes, method: str, subject: str) -> Mapping[Place, Blocks]:
    """The times by one method that count, from the bytes of a `.csv.gz`.

    Raises RecordError, naming `subject`, for bytes that are no such file.
    """
    found: dict[Place, Blocks] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    try:
        rows = csv.reader(io.StringIO(gzip.decompress(data).decode("utf-8")))
        head = next(rows, [])
        at = [head.index(name) for name in COLUMNS]
        for row in rows:
            contender, case, mode, how, process, block, time_us, throttle = (row[index] for index in at)
            if how != method or DISCARDED_STATES.intersection(throttle.split("|")) or not float(time_us) > 0:
                continue
            found[contender, case, mode][int(process)][int(block)].append(float(time_us))
    except (OSError, EOFError, zlib.error, ValueError, IndexError, csv.Error) as error:
        raise RecordError(f"the samples cannot be read: {error}", subject=subject, hint="run the bench stage") from None
    return found
