"""Device timestamps of kernels, copies and fills, from NVIDIA's `cupti-python`.

Only the tracing process may import this: a loaded CUPTI changes the timings of everything after it. Records come from
the activity API (CUPTI's documentation, section "Activity API"); start and end are the device's, in nanoseconds.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelproof import sass

BUFFER_BYTES = 8 << 20
FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full are handed over too
_REGISTERED: list[Any] = []  # CUPTI takes one pair of callbacks a process
_RECORDS: list[dict[str, Any]] = []


def version() -> str | None:
    """Of the installed cupti-python; None without one."""
    try:
        return importlib.metadata.version("cupti-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def traced(work: Callable[[], Any]) -> list[dict[str, Any]]:
    """What the device did while `work` ran (which must wait for the device), in the order of its start.

    Each: `name`, `grid`, `block`, `cluster` (empty where there is none), `shared_bytes`, `start_ns`, `end_ns`. Raises
    ImportError without cupti-python, and what CUPTI raises where another tool holds it or the driver is too old for it.
    """
    cupti = importlib.import_module("cupti.cupti")
    kinds = [cupti.ActivityKind.CONCURRENT_KERNEL, cupti.ActivityKind.MEMCPY, cupti.ActivityKind.MEMSET]
    if not _REGISTERED:
        names = dict(zip(map(int, kinds), ("", "Memcpy", "Memset"), strict=True))

        def completed(activities: Sequence[Any]) -> None:
            # The records lie in a buffer that is CUPTI's again after this call.
            _RECORDS.extend(described(one, names) for one in activities if int(one.kind) in names)

        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), completed)
        _REGISTERED.append(completed)
    _RECORDS.clear()
    enabled = []
    try:
        for kind in kinds:
            cupti.activity_enable(kind)
            enabled.append(kind)
        work()
        cupti.activity_flush_all(FORCED)
    finally:
        for kind in enabled:
            with contextlib.suppress(Exception):  # whatever stands in the way has been raised above
                cupti.activity_disable(kind)
    return sorted(_RECORDS, key=lambda entry: float(entry["start_ns"]))


def described(activity: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """One activity record as plain data; copies and fills have no grid."""
    name = names[int(activity.kind)]
    entry = {"start_ns": int(activity.start), "end_ns": int(activity.end)}
    if name:
        return {"name": name, "grid": [], "block": [], "cluster": [], "shared_bytes": 0, **entry}
    given = activity.name
    cluster = [int(activity.cluster_x), int(activity.cluster_y), int(activity.cluster_z)]
    return {
        "name": sass.demangle(given.decode() if isinstance(given, bytes) else str(given)),
        "grid": [int(activity.grid_x), int(activity.grid_y), int(activity.grid_z)],
        "block": [int(activity.block_x), int(activity.block_y), int(activity.block_z)],
        "cluster": cluster if math.prod(cluster) > 1 else [],
        "shared_bytes": int(activity.static_shared_memory) + int(activity.dynamic_shared_memory),
        **entry,
    }


def per_call(entries: Sequence[Mapping[str, Any]], calls: int) -> list[dict[str, Any]]:
    """Launches counted and timed per call, in the order of their first appearance; durations in µs.

    Those of one name but another grid, block, cluster or shared memory are kept apart.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in entries:
        what = {name: entry[name] for name in ("name", "grid", "block", "cluster", "shared_bytes")}
        key = tuple(map(str, what.values()))
        total = found.setdefault(key, {**what, "count": 0.0, "duration_us": 0.0})
        total["count"] += 1 / calls
        total["duration_us"] += (entry["end_ns"] - entry["start_ns"]) / 1000 / calls
    for total in found.values():
        total["count"] = round(total["count"], 3)
        total["duration_us"] = round(total["duration_us"], 4)
    return list(found.values())
