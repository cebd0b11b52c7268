"""A profile's record: the report that is packed is its own, and its case costs what the benchmark says."""

from __future__ import annotations

from collections.abc import Iterator

from kernelproof.consistency.inside import (
    CONFIG,
    PRIVATE,
    TOLERANCE,
    Bundle,
    Contradiction,
    in_config,
    other_bytes,
    quoted,
)


def check(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """What Nsight Compute counted is in its report, which is not read here; it is the one that was read."""
    profile, key = bundle.documents[name], bundle.records[name][1]
    member, report = f"profile/{key}.ncu-rep", profile["report"]
    if report and bundle.sha256.get(member, report["sha256"]) != report["sha256"]:
        yield other_bytes(bundle, member, name, report["sha256"])
    shape = in_config(bundle, "operators", profile["operator"], "profile", "shape")
    case_id = profile["case"] or ""
    if shape and case_id and not PRIVATE.search(case_id) and not f"{case_id}-".startswith(f"{shape}-"):
        yield Contradiction(name, f"it is of the case {quoted(case_id)}, in {CONFIG} of {quoted(shape)}")
    bench = bundle.record("bench", f"{profile['operator']}-cuda") or {"cases": []}
    for case in bench["cases"]:
        for what, figure in (profile["cost"] or {}).items() if case["id"] == case_id else ():
            if abs(figure - case[what]) > TOLERANCE * abs(case[what]):
                says = f"{quoted(case_id)}: {quoted(what)} is {quoted(figure)}"
                yield Contradiction(name, f"{says}, in the benchmark's record {quoted(case[what])}")
