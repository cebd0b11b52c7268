"""What is seen of a contender's calls from outside its process, on machines that other programs use too."""

import math
import random

import pytest

from kernelproof import outside


class Crowded(outside.Outside):
    """A contender where other programs take a CPU for longer than it does, and an answer waits until it is read."""

    def __init__(self, costs_us: dict[str, float], device: str, seed: int, pace: float = 1.0) -> None:
        super().__init__(None, "crowded", dict.fromkeys(costs_us, 1), device)  # type: ignore[arg-type]
        self.costs_us, self.pace, self.random = costs_us, pace, random.Random(seed)

    def look(self, kind: str, times: int) -> outside.Look:
        work_us = times * self.costs_us[kind]
        others_us = 0.0
        if self.device == "cpu" and self.random.random() < 0.5:
            others_us = self.random.expovariate(1 / 30_000)
        # Who has worked for long waits for long: the scheduler owes it nothing.
        answer_us = self.random.uniform(100, 400) + min(0.2 * work_us, 10_000) * self.random.random()
        took_us = work_us + others_us
        own_us = took_us * self.pace
        return outside.Look(
            took_us + answer_us, own_us, took_us + answer_us - own_us, work_us * self.random.uniform(1, 1.3)
        )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_crowded_machine_accuses_nobody_of_remembering(device: str) -> None:
    """Of who remembers, calls cost half; in a process of its own it is looked at again (look_from_outside)."""

    def accused(new_us: float, same_us: float) -> int:
        looks = (
            [Crowded({"new": new_us, "same": same_us}, device, 2 * n + again) for again in (0, 1)] for n in range(200)
        )
        return sum(all(look.values_apart()[0] > outside.APART_LIMIT for look in pair) for pair in looks)

    assert accused(500.0, 500.0) == 0
    assert accused(500.0, 250.0) >= (200 if device == "cpu" else 180)


def test_a_crowded_machine_does_not_make_an_honest_clock_a_false_one() -> None:
    looks = [Crowded({"timed": 500.0}, "cpu", seed).clocks_apart() for seed in range(200)]
    assert max(apart for apart, _, _ in looks) <= outside.APART_LIMIT
    looks = [Crowded({"timed": 500.0}, "cpu", seed, pace=0.5).clocks_apart() for seed in range(200)]
    assert sum(apart > outside.APART_LIMIT for apart, _, _ in looks) >= 190


def test_a_call_that_is_faster_behind_itself_is_told_from_one_that_waits_for_another_kernel() -> None:
    """Calls of 5 µs; who does nothing behind itself takes 0.1 µs there. The touch beside each takes 6 µs, a gap 1.2."""
    costs = {"touch": 6.0, "own": 6.0 + 5.0 + 1.2}

    def flagged(own_us: float) -> int:
        looks = (Crowded(costs, "cuda", seed).behind_touch_us(own_us)[0] for seed in range(100))
        return sum(behind_us > outside.behind_limit_us(own_us, "cuda") for behind_us in looks)

    assert flagged(5.0) == 0
    assert flagged(0.1) >= 95


def test_programs_that_begin_behind_a_look_make_no_call_one_that_is_remembered() -> None:
    """What was seen before they began is no measure; who remembers until something is written takes 1 µs of 50."""

    def accused(own_us: float) -> int:
        costs = {"touch": 6.0, "own": 6.0 + 50.0, "timed": own_us}
        looks = [Crowded(costs, "cpu", seed).behind_touch_us(own_us / 4) for seed in range(200)]
        return sum(behind_us > outside.behind_limit_us(found_us, "cpu") for behind_us, found_us in looks)

    assert accused(50.0) == 0
    assert accused(1.0) >= 190


def test_who_remembers_where_nothing_of_ours_runs_between_calls_is_seen_on_values_that_stay() -> None:
    def accused(new_us: float, still_us: float) -> int:
        costs = {"touch": 6.0, "new": 6.0 + new_us, "still": still_us}
        looks = [Crowded(costs, "cpu", seed).unseen_apart() for seed in range(100)]
        return sum(unseen > outside.rows_limit_us(still, "cpu") for unseen, still in looks)

    assert accused(200.0, 200.0) == 0
    assert accused(42.0, 11.0) == 0  # branches that are predicted where values stay
    assert accused(234.0, 5.0) >= 95


@pytest.mark.parametrize(("device", "draw_us"), [("cpu", 20.0), ("cpu", 400.0), ("cuda", 20.0)])
def test_rows_that_are_remembered_are_told_from_a_crowded_machine(device: str, draw_us: float) -> None:
    """Of who remembers rows, calls on old ones cost a tenth; it is looked at again in a process of its own."""

    def accused(new_us: float, same_us: float) -> int:
        costs = {"all_touch": draw_us, "all_new": draw_us + new_us, "all_same": draw_us + same_us}
        looks = ([Crowded(costs, device, 2 * n + again).rows_apart() for again in (0, 1)] for n in range(100))
        return sum(all(new > outside.rows_limit_us(same, device) for new, same in pair) for pair in looks)

    assert accused(200.0, 200.0) == 0
    if device == "cpu":
        assert accused(42.0, 11.0) == 0  # rows sorted, whose branches are predicted where values come again
    assert accused(400.0, 40.0) >= (95 if draw_us < 200 else 30)


def test_what_takes_no_time_at_all_is_no_proof() -> None:
    class Nothing(Crowded):
        def look(self, kind: str, times: int) -> outside.Look:
            found = super().look(kind, times)
            return found if kind == "new" else outside.Look(5.0, 0.0, 5.0, 0.0)

    assert Nothing({"new": 500.0, "same": 0.0}, "cpu", 0).values_apart()[0] == 1.0
    assert Crowded({"timed": 500.0}, "cpu", 0, pace=0.0).clocks_apart()[0] == math.inf


@pytest.mark.parametrize(("cores", "rests_after_s"), [(0.0, 0.0), (1.0, 0.25), (1.0, math.inf)])
def test_who_works_on_between_calls_is_told_from_threads_that_come_to_rest(
    monkeypatch: pytest.MonkeyPatch, cores: float, rests_after_s: float
) -> None:
    class Clocks:
        now_s = 0.0

        def sleep(self, seconds: float) -> None:
            self.now_s += seconds

        def monotonic(self) -> float:
            return self.now_s

        def processor_time_s(self) -> float:
            return cores / 20 * min(self.now_s, rests_after_s)  # others have the cores

        def threads_at_work(self) -> int:
            return int(cores and self.now_s < rests_after_s)

    clocks = Clocks()
    ours = outside.Outside(clocks, "ours", {"timed": 1}, "cpu")  # type: ignore[arg-type]
    monkeypatch.setattr(ours, "look", lambda *_: None)
    monkeypatch.setattr(outside, "time", clocks)
    assert ours.works_on() == pytest.approx(0.0 if math.isfinite(rests_after_s) else cores)
    assert clocks.now_s < 2.5
