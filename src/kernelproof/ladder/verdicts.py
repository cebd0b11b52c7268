"""What a variant's way up the ladder amounts to: its verdict, the reason, and the record of both."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelproof import formats, own_modules, records, suite
from kernelproof.config import place_of, plain
from kernelproof.consistency.tests import QUICK
from kernelproof.judging import NOT_OF_SUCH_VALUES
from kernelproof.ladder.determinism import IN_ANY_ORDER
from kernelproof.ladder.outcomes import ENDED, NOTHING_DEMANDED, RUNGS
from kernelproof.ladder.planning import PARTS, WHOLE
from kernelproof.records import CaseResult, FileHash, Rung, Sanitizer, TestRecord

if TYPE_CHECKING:
    from kernelproof.ladder.calling import Calls
    from kernelproof.ladder.collecting import Collection
    from kernelproof.ladder.selection import RungCases
    from kernelproof.ladder.standing import Standing

OTHERWISE = (
    "its kernels were started from the cubin alone; if it passes with test.sealed=never, its host code does more than "
    "launch them on the caller's stream"
)
LAID_OUT = re.compile(r"^[^:]*\b(?:fenced|neighbour) ")  # of a call where memory ends, or behind one of another shape
CHANGED_INPUTS = {name for name, _ in (*PARTS.values(), WHOLE)}  # names of properties
WHOLE_INPUTS = (
    "only calls are wrong whose inputs were changed in part: where such are none of the operator's (a symmetric "
    "matrix, offsets that rise), name these inputs in OPERATOR.whole"
)
KILLED = re.compile("was killed by SIG(SEGV|BUS|ABRT|FPE|ILL)")
WITHOUT = {
    "sanity": "no exact call was made, for the operator has none that it took: errors within the bounds are not "
    "looked for that way",
    "properties": "no relation between calls was tried, for the operator states none: errors within the bounds, and "
    "those that the reference shares, are not looked for that way",
}
ONE_THREAD = "it ran in one thread, as bench.cpu_threads or the machine's one core has it: races were not looked for"


def record(standing: Standing, calls: Calls, collection: Collection, examined: Sanitizer | None) -> TestRecord:
    """The variant's record, as far as it came."""
    session, variant, selection = calls.session, calls.variant, calls.selection
    results = [*selection.left_out, *standing.results]
    left_out = {"properties"} if session.config.test.level == QUICK else set()
    left_out |= set() if selection.sanitizer_tools else {"sanitizer"}
    climbed = [name for name in RUNGS if name not in left_out]
    rungs = [standing.rungs.get(name) or Rung(name, "skipped", 0.0, "it was not reached") for name in climbed]
    for rung in rungs:
        rung.duration_s += collection.duration_s.pop(rung.name, 0.0)
        if rung.status == "passed" and standing.supplied.get(rung.name) == 0 and not session.only:
            rung.message = WITHOUT[rung.name]
        if rung.name == "correctness" and rung.status == "passed":
            notes = [
                rung.message,
                _refused(standing),
                _undemanded(standing),
                _unvaried(selection),
                _of_one_value(calls),
            ]
            rung.message = "; ".join(filter(None, notes)) or None
        if rung.name == "properties" and rung.status == "passed":
            rung.message = "; ".join(filter(None, [rung.message, _not_tried(standing), _untouched(selection)])) or None
        if (
            rung.name == "determinism"
            and rung.status == "passed"
            and selection.may_have_team
            and not selection.has_team
        ):
            rung.message = rung.message or ONE_THREAD
    verdict = _verdict(rungs, selection, standing)
    sealing = calls.sealer.record() if calls.sealer else None
    sealed = sealing is not None and sealing.sealed > 0 and sealing.library == 0
    module, imports = _own_module(selection)
    record = TestRecord(
        operator=variant.operator,
        variant=variant.name,
        role=variant.role,
        device=variant.device,
        trust="sealed" if sealed else variant.trust,
        precision=dataclasses.asdict(variant.precision),
        looser=session.config.test.tolerance.looser,
        sealing=sealing,
        verdict=verdict,
        rungs=rungs,
        cases=results,
        properties=standing.properties_found,
        sanitizer=examined,
        trials=selection.trials,
        level=session.config.test.level,
        searched=standing.searched,
        repeat=_repeat(standing),
        fresh_seed=session.resources.fresh_seed,
        build_signature=standing.built.signature if standing.built else None,
        module=module,
        imports=imports,
    )
    if calls.isolation is not None:
        record.isolation, record.refused = calls.isolation.level, calls.isolation.refused
    if calls.histogram is not None:
        record.error_histogram = calls.histogram
        tolerance = session.config.test.tolerance
        record.bias_suite, record.bias_suite_ratio = suite.bias(results, tolerance)
    if verdict == "not_run":
        record.status, record.reason = (
            records.NOT_RUN,
            standing.barred or standing.bar("determinism") or _not_climbed(rungs),
        )
        record.remedy = standing.remedy or _main_shape_refused(standing, selection)
    elif verdict != "correct":
        told = _told_rung(standing)
        assert told is not None
        others = [rung for rung in rungs if rung.status == "failed" and rung != told]
        more = f"; failed too: {', '.join(rung.name for rung in others)}" if others and standing.ended else ""
        differing = next((rung.message or "" for rung in others if rung.name == "determinism"), "")
        if differing and not standing.ended:  # that one call differs from the next says more of why than what each is
            more = f"; repeats of one call differ: {differing.partition(f'; {IN_ANY_ORDER}')[0]}"
            for rung in rungs:
                rung.message = rung.message and rung.message.replace(f". Likely cause: {records.A_FEW}", "")
        record.status, record.reason = records.FAILED, f"{told.name}: {told.message}{more}"
        remedies = [standing.remedy] * (verdict == "hung") + [OTHERWISE] * bool(sealing and sealing.sealed)
        remedies.append(_whole(rungs, standing, selection))
        remedies.append(_backtrace(standing, selection))
        record.remedy = "; ".join(filter(None, remedies)) or None
    return record


