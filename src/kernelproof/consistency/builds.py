"""A build's record: what was built is what is configured and packed."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from kernelproof.consistency.inside import (
    CONFIG,
    MACHINE_CODE,
    Bundle,
    Contradiction,
    made_of,
    other_bytes,
    other_source,
    packed_source,
    quoted,
    setting_of,
)
from kernelproof.verify import MANIFEST


def check(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """What was built is what is packed and what is configured, and within the budget where that is said."""
    build, key = bundle.documents[name], bundle.records[name][1]
    for what in ("role", "device", "abi", *(("macros", "flags") if build["abi"] != "python" else ())):
        asked = setting_of(bundle, key, what)
        if asked is not None and build[what] != asked:
            yield Contradiction(name, f"{what} is {quoted(build[what])}, in {CONFIG} {quoted(asked)}")
    rungs = [f"{build['operator']}/{rung}" for rung in setting_of(bundle, key, "rungs") or ()]  # of a dispatcher
    asked = {posixpath.normpath(path) for each in (key, *rungs) for path in setting_of(bundle, each, "sources") or ()}
    built = {posixpath.normpath(file["path"]) for file in build["sources"]}
    if asked and built and build["status"] == "ok" and asked != built:  # not all is read where it is not built
        yield Contradiction(name, f"sources is {quoted(sorted(built))}, in {CONFIG} {quoted(sorted(asked))}")
    sizes = {row["path"]: row["bytes"] for row in bundle.documents.get(MANIFEST, {"members": []})["members"]}
    for file in made_of(build):
        member, other = packed_source(file), list(other_source(bundle, name, file))
        yield from other
        if not other and (size := file.get("bytes")) is not None and sizes.get(member, size) != size:
            yield Contradiction(name, f"{quoted(member)} has {quoted(size)} bytes, and as packed {sizes[member]}")
    for row in build["budget"]:
        if row["ok"] != (row["value"] <= row["limit"]):
            what = quoted(f"{row['kernel']} on {row['arch']}: {row['what']}")
            says = f"{what} is {quoted(row['value'])} of {quoted(row['limit'])}"
            yield Contradiction(name, f"{says}, and that this is within the budget is {quoted(row['ok'])}")
    yield from _budget(bundle, name, build, key)
    for file in (*build["cubins"], *([build["library"]] if build["library"] else ())):
        if build["signature"] not in PurePosixPath(file["path"]).parts:
            says = f"its signature is {quoted(build['signature'])}"
            yield Contradiction(name, f"{says}, and {quoted(file['path'])} is not where such a build is kept")


def _budget(bundle: Bundle, name: str, build: Mapping[str, Any], key: str) -> Iterator[Contradiction]:
    """Each kernel of each cubin is held to what is configured, by its own figures."""
    limits = setting_of(bundle, key, "budget")
    if limits is None or build["status"] != "ok" or build["abi"] == "python" or setting_of(bundle, key, "rungs"):
        return
    used: dict[tuple[str, str, str], list[int]] = defaultdict(list)  # of kernels in two files of one name
    for cubin in build["cubins"]:
        for kernel in cubin["kernels"]:
            spilled = kernel["spill_store_bytes"] + kernel["spill_load_bytes"]
            for what, value in (kernel | {"spill_bytes": spilled}).items():
                if what in limits:
                    used[cubin["arch"], kernel["demangled"], what].append(value)
    held = {(row["arch"], row["kernel"], row["what"]): row for row in build["budget"]}
    for place in sorted(used.keys() - held.keys()):
        yield Contradiction(name, f"{quoted(' '.join(place))} is not held to the budget that {CONFIG} has")
    for place, row in held.items():
        if row["limit"] != limits.get(row["what"]):
            says = f"{quoted(' '.join(place))}: the budget is {quoted(row['limit'])}"
            yield Contradiction(name, f"{says}, in {CONFIG} {quoted(limits.get(row['what']))}")
        if row["value"] not in used.get(place, [row["value"]]):
            says = f"{quoted(' '.join(place))} is {quoted(row['value'])} in the budget"
            yield Contradiction(name, f"{says}, and {quoted(used[place][0])} in the cubin")


def same_machine_code(bundle: Bundle) -> Iterator[Contradiction]:
    """Which variants are one binary, as in sass.identical_machine_code."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name, (stage, _) in bundle.records.items():
        build = bundle.documents[name]
        if stage != "build" or build["status"] != "ok" or build["role"] != "variant" or build["abi"] == "python":
            continue
        device_code = tuple(sorted((cubin["arch"], cubin["sass_sha256"]) for cubin in build["cubins"]))
        host_code = build.get("host_code_sha256")
        if device_code or host_code is not None:
            key = (build["operator"], build["device"], device_code, host_code)
            groups[key].append(f"{build['operator']}/{build['variant']}")
    ours = {tuple(group) for group in bundle.manifest["identical_machine_code"]}
    theirs = {tuple(sorted(group)) for group in groups.values() if len(group) > 1}
    for group in sorted(ours ^ theirs):
        how = "called identical, and differs" if group in ours else "identical, and is not called so,"
        yield Contradiction(MANIFEST, f"the machine code of {quoted(', '.join(group))} is {how} by the builds' records")


def cubins(bundle: Bundle) -> Iterator[Contradiction]:
    """Every cubin is one that its variant's build made."""
    for member in bundle.sha256:
        if not member.startswith("cubins/"):
            continue
        path = PurePosixPath(member.removeprefix("cubins/"))
        build = bundle.record("build", str(path.parent))
        made = [cubin["sha256"] for cubin in build["cubins"] if cubin["arch"] == path.stem] if build else []
        if not made:
            yield Contradiction(member, "no build's record has machine code of this name")
        elif bundle.sha256[member] not in made:
            yield other_bytes(bundle, member, f"records/build/{path.parent}.json", made[-1])


def machine_code(bundle: Bundle) -> Iterator[Contradiction]:
    """The hashes of normalised machine code are those of the builds."""
    expected = {}
    for name, (stage, _) in bundle.records.items():
        build = bundle.documents[name]
        if stage == "build" and build["cubins"]:
            hashes = {PurePosixPath(cubin["path"]).stem: cubin["sass_sha256"] for cubin in build["cubins"]}
            expected[f"{build['operator']}/{build['variant']}"] = hashes
    said = bundle.documents.get(MACHINE_CODE, {})
    for key in sorted(expected.keys() | said.keys()):
        if expected.get(key) != said.get(key):
            message = f"{quoted(key)} is {quoted(said.get(key))}, in the build's record {quoted(expected.get(key))}"
            yield Contradiction(MACHINE_CODE, message)
