"""What goes into a bundle, under which name, in which class, and with which bytes.

`manifest` hashes the members and `bundle` packs them; both take the bytes from here, so that what is hashed is what is
packed. Text is scrubbed by `privacy`, for this machine and for those that measured; where bytes must stay as they are
(sources, machine code) a credential stops the bundle instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelproof import own_modules, privacy, repository
from kernelproof.config import Config, OperatorConfig
from kernelproof.errors import BundleError
from kernelproof.records import (
    BenchRecord,
    BuildRecord,
    CaptureRecord,
    CeilingsRecord,
    ManifestRecord,
    Member,
    ProfileRecord,
    Record,
    TestRecord,
)
from kernelproof.repository import GENERATED

IDENTITY, MEASUREMENT, CONTEXT = "identity", "measurement", "context"

# What a machine needs to run everything again from the bundle alone.
SOURCE_FOLDERS = ("src", "csrc", "workflow", "envs")
SOURCE_FILES = ("Snakefile", "config.yaml", "repro.sh", "pyproject.toml", "README.md", "LICENSE")
RESOLVED = "config.resolved.json"  # beside the sources: the configuration with what was set on the command line
NOT_SOURCE = re.compile(r"\.(?:pyc|pyo|so|o|a|cubin|egg-info)$|^\.(?!clang-format)|^__pycache__$")
LOGGED_STAGES = ("capture", "build", "test", "bench", "profile")  # the later stages' logs are still being written

# When a bundle is too large, members go in this order; nothing else is ever left out. (prefix, suffix, why it may go)
DROPPED_FIRST = (
    ("profile/", ".csv", "the .ncu-rep holds the same counters"),
    ("sass/", "", "it can be disassembled from the cubin, and its hash is in the build's record"),
    ("cubins/", "", "its hash and resources are in the build's record, and the sources rebuild it"),
    ("profile/", ".ncu-rep", "the profile's record holds its metrics, advice and hot lines"),
)

_TEXT = {".json", ".xml", ".log", ".txt", ".csv", ".md", ".jsonl"}


def gather(config: Config, records: dict[str, Record]) -> list[Member]:
    """Every member that lies on disk, hashed. `records` are by path relative to the root.

    Raises BundleError for a credential in a file that cannot be changed.
    """
    wanted = dict(_wanted(config, records))
    names = privacy.noted(config.results)
    members = []
    for name, (source, member_class) in sorted(wanted.items()):
        if (config.root / source).is_file():
            data = content(config.root, source, name, names)
            members.append(Member(name, hashlib.sha256(data).hexdigest(), len(data), member_class, source))
    return members


def content(root: Path, source: str, name: str, names: privacy.Names) -> bytes:
    """A member's bytes as they are packed, without `names` (privacy.noted).

    Raises BundleError for a credential where nothing may be replaced.
    """
    data = (root / source).read_bytes()
    if Path(name).suffix in _TEXT and not name.startswith("source/"):
        if name.endswith(".json"):
            data = _json_cleaned(data, names)
        return _text_cleaned(data, names, markup=name.endswith(".xml"))
    if found := privacy.secret_in(data):
        raise BundleError(
            f"it holds what looks like a credential ({found})",
            subject=source,
            hint="take it out of the file, and revoke it",
        )
    return data


def _wanted(config: Config, records: dict[str, Record]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(name in the bundle, (path from the root, class)) of everything that belongs in; it may not exist."""
    for name in ("config.json", f"source/{RESOLVED}"):  # to read, and to run it again
        yield name, ("results/config.json", IDENTITY)
    for path, record in records.items():
        member_class = MEASUREMENT if isinstance(record, TestRecord | BenchRecord | ProfileRecord) else CONTEXT
        yield f"records/{Path(path).relative_to('results')}", (path, member_class)
        yield from _of_record(record)
    for stage in LOGGED_STAGES:
        for path in _files(config.root, [f"results/logs/{stage}", f"results/logs/{stage}.log"]):
            if (config.root / path).stat().st_size:
                yield f"logs/{Path(path).relative_to('results/logs')}", (path, CONTEXT)
    for path in _sources(config, [record for record in records.values() if isinstance(record, BuildRecord)]):
        yield f"source/{path}", (path, IDENTITY)