def _own_module(selection: RungCases) -> tuple[FileHash | None, list[FileHash]]:
    """The project's own file of the operator, where it has one, and its other files that this one imports."""
    root, module = selection.session.root, selection.settings.module
    first = own_modules.file_of(module, root)
    names = (name for name in own_modules.files_of(module, root) if (root / name).is_file())
    found = {name: records.file_hash(root, name) for name in names}
    return found.pop(first or "", None), [*found.values()]


def _told_rung(standing: Standing) -> Rung | None:
    """The failed rung that the reason tells: where the process ended, if that is the verdict, else the first.

    Where it ended at the end of memory that was laid out for that, or behind a call of another shape, another's
    finding says more, if there is one.
    """
    failed = [standing.rungs[name] for name in RUNGS if name in standing.told]
    told = standing.told
    ended = [rung for rung in failed if standing.ended and told[rung.name].gravity == ENDED]
    ended = [rung for rung in ended if not LAID_OUT.search(told[rung.name].message) or rung == failed[0]]
    return next(iter(ended + failed), None)


def _whole(rungs: Sequence[Rung], standing: Standing, selection: RungCases) -> str | None:
    """What an operator's author may have to declare, where only calls are wrong whose inputs we changed in part.

    Nothing where a result is known as an earlier call's: then that is what is wrong.
    """
    ours = selection.settings.module.startswith("kernelproof.")
    if ours or [rung.name for rung in rungs if rung.status == "failed"] != ["properties"]:
        return None
    failed = [each for each in standing.properties_found if each.status == "failed"]
    if any(words in (each.message or "") for each in failed for words in (records.SAME_AS_EARLIER, records.OF_EARLIER)):
        return None
    changed = all(each.name in CHANGED_INPUTS or each.name.startswith("aliased ") for each in failed)
    return WHOLE_INPUTS if changed else None


def _refused(standing: Standing) -> str | None:
    """How many calls it refused that by its `dtypes`, `options` and `limits` it takes; the ladder's own among them."""
    number = sum(map(_was_refused, standing.results))
    if not number:
        return None
    cases = formats.plural(len(standing.results), "case")
    return f"it refused {number} of {cases}, of which nothing is shown: let `limits` say what it takes"


def _was_refused(result: CaseResult) -> bool:
    """Whether it does not take a case of which something is demanded."""
    return result.status == "skipped" and result.reason != NOTHING_DEMANDED


def _undemanded(standing: Standing) -> str | None:
    """In how many cases the reference demands nothing, so that any result would do."""
    number = sum(result.reason == NOTHING_DEMANDED for result in standing.results)
    cases = formats.plural(len(standing.results), "case")
    return f"of {number} of {cases} nothing is demanded: the reference's bound is infinite there" if number else None


def _unvaried(selection: RungCases) -> str | None:
    """Which options of the operator no case has another value of than the first, for the configuration names none."""
    settings = selection.settings
    declared = selection.session.judge.declared(settings).options or {}
    left = [name for name, values in declared.items() if len(values) > 1 and name not in settings.test.options]
    if not left:
        return None
    named = formats.listed([f"`{name}`" for name in left])
    return f"no case varies the operator's {named}: name {'it' if len(left) == 1 else 'them'} in test.options"


