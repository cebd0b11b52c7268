"""A bundle forged with care, every hash brought up to date, is caught where it contradicts itself."""

import dataclasses
import gzip
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packed_run
import pytest
from test_bundle import Run, unpacked

from kernelproof import (
    bundle,
    cases,
    claims,
    config,
    consistency,
    contenders,
    manifest,
    methods,
    privacy,
    records,
    runs,
    samples,
    statistics,
    verify,
)
from kernelproof.consistency.inside import Bundle
from kernelproof.contest.measurement import OTHERS_SHARE
from kernelproof.errors import BundleError
from kernelproof.ladder import outcomes, selection
from kernelproof.records import BenchRecord, TestRecord

REFERENCE = Path(__file__).resolve().parents[1] / "reports" / "reference" / "nvidia-h200"
PLAIN, TILED = "records/test/op/plain.json", "records/test/op/tiled.json"
BENCH, SAMPLES = "records/bench/op-cpu.json", "samples/op-cpu.csv.gz"
TEST = "records/test/op/plain.json"
FACTS, BUILD, CUDA_BUILD = ("records/manifest.json", "records/build/op/plain.json", "records/build/op/tiled.json")

Members = dict[str, bytes]

# The columns of visits, each of which ended before the one in front of it.
VISITED = "".join(
    f"{line},{visit}\n"
    for line, visit in zip(
        packed_run.SAMPLES.splitlines(),
        ["order,calls,short_us,long_us,offset_s", *(f"0,9,,,{900 - number}" for number in range(24))],
        strict=True,
    )
)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Members:
    return unpacked(Run(tmp_path_factory.mktemp("run")).pack())


