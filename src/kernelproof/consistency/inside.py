"""What is read inside a bundle: its documents, their names where private words were taken out, what is configured."""

from __future__ import annotations

import itertools
import math
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernelproof import fingerprints
from kernelproof.verify import MANIFEST

FACTS, CONFIG, MACHINE_CODE = "records/manifest.json", "config.json", "machine-code.json"
RESOLVED = "source/config.resolved.json"  # the same file as CONFIG, which is without private words
CAPTURE = "records/capture/capture.json"
RECORD = re.compile(r"records/(?P<stage>capture|build|test|bench|profile)/(?P<subject>.+)\.json")
MAX_ASKED = 1_000_000  # cases that a configuration asks of all contenders together; 1,000 in such a run
MAX_DEPTH = 8  # of a setting in the configuration
TOLERANCE = 2e-5  # relative: a row has six digits, and so have the samples
PRIMARY = {"cpu": "cpu_clock", "cuda": "graph_slope"}
CAUGHT = ("times escape", "spoils others", "library call passed off")  # a contender whose times are made up
RAN_AND_FAILED = frozenset({"wrong", "crashed", "hung"})
PRIVATE = re.compile(r"<(?:repo|home|prefix|user|host|gpu)>|\[secret\]")  # what stands for a private word
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Contradiction:
    """A member, and what it says together with what it does not agree with."""

    member: str
    message: str


class Bundle:
    """The members' hashes, and the documents among them."""

    def __init__(
        self, sha256: Mapping[str, str], kept: Mapping[str, bytes], documents: Mapping[str, dict[str, Any]]
    ) -> None:
        self.sha256 = sha256
        self.kept = kept
        self.documents = documents
        places = ((name, RECORD.fullmatch(name)) for name in documents)
        self.records = {name: (place["stage"], place["subject"]) for name, place in places if place}
        self.fingerprints: dict[str, tuple[str | None, str]] = {}  # see `fingerprint`
        self.samples_bytes = self.samples = self.asked = 0  # read so far, and cases made up

    @property
    def manifest(self) -> dict[str, Any]:
        return self.documents[MANIFEST]

    def record(self, stage: str, subject: str) -> dict[str, Any] | None:
        """The record of a stage about `operator/variant` and the like; None where there is none."""
        name = f"records/{stage}/{subject}.json"
        if name not in self.documents and PRIVATE.search(subject):
            fitting = [there for there in self.records if alike(name, there)]
            name = fitting[0] if len(fitting) == 1 else name
        return self.documents.get(name)

    def fingerprint(self, key: str) -> tuple[str | None, str]:
        """Of a value of the configuration, and the value in short; None where private words were taken out of it."""
        if key not in self.fingerprints:
            if key.count(".") >= MAX_DEPTH:  # what lies there is read once for each level that is asked for
                raise ValueError("a setting lies deeper than a configuration goes")
            there = fingerprints.text(fingerprints.value(self.documents[CONFIG], key))
            private = PRIVATE.search(f"{key} {there}")
            found = None if private else fingerprints.digest(there)
            self.fingerprints[key] = found, there if len(there) <= 100 else f"{there[:97]}..."
        return self.fingerprints[key]

    @property
    def without_gpu(self) -> bool:
        """Whether the machine was looked at and no GPU was seen."""
        capture = self.documents.get(CAPTURE)
        probe = capture["probes"].get("gpu", {"status": "absent"}) if capture else {"status": "failed"}
        return probe["status"] == "absent" or (probe["status"] == "ok" and not probe["value"])

    @property
    def boards(self) -> list[dict[str, Any]]:
        """The GPUs that the machine was seen to have."""
        probes = self.documents[CAPTURE]["probes"] if CAPTURE in self.documents else {}
        probe = probes.get("gpu", {"status": "absent"})
        return (probe["value"] or []) if probe["status"] == "ok" else []


