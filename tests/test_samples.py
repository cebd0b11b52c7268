"""Samples are read by the rules by which they counted, and a file that no benchmark wrote is refused."""

import gzip
import tracemalloc

import pytest

from kernelproof import samples
from kernelproof.errors import RecordError

HEAD = ",".join(samples.COLUMNS) + "\n"


def read(text: str) -> dict[samples.Place, samples.Blocks]:
    return dict(samples.read(gzip.compress((HEAD + text).encode()), "graph_slope", "A: op-cuda.csv.gz"))


def test_what_counts() -> None:
    found = read(
        "fast,small,hot,graph_slope,0,1,9.5,\n"
        "fast,small,hot,graph_slope,0,1,9.7,sw_power_cap\n"
        "fast,small,hot,graph_slope,0,2,-1,\n"
        "fast,small,hot,graph_slope,1,0,99,sw_power_cap|hw_slowdown\n"
        "fast,small,hot,floor,0,1,1,\n"
    )
    assert found == {("fast", "small", "hot"): {0: {1: [9.5, 9.7]}}}


@pytest.mark.parametrize("time", ["inf", "nan", "1e300", "1e-300", "x", ""])
def test_what_is_no_time_is_refused(time: str) -> None:
    with pytest.raises(RecordError, match="the samples cannot be read") as caught:
        read(f"fast,small,hot,graph_slope,0,1,{time},\n")
    assert caught.value.subject == "A: op-cuda.csv.gz"


@pytest.mark.parametrize("line", ["\n" * 50, "x" * 64])
def test_a_bomb_is_stopped(line: str) -> None:
    bomb = gzip.compress((line * (samples.MAX_BYTES // len(line) + 1)).encode(), compresslevel=1)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="cannot be read"):
            samples.read(bomb, "graph_slope", "A")
        assert tracemalloc.get_traced_memory()[1] < 3 * samples.MAX_BYTES
    finally:
        tracemalloc.stop()


def test_a_bomb_of_samples_is_named() -> None:
    row = b"fast,small,hot,floor,0,1,9.5,\n" * 100_000
    bomb = gzip.compress(HEAD.encode() + row * (samples.MAX_BYTES // len(row) + 1), compresslevel=1)
    with pytest.raises(RecordError, match=f"unpack to more than {samples.MAX_BYTES} bytes"):
        samples.read(bomb, "graph_slope", "A")
