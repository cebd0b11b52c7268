"""The form of answers from processes that have run a candidate, checked before anything is made of them.

A *form* says of a value from JSON whether it is one; larger forms are made of smaller ones. Here stand the forms of
what a measuring process answers (timing.Found, holding.hold, holding.replay, holding.move). Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelproof.errors import WorkerError, WorkerReplyError

Form = Callable[[Any], bool]

LARGEST = 2**53  # of a number: a float counts no further, and nothing that is counted or timed comes near
METHODS = ("cpu_clock", "graph_slope", "wall_slope", "eager", "event_pair", "floor", "floor_event_pair")
ESCAPE = "times_escape"
OUTCOMES = (
    "failed",
    "refused",
    "not_loaded",
    "not_captured",
    "not_traced",
    "slow",
    "restless",
    "beside_failed",
    ESCAPE,
)


def whole(least: int = 0, most: int = LARGEST) -> Form:
    """A whole number within limits."""
    return lambda value: type(value) is int and least <= value <= most


def number(least: float = -LARGEST) -> Form:
    """A number that is finite."""
    return lambda value: type(value) in (int, float) and least <= value <= LARGEST


def text(value: Any) -> bool:
    """Any text."""
    return isinstance(value, str)


def truth(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def one_of(*known: str) -> Form:
    """One of some texts."""
    return lambda value: text(value) and value in known


def optional(form: Form) -> Form:
    """Nothing, or a value of a form."""
    return lambda value: value is None or form(value)


def each(form: Form, least: int = 0) -> Form:
    """A list of at least so many values of a form."""
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(form, value))


def row(*forms: Form) -> Form:
    """A list of one value for each form."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(forms)
        and all(form(part) for form, part in zip(forms, value, strict=True))
    )


def by(key: Form, form: Form) -> Form:
    """Values of a form by keys of another."""
    return lambda value: isinstance(value, dict) and all(key(name) and form(part) for name, part in value.items())


def fields(forms: Mapping[str, Form], more: Mapping[str, Form] | None = None) -> Form:
    """An object with all of these fields, perhaps some `more`, and no others."""
    known = {**(more or {}), **forms}
    return lambda value: (
        isinstance(value, dict)
        and forms.keys() <= value.keys() <= known.keys()
        and all(known[name](part) for name, part in value.items())
    )


def expect(reply: Any, forms: Mapping[str, Form], error: type[WorkerError] = WorkerReplyError) -> None:
    """Raises WorkerReplyError, or another `error`, unless the answer has all these parts in their forms."""
    parts = reply if isinstance(reply, dict) else {}
    wrong = [name for name, form in forms.items() if name not in parts or not form(parts[name])]
    if wrong:
        raise error(f"the worker's answer is not one that it gives (its {', '.join(wrong)})")


# --- of a measuring process -------------------------------------------------------------------------------------------


def columns(names: Sequence[str], case: str, modes: Sequence[str]) -> dict[str, Form]:
    """The forms of a sample's columns (timing.COLUMNS)."""
    counts = {"block": whole(), "order": whole(), "calls": whole(1), "short_calls": optional(whole())}
    place = {"contender": one_of(*names), "case": one_of(case), "mode": one_of(*modes), "method": one_of(*METHODS)}
    times = {"time_us": number(), "short_us": optional(number()), "long_us": optional(number()), "offset_s": number()}
    state = {name: optional(number()) for name in ("sm_clock_mhz", "temperature_c", "power_w", "load")}
    return {**counts, **place, **times, **state, "throttle": optional(text)}