def judged_by(test: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The project's files that a test was judged by: the operator's own module and what it imports."""
    return [*filter(None, [test.get("module")]), *(test.get("imports") or ())]


def made_of(build: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The files that a build was made of, as BuildRecord.files has them; older records have no binding."""
    return [*build["sources"], *build["headers"], *build.get("binding", ())]


def packed_source(file: Mapping[str, Any]) -> str:
    """The member that a file of the project is packed as."""
    return f"source/{posixpath.normpath(file['path'])}"


def other_source(bundle: Bundle, name: str, file: Mapping[str, Any]) -> Iterator[Contradiction]:
    """A file that a record names is packed as it was then, where it is packed."""
    member = packed_source(file)
    if bundle.sha256.get(member, file["sha256"]) != file["sha256"]:
        yield other_bytes(bundle, member, name, file["sha256"])


def alike(said: str, there: str) -> bool:
    """Whether a name is the one that a record says, where a placeholder may stand for any part of it."""
    first, *rest = PRIVATE.split(said)
    if not rest:
        return said == there
    *middle, last = rest
    at = len(first)
    for part in middle:
        if (found := there.find(part, at + 1)) < 0:
            return False
        at = found + len(part)
    return there.startswith(first) and there.endswith(last) and len(there) > at + len(last)


def quoted(value: object) -> str:
    """A stranger's value, short and harmless to a terminal."""
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def cases_of(bundle: Bundle, name: str, record: Mapping[str, Any], *, of_test: bool = False) -> Iterator[Contradiction]:
    """A case's name says its shape, options and data type, and a shape has the dimensions of the configuration."""
    shapes = in_config(bundle, "operators", record["operator"], "shapes") or {}
    for case in record["cases"]:
        built = id_of_case(case["shape"], case["options"], case["dtype"])
        built = f"{built}-{case['family']}-s{case['seed']}" if of_test else built
        if case["id"] != built and not alike(case["id"], built):
            yield Contradiction(
                name, f"the case {quoted(case['id'])} is by its shape, options and type {quoted(built)}"
            )
        sizes = shapes.get(named_among(case["shape"], shapes))
        drawn = case["shape"] == ",".join(f"{what}={size}" for what, size in case["dims"].items())
        exact = of_test and case["status"] != "passed"  # an exact call, which has a shape of its own
        if sizes is None and not (of_test and drawn) and not exact:
            yield Contradiction(name, f"{quoted(case['id'])}: its shape {quoted(case['shape'])} is not in {CONFIG}")
        differing = {} if sizes is None else {what for what, _ in case["dims"].items() ^ sizes.items()}
        for what in sorted(differing):
            says = f"{quoted(case['id'])}: {quoted(what)} is {quoted(case['dims'].get(what))}"
            yield Contradiction(name, f"{says}, in {CONFIG} {quoted((sizes or {}).get(what))}")
    counted = Counter(case["id"] for case in record["cases"] if not of_test or case["status"] == "passed")
    for case_id, number in counted.items():
        if number > 1:
            yield Contradiction(name, f"the case {quoted(case_id)} stands {number} times")


def id_of_case(shape: str, options: Mapping[str, Any], dtype: str) -> str:
    """As records.Case has it, without the input family and the seed."""
    chosen = [
        what if value is True else value if isinstance(value, str) else f"{what}{value}"
        for what, value in options.items()
        if value is not False
    ]
    return "-".join([shape, *chosen, dtype])


def lacking_of(
    name: str, who: str, what: str, wanted: Iterable[str], had: Collection[str], by: str = CONFIG
) -> Iterator[Contradiction]:
    """What the configuration, or another document, asks for and a record does not have."""
    private = [said for said in had if PRIVATE.search(said)]
    lacking = [one for one in wanted if one not in had and not any(alike(said, one) for said in private)]
    if lacking:
        says = f"{who} of the {what} of {by} it has not {quoted(lacking[0])}"
        yield Contradiction(name, f"{says}, and {len(lacking) - 1} more" if len(lacking) > 1 else says)


def named_among(said: str, there: Iterable[str]) -> str:
    """The one of several names that is said, where a placeholder may stand for a part of it; else what is said."""
    return next((name for name in there if alike(said, name)), said) if PRIVATE.search(said) else said


def contender_of(operator: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A variant or baseline of an operator's configuration."""
    there = {**operator.get("variants", {}), **operator.get("baselines", {})}
    found: Mapping[str, Any] | None = there.get(name)
    return found


def option_combinations(
    bundle: Bundle, selection: Mapping[str, Any], *further: Collection[Any]
) -> list[dict[str, Any]]:
    """Every combination of the options that a stage goes through, as in cases.py; `further`: what each is taken with.

    Raises ValueError for so many that a stranger's configuration would keep us for ever.
    """
    options = selection.get("options") or {}
    bundle.asked += math.prod(map(len, (*options.values(), *further)))
    if bundle.asked > MAX_ASKED:
        raise ValueError(f"{CONFIG} asks for more than {MAX_ASKED} cases")
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def shapes_on(selection: Mapping[str, Any], device: str) -> list[str]:
    """The shapes that a variant for this device goes through, as in config.CaseSelection."""
    return [*selection["shapes"], *(selection.get("cuda_shapes") or [] if device == "cuda" else [])]


def other_bytes(bundle: Bundle, member: str, record: str, sha256: object) -> Contradiction:
    """A member that is not what a record says it was."""
    return Contradiction(member, f"SHA-256 {bundle.sha256[member]}, in {quoted(record)[1:-1]} {quoted(sha256)}")


def in_config(bundle: Bundle, *steps: str) -> Any:
    """A value of the configuration; None where that says nothing."""
    found: Any = bundle.documents.get(CONFIG)
    for step in steps:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def setting_of(bundle: Bundle, key: str, what: str) -> Any:
    """What the configuration says of `operator/variant`, or baseline; None where that is nothing."""
    operator, _, name = key.partition("/")
    both = (in_config(bundle, "operators", operator, kind, name, what) for kind in ("variants", "baselines"))
    return next((found for found in both if found is not None), None)


def found_by_bench(bench: Mapping[str, Any] | None, variant: str) -> Iterator[tuple[str, str]]:
    """A benchmark's word for a variant that is at fault (wrong, crashed, hung, caught), and what says so."""
    for entry in bench["discarded"] if bench else []:
        if entry["what"] == "contender" and entry["contender"] == variant and entry["reason"].startswith(CAUGHT):
            yield entry["reason"].partition(":")[0], entry["reason"]
    for contender in bench["contenders"] if bench else []:
        dropped = re.match("dropped: (crashed|hung|failed)", contender["outcome"])
        wrong = not contender["correct"] and contender["verdict"] == "wrong"
        if contender["name"] == variant and (wrong or dropped):
            yield dropped[1] if dropped and not wrong and dropped[1] != "failed" else "wrong", contender["outcome"]
