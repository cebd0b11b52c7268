"""The machine: the facts that everybody asks for first, and every probe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelproof import formats
from kernelproof.records import OK, CaptureRecord, Probe
from kernelproof.views.common import Badge, Fact, Limits, flatten, shown_as


@dataclass(frozen=True)
class ProbeView:
    """A probe of the capture stage, its value flattened into lines."""

    name: str
    badge: Badge
    facts: tuple[Fact, ...]
    error: str
    left_out: int


PROBE_TITLES = {
    "cpu": "CPU",
    "os": "Operating system",
    "gpu": "GPU",
    "cuda_toolchain": "CUDA toolchain",
    "python": "Python",
    "packages": "Packages",
    "git": "Git",
    "container": "Container",
    "environment": "Environment variables",
    "limits": "Limits",
}


def probes(capture: CaptureRecord | None, limits: Limits) -> list[ProbeView]:
    """Every probe, in the order of the record."""
    return [_probe(name, probe, limits) for name, probe in (capture.probes.items() if capture else ())]


def _probe(name: str, probe: Probe, limits: Limits) -> ProbeView:
    facts = [] if probe.value is None else list(flatten(probe.value))
    word = {"ok": Badge("good", "ok"), "failed": Badge("bad", "failed"), "absent": Badge("muted", "absent")}
    return ProbeView(
        PROBE_TITLES.get(name, name.replace("_", " ")),
        word.get(probe.status, Badge("muted", probe.status)),
        tuple(facts[: limits.packages]),
        probe.error or "",
        max(0, len(facts) - limits.packages),
    )


def machine(capture: CaptureRecord | None) -> list[Fact]:
    """The few facts that everybody asks for first; what a probe could not find is said instead."""
    if capture is None:
        return []
    found = {name: probe.value for name, probe in capture.probes.items() if probe.status == OK}
    cores = _mapping(found.get("cpu")).get("usable_cores")
    usable = {"cores": formats.plural(cores, "core")} if isinstance(cores, int) else {}
    lines = [
        ("GPU", _gpu_line(capture.probes.get("gpu"))),
        ("CPU", _join({**_mapping(found.get("cpu")), **usable}, ("model", "{}"), ("cores", "{} usable"))),
        ("memory", _join(found.get("memory"), ("total_bytes", "{}"))),
        ("system", _join(found.get("os"), ("name", "{}"), ("kernel", "kernel {}"))),
        ("Python", _join(found.get("python"), ("version", "{}"))),
        ("torch", _join(found.get("packages"), ("torch", "{}"))),
        ("nvcc", _join(_mapping(found.get("cuda_toolchain")).get("nvcc"), ("version", "{}"), ("origin", "from {}"))),
        ("host compiler", _join(found.get("host_compiler"), ("name", "{}"), ("version", "{}"))),
    ]
    return [Fact(name, text) for name, text in lines if text]


def _gpu_line(probe: Probe | None) -> str:
    if probe is None:
        return ""
    if probe.status != OK:
        return "no NVIDIA GPU" if probe.status == "absent" else f"GPU not known: {probe.error or 'the probe failed'}"
    boards = probe.value if isinstance(probe.value, list) else [probe.value]
    parts = ("name", "{}"), ("compute_capability", "sm {}"), ("driver", "driver {}"), ("power_limit_w", "{} W limit")
    alike = Counter(_join(board, *parts) for board in boards)
    return "; ".join(line if number == 1 else f"{number} × {line}" for line, number in alike.items())


def _join(value: Any, *parts: tuple[str, str]) -> str:
    known = _mapping(value)
    return ", ".join(text.format(shown_as(name, known[name])) for name, text in parts if known.get(name) is not None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