def check_measured(reply: Any, names: Sequence[str], case: str, modes: Sequence[str]) -> None:
    """Check what a process says of contenders on a case (timing.Found).

    Raises WorkerError: the contenders share the process, and who was touched last need not be who garbled its answer.
    """
    mine, here, mode = one_of(*names), one_of(case), one_of(*modes)
    of_sample = columns(names, case, modes)
    place = {"contender": mine, "case": here, "mode": mode}
    size = each(whole())
    kernel = {"name": text, "grid": size, "block": size, "cluster": size, "shared_bytes": whole(), "source": text}
    kernel |= {"count": number(0), "duration_us": number(0), "sm_clock_mhz": optional(number(0))}
    sets = {"sets": whole(1), "set_bytes": whole(), "cache_bytes": whole()}
    figures = {name: optional(number()) for name in ("joules_per_call", "resolution_j", "seconds", "watts")}
    stopping = {"blocks": whole(), "half_width": optional(number(0)), "ended": one_of("precise", "budget")}
    expect(
        reply,
        {
            "samples": lambda value: (
                fields({name: each(form) for name, form in of_sample.items()})(value)
                and len(set(map(len, value.values()))) == 1
            ),
            "outcomes": outcomes(mine, one_of(case, ""), one_of(*modes, "")),
            "outputs": each(output(place, "timed", "poisoned", "fresh")),
            "kernels": by(mine, by(here, each(fields(kernel, {"inside": each(text)}), 1))),
            "eager_kernels": by(mine, by(here, each(text))),
            "rotation": by(here, by(mode, fields(sets, {"exceeds_cache": truth}))),
            "energy": each(fields(place, {**figures, "calls": optional(whole()), "reason": optional(text)})),
            "stopping": each(fields({**place, **stopping})),
            "neighbours": optional(whole()),
            "state_s": number(0),
        },
        WorkerError,
    )


def check_counted(reply: Any, names: Sequence[str], cases: Sequence[str], modes: Sequence[str], calls: int) -> None:
    """Check what the process under Nsight Compute says that it made (counters.main). Raises WorkerReplyError."""
    place = {"contender": one_of(*names), "case": one_of(*cases)}
    made = {**place, "mode": one_of(*modes), "calls": whole(calls, calls), "kernels": whole(1), "floor": whole(1)}
    expect(reply, {"made": each(fields(made)), "left_out": each(fields({**place, "reason": text}))})


def outcomes(contender: Form, case: Form = text, mode: Form = text) -> Form:
    """What happened to contenders that were not measured."""
    what = {"outcome": one_of(*OUTCOMES), "message": text}
    return each(fields({"contender": contender, "case": case, "mode": mode, **what}))


def output(place: Mapping[str, Form], *versions: str) -> Form:
    """A result that was handed over."""
    forms = {**place, "version": one_of(*versions), "number": whole(), "copies": whole(1)}
    form = fields({**forms, "path": text, "tensors": each(row(text, each(whole()))), "sha256": text})
    return lambda value: form(value) and value["path"].rpartition("/")[2] == file_of(value)


def file_of(output: Mapping[str, Any]) -> str:
    """The name of the file in which a contender's output is handed over; `sha256` is that of its bytes."""
    return f"{output['contender']}-{output['sha256'][:24]}.output"


def check_held(reply: Any, name: str, kinds: Sequence[str]) -> None:
    """Check what a process says of the one contender that it was to hold (holding.hold). Raises WorkerReplyError.

    kinds: of replays, that have to be there if the contender is; of those that are compared calls are as many.
    """
    counts = fields(dict.fromkeys(kinds, whole(1)))
    alike = [["same", "touch", "own"], ["all_same", "all_new", "all_touch"]]
    calls = by(
        one_of(name),
        lambda held: counts(held) and all(len({held[k] for k in group if k in held}) <= 1 for group in alike),
    )
    expect(reply, {"calls": calls, "outcomes": outcomes(one_of(name))})


def check_replayed(reply: Any) -> None:
    """Check what a process says of its replays (holding.replay). Raises WorkerReplyError."""
    expect(reply, {"own_us": optional(number(0))})


def check_moved(reply: Any, name: str, case: str, modes: Sequence[str]) -> None:
    """Check what a process hands over of calls whose values moved (holding.move). Raises WorkerReplyError."""
    place = {"contender": one_of(name), "case": one_of(case), "mode": one_of(*modes)}
    expect(reply, {"outputs": each(output(place, "moved", "ahead", "fresh"))})