def forged(tmp_path: Path, members: Members, *, gathered: bool = True) -> verify.VerifyResult:
    """The verdict on these members, hashes, sums and archive made as the packer makes them.

    gathered: the hashes in records/manifest.json too.
    """
    if gathered and FACTS in members:
        listed = json.loads(members[FACTS])
        for row in listed["members"]:
            row["sha256"] = hashlib.sha256(members.get(row["path"], b"")).hexdigest()
        listed["members"] = [row for row in listed["members"] if row["path"] in members]
        members = members | {FACTS: json.dumps(listed).encode()}
    facts = json.loads(members["manifest.yaml"])
    known = {row["path"]: row for row in facts["members"]}
    inside = {name: data for name, data in members.items() if name not in ("manifest.yaml", "SHA256SUMS")}
    facts["members"] = [
        {
            **known.get(name, {"path": name, "class": "context", "source": None}),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for name, data in sorted(inside.items())
    ]
    inside["manifest.yaml"] = json.dumps(facts).encode()
    sums = verify.sums_text({name: hashlib.sha256(data).hexdigest() for name, data in inside.items()})
    path = tmp_path / "forged.tar.gz"
    path.write_bytes(bundle.pack(facts["bundle"], sorted((inside | {"SHA256SUMS": sums}).items()), 0))
    return verify.run(path)


def edited(name: str, *where: str | int, value: object) -> Callable[[Members], Members]:
    """One value of a document replaced."""

    def change(members: Members) -> Members:
        document = json.loads(members[name])
        inner: Any = document
        for step in where[:-1]:
            inner = inner[step]
        inner[where[-1]] = value
        return members | {name: json.dumps(document).encode()}

    return change


def replaced(name: str, data: bytes) -> Callable[[Members], Members]:
    return lambda members: members | {name: data}


def swapped(one: str, other: str) -> Callable[[Members], Members]:
    return lambda members: members | {one: members[other], other: members[one]}


def removed(name: str) -> Callable[[Members], Members]:
    return lambda members: {path: data for path, data in members.items() if path != name}


def both(*changes: Callable[[Members], Members]) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        for one in changes:
            members = one(members)
        return members

    return change


def in_both_manifests(*where: str | int, value: object) -> Callable[[Members], Members]:
    return both(*(edited(name, *where, value=value) for name in ("manifest.yaml", "records/manifest.json")))


def configured(*where: str | int, value: object) -> Callable[[Members], Members]:
    return both(*(edited(name, *where, value=value) for name in ("config.json", "source/config.resolved.json")))


def replaced_in(name: str, old: bytes, new: bytes) -> Callable[[Members], Members]:
    return lambda members: members | {name: members[name].replace(old, new)}


def claimed(change: Callable[[Members], Members]) -> Callable[[Members], Members]:
    """The first variant claims to be faster, by the configuration."""
    return both(configured("operators", "op", "variants", "plain", "gate", value=True), change)


def same_code(one: str, other: str) -> Callable[[Members], Members]:
    """The machine code of one build's record is also that of the other's."""

    def change(members: Members) -> Members:
        build, there = (json.loads(members[name]) for name in (one, other))
        build |= {what: there[what] for what in ("cubins", "host_code_sha256")}
        return members | {one: json.dumps(build).encode()}

    return change


CROWDED = edited(BENCH, "times", 1, "flags", value=["cores_shared"])
OVER_BUDGET = {"arch": "sm_89", "kernel": "k", "what": "registers", "limit": 10, "value": 999}
BENCHED = next(dataclasses.asdict(one) for one in packed_run.made_records() if isinstance(one, BenchRecord))
TESTED = next(dataclasses.asdict(one) for one in packed_run.made_records() if isinstance(one, TestRecord))
DROPPED = {"what": "contender", "contender": "library", "case": None, "reason": "crashed"}
UNOPPOSED = {"best_baseline": None, "ratio": None, "low": None, "high": None, "passed": False}
NOTHING_DISCARDED = {"what": "samples", "case": "large-float32", "mode": "hot", "method": "cpu_clock", "samples": 0}
DIRTY = {"dirty": True, "diff_sha256": "a" * 64}
TIMES, CONTENDERS = BENCHED["times"], BENCHED["contenders"]
THROTTLED = "0,4,plain,large-float32,hot,cpu_clock,1,hw_slowdown\n"
CONTEXT = [{"path": "config.json", "class": "context", "source": None}]
HEAD, *ROWS = packed_run.SAMPLES.splitlines()
ONE_PROCESS = "\n".join([HEAD, *(row for row in ROWS if row.startswith("0,"))]).encode()
UNEVEN = "\n".join([HEAD, *(row.replace("clock,9", "clock,6") if row[0] == "0" else row for row in ROWS)]).encode()
SLOPED = "\n".join(  # each 10 µs and eight calls longer
    [f"{HEAD},calls,short_calls,short_us,long_us"]
    + [f"{row},9,1,10,{10 + 8 * float(row.split(',')[6]):.6g}" for row in ROWS]
)
TWIN = "0,0,plain,large-float16,hot,cpu_clock,9,\n"
ALL_ZEROS = "\n".join([HEAD, *("0" * (1 + int(row[0])) + row[1:] for row in ROWS)])  # one process by three names
OTHER_SAMPLES = packed_run.SAMPLES.replace("plain", "other").replace("library", "plain").encode()


PROFILE = "records/profile/op/tiled.json"
SEALING = {"sealed": 3, "library": 0, "left": [], "cubins": [], "launches": None}
EXAMINED = {"tool": "memcheck", "status": "passed", "calls": 2, "failures": []}
WIDE = {"bound_factor": 3.0, "rms_factor": 1.5, "bias_case": 1 / 16, "bias_suite": 1 / 64}
COLD = {"sets": 3, "set_bytes": 10, "cache_bytes": 50, "exceeds_cache": True}
LEFT = {"contender": "plain", "case": "large-float32", "mode": "cold", "outcome": "x"}
HELD = {"arch": "sm_89", "kernel": "k", "what": "registers", "limit": 120, "value": 255, "ok": False}
USED = {"demangled": "k", "registers": 255, "shared_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0}


def sealed(**said: object) -> Callable[[Members], Members]:
    """The CUDA variant says that it ran from cubins alone."""
    return both(edited(TILED, "trust", value="sealed"), edited(TILED, "sealing", value=SEALING | said))


def examined(**said: object) -> Callable[[Members], Members]:
    """A tool of compute-sanitizer ran on the CUDA variant."""
    return edited(TILED, "sanitizer", value={"runs": [EXAMINED | said]})


def held(**said: object) -> Callable[[Members], Members]:
    """A kernel of the CUDA variant and its row in the budget."""
    used, row = edited(CUDA_BUILD, "cubins", 0, "kernels", value=[USED]), HELD | said
    return both(used, edited(CUDA_BUILD, "budget", value=[row | {"ok": row["value"] <= row["limit"]}]))


def wall_slope(median_us: float) -> Callable[[Members], Members]:
    """The first time has one by the wall beside it."""
    wall = BENCHED["times"][0] | {"method": "wall_slope", "median_us": median_us, "low_us": 1.0, "high_us": 99.0}
    return edited(BENCH, "times", value=[*BENCHED["times"], wall])


def skipped_without_a_word(members: Members) -> Members:
    cases = [*TESTED["cases"], TESTED["cases"][0] | {"id": "b", "status": "skipped", "reason": None}]
    return edited(TEST, "cases", value=cases)(members)


def test_an_honest_bundle_agrees_with_itself(tmp_path: Path, honest: Members) -> None:
    result = forged(tmp_path, honest)
    assert (result.problems, result.status, result.exit_code, result.consistent) == ([], "whole", 0, True)


@pytest.mark.parametrize(("said", "consistent"), [("crashed", True), ("correct", True), ("wrong", False)])
def test_what_the_benchmark_found_may_be_the_verdict(
    tmp_path: Path, honest: Members, said: str, consistent: bool
) -> None:
    """Manifests of before have the test's word."""
    change = both(
        edited(BENCH, "contenders", 0, "outcome", value="dropped: crashed (hot)"),
        in_both_manifests("verdicts", 0, "bad", value=True),
        in_both_manifests("verdicts", 0, "correctness", value=said),
        in_both_manifests("overall", value="bad"),
    )
    result = forged(tmp_path, change(honest))
    assert result.consistent is consistent, result.problems


PYTHON = {"operators": {"op": {"baselines": {"library": {"abi": "python"}}}}}


@pytest.mark.parametrize(("config", "needed"), [(PYTHON, False), ({}, True), ({"operators": []}, True)])
def test_what_needs_no_build_needs_no_record_of_one(config: dict[str, Any], needed: bool) -> None:
    """Stages that are run by hand build the variants alone."""
    verdict = {"operator": "op", "device": "cpu", "role": "baseline", "build": "not_needed"}
    verdict |= {"correctness": "missing", "profile": "not_needed"}
    found = dict(consistency.manifests._line(Bundle({}, {}, {"config.json": config}), "op/library", verdict))
    assert ("build" in found) is needed


@pytest.mark.parametrize(
    ("change", "member", "says"),
    [
        (edited(BENCH, "times", 0, "median_us", value=0.10035), BENCH, "median_us is 0.10035, by the samples 10.0349"),
        (edited(BENCH, "times", 0, "samples", value=1200), BENCH, "samples is 1200, by the samples 12"),
        (edited(BENCH, "times", 0, "processes", value=5), BENCH, "processes is 5, by the samples 3"),
        (edited(BENCH, "ratios", 0, "ratio", value=0.885), BENCH, "ratio is 0.885, by the samples 0.9"),
        (edited(BENCH, "ratios", 0, "ratio", value=0.009), BENCH, "the ratio lies outside of its interval, 0.009"),
        (edited(BENCH, "ratios", 0, "high", value=1.3), BENCH, "the word is 'faster', and the ratio 0.9 (0.88 to 1.3)"),
        (edited(BENCH, "oracle", 0, "high", value=0.91), BENCH, "high is 0.91, against 'library' 0.92"),
        (edited("config.json", "gate", "max_ratio", value=0.8), BENCH, "its upper bound is 0.92 of 0.8"),
        (edited(BENCH, "samples", value="results/none.csv.gz"), BENCH, "its samples are not in the bundle"),
        (
            both(
                lambda members: members | {"samples/other.csv.gz": members[SAMPLES]},
                edited(BENCH, "samples", value="results/other.csv.gz"),
            ),
            *(BENCH, "its samples are 'results/other.csv.gz', and belong into 'samples/op-cpu.csv.gz'"),
        ),
        (
            both(
                edited(BENCH, "times", 0, "samples", value=1),
                edited(BENCH, "times", 0, "reasons", value=["<repo>"]),
            ),
            *(BENCH, "samples is 1, by the samples 12"),
        ),
        (
            both(
                edited(BENCH, "ratios", 0, "ratio", value=0.885),
                edited(BENCH, "ratios", 0, "flags", value=["[secret]"]),
            ),
            *(BENCH, "ratio is 0.885, by the samples 0.9"),
        ),
        (
            replaced(SAMPLES, gzip.compress(UNEVEN)),
            *(BENCH, "'plain / library large-float32 hot': low is 0.88, by Student's t over the samples at most 0."),
        ),
        (
            replaced(SAMPLES, gzip.compress(SLOPED.replace(",10,82\n", ",10,83\n", 1).encode())),
            *(SAMPLES, "time_us is '9', by its lengths 9.125 ('83' less '10' µs for 8 calls)"),
        ),
        (
            replaced(SAMPLES, gzip.compress(packed_run.SAMPLES.replace("cpu_clock", "graph_slope").encode())),
            *(SAMPLES, "4 of 4 times do not say what they are the slope of; so it is in 6 rows"),
        ),
        (
            replaced(SAMPLES, gzip.compress(ONE_PROCESS)),
            *(BENCH, "the word is 'faster', and processes that timed both are 1 of 2"),
        ),
        (
            replaced(SAMPLES, gzip.compress(ONE_PROCESS)),
            *(BENCH, "it passes the gate, and processes that timed both are 1 of 2"),
        ),
        (edited(BENCH, "processes", value=50), BENCH, "timed in 3 processes, and by the record there were 50"),
        (edited(BENCH, "processes", value=2), BENCH, "timed in 3 processes, and by the record there were 2"),
        (
            edited(BENCH, "times", value=TIMES[:1]),
            *(BENCH, "'library large-float32 hot cpu_clock': there are 12 samples that count, no time"),
        ),
        (
            replaced(SAMPLES, gzip.compress((packed_run.SAMPLES + THROTTLED).encode())),
            *(BENCH, "'plain large-float32 hot cpu_clock': 0 samples are said to be discarded, and 1 do not count"),
        ),
        (
            edited("manifest.yaml", "members", value=CONTEXT),
            *("config.json", "its class is 'context', and what it is is 'identity'"),
        ),
        (edited(BENCH, "contenders", value=[]), BENCH, "'plain' has a time, and is not among the contenders"),
        (edited(BENCH, "contenders", 1, "role", value="variant"), BENCH, "and its test's role is 'baseline'"),
        (edited(BENCH, "oracle", value=[]), BENCH, "it took part, and stands before the gate 0 times"),
        (
            edited(
                BENCH, "untimed", value=[{"contender": "plain", "case": "c", "mode": "cold", "outcome": "no sample"}]
            ),
            *(BENCH, "'plain c cold': it took part, and stands before the gate 0 times"),
        ),
        (
            edited(BENCH, "oracle", 0, "best_baseline", value=None),
            *(BENCH, "best_baseline is None, and 'library' took 11.1499 µs"),
        ),
        (
            edited(BENCH, "oracle", 0, "best_baseline", value="decoy"),
            *(BENCH, "best_baseline is 'decoy', and the record has no such baseline's time (role None)"),
        ),
        (edited(BENCH, "times", 0, "method", value="floor"), BENCH, "is 'library', and the variant has no time there"),
        (
            both(
                edited(BENCH, "contenders", value=[*CONTENDERS, {**CONTENDERS[1], "name": "quick"}]),
                edited(BENCH, "times", value=[*TIMES, {**TIMES[1], "contender": "quick", "median_us": 5.0}]),
            ),
            *(BENCH, "best_baseline is 'library' with 11.1499 µs, and 'quick' took 5"),
        ),
        (
            edited(PLAIN, "cases", 0, "failures", value=[{"criterion": "bound", "message": "m"}]),
            *(PLAIN, "the case 'small-float32-normal-s0' is 'passed', and failures is [{'criterion': 'bound'"),
        ),
        (edited(PLAIN, "cases", 0, "nonfinite", value=17), PLAIN, "is 'passed', and nonfinite is 17"),
        (edited(PLAIN, "cases", 0, "rms_ratio", value=1.5), PLAIN, "is 'passed', and rms_ratio is 1.5 of 1"),
        (removed(SAMPLES), BENCH, "its samples are not in the bundle"),
        (
            replaced(SAMPLES, gzip.compress(VISITED.encode())),
            SAMPLES,
            "'process 0, large-float32 hot, block 0, library': it ended before the visit that precedes it did",
        ),
        (
            both(
                edited(TEST, "cases", 0, "rms_error", value=2.0), edited(TEST, "cases", 0, "max_abs_error", value=1.0)
            ),
            TEST,
            "the root of its mean square error is 2.0, and the largest error 1.0",
        ),
        (edited(TEST, "precision", "p", value="float16"), TEST, "it was held to the precision {"),
        (edited(TEST, "error_histogram", value=None), TEST, "0.5 of the bound, and no error was counted"),
        (edited(TEST, "cases", 0, "max_bound_ratio", value=None), TEST, "is 'passed', and no error of it is told"),
        (skipped_without_a_word, TEST, "the case 'b' is 'skipped', and it is not said why"),
        (edited(TEST, "bias_suite_ratio", value=-40.0), TEST, "the bias over all cases is -40.0 of 1"),
        (edited(TEST, "isolation", value=""), TEST, "does not say what its process was kept from"),
        (edited(TEST, "build_signature", value=None), TEST, "it does not say which build it tested"),
        (edited(TEST, "looser", value={"rms_factor": 9.0}), TEST, "its wider limits are {'rms_factor': 9.0}"),
        (edited(TEST, "trust", value="sealed"), TEST, "its trust is 'sealed', and of its calls from cubins alone"),
        (sealed(cubins=[{"path": "x.cubin", "sha256": "00"}]), TILED, "what ran sealed is 'x.cubin' of SHA-256 '00'"),
        (sealed(sealed=0), TILED, "of its calls from cubins alone it says {'sealed': 0, 'library': 0}"),
        (examined(calls=0), TILED, "the tool 'memcheck' is 'passed', with no call"),
        (examined(failures=["a leak"]), TILED, "the tool 'memcheck' is 'passed', with failures ['a leak']"),
        (
            edited(TILED, "rungs", value=[*TESTED["rungs"], {"name": "sanitizer", "status": "passed"}]),
            *(TILED, "the rung 'sanitizer' is 'passed', and no tool is"),
        ),
        (edited(CUDA_BUILD, "signature", value="cc"), CUDA_BUILD, "'cc', and 'results/store/build/bb/sm_89.cubin'"),
        (held(value=31), CUDA_BUILD, "'sm_89 k registers' is 31 in the budget, and 255 in the cubin"),
        (held(limit=10**6), CUDA_BUILD, "the budget is 1000000, in config.json 120"),
        (held(what="local_bytes"), CUDA_BUILD, "'sm_89 k registers' is not held to the budget"),
        (edited(PROFILE, "report", "sha256", value="33"), "profile/op/tiled.ncu-rep", f"in {PROFILE} '33'"),
        (edited(PROFILE, "case", value="small-float16"), PROFILE, "it is of the case 'small-float16', in config.json"),
        (edited(BENCH, "modes", value=["cold"]), BENCH, "its modes are ['cold'], in config.json ['hot']"),
        (edited(BENCH, "times", 0, "low_us", value=11.0), BENCH, "lies outside of its interval, 11.0 to"),
        (wall_slope(9.0), BENCH, "by wall_slope 9.0, and the time is not flagged 'disagrees_wall_slope'"),
        (
            edited(BENCH, "states", value={"rotation": {"c": {"cold": COLD}}}),
            *(BENCH, "'c' cold: 3 sets of 10 bytes are said to exceed a cache of 50"),
        ),
        (edited(BENCH, "states", value={"samples": 23}), BENCH, "its states are of 23 samples, and there are 24"),
        (in_both_manifests("project", value="another"), "manifest.yaml", "the project is 'another', in config.json"),
        (
            edited(BENCH, "untimed", value=[LEFT]),
            *("manifest.yaml", "untimed is '', by its records 'x'"),
        ),
        (replaced(SAMPLES, gzip.compress(OTHER_SAMPLES)), BENCH, "median_us is 10.0349, by the samples 11.1499"),
        (replaced(SAMPLES, b"no samples"), SAMPLES, "the samples cannot be read"),
        (
            edited(PLAIN, "cases", 0, "status", value="failed"),
            PLAIN,
            "'correct', and the case 'small-float32-normal-s0'",
        ),
        (edited(PLAIN, "cases", value=[]), PLAIN, "there is no case"),
        (edited(PLAIN, "rungs", 4, "status", value="failed"), PLAIN, "and the rung 'correctness' is 'failed'"),
        (edited(PLAIN, "rungs", 0, "status", value="failed"), PLAIN, "and the rung 'build' is 'failed'"),
        (edited(PLAIN, "rungs", 4, "status", value="skipped"), PLAIN, "and the rung 'correctness' is 'skipped'"),
        (edited(PLAIN, "rungs", value=[]), PLAIN, "and the rung 'sanity' is None"),
        (edited(PLAIN, "status", value="failed"), PLAIN, "'correct', and the status is 'failed'"),
        (edited(PLAIN, "verdict", value="wrong"), PLAIN, "the verdict is 'wrong', and no rung is 'failed'"),
        (
            edited(PLAIN, "properties", value=[{"name": "p", "claim": "", "case": "c", "status": "failed"}]),
            *(PLAIN, "the property 'p of c' is 'failed'"),
        ),
        (
            edited(TILED, "sanitizer", value={"runs": [{"tool": "memcheck", "status": "failed"}]}),
            *(TILED, "the tool 'memcheck' is 'failed'"),
        ),
        (
            edited(PLAIN, "build_signature", value="bb"),
            PLAIN,
            "it tested the build 'bb', and the build's record is of 'aa'",
        ),
        (swapped(PLAIN, TILED), PLAIN, "it is the record of 'op/tiled', and lies where that of 'op/plain' belongs"),
        (
            swapped("records/build/op/plain.json", "records/build/op/tiled.json"),
            *("records/build/op/tiled.json", "it is the record of 'op/plain'"),
        ),
        (swapped(BENCH, "records/bench/op-cuda.json"), BENCH, "it is the record of 'op-cuda'"),
        (
            edited("records/capture/capture.json", "probes", "gpu", value={"status": "absent"}),
            *(TILED, "the verdict of a CUDA variant is 'correct', and records/capture/capture.json names no GPU"),
        ),
        (edited(PLAIN, "provenance", "commit", value="f" * 40), PLAIN, f"commit is '{'f' * 40}', in manifest.yaml"),
        (edited(PLAIN, "provenance", "dirty", value=True), PLAIN, "dirty is True, in manifest.yaml it measured False"),
        (edited(PLAIN, "schema", value="kernelproof.test/0"), PLAIN, "its schema is 'kernelproof.test/0'"),
        (edited(PLAIN, "rungs", value=3), PLAIN, "it is not of the form that its schema has"),
        (replaced(PLAIN, b"[" * 100_000), PLAIN, "it is not of the form"),
        (
            edited(PLAIN, "rungs", value=[{"name": "correctness", "status": "failed"}, *TESTED["rungs"]]),
            *(PLAIN, "the rung 'correctness' stands 2 times"),
        ),
        (
            edited(PLAIN, "rungs", value=[{"name": "correctness", "status": "failed"}, *TESTED["rungs"]]),
            *(PLAIN, "the verdict is 'correct', and the rung 'correctness' is 'failed'"),
        ),
        (edited(PLAIN, "cases", 0, "bias_ratio", value=-7.5), PLAIN, "bias_ratio is -7.5, which is below 0"),
        (edited(PLAIN, "cases", 0, "biases", value={"k": -2.0}), PLAIN, "the bias of 'k' is -2.0 of 1"),
        (
            edited(PLAIN, "cases", 0, "status", value="skipped"),
            *(PLAIN, "the verdict is 'correct', and none of its 1 cases is 'passed'"),
        ),
        (
            edited(PLAIN, "cases", 0, "id", value="else-float32-normal-s0"),
            *(PLAIN, "the case 'else-float32-normal-s0' is by its shape, options and type 'small-float32-normal-s0'"),
        ),
        (
            edited(PLAIN, "cases", value=TESTED["cases"] * 2),
            *(PLAIN, "the case 'small-float32-normal-s0' stands 2 times"),
        ),
        (
            edited(PLAIN, "cases", 0, value=TESTED["cases"][0] | {"id": "huge-float32-normal-s0", "shape": "huge"}),
            *(PLAIN, "'huge-float32-normal-s0': its shape 'huge' is not in config.json"),
        ),
        (
            edited(PLAIN, "cases", 0, value=TESTED["cases"][0] | {"id": "large-float32-normal-s0", "shape": "large"}),
            *(PLAIN, "of the shapes of config.json it has not 'small'"),
        ),
        (edited(PLAIN, "cases", 0, "dims", value={"rows": 1}), PLAIN, "'rows' is 1, in config.json 2"),
        (edited(PLAIN, "trials", value=2), PLAIN, "it was repeated 2 times, by config.json 100"),
        (edited(PLAIN, "properties", value=[]), PLAIN, "is 'passed', and the property 'fresh values' is not"),
        (
            edited(PLAIN, "fresh_seed", value=7),
            PLAIN,
            "none of its cases has the seed 7 that was drawn after the build",
        ),
        (
            configured("operators", "op", "test", "families", value=["normal", "ties"]),
            PLAIN,
            "of the input families of config.json it has not 'ties'",
        ),
        (configured("operators", "op", "profile", "shape", value="small"), TILED, "it has not 'small-float16'"),
        (edited(PLAIN, "level", value="quick"), PLAIN, "its level is 'quick', in config.json 'default'"),
        (
            both(
                edited(BENCH, "cases", 0, "id", value="vast-float32"), edited(BENCH, "cases", 0, "shape", value="vast")
            ),
            *(BENCH, "'vast-float32': its shape 'vast' is not in config.json"),
        ),
        (
            edited(BENCH, "cases", 0, "id", value="small-float32"),
            *(BENCH, "the case 'small-float32' is by its shape, options and type 'large-float32'"),
        ),
        (
            edited(BENCH, "cases", 0, value=BENCHED["cases"][0] | {"id": "small-float32", "shape": "small"}),
            *(BENCH, "the case 'small-float32' is asked of no contender by config.json"),
        ),
        (edited(BENCH, "cases", value=[]), BENCH, "rows of the case 'large-float32', which is not among its cases"),
        (
            configured("operators", "op", "bench", "shapes", value=["large", "small"]),
            *(BENCH, "'plain' is correct, and of the cases of config.json it has not 'small-float32'"),
        ),
        (
            edited(BENCH, "modes", value=["hot", "cold"]),
            *(BENCH, "'plain large-float32 cold': it is correct and has no time, and it is not said why"),
        ),
        (
            configured("operators", "op", "test", "options", value={f"o{n}": list(range(10)) for n in range(20)}),
            *(PLAIN, "config.json asks for more than 1000000 cases"),
        ),
        (
            edited(BENCH, "contenders", 0, "verdict", value="wrong"),
            *(BENCH, "'plain' was timed as correct, and its verdict is 'wrong'"),
        ),
        (
            edited(BENCH, "discarded", value=[DROPPED | {"reason": "wrong for new values"}]),
            *(BENCH, "'library' is said to be dropped ('wrong for new values'), and was timed as correct"),
        ),
        (
            both(edited(BENCH, "discarded", value=[DROPPED]), edited(BENCH, "times", value=TIMES[:1])),
            *(BENCH, "'library' is said to be dropped from every case, and its outcome is 'timed'"),
        ),
        (
            both(
                edited(BENCH, "discarded", value=[DROPPED | {"case": "large-float32"}]),
                edited(BENCH, "times", value=TIMES[:1]),
            ),
            *(BENCH, "'library' is said to be dropped from 'large-float32', and its outcome is 'timed'"),
        ),
        (
            both(
                edited(BENCH, "discarded", value=[NOTHING_DISCARDED | {"contender": "<host>"}]),
                edited(BENCH, "times", value=TIMES[:1]),
            ),
            *(BENCH, "'library large-float32 hot cpu_clock': there are 12 samples that count, no time"),
        ),
        (
            both(
                replaced(SAMPLES, gzip.compress((packed_run.SAMPLES + TWIN).encode())),
                replaced_in(BENCH, b'"large-float32"', b'"large-<host>"'),
            ),
            *(BENCH, "'plain large-<host> hot cpu_clock': the samples of several have such a name; it has to fit one"),
        ),
        (
            both(
                replaced(SAMPLES, gzip.compress((packed_run.SAMPLES + TWIN).encode())),
                edited(BENCH, "discarded", value=[NOTHING_DISCARDED | {"contender": "plain", "case": "large-<host>"}]),
            ),
            *(BENCH, "'plain large-<host> hot cpu_clock': the samples of several have such a name; it has to fit one"),
        ),
        (
            replaced(SAMPLES, gzip.compress(ALL_ZEROS.encode())),
            *(BENCH, "processes is 3, by the samples 1"),
        ),
        (
            replaced(SAMPLES, gzip.compress(packed_run.SAMPLES.replace(",9,", ",inf,").encode())),
            *(SAMPLES, "inf \\xb5s is no time of plain"),
        ),
        (
            replaced(SAMPLES, gzip.compress((packed_run.SAMPLES + THROTTLED[:-1] + "," + "p" * 65536).encode())),
            *(SAMPLES, "a line is longer than 65536 bytes"),
        ),
        (
            edited(BENCH, "oracle", 0, "undecided", value=True),
            *(BENCH, "'plain large-float32 hot' passes the gate, and is undecided"),
        ),
        (removed(FACTS), FACTS, "it is not packed"),
        (
            both(
                lambda members: {n: d for n, d in members.items() if not n.startswith("records/") or n == FACTS},
                in_both_manifests("verdicts", value=[]),
                in_both_manifests("measured", value={}),
            ),
            *("manifest.yaml", "no record is packed, and none is said to be missing"),
        ),
        (
            replaced("logs/test/op/none.log", b"all is well"),
            *("logs/test/op/none.log", "it is packed, and is not among the members of records/manifest.json"),
        ),
        (
            edited(PLAIN, "junit", value=None),
            *("junit/op/plain.xml", "no record names it"),
        ),
        (
            both(
                edited(BUILD, "sources", value=[{"path": "csrc/op/plain.cc", "sha256": "0"}]),
                removed("source/csrc/op/plain.cc"),
            ),
            *(BUILD, "it names 'source/csrc/op/plain.cc', which is neither packed nor among what was dropped"),
        ),
        (
            edited("records/bench/ceilings/cuda.json", "model", value="another board"),
            *(
                "records/bench/ceilings/cuda.json",
                "the model is 'another board', in records/capture/capture.json ['a b",
            ),
        ),
        (
            in_both_manifests("provenance", value=dataclasses.asdict(packed_run.STATE) | DIRTY),
            *("manifest.yaml", "-20250301T120000Z', and dirty is True, of the difference 'aaaaaaaa"),
        ),
        (
            edited(FACTS, "folder", value="elsewhere"),
            *("manifest.yaml", "and the folder in records/manifest.json 'elsewhere'"),
        ),
        (
            edited("records/build/op/plain.json", "sources", value=[{"path": "./csrc/op/plain.cc", "sha256": "0"}]),
            *("source/csrc/op/plain.cc", "in records/build/op/plain.json '0'"),
        ),
        (
            edited(BUILD, "binding", value=[{"path": "csrc/op/binding.cc", "sha256": "0"}]),
            *("source/csrc/op/binding.cc", "in records/build/op/plain.json '0'"),
        ),
        (
            both(
                edited(BUILD, "binding", value=[{"path": "csrc/op/binding.cc", "sha256": "0"}]),
                removed("source/csrc/op/binding.cc"),
            ),
            *(BUILD, "it names 'source/csrc/op/binding.cc', which is neither packed nor among what was dropped"),
        ),
        (
            edited(PLAIN, "module", value={"path": "op.py", "sha256": "0"}),
            *("source/op.py", "in records/test/op/plain.json '0'"),
        ),
        (
            edited(PLAIN, "imports", value=[{"path": "helper.py", "sha256": "0"}]),
            *(PLAIN, "it names 'source/helper.py', which is neither packed nor among what was dropped"),
        ),
        (
            both(
                edited(BENCH, "contenders", 0, "build_signature", value="of another build"),
                edited(PLAIN, "build_signature", value="bb"),
            ),
            *(BENCH, "'plain' was timed as the build 'of another build', and tested as 'bb'"),
        ),
        (edited(BENCH, "processes", value=4), BENCH, "its processes are 4, in config.json 5"),
        (
            replaced("cubins/op/tiled/sm_89.cubin", b"x"),
            "cubins/op/tiled/sm_89.cubin",
            "in records/build/op/tiled.json",
        ),
        (
            replaced("machine-code.json", b"{}"),
            "machine-code.json",
            "'op/tiled' is None, in the build's record {'sm_89'",
        ),
        (removed(PLAIN), "manifest.yaml", "'op/plain': correctness is 'correct', by its records 'missing'"),
        (removed(PLAIN), PLAIN, "it is not packed, and is among the records of records/manifest.json"),
        (
            removed("records/capture/capture.json"),
            "manifest.yaml",
            "'capture' was measured, and no record of it is packed",
        ),
        (
            edited("manifest.yaml", "overall", value="bad"),
            "manifest.yaml",
            "overall is 'bad', in records/manifest.json 'good'",
        ),
        (
            in_both_manifests("overall", value="incomplete"),
            "manifest.yaml",
            "overall is 'incomplete', by its verdicts 'good'",
        ),
        (in_both_manifests("verdicts", 0, "correctness", value="wrong"), "manifest.yaml", "by its records 'correct'"),
        (in_both_manifests("verdicts", 0, "ratio", value=0.09), "manifest.yaml", "ratio is 0.09, by its records [0.9]"),
        (in_both_manifests("verdicts", 0, "speed", value="slower"), "manifest.yaml", "by its records ['faster']"),
        (
            in_both_manifests("verdicts", 0, "build", value="failed"),
            "manifest.yaml",
            "build is 'failed', by its records 'ok'",
        ),
        (in_both_manifests("verdicts", 0, "gate", value="fails, above"), "manifest.yaml", "its gate is 'fails, above'"),
        (in_both_manifests("verdicts", value=[]), "manifest.yaml", "'op/plain': it has 0 verdicts"),
        (
            in_both_manifests("verdicts", value=[]),
            *("manifest.yaml", "'op/tiled': it has no verdict, and is in config.json"),
        ),
        (
            in_both_manifests("verdicts", 0, "variant", value="plainer"),
            *("manifest.yaml", "'op/plainer': it has a verdict, and is not in config.json"),
        ),
        (
            in_both_manifests("verdicts", 0, "role", value="baseline"),
            *("manifest.yaml", "'op/plain': role is 'baseline', in config.json 'variant'"),
        ),
        (
            removed("records/bench/op-cuda.json"),
            *("manifest.yaml", "the record 'bench op-cuda' is called for by config.json, and is neither packed nor"),
        ),
        (
            in_both_manifests("missing", value=[{"stage": "test", "subject": "op/plain", "reason": ""}]),
            *("manifest.yaml", "the record 'test op/plain' is said to be missing, and is packed"),
        ),
        (removed("config.json"), "config.json", "it is not packed"),
        (
            edited("config.json", "gate", "max_ratio", value=9.9),
            *("config.json", "'gate.max_ratio' is 9.9, in source/config.resolved.json 0.95"),
        ),
        (
            claimed(in_both_manifests("verdicts", 0, "gate", value="no claim, not shown within the limit")),
            *("manifest.yaml", "gate is 'no claim, not shown within the limit', by its records 'passes'"),
        ),
        (
            claimed(edited(BENCH, "oracle", 0, "passed", value=False)),
            *("manifest.yaml", "gate is 'no claim, within the limit in its one case', by its records 'fails'"),
        ),
        (
            both(
                edited(
                    BENCH, "oracle", value=[BENCHED["oracle"][0] | {"case": "b", "ratio": 0.2}, BENCHED["oracle"][0]]
                ),
                in_both_manifests("verdicts", 0, "ratio", value=0.2),
            ),
            *("manifest.yaml", "'op/plain': ratio is 0.2, by its records [0.9]"),
        ),
        (
            CROWDED,
            BENCH,
            "'plain / library large-float32 hot': the word is 'faster', and the time of 'library' is flagged",
        ),
        (
            CROWDED,
            BENCH,
            "'plain / library large-float32 hot': it passes the gate, and the time of 'library' is flagged",
        ),
        (
            edited(BENCH, "times", 1, "flags", value=["disagrees_outside_clock"]),
            *(BENCH, "passes the gate, and the time of 'library' is flagged 'disagrees_outside_clock'"),
        ),
        (
            both(CROWDED, edited(BENCH, "oracle", 0, "passed", value=False)),
            *(BENCH, "it is not undecided before the gate, and the time of 'library' is flagged 'cores_shared'"),
        ),
        (
            edited(BENCH, "states", "others_share", value=0.4),
            *(BENCH, "other programs had 0.4 of the cores in a case, and no time is flagged 'cores_shared'"),
        ),
        (
            in_both_manifests("tools", "gpu", 0, "name", value="another board"),
            *(
                "manifest.yaml",
                "'gpu' of its tools is {'name': 'another board'}, in records/capture/capture.json {'name':",
            ),
        ),
        (
            in_both_manifests("tools", "packages", value={"torch": "9.9"}),
            *(
                "manifest.yaml",
                "'packages' of its tools is {'torch': '9.9'}, in records/capture/capture.json {'torch': None}",
            ),
        ),
        (
            in_both_manifests("provenance", "utc", value="2019-01-01T00:00:00Z"),
            *(
                "manifest.yaml",
                "the time of the run is '2019-01-01T00:00:00Z', its last record's '2025-03-01T12:00:00Z'",
            ),
        ),
        (
            in_both_manifests("provenance", "utc", value="2019-01-01T00:00:00Z"),
            *("manifest.yaml", "and the time of the run '20190101T000000Z'"),
        ),
        (in_both_manifests("provenance", "commit", value="d" * 40), "manifest.yaml", f"and the commit '{'d' * 40}'"),
        (
            edited(BUILD, "budget", value=[{**OVER_BUDGET, "ok": True}]),
            *(BUILD, "registers' is 999 of 10, and that this is within the budget is True"),
        ),
        (
            in_both_manifests("identical_machine_code", value=[["op/other", "op/plain"]]),
            *(
                "manifest.yaml",
                "the machine code of 'op/other, op/plain' is called identical, and differs by the builds'",
            ),
        ),
        (
            both(
                *(edited(build, "device", value="cpu") for build in (BUILD, CUDA_BUILD)), same_code(BUILD, CUDA_BUILD)
            ),
            *("manifest.yaml", "the machine code of 'op/plain, op/tiled' is identical, and is not called so, by the"),
        ),
        (edited(BUILD, "macros", value={"TILE": 3}), BUILD, "macros is {'TILE': 3}, in config.json {}"),
        (
            edited(BUILD, "sources", value=[{"path": "csrc/op/other.cc", "sha256": "0"}]),
            *(BUILD, "sources is ['csrc/op/other.cc'], in config.json ['csrc/op/plain.cc']"),
        ),
        (
            edited(BENCH, "cases", 0, "dims", value={"rows": 20}),
            *(BENCH, "'large-float32': 'rows' is 20, in config.json 2000"),
        ),
        (
            removed("cubins/op/tiled/sm_89.cubin"),
            *(CUDA_BUILD, "it names 'cubins/op/tiled/sm_89.cubin', which is neither packed nor among what was dropped"),
        ),
        (removed("junit/op/plain.xml"), PLAIN, "it names 'junit/op/plain.xml', which is neither packed nor"),
        (
            edited(BENCH, "contenders", 0, "outcome", value="dropped: crashed (hot)"),
            *("manifest.yaml", "bad is False, and its benchmark says 'dropped: crashed (hot)'"),
        ),
        (
            both(
                edited(BENCH, "oracle", 0, "passed", value=False),
                in_both_manifests("verdicts", 0, "gate", value="passes"),
            ),
            *("manifest.yaml", "gate is 'passes', by its records 'not passed in every case'"),
        ),
    ],
)
def test_what_contradicts_something_is_named_with_both_values(
    tmp_path: Path, honest: Members, change: Callable[[Members], Members], member: str, says: str
) -> None:
    result = forged(tmp_path, change(honest))
    assert (result.status, result.exit_code, result.consistent) == ("contradictory", 3, False)
    assert {problem.kind for problem in result.problems} == {"contradiction"}
    assert [problem for problem in result.problems if problem.member == member and says in problem.message]


@pytest.mark.parametrize(
    "change",
    [
        both(
            edited(TEST, "cases", 0, "max_bound_ratio", value=1.0), edited(TEST, "cases", 0, "biases", value={"y": 0.1})
        ),
        both(edited(TEST, "cases", 0, "max_bound_ratio", value=0.04), configured("test", "tolerance", value=WIDE)),
        both(
            edited(TEST, "cases", 0, "biases", value={"y": 0.1, "rstd": 0.1}),
            edited(TEST, "cases", 0, "rms_error", value=2e-4),
            edited(TEST, "cases", 0, "max_abs_error", value=1e-11),
        ),
        both(edited(TEST, "error_histogram", value=None), edited(TEST, "cases", 0, "rms_ratio", value=None)),
    ],
)
def test_figures_of_several_outputs_and_wider_limits_contradict_nothing(
    tmp_path: Path, honest: Members, change: Callable[[Members], Members]
) -> None:
    said = [one.message for one in forged(tmp_path, change(honest)).problems if one.member == TEST]
    assert [words for words in said if not words.startswith(("it was made with another", "its wider limits"))] == []


def test_what_was_gathered_is_what_is_packed(tmp_path: Path, honest: Members) -> None:
    """Whoever changes a member has to change its hash in records/manifest.json too."""
    source, log = "source/csrc/op/plain.cc", "logs/build/op/plain.log"
    changed = both(replaced(source, b"x"), removed(log))(honest)
    assert {
        (one.member, one.message.partition(",")[0]) for one in forged(tmp_path, changed, gathered=False).problems
    } == {
        (source, f"SHA-256 {hashlib.sha256(b'x').hexdigest()}"),
        (log, "it is a member in records/manifest.json"),
    }


def test_a_configuration_without_private_words_is_the_same(tmp_path: Path, honest: Members) -> None:
    project = edited("config.json", "operators", "op", "module", value="<user>.py")
    assert forged(tmp_path, project(honest)).good
    said = forged(tmp_path, edited("config.json", "project", value="<user>x")(honest)).problems
    assert any("'project' is '<user>x', in source/config.resolved.json 'sample'" in one.message for one in said)


@pytest.mark.parametrize(
    ("setting", "value", "stages"),
    [
        (("test", "trials"), 7, {"test"}),
        (("bench", "processes"), 9, {"bench"}),
        (("archs",), ["sm_80"], {"build", "test", "bench", "profile"}),
        (("operators", "op", "variants", "plain", "precision", "p"), "float64", {"test", "bench"}),
    ],
)
def test_records_were_made_with_the_settings_that_are_packed(
    tmp_path: Path, honest: Members, setting: tuple[str, ...], value: object, stages: set[str]
) -> None:
    result = forged(tmp_path, configured(*setting, value=value)(honest))
    said = {str(one.member): one.message for one in result.problems if "it was made with another" in one.message}
    assert (result.status, said.pop(FACTS)[:25]) == ("contradictory", "it was made with another ")
    assert {member.split("/")[1] for member in said} == stages
    key = ".".join(setting).removesuffix(".p")
    assert all(f"another {key} than config.json has, " in message for message in said.values())


def test_a_setting_deeper_than_a_configuration_goes_is_not_looked_for(tmp_path: Path, honest: Members) -> None:
    """Each level would be read again for every key: minutes for a few megabytes."""
    name = next(name for name in honest if name.startswith("records/test/"))
    record = json.loads(honest[name])
    record["settings"]["a" + ".a" * 200] = "0" * 16
    result = forged(tmp_path, honest | {name: json.dumps(record).encode()})
    assert result.status == "contradictory"
    assert any("deeper than a configuration goes" in problem.message for problem in result.problems)


def test_an_older_record_does_not_say_with_which_settings_it_was_made(tmp_path: Path, honest: Members) -> None:
    documents = {name: json.loads(data) for name, data in honest.items() if name.startswith("records/")}
    assert all(document.pop("settings") is not None for document in documents.values())
    older = honest | {name: json.dumps(document).encode() for name, document in documents.items()}
    assert forged(tmp_path, configured("bench", "processes", value=7)(older)).good


def test_a_dispatcher_is_built_from_its_rungs_too() -> None:
    rungs = {"of": {"rungs": ["a"], "sources": ["of.cu"]}, "a": {"sources": ["./a.cu"]}}
    documents: Any = {"config.json": {"operators": {"op": {"variants": rungs}}}}
    for built, agrees in ((["of.cu", "a.cu"], True), (["of.cu"], False), ([], True)):
        sources = [{"path": path, "sha256": ""} for path in built]
        build = {"abi": "tvm_ffi", "operator": "op", "sources": sources, "headers": [], "budget": []}
        build |= {"cubins": [], "library": None, "status": "ok"}
        name = "records/build/op/of.json"
        found = list(consistency.builds.check(Bundle({}, {}, documents | {name: build}), name))
        assert (found == []) is agrees, found


def test_a_time_is_the_slope_that_its_row_has(tmp_path: Path, honest: Members) -> None:
    assert forged(tmp_path, replaced(SAMPLES, gzip.compress(SLOPED.encode()))(honest)).good


@pytest.mark.parametrize(
    ("gpu", "boards", "says"),
    [
        ("a", [("a", "H200"), ("b", "H100")], None),
        ("c", [("a", "H200")], "it was measured on the GPU 'c', and records/capture/capture.json names ['a']"),
        ("c", [(None, "H200")], None),  # a driver that tells none
        (None, [("a", "H200"), ("b", "H200")], None),
        (None, [("a", "H200"), ("b", "H100")], "names several models, ['H100', 'H200']"),
    ],
)
def test_a_benchmark_ran_on_a_gpu_that_was_seen(
    gpu: str | None, boards: list[tuple[str | None, str]], says: str | None
) -> None:
    seen = [{"uuid_sha256": uuid, "name": model} for uuid, model in boards]
    documents: Any = {"records/capture/capture.json": {"probes": {"gpu": {"status": "ok", "value": seen}}}}
    there = Bundle({}, {}, documents)
    found = list(consistency.benchmarks._board(there, "b", {"device": "cuda", "times": [{}], "gpu": gpu}))
    assert [says in one.message for one in found if says] == ([True] if says else [])
    assert len(found) == (says is not None)


def test_an_instance_of_a_board_in_mig_mode_is_in_no_probe() -> None:
    seen = [{"uuid_sha256": "a", "name": "H200", "mig": True}]
    documents: Any = {"records/capture/capture.json": {"probes": {"gpu": {"status": "ok", "value": seen}}}}
    there = Bundle({}, {}, documents)
    assert not list(consistency.benchmarks._board(there, "b", {"device": "cuda", "times": [{}], "gpu": "c"}))


def test_a_source_that_is_a_link_is_packed_where_it_points_to(tmp_path: Path, honest: Members) -> None:
    there = hashlib.sha256(honest["source/csrc/op/binding.cc"]).hexdigest()
    change = both(
        edited(
            BUILD, "headers", value=[{"path": "csrc/link.h", "sha256": there}, {"path": "<toolkit>/a.h", "sha256": "0"}]
        ),
        edited(CUDA_BUILD, "headers", value=[{"path": "../outside.h", "sha256": "0"}]),
    )
    assert forged(tmp_path, change(honest)).good


def test_who_was_dropped_has_no_times(tmp_path: Path, honest: Members) -> None:
    """Its samples stay in the file, under its name as it was."""
    change = both(
        edited(BENCH, "discarded", value=[DROPPED]),
        edited(BENCH, "contenders", 1, "outcome", value="dropped: crashed (hot)"),
        edited(BENCH, "times", value=TIMES[:1]),
        edited(BENCH, "ratios", value=[]),
        edited(BENCH, "oracle", 0, value=BENCHED["oracle"][0] | UNOPPOSED),
        in_both_manifests("verdicts", 0, "ratio", value=None),
        in_both_manifests("verdicts", 0, "speed", value="not_compared"),
    )
    assert forged(tmp_path, change(honest)).problems == []


def test_students_t_is_that_of_the_statistics() -> None:
    for degrees in range(1, 201):
        for confidence in (0.5, 0.95, 0.999):
            wanted = statistics.student_t_quantile((1 + confidence) / 2, degrees)
            assert math.isclose(consistency.samples._student_t(confidence, degrees), wanted, rel_tol=1e-9)
    assert consistency.samples._student_t(0.95, 10**6) <= statistics.student_t_quantile(0.975, 10**6)


def test_a_name_may_have_lost_a_private_part() -> None:
    assert consistency.inside.alike("plain", "plain")
    assert consistency.inside.alike("t<user>d", "tiled")
    assert consistency.inside.alike("<user>_a<home>", "me_a/x")
    for said, there in (("plain", "plainer"), ("t<user>d", "td"), ("a<user>b<user>c", "axxc"), ("ab<user>bc", "abc")):
        assert not consistency.inside.alike(said, there)


def test_a_contradictory_bundle_is_not_believed_by_other_commands(tmp_path: Path, honest: Members) -> None:
    forged(tmp_path, edited(PLAIN, "verdict", value="wrong")(honest))
    with pytest.raises(BundleError, match="it contradicts itself: contradiction: records/bench/op-cpu"):
        runs.load(tmp_path / "forged.tar.gz")


def test_a_private_word_in_a_record_is_no_contradiction(tmp_path: Path, honest: Members) -> None:
    """Records are packed without the user's name, which may be a part of a variant's."""
    change = edited("records/profile/op/tiled.json", "variant", value="t<user>d")
    assert forged(tmp_path, change(honest)).good
    scrubbed = replaced(BENCH, honest[BENCH].replace(b'"large-float32"', b'"<user>ge-float32"'))
    assert forged(tmp_path, scrubbed(honest)).good  # samples are packed as they are


def test_an_operator_of_the_users_name_has_its_records() -> None:
    """Paths stay as they are, and what lies there is scrubbed."""
    record = {"schema": "kernelproof.test/1", "operator": "<user>", "variant": "plain"}
    there = Bundle({}, {}, {"records/test/me/plain.json": record})
    assert there.record("test", "<user>/plain") is record
    assert there.record("test", "<user>/tiled") is None


def test_samples_that_unpack_without_end_are_refused(
    tmp_path: Path, honest: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros in a gzip file in the bundle's own, after a first row and as one."""
    import resource

    bomb = replaced(SAMPLES, gzip.compress(gzip.compress(bytes(1 << 20)) + bytes(1 << 28), 9))(honest)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    (found,) = forged(tmp_path, bomb).problems
    assert (found.member, "cannot be read" in found.message) == (SAMPLES, True)
    rows = replaced(SAMPLES, gzip.compress((packed_run.SAMPLES + "x" * (1 << 27)).encode(), 9))(honest)
    assert "cannot be read" in str(forged(tmp_path, rows).problems[0])
    assert time.monotonic() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB; the test's own copies
    monkeypatch.setattr(consistency.samples, "MAX_SAMPLES_BYTES", 1000)
    assert "more than 1000 bytes: a bomb" in str(forged(tmp_path, honest).problems[0])
    monkeypatch.undo()
    monkeypatch.setattr(consistency.samples, "MAX_SAMPLES", 3)
    assert "there are more than 3" in str(forged(tmp_path, honest).problems[0])


def test_the_kept_run_on_a_gpu_agrees_with_itself() -> None:
    """Its records, samples and hashes; the other members are not kept."""
    listed = {row["path"]: row["sha256"] for row in json.loads((REFERENCE / "manifest.yaml").read_bytes())["members"]}
    files = {name: REFERENCE / name for name in listed} | {
        name: REFERENCE / "records/bench" / Path(name).name for name in listed if name.startswith("samples/")
    }
    kept = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    kept["manifest.yaml"] = (REFERENCE / "manifest.yaml").read_bytes()
    kept["config.json"] = (REFERENCE / "records" / "config.json").read_bytes()
    assert len([name for name in kept if name.startswith("samples/")]) == 8
    found = consistency.find(listed, kept)
    assert {one.member for one in found} <= {"machine-code.json"}


@pytest.mark.parametrize("level", ["quick", "default"])
def test_the_cases_are_those_that_the_stages_select(tmp_path: Path, level: str) -> None:
    """Of our own configuration, whose operators have options, limits and shapes for a GPU alone."""
    settings = config.load(REFERENCE.parents[2] / "config.yaml")
    config.save(settings, tmp_path / "config.json")
    there = Bundle({}, {}, {"config.json": json.loads((tmp_path / "config.json").read_bytes())})
    for operator in settings.operators.values():
        asked = there.documents["config.json"]["operators"][operator.name]
        for variant in (*operator.variants.values(), *operator.baselines.values()):
            found = consistency.benchmarks._selected(
                there, asked, consistency.inside.contender_of(asked, variant.name) or {}, variant.device
            )
            assert set(found) == {case.bench_id for case in cases.enumerate_cases(operator, variant, "bench")}
            chosen = cases.select_cases(operator, variant, families=["normal", "zeros"], quick=level == "quick")
            results = [records.CaseResult.of(case, "passed") for case in chosen.cases]
            results += [records.CaseResult.of(one.case, "skipped", one.reason) for one in chosen.skipped]
            test = records.TestRecord(
                operator=operator.name,
                variant=variant.name,
                device=variant.device,
                level=level,
                trials=10 if level == "quick" else 100,
                precision=dataclasses.asdict(variant.precision),
            )
            record = dataclasses.asdict(test) | {"cases": [dataclasses.asdict(one) for one in results]}
            assert list(consistency.tests._asked_of(there, "t", record)) == []
            assert list(consistency.inside.cases_of(there, "t", record, of_test=True)) == []
            assert list(consistency.tests._asked_of(there, "t", record | {"cases": record["cases"][1:2]}))


def test_the_words_are_those_of_the_stages() -> None:
    """The pass runs without what the stages import, so it has words of its own."""
    assert samples.DISCARDED_STATES == consistency.samples.DISCARDED_STATES
    assert samples.COLUMNS == consistency.samples.COLUMNS
    assert samples.POSSIBLE_US == consistency.samples.POSSIBLE_US
    assert {
        bundle.MANIFEST,
        bundle.SUMS,
        bundle.REPLAY,
        bundle.MACHINE_CODE,
        *bundle.PAGES,
        FACTS,
    } == consistency.packing.MADE
    assert set(consistency.samples.SLOPE) <= {field.name for field in dataclasses.fields(contenders.Visit)}
    assert samples.PRIMARY == consistency.inside.PRIMARY
    assert (records.CORES_SHARED, OTHERS_SHARE) == (
        consistency.benchmarks.CORES_SHARED,
        consistency.benchmarks.OTHERS_SHARE,
    )
    assert tuple(records.DECIDES_NOTHING) == consistency.benchmarks.DECIDES_NOTHING
    assert {*methods.TRACES, *methods.COUNTED} == consistency.samples.UNSAMPLED
    assert consistency.inside.RAN_AND_FAILED | {"failed_to_build"} == manifest.BAD_CORRECTNESS
    assert set(outcomes.RUNGS) - {"properties", "sanitizer"} == consistency.tests.NEEDED_RUNGS
    assert dataclasses.asdict(config.CRITERIA) == consistency.tests.CRITERIA
    ours = (consistency.benchmarks.DISAGREE_SHARE, consistency.benchmarks.DISAGREE_US)
    assert ours == (methods.DISAGREE_SHARE, methods.DISAGREE_US)
    assert selection.QUICK_TRIALS == consistency.tests.QUICK_TRIALS
    assert records.DECISIVE_PACKAGES == consistency.manifests.DECISIVE_PACKAGES
    placeholders = [*(f"<{name}>" for name in privacy.PLACEHOLDERS), privacy.SECRET]
    assert all(map(consistency.inside.PRIVATE.fullmatch, placeholders))
    assert (claims.PASSES, claims.FAILS) == ("passes", "fails")
