"""What torch's profiler saw of some calls, counted and timed per call: kernels on a GPU, torch's operators on a CPU."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from kernelproof import cupti, traces


def kernels_of(events: Sequence[Mapping[str, Any]], calls: int) -> list[dict[str, Any]]:
    """Kernels, copies and fills of a Chrome trace, counted and timed per call, in order of first appearance.

    Events of one name but another grid, block or shared memory are kept apart. Durations are CUPTI's, in µs.
    """
    entries = []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            details, start_ns = event.get("args", {}), 1000 * float(event["ts"])
            what = {"name": event["name"], "shared_bytes": int(details.get("shared memory", 0))}
            place = {"grid": list(details.get("grid", [])), "block": list(details.get("block", [])), "cluster": []}
            entries.append({**what, **place, "start_ns": start_ns, "end_ns": start_ns + 1000 * float(event["dur"])})
    return cupti.per_call(sorted(entries, key=lambda entry: float(entry["start_ns"])), calls)


def all_threads() -> dict[str, Any]:
    """What has torch's profiler look into every thread, where this torch can."""
    with contextlib.suppress(ImportError, TypeError):
        from torch._C._profiler import _ExperimentalConfig

        return {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}
    return {}


def operators_of(events: Iterable[Any], calls: int) -> list[dict[str, Any]]:
    """torch's operators among the events of its profiler, with what they call inside: count and µs a call.

    Of an operator that every call has equally often, the median call's: one that another program interrupted is not it.
    inside: operators of which one call takes most of its time, in most of its calls: it is them under another name.
    """
    found: dict[str, list[float]] = defaultdict(list)
    inside: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        if event.name.startswith(traces.OPERATOR) and not _inside_operator(event):
            took_us = event.time_range.elapsed_us()
            found[event.name].append(took_us)
            least_us = traces.IS_OPERATOR * took_us
            inside[event.name].update({name for name, us in _operators_below(event) if us >= least_us > 0})
    place: dict[str, Any] = {"shared_bytes": 0, "grid": [], "block": [], "cluster": []}
    return [
        {
            "name": name,
            **place,
            "count": len(took_us) / calls,
            "duration_us": _of_a_call(took_us, calls),
            "inside": [other for other, often in inside[name].items() if often > len(took_us) / 2],
        }
        for name, took_us in found.items()
    ]


def _operators_below(event: Any) -> Iterator[tuple[str, float]]:
    """Each call of torch's operators that an event makes, at any depth, and the µs that it takes."""
    for child in event.cpu_children:
        if child.name.startswith(traces.OPERATOR):
            yield child.name, child.time_range.elapsed_us()
        yield from _operators_below(child)


def _of_a_call(took_us: Sequence[float], calls: int) -> float:
    each, rest = divmod(len(took_us), calls)
    if rest:
        return sum(took_us) / calls
    return median(sum(took_us[start : start + each]) for start in range(0, len(took_us), each))


def _inside_operator(event: Any) -> bool:
    parent = event.cpu_parent
    return parent is not None and (parent.name.startswith(traces.OPERATOR) or _inside_operator(parent))