def _of_record(record: Record) -> Iterator[tuple[str, tuple[str, str]]]:
    """The files that a record names."""
    match record:
        case BuildRecord():
            home = f"{record.operator}/{record.variant}"
            for cubin in record.cubins:
                yield f"cubins/{home}/{cubin.arch}.cubin", (cubin.path, CONTEXT)
                yield f"sass/{home}/{cubin.arch}.sass", (str(Path(cubin.path).with_suffix(".sass")), CONTEXT)
            if record.log:
                yield f"logs/build/{home}.build.log", (record.log, CONTEXT)
        case TestRecord():
            home = f"{record.operator}/{record.variant}"
            if record.junit:
                yield f"junit/{home}.xml", (record.junit, MEASUREMENT)
            if record.log:
                yield f"logs/test/{home}.test.log", (record.log, CONTEXT)
            if record.sealing and record.sealing.launches:
                yield f"launches/{home}.json", (record.sealing.launches.path, MEASUREMENT)
        case BenchRecord():
            if record.samples:
                yield f"samples/{Path(record.samples).name}", (record.samples, MEASUREMENT)
        case ProfileRecord():
            home = f"{record.operator}/{record.variant}"
            if record.report:
                yield f"profile/{home}.ncu-rep", (record.report.path, MEASUREMENT)
            if record.csv:
                yield f"profile/{home}.csv", (record.csv, MEASUREMENT)
        case CaptureRecord() | CeilingsRecord():
            pass


def _sources(config: Config, builds: list[BuildRecord]) -> list[str]:
    """The project's own folders, and whatever the configuration names or a build read, headers anywhere among it.

    What git ignores belongs in only where it was named or read.
    """
    owners = config.operators.values()
    named = [config.source, *(path for owner in owners for path in _operator_files(owner, config.root))]
    files = [file.path for build in builds for file in build.files]
    read = {path for path in files if not path.startswith("<")}  # a compiler's and a system's
    found = set(_files(config.root, [*SOURCE_FOLDERS, *SOURCE_FILES, *named, *read]))
    kept = repository.not_ignored(config.root)
    if kept is not None:
        found &= kept | read | set(map(os.path.normpath, named))
    return sorted(found)


def _operator_files(operator: OperatorConfig, root: Path) -> Iterator[str]:
    """Files that the configuration names: an operator may live outside the project's own folders."""
    yield from own_modules.files_of(operator.module, root)
    yield from filter(None, [operator.binding])
    yield from operator.include
    for variant in (*operator.variants.values(), *operator.baselines.values()):
        yield from variant.sources
        if ".py:" in variant.entry:
            yield variant.entry.partition(":")[0]


def _files(root: Path, names: Iterable[str]) -> list[str]:
    """Regular files at and below `names`, by path from the root; symbolic links and what is made are passed over."""
    found = []
    for name in names:
        top = root / name
        if not top.resolve().is_relative_to(root.resolve()):
            continue  # outside the repository: the build's record has its hash
        if top.is_file() and not top.is_symlink():
            found.append(os.path.normpath(name))
        for folder, folders, files in os.walk(top):
            folders[:] = [f for f in folders if f not in GENERATED and not NOT_SOURCE.search(f)]
            paths = (Path(folder, file) for file in files if not NOT_SOURCE.search(file))
            found += [str(path.relative_to(root)) for path in paths if path.is_file() and not path.is_symlink()]
    return found


def command_of_run(facts: ManifestRecord, configuration: str, *, fresh: bool = False) -> str:
    """What to type where the sources lie for a whole run; `fresh`: with nothing taken over from an earlier one.

    Without a workflow among the sources it is that of `$KERNELPROOF`, a clone in which `./repro.sh` has run.
    """
    file = shlex.quote(configuration)
    if facts.holds_workflow:
        option = "" if configuration == "config.yaml" else f" -- --configfile {file}"
        return f"./repro.sh{' --fresh' if fresh else ''}{option}"
    anew = " --forceall" if fresh else ""
    return f'kernelproof run -- --snakefile "$KERNELPROOF/Snakefile" --configfile {file}{anew}'


# --- nothing private --------------------------------------------------------------------------------------------------


def cleaned_facts(config: Config, facts: ManifestRecord) -> ManifestRecord:
    """The facts without anything private, all but the paths of files: by those the members are found."""
    cleaned = privacy.cleaned(facts, privacy.noted(config.results))
    return dataclasses.replace(cleaned, folder=facts.folder, records=facts.records, members=facts.members)


def cleaned_page(config: Config, data: bytes) -> bytes:
    """A page of the report without anything private that came to it some other way than through records."""
    return _text_cleaned(data, privacy.noted(config.results), markup=True)


def _json_cleaned(data: bytes, names: privacy.Names) -> bytes:
    """JSON with its strings scrubbed before they were escaped; the same bytes where nothing was private."""
    try:
        value = json.loads(data)
    except ValueError:
        return data
    cleaned = privacy.cleaned(value, names)
    return data if cleaned == value else (json.dumps(cleaned, indent=1) + "\n").encode()


def _text_cleaned(data: bytes, names: privacy.Names, *, markup: bool) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    if markup:  # pytest writes the machine's name
        text = re.sub(r'(?<= hostname=")[^"]*(?=")', "host", privacy.scrubbed_markup(text, names))
    else:
        text = privacy.scrubbed(text, names)
    return text.encode("utf-8", "surrogateescape")
