"""Values that no call has seen: they differ from call to call, stay finite, and end where they should."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof import arguments, graph_runner, images, moving_inputs, results
from kernelproof.operators import Call


def test_values_that_no_call_has_seen_end_at_those_that_are_judged(tmp_path: Path) -> None:
    values, weight, y = torch.arange(64.0).reshape(4, 16), torch.ones(16), torch.zeros(4, 16)
    call, other = (
        Call({"x": x, "w": w, "n": 3.0, "y": y}, outputs=("y",), axes=("row", "column"))
        for x, w in ((values, weight), (-values - 1, 2 * weight))
    )
    spec, of_other = (images.layout_images(c, tmp_path / str(n)).spec for n, c in enumerate((call, other)))
    fresh = {name: of_other[name] for name in "xw"}
    case = {"arguments": spec, "fresh": fresh, "moved": {"x": [2], "w": []}, "drawn": ["x", "w"], "outputs": ["y"]}
    sets = arguments.ArgumentSets(case, "cpu", "hot")
    touch = moving_inputs.Touch(sets)
    x, w = sets.inputs(0)[:2]
    touch.begin()
    before = x.clone()
    touch.step(0)
    assert torch.equal(x, before)
    touch.keeps_own = True
    touch.begin()
    touch.step(0)
    assert torch.equal(x, values)
    touch.keeps_own = False
    touch.begin()
    seen = set()
    for _ in range(1000):
        touch.step(1)
        seen.add((x.numpy().tobytes(), w.numpy().tobytes()))
    assert len(seen) == 1000
    assert bool(torch.isfinite(x).all() & torch.isfinite(w).all())
    touch.before(3)
    apart = (x[2] - other.tensor("x")[2]).abs()
    assert bool((apart > 5e-4 * other.tensor("x")[2].abs()).all())
    for _ in range(3):
        touch.step(1)
    expected = values.clone()
    expected[2] = -values[2] - 1
    assert torch.equal(x, expected)
    assert torch.equal(w, 2 * weight)
    for share, count in ((0.0, 1), (0.25, 4), (0.5, 8)):
        odd = set[tuple[int, ...]]()
        for _ in range(99):
            touch.all_but(share)
            of_x, of_w = (x != expected).nonzero().tolist(), (w != 2 * weight).nonzero().flatten().tolist()
            assert (len(of_x), len(of_w)) in {(0, count), (count, 0)}
            assert all(row == 2 and x[row, place] == values[row, place] for row, place in of_x)
            odd.add((len(of_w), *(place for _, place in of_x), *of_w))
            touch.finish()
            assert torch.equal(x, expected)
            assert torch.equal(w, 2 * weight)
        assert len(odd) > 16, "any of the 16 of each"
    rows_are_drawn(case, other)


def rows_are_drawn(case: dict[str, Any], other: Call) -> None:
    """Every row is new in every call on every set, of the values that were there, and the last is another call's."""
    sets = arguments.ArgumentSets(case, "cpu", "cold")
    sets.arguments = sets.arguments[:3]
    draw = moving_inputs.Draw(sets)
    seen = set[bytes]()
    for _ in range(300):
        x = sets.inputs(draw.step(1))[0]
        assert x.unique().shape[0] > 30
        assert 0 <= float(x.min()) <= float(x.max()) < 64
        seen |= {row.numpy().tobytes() for row in x}
    assert len(seen) >= 0.99 * 300 * 4  # 2^16 for each of the four
    draw.begin()
    once = {sets.inputs(draw.step(0))[0].numpy().tobytes() for _ in range(9)}
    assert len(once) == 1
    draw.before(2)
    draw.step(1)
    x, w = sets.inputs(draw.step(1))[:2]
    assert torch.equal(x, other.tensor("x"))
    assert torch.equal(w, other.tensor("w"))


FINITE = [1.0, -3.5, 0.0, -0.0, 1e-7, -6e-8, 0.02, 300.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("steps", [moving_inputs.MOVED_CALLS, graph_runner.CALLS_LIMIT])
def test_values_that_move_stay_finite_and_come_once(tmp_path: Path, dtype: torch.dtype, steps: int) -> None:
    """Also where they end at 0, at what is smaller than any step, and at the largest number."""
    largest = torch.finfo(dtype).max
    last = torch.tensor([*FINITE, largest, -largest, torch.finfo(dtype).tiny] * 2, dtype=torch.float64).to(dtype)
    call = Call({"x": torch.ones(len(last)).to(dtype), "y": torch.zeros(1)}, outputs=("y",), axes=("place",))
    other = Call({"x": last, "y": torch.zeros(1)}, outputs=("y",), axes=("place",))
    spec, fresh = (images.layout_images(c, tmp_path / str(n)).spec for n, c in enumerate((call, other)))
    case = {"arguments": spec, "fresh": {"x": fresh["x"]}, "moved": {"x": []}, "drawn": [], "outputs": ["y"]}
    sets = arguments.ArgumentSets(case, "cpu", "hot")
    touch, x = moving_inputs.Touch(sets), sets.inputs(0)[0]

    def walk(count: int) -> set[bytes]:
        seen = set()
        for _ in range(count):
            touch.step(1)
            assert bool(torch.isfinite(x.float()).all() if dtype != torch.float64 else torch.isfinite(x).all())
            seen.add(results.bits_of(x).numpy().tobytes())
        return seen

    touch.begin()
    touch.take(steps)
    free = 250 if dtype.itemsize == 1 else min(1000 * steps, 5000)
    assert len(walk(free)) == free
    before = x.float().abs()
    assert bool((before < 1e6).all()), "about as large as they were"
    touch.before(steps)
    assert len(walk(steps)) == (steps if dtype.itemsize > 1 else min(steps, 256))
    assert torch.equal(results.bits_of(x), results.bits_of(last))


def test_whole_numbers_of_a_byte_stay_among_those_that_the_case_has(tmp_path: Path) -> None:
    """They may be indices; and who sets torch's generator back does not get the same ones again."""
    own, last = torch.arange(0, 40, dtype=torch.uint8), torch.arange(40, 80, dtype=torch.uint8)
    calls = (Call({"x": x.clone(), "y": torch.zeros(1)}, outputs=("y",), axes=("place",)) for x in (own, last))
    spec, fresh = (images.layout_images(c, tmp_path / str(n)).spec for n, c in enumerate(calls))
    case = {"arguments": spec, "fresh": {"x": fresh["x"]}, "moved": {"x": []}, "drawn": ["x"], "outputs": ["y"]}
    sets = arguments.ArgumentSets(case, "cpu", "hot")
    touch, draw, x = moving_inputs.Touch(sets), moving_inputs.Draw(sets), sets.inputs(0)[0]
    begun = []
    for _ in range(2):
        torch.manual_seed(1)
        touch.begin()
        begun.append(x.clone())
        seen = {x.numpy().tobytes()}
        for _ in range(79):
            touch.step(1)
            seen.add(x.numpy().tobytes())
            assert int(x.max()) < 80
        assert len(seen) == 80
    assert not torch.equal(*begun)
    touch.step(0)
    assert x.numpy().tobytes() in seen
    touch.keeps_own = True
    touch.begin()
    touch.step(0)
    assert torch.equal(x, own)
    touch.before(3)
    assert not torch.equal(x, last)
    for _ in range(3):
        touch.step(1)
    assert torch.equal(x, last)
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        draw.step(1)
        drawn.append(x.clone())
    assert not torch.equal(*drawn)
