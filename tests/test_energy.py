"""Energy of a call from a counter that advances in steps: a simulated board of known power."""

import pytest

from kernelproof import energy


class Board:
    """300 W at work and 120 W without; a queue of replays, and a counter that is brought up to date every `step_s`."""

    def __init__(self, step_s: float, replay_s: float, reading_s: float) -> None:
        self.step_s, self.replay_s, self.reading_s = step_s, replay_s, reading_s
        self.now = self.queued_until = 0.007
        self.before = self.used_mj = 0.0
        self.updated, self.shown_mj = self.now, 0.0

    def add(self, replays: int) -> None:
        self.before = self.queued_until
        self.queued_until = max(self.queued_until, self.now) + replays * self.replay_s

    def wait(self) -> None:
        self.pass_until(max(self.now, self.before))

    def at_work(self) -> bool:
        return self.queued_until > self.now

    def pass_until(self, then: float) -> None:
        while self.now < then:
            end = min(then, self.updated + self.step_s)
            worked_s = max(0.0, min(end, self.queued_until) - self.now)
            self.used_mj += 1000 * (300 * worked_s + 120 * (end - self.now - worked_s))
            self.now = end
            if end >= self.updated + self.step_s:
                self.updated, self.shown_mj = end, self.used_mj

    def counter_mj(self) -> int:
        self.pass_until(self.now + self.reading_s)
        return int(self.shown_mj)

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("reading_s", [0.00001, 0.0035, 0.011], ids=["at once", "3.5 ms", "11 ms"])
def test_a_known_power_is_found_however_long_its_counter_takes(step_s: float, reading_s: float) -> None:
    board = Board(step_s, 0.001, reading_s)
    found = energy.per_call(board, 200, board.replay_s, board.counter_mj, board.clock)
    # 200 calls a millisecond at 300 W: 1.5 mJ a call. A batch at either end of at least 200 ms is what is open.
    assert found.joules_per_call == pytest.approx(1.5e-3, rel=0.06)
    assert found.seconds >= energy.LEAST_S
    assert found.watts == pytest.approx(300, rel=0.06)
    assert found.resolution_j <= 1.1 * 300 * max(step_s, 0.025) / found.calls
    row = energy.as_row(found, "ours", "case", "hot")
    assert row["joules_per_call"] == pytest.approx(found.joules_per_call, rel=1e-5)
    assert isinstance(row["calls"], int)


def test_a_counter_that_stands_still_is_no_figure() -> None:
    board = Board(10.0, 0.001, 0.0035)
    with pytest.raises(energy.NoEnergy, match="did not advance twice"):
        energy.per_call(board, 200, board.replay_s, board.counter_mj, board.clock)


def test_an_absent_counter_is_named() -> None:
    def absent() -> int:
        raise RuntimeError("Not Supported")

    with pytest.raises(energy.NoEnergy, match="cannot be read: Not Supported"):
        energy.per_call(Board(0.02, 0.001, 0.0), 1, 0.001, absent)


def test_a_counter_that_takes_longer_than_all_the_work_is_no_figure() -> None:
    board = Board(0.02, 0.001, 2.0)
    with pytest.raises(energy.NoEnergy, match="without a pause"):
        energy.per_call(board, 200, board.replay_s, board.counter_mj, board.clock)