def _of_one_value(calls: Calls) -> str | None:
    """Which scalars had one value in all calls, options and sizes left out: a kernel may have it written into it."""
    session, settings, variant = calls.session, calls.settings, calls.variant
    if session.only or session.config.test.level == QUICK or variant.options or variant.limits:
        return None
    given = {
        *(session.judge.declared(settings).options or {}),
        *(name for dims in settings.shapes.values() for name in dims),
    }
    same = [
        f"`{name}` ({formats.one_line(str(*values), 20)})"
        for name, values in calls.scalars.items()
        if len(values) == 1 and name not in given and values != {None}
    ]
    if not same:
        return None
    return f"every call had the same {formats.listed(same)}: let `make_call` take several values, by `case.family`, say"


def _not_tried(standing: Standing) -> str | None:
    """What to do where the operator's reference took none of some changed inputs."""
    mine = [each for each in standing.properties_found if (each.message or "").startswith(NOT_OF_SUCH_VALUES)]
    if not mine:
        return None
    why = (mine[0].message or "").removeprefix(NOT_OF_SUCH_VALUES).strip()
    return (
        f"{formats.plural(len(mine), 'call')} of changed inputs not looked at, for the operator's reference fails on "
        f"them {why}: name inputs whose values belong together in OPERATOR.whole"
    )


def _untouched(selection: RungCases) -> str | None:
    """Which inputs no call has another part of, since they may be indices."""
    judge, module = selection.session.judge, selection.settings.module
    names = [f"`{name}`" for case in selection.viewed_cases[:1] for name in judge.indices(module, case)]
    if not names:
        return None
    return (
        f"no call changes only a part of {formats.listed(names)}, of whole numbers that may belong together: name in "
        "OPERATOR.independent what each element of may be another, and in OPERATOR.whole what may not"
    )


def _repeat(standing: Standing) -> str | None:
    """The command that runs the case again of which the reason tells."""
    rung = _told_rung(standing)
    if rung is None or rung.name == "build":
        return None
    case = standing.told[rung.name].case
    return standing.session.config.command("test", standing.variant) + (f" --case {case}" if case else "")


def _backtrace(standing: Standing, selection: RungCases) -> str | None:
    """How to see where a CPU variant's own code was when its process was killed, where one call of usual values does
    that too: not where memory ends beside a tensor, nor of sizes that the configuration does not have.
    """
    rung, variant = _told_rung(standing), standing.variant
    if rung is None or rung.name not in ("launch", "correctness") or not KILLED.search(rung.message or ""):
        return None
    case = next((case for case in selection.cases if case.id == standing.told[rung.name].case), None)
    if case is None or (case.dtype, variant.device) != (variant.dtypes[0], "cpu"):
        return None
    if variant.abi == "python":  # the log has its lines
        return None
    call = standing.session.config.command("bench", variant)
    options = "".join(f" --option {name}={plain(value)}" for name, value in case.options.items())
    return (
        f"for a backtrace: gdb -batch -ex run -ex bt --args python -m {call} --once --shape {case.shape}"
        f"{options} (lines have numbers with -g in the variant's flags)"
    )


def _verdict(rungs: Sequence[Rung], selection: RungCases, standing: Standing) -> str:
    failed = [rung.name for rung in rungs if rung.status == "failed"]
    if "build" in failed:
        return "failed_to_build"
    if standing.ended:
        return standing.ended
    if failed:
        return "wrong"
    if standing.barred:
        return "not_run"
    tested = {result.id for result in standing.results}
    # A tool that cannot run here, or not to its end, is no fault of the variant; the record says what was not run.
    needed = [rung for rung in rungs if rung.name != "sanitizer"]
    whole = all(rung.status == "passed" for rung in needed) and all(case.id in tested for case in selection.cases)
    return "correct" if whole else "not_run"


def _main_shape_refused(standing: Standing, selection: RungCases) -> str | None:
    """What to do where a contender takes some shapes, and not the profiled one, on which alone its properties show."""
    settings = selection.settings
    shape = settings.profile.shape
    refused = {result.id for result in standing.results if _was_refused(result)}
    of_main = {case.id for case in selection.cases if case.shape == shape}
    if not of_main or not of_main <= refused or all(result.status != "passed" for result in standing.results):
        return None
    place = place_of(standing.session.config, "operators", settings.name, "profile", "shape")
    return (
        f"it refuses {shape}, the profiled shape, on which its properties are looked at: to have it judged, and as a "
        f"peer in the shapes that it takes, profile one of these ({place}: operators.{settings.name}.profile.shape)"
    )


def _not_climbed(rungs: Sequence[Rung]) -> str:
    """Why a variant has no verdict although nothing failed: which rungs it did not climb, and what stood in the way."""
    left = [rung for rung in rungs if rung.status != "passed"]
    why = "; ".join(dict.fromkeys(rung.message for rung in left if rung.message))
    return f"it was not tried on the rungs {', '.join(rung.name for rung in left)}{f': {why}' if why else ''}"
