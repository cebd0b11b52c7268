"""What is done around calls on a CPU, so that they cost what they cost everybody."""

import ctypes
import itertools
import mmap
import re
import time
from pathlib import Path
from typing import Any

import torch

from kernelproof import arguments, clock_runner, contenders, images, moving_inputs, results
from kernelproof.operators import Call


def moving_sets(folder: Path) -> arguments.ArgumentSets:
    """A small call's arguments, of which one row of x can move."""
    call = Call({"x": torch.rand(4, 16), "y": torch.zeros(4, 16)}, outputs=("y",), axes=("row", "column"))
    other = Call({"x": torch.rand(4, 16), "y": torch.zeros(4, 16)}, outputs=("y",), axes=("row", "column"))
    spec, fresh = (images.layout_images(c, folder / str(n)).spec for n, c in enumerate((call, other)))
    case = {"arguments": spec, "fresh": {"x": fresh["x"]}, "moved": {"x": [2]}, "drawn": [], "outputs": ["y"]}
    return arguments.ArgumentSets(case, "cpu", "hot")


def test_what_a_contender_asked_of_malloc_is_taken_back(tmp_path: Path) -> None:
    """Else everybody after it maps and clears new pages in each call."""
    sets = moving_sets(tmp_path)
    runner = clock_runner.ClockRunner(contenders.Function("f", lambda *_: None, "destination"), sets, 0.1, 1.0)
    runner.prepare()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    held: list[int] = []

    def is_mapped() -> bool:
        before = _mapped_chunks(libc)
        held.append(libc.malloc(24 << 20))
        return _mapped_chunks(libc) > before

    assert libc.mallopt(-3, 4096) == 1  # M_MMAP_THRESHOLD
    assert any(is_mapped() for _ in range(99))  # the first ones may lie in memory that was freed
    runner.visit()
    assert not is_mapped()
    for memory in held:
        libc.free(ctypes.c_void_p(memory))


def _mapped_chunks(libc: ctypes.CDLL) -> int:
    """Of malloc's chunks those that have a mapping of their own."""

    class Info(ctypes.Structure):  # <malloc.h>
        _fields_ = tuple((name, ctypes.c_int) for name in "arena ordblks smblks hblks hblkhd".split()) + tuple(
            (f"rest_{n}", ctypes.c_int) for n in range(5)
        )

    libc.mallinfo.restype = Info
    return int(libc.mallinfo().hblks)


def test_every_page_of_a_result_is_read_behind_new_values(tmp_path: Path) -> None:
    """It could be computed by whoever reads it: a page that nobody reads stays out of the process's memory."""
    path = tmp_path / "result"
    path.write_bytes(bytes(1 << 20))
    with path.open("r+b") as stream:
        result = torch.frombuffer(mmap.mmap(stream.fileno(), 0), dtype=torch.float32)

    def resident_kib() -> int:
        text = Path("/proc/self/smaps").read_text()
        return int(re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", text)[0])

    sets = moving_sets(tmp_path)
    runner = clock_runner.ClockRunner(contenders.Function("f", lambda *_: result, "return"), sets, 0.1, 1.0)
    runner.prepare()
    assert resident_kib() == 0
    run, _ = runner.touched(moving_inputs.Touch(sets), 0)
    run(1)
    assert resident_kib() == 1024


def test_who_looks_at_a_part_only_behind_many_equal_calls_gives_other_results(tmp_path: Path) -> None:
    """Behind so many that no single sample has as many, but all that are timed in a process together."""
    limit, seen = 400, {"key": b"", "calls": 0, "result": torch.zeros(0)}

    def remembers(x: torch.Tensor, y: torch.Tensor) -> None:
        key = x[:, :2].numpy().tobytes()
        seen["calls"] = seen["calls"] + 1 if key == seen["key"] else 0
        if seen["calls"] == 0:
            seen.update(key=key, result=2 * x)
        y.copy_(seen["result"] if seen["calls"] > limit else 2 * x)

    def honest(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(2 * x)

    for function, kinds in ((honest, 1), (remembers, 2)):
        sets = moving_sets(tmp_path / function.__name__)
        runner = clock_runner.ClockRunner(contenders.Function("f", function, "destination"), sets, 0.1, 0.1)
        runner.prepare()
        assert runner.batch < limit
        found = results.distinct(runner.moved(moving_inputs.Touch(sets)))
        assert len(found) == kinds, function.__name__


def test_who_leaves_work_out_where_calls_come_fast_does_so_amid_a_row_too(tmp_path: Path) -> None:
    """Everything else that is judged follows work of ours, which takes longer than what lies between timed calls."""
    kept: dict[str, Any] = {}

    def remembers(x: torch.Tensor, y: torch.Tensor) -> None:
        is_fast = time.perf_counter() - kept.get("end", 0.0) < 20e-6
        kept["row"] = kept.get("row", 0) + 1 if is_fast else 0
        if kept["row"] < 6:
            kept["result"] = 2 * x
        y.copy_(kept["result"])
        kept["end"] = time.perf_counter()

    def honest(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(2 * x)

    for function, right in ((honest, True), (remembers, False)):
        sets = moving_sets(tmp_path / function.__name__)
        runner = clock_runner.ClockRunner(contenders.Function("f", function, "destination"), sets, 5.0, 0.1)
        runner.prepare()
        touch = moving_inputs.Touch(sets)
        touch.before(1)
        # Another program that takes the core behind the last write makes a row slow, of rows of a loaded machine one in
        # twenty, and where it is busy all three: so there are five times as many.
        found = [torch.equal(result, 2 * sets.inputs(0)[0]) for _ in range(5) for (result,) in runner.amid(touch)]
        assert all(found) == right, function.__name__


def test_short_calls_whose_outputs_are_poisoned_are_several(tmp_path: Path) -> None:
    calls = itertools.count()

    def sometimes(x: torch.Tensor, y: torch.Tensor) -> None:
        torch.mul(x, 2, out=y if next(calls) % 8 else torch.empty_like(y))

    sets = moving_sets(tmp_path)
    runner = clock_runner.ClockRunner(contenders.Function("f", sometimes, "destination"), sets, 0.1, 0.1)
    runner.prepare()
    runner.again()
    assert len(runner.results()) == clock_runner.AGAIN_CALLS
    assert len(results.distinct(runner.results())) == 2
