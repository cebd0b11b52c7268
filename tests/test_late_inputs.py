"""Memory that is put right late, by a kernel that lets the next one begin."""

import time

import pytest

from kernelproof import gpu
from kernelproof.late_inputs import LateInputs, _pieces

torch = pytest.importorskip("torch")
PRESENT, WHY = gpu.available()


def on_gpu(test):  # type: ignore[no-untyped-def]
    return pytest.mark.gpu(pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")(test))


def test_what_lies_on_no_16_bytes_goes_apart() -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    start = memory.data_ptr()
    assert start % 16 == 0
    assert _pieces(memory) == [(start, 64)]
    assert _pieces(memory[3:40]) == [(start + 3, 13), (start + 16, 24)]
    assert _pieces(memory[3:9]) == [(start + 3, 6)]
    assert _pieces(memory[:0]) == []


def test_a_view_goes_with_the_gaps_in_it() -> None:
    rows = torch.zeros(4, 32, dtype=torch.uint8)[:, :8]
    assert _pieces(rows) == [(rows.data_ptr(), 3 * 32 + 8)]


@on_gpu
@pytest.mark.parametrize("ahead", [False, True])
def test_scrambled_twice_is_as_it_was_and_every_byte_of_it_was_another_in_between(ahead: bool) -> None:
    memory = torch.randint(0, 256, (100_003,), dtype=torch.uint8, device="cuda")
    parts, own = [memory[5:70_001], memory[70_010:70_013], memory[70_020:]], memory.clone()
    late = LateInputs(parts)
    late.scramble(ahead=ahead)
    assert torch.equal(memory[5:70_001], own[5:70_001] ^ 0x55)
    assert torch.equal(memory[70_010:70_013], own[70_010:70_013] ^ 0x55)
    assert torch.equal(memory[70_020:], own[70_020:] ^ 0x55)
    for start, end in ((0, 5), (70_001, 70_010), (70_013, 70_020)):
        assert torch.equal(memory[start:end], own[start:end])
    late.scramble(ahead=ahead)
    assert torch.equal(memory, own)


@on_gpu
def test_it_waits_as_long_as_it_is_told_and_says_when_it_is_over() -> None:
    late, probe = LateInputs([torch.zeros(1024, device="cuda")]), torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    late.scramble()
    torch.cuda.synchronize()
    with torch.cuda.stream(probe):
        assert late.opened.item() == 1
    late.shut()
    start.record()
    late.scramble(20_000.0)
    end.record()
    time.sleep(0.005)  # until it has begun: it waits four times as long
    with torch.cuda.stream(probe):
        assert late.opened.item() == 0
    end.synchronize()
    assert late.opened.item() == 1
    assert 15.0 < start.elapsed_time(end) < 60.0
