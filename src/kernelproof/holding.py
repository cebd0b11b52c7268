"""Contenders held ready in their process while another clock, outside it, times calls that are asked for one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelproof.arguments import ArgumentSets, release
from kernelproof.clock_runner import ClockRunner
from kernelproof.contenders import Function, Runner
from kernelproof.moving_inputs import Draw, Touch
from kernelproof.timing import Session, open_session


@dataclass
class _Held:
    """A contender that is ready to be timed from outside: what a replay of each kind does, and how many calls it is."""

    session: Session
    case: str
    runner: Runner
    replays: dict[str, tuple[Callable[[int], object], int]]
    touches: dict[str, Touch | Draw]  # by what their last values are: those of the case's `moved` or `fresh`


_HELD: dict[str, _Held] = {}


def hold(
    contenders: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """Prepare contenders on one case, for `replay`; what was held before is let go.

    Arguments as in `timing.measure`; a case's `moved` names a row (indices) of some inputs, `drawn` whole ones. Gives
    back by name the calls of a replay of each kind: `timed`, what `measure` times; where rows are named also `same` and
    `new`, calls on the values of the call before, and on values that no call has seen, `touch`, `same` without the
    calls, and `own`, `same` on the case's own values;
    where inputs are named `all_same`, `all_new` and `all_touch`, of which every row is written. Also `outcomes`.
    """
    (case,) = cases
    identity = str(case["id"])
    _HELD.clear()
    with open_session(plan) as session:
        functions, mode = session.load(contenders), session.plan.modes[0]
        release(session.plan.device)
        sets = ArgumentSets(case, session.plan.device, mode)
        for name in (name for name in case["contenders"] if name in functions):
            with session.attempt(name, identity, mode) as attempt:
                held = _prepared(session, identity, functions[name], sets)
            if attempt.succeeded and held:
                _HELD[name] = held
    calls = {name: {kind: count for kind, (_, count) in held.replays.items()} for name, held in _HELD.items()}
    return {"calls": calls, "outcomes": session.found.outcomes}


def _prepared(session: Session, case: str, function: Function, sets: ArgumentSets) -> _Held | None:
    """A contender that is ready for `replay`; None for one that is too slow."""
    runner = session.runner(function, sets)
    runner.prepare()
    if runner.too_slow:
        runner.prepare()  # the first call may have set things up, or waited for other programs
    if runner.too_slow:
        return None
    replays: dict[str, tuple[Callable[[int], object], int]] = {"timed": (runner.repeat, runner.visit().calls)}
    touches: dict[str, Touch | Draw] = {}
    if sets.case.get("moved"):
        touches["moved"] = touch = Touch(sets)
        replays |= {"same": runner.touched(touch, 0), "new": runner.touched(touch, 1)}
        replays["touch"] = runner.touched(touch, 0, alone=True)
        replays["own"] = _on_own_values(touch, *replays["same"])
        if isinstance(runner, ClockRunner):
            replays["still"] = runner.still(touch)
    if sets.case.get("drawn"):
        touches["fresh"] = draw = Draw(sets)
        replays |= {"all_same": runner.touched(draw, 0), "all_new": runner.touched(draw, 1)}
        replays["all_touch"] = runner.touched(draw, 0, alone=True)
    return _Held(session, case, runner, replays, touches)


def _on_own_values(touch: Touch, same: Callable[[int], object], calls: int) -> tuple[Callable[[int], object], int]:
    """`same` on the values that the case has."""

    def run(times: int) -> None:
        touch.keeps_own = True
        try:
            same(times)
        finally:
            touch.keeps_own = False

    return run, calls


def replay(contender: str, kind: str, times: int) -> dict[str, Any]:
    """Replay so many times, until all of it is done. own_us: of `timed` ones, what the samples' clock says it took."""
    return {"own_us": _HELD[contender].replays[kind][0](times)}


def move(contender: str) -> dict[str, Any]:
    """Hand over, as `outputs`, what the last of some calls in a row gives whose values move up to the case's.

    And what a call gives that could begin before its inputs are right.
    """
    held = _HELD[contender]
    session = held.session
    session.outputs.clear()
    for version, touch in held.touches.items():
        mode = session.plan.modes[0]
        session.hand_over(held.case, mode, version, contender, held.runner.moved(touch))
        if isinstance(touch, Touch) and (results := held.runner.ahead(touch)):
            session.hand_over(held.case, mode, "ahead", contender, results)
    return {"outputs": [handed.described(output) for output, handed in session.put_into_files()]}


def let_go(contender: str) -> dict[str, Any]:
    """Free what `hold` prepared."""
    del _HELD[contender]
    return {}
