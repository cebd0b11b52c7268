"""Energy of a call from a counter that advances in steps: a simulated board of known power."""

import pytest

from kernelproof import energy


class Board:
    """A clock that a replay advances, and a counter that is brought up to date every `step_s`."""

    def __init__(self, watts: float, step_s: float, replay_s: float) -> None:
        self.watts, self.step_s, self.replay_s = watts, step_s, replay_s
        self.now = 0.007

    def replay(self) -> None:
        self.now += self.replay_s

    def counter_mj(self) -> int:
        return int(1000 * self.watts * (self.now // self.step_s) * self.step_s)

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("step_s", [0.0, 0.02, 0.1])
def test_a_known_power_is_found(step_s: float) -> None:
    board = Board(300.0, step_s or 0.001, 0.001)
    found = energy.per_call(board.replay, 200, board.replay_s, board.counter_mj, board.clock)
    # 200 calls a millisecond at 300 W: 1.5 mJ a call. A batch of 2 ms at either end of at least 100 ms is what is open.
    assert found.joules_per_call == pytest.approx(1.5e-3, rel=0.05)
    assert found.seconds >= energy.LEAST_S
    assert found.watts == pytest.approx(300, rel=0.05)
    assert found.resolution_j <= 1.1 * 300 * max(step_s, 0.003) / found.calls
    row = energy.as_row(found, "ours", "case", "hot")
    assert row["joules_per_call"] == pytest.approx(found.joules_per_call, rel=1e-5)
    assert isinstance(row["calls"], int)


def test_a_counter_that_stands_still_is_no_figure() -> None:
    board = Board(300.0, 10.0, 0.001)
    with pytest.raises(energy.NoEnergy, match="did not advance twice"):
        energy.per_call(board.replay, 200, board.replay_s, board.counter_mj, board.clock)


def test_an_absent_counter_is_named() -> None:
    def absent() -> int:
        raise RuntimeError("Not Supported")

    with pytest.raises(energy.NoEnergy, match="cannot be read: Not Supported"):
        energy.per_call(lambda: None, 1, 0.001, absent)
