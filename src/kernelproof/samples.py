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
from collections.abc import Iterator, Mapping

from kernelproof.errors import RecordError

# Slowed by heat or by the board's protection: these clocks tell nothing. A power cap is the steady state of a heavy
# kernel, falls on everybody in a block alike, and is flagged instead.
DISCARDED_STATES = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
MAX_BYTES = 64 * 1024 * 1024  # of the text: ten times the largest benchmark that is kept; a bomb is stopped here
POSSIBLE_US = 1e-6, 1e12  # a picosecond, eleven days: what is beyond was not read from a clock
PRIMARY = {"cpu": "cpu_clock", "cuda": "graph_slope"}  # the method that decides, by device
COLUMNS = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle")

Place = tuple[str, str, str]  # contender, case, mode
Blocks = dict[int, dict[int, list[float]]]  # process -> block -> µs of each visit


def read(data: bytes, method: str, subject: str) -> Mapping[Place, Blocks]:
    """The times by one method that count, from the bytes of a `.csv.gz`.

    Raises RecordError, naming `subject`, for bytes that are no such file.
    """
    found: dict[Place, Blocks] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    try:
        rows = csv.reader(_lines(data))
        head = next(rows, [])
        at = [head.index(name) for name in COLUMNS]
        for row in rows:
            contender, case, mode, how, process, block, time_us, throttle = (row[index] for index in at)
            if how != method or DISCARDED_STATES.intersection(throttle.split("|")):
                continue
            time = float(time_us)
            if time <= 0:
                continue
            if not POSSIBLE_US[0] <= time <= POSSIBLE_US[1]:
                raise ValueError(f"{time} µs is no time of {contender}")
            found[contender, case, mode][int(process)][int(block)].append(time)
    except (OSError, EOFError, zlib.error, ValueError, IndexError, csv.Error) as error:
        raise RecordError(f"the samples cannot be read: {error}", subject=subject, hint="run the bench stage") from None
    return found


def _lines(data: bytes) -> Iterator[str]:
    """The lines of a gzip file, one at a time. Raises ValueError beyond MAX_BYTES."""
    left = MAX_BYTES
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        while line := stream.readline(left + 1):
            left -= len(line)
            if left < 0:
                raise ValueError(f"they unpack to more than {MAX_BYTES} bytes")
            yield line.decode("utf-8")
