"""Energy of one call, from the board's own counter over a long replay.

The counter (`nvmlDeviceGetTotalEnergyConsumption`) advances in steps that last tens of milliseconds, so replays go on
from one step to a later one, at least `LEAST_S`; calls are counted between those two. It takes milliseconds to read,
and what the board uses while it has nothing to do is no call's: it is read while the next batch is at work. It is the
whole board's: memory is in it, and what the board uses in any case.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

LEAST_S = 0.2
MOST_S = 3.0  # without two steps by then there is no figure; some reads of the counter take a tenth of a second
BATCH_S = 0.005  # between two looks at the counter: more where one takes longer


class NoEnergy(Exception):
    """Why there is no figure."""


@dataclass(frozen=True)
class Energy:
    """Joules of one call, the share of it that one step of the counter is, and over how much it was taken."""

    joules_per_call: float
    resolution_j: float
    calls: int
    seconds: float
    watts: float


class Queue(Protocol):
    """Work on a device, which does one batch after the other without a pause as long as one is queued."""

    def add(self, replays: int) -> None:
        """Queue a batch of replays behind what is queued."""
        ...

    def wait(self) -> None:
        """Until all but the batch that was added last are done."""
        ...

    def at_work(self) -> bool:
        """Whether that last one is not done."""
        ...


def per_call(
    queue: Queue,
    calls: int,
    replay_s: float,
    counter_mj: Callable[[], int],
    clock: Callable[[], float] = time.monotonic,
) -> Energy:
    """Replay `calls` calls (some `replay_s`) between two steps of the counter; a batch is still queued at the end.

    Raises NoEnergy where the counter is absent, does not move, or takes too long to read beside so much work.
    """
    try:
        last = counter_mj()
    except Exception as error:  # NVML's, whose module need not be there
        raise NoEnergy(f"the board's energy counter cannot be read: {error}") from None
    batch = max(1, math.ceil(BATCH_S / max(replay_s, 1e-9)))
    started, done = clock(), 0
    first: tuple[int, float, int] | None = None  # energy, time and calls at a step
    step_mj = 0
    queue.add(batch)
    ahead = batch  # replays of the batch before the one that is added
    while clock() - started < MOST_S:
        queue.add(batch)
        queue.wait()
        done, ahead = done + ahead * calls, batch
        now_mj, now = counter_mj(), clock()
        if not queue.at_work():  # it was idle while the counter was read: from here on again, with more in between
            batch, first = 2 * batch, None
        elif now_mj != last:
            if first is None:
                first = (now_mj, now, done)
            else:
                step_mj = max(step_mj, now_mj - last)
                if now - first[1] >= LEAST_S:
                    return _figure(now_mj - first[0], now - first[1], done - first[2], step_mj)
        last = now_mj
    raise NoEnergy(f"the board's energy counter did not advance twice in {MOST_S:g} s of work without a pause")


def _figure(spent_mj: int, seconds: float, calls: int, step_mj: int) -> Energy:
    # Both ends are known to within a batch; the counter itself to within a step, once over the whole.
    joules = spent_mj / 1000
    return Energy(joules / calls, step_mj / 1000 / calls, calls, seconds, joules / seconds)


def as_row(energy: Energy, contender: str, case: str, mode: str) -> dict[str, Any]:
    """A row of the bench record, to six digits."""
    figures = {name: float(f"{value:.6g}") for name, value in asdict(energy).items()}
    return {"contender": contender, "case": case, "mode": mode, **figures, "calls": energy.calls}
