"""Which cases a variant is tested or timed on: shapes × options × data types × families × seeds, thinned out.

The full cross product would be thousands of cases and say no more. What is kept, in this order:

1. the profiled shape with every combination of options and every data type, on the default family;
2. every other shape on the default family, in every data type, these and the options in turn: every combination where
   there are few, else some that between them hold every value of every option;
3. every other family on one shape (`family_shape`, else the profiled one), twice, options and data types in turn; and
   once on each of `families_also_on`.

Seeds go round. Nothing here depends on the machine or on chance: the same configuration gives the same list.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelproof.config import CaseSelection, OperatorConfig, VariantConfig, plain
from kernelproof.errors import ConfigError
from kernelproof.records import Case
from kernelproof.suite import LENGTHS

DEFAULT_FAMILY = "normal"
FAMILY_REPEATS = 2
EVERY_COMBINATION = 4  # of options, at most, that every shape is tested with
FALLBACK_SEEDS = (0,)
GROWN = 1 << 20  # product of the dimensions of what compute-sanitizer sees after a smaller size, at most
ROUND, LONG = 16, 256  # no tile divides a length that the first does not divide; above the second there are many

Options = dict[str, Any]
Which = Literal["test", "bench"]


def usual_family(families: Sequence[str]) -> str:
    """The family of usual values among an operator's, or of those that are tested: `normal`, else the first."""
    return DEFAULT_FAMILY if DEFAULT_FAMILY in families else families[0]


@dataclass(frozen=True)
class Skipped:
    """A case that a variant cannot take, and why."""

    case: Case
    reason: str


@dataclass(frozen=True)
class Selection:
    """The cases of a variant, and those of its operator that it cannot take."""

    cases: list[Case] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def enumerate_cases(
    operator: OperatorConfig,
    variant: VariantConfig,
    which: Which = "test",
    *,
    seeds: Sequence[int] = (),
    families: Sequence[str] = (),
) -> list[Case]:
    """The cases that a variant can take; see `select_cases`."""
    return select_cases(operator, variant, which, seeds=seeds, families=families).cases


def select_cases(
    operator: OperatorConfig,
    variant: VariantConfig,
    which: Which = "test",
    *,
    seeds: Sequence[int] = (),
    families: Sequence[str] = (),
    quick: bool = False,
) -> Selection:
    """All cases of an operator for a variant, split into what it can take and what it cannot.

    Order is deterministic and ids are unique. Seeds and families are the selection's own, else those given. The
    benchmark uses only the usual family of those given and one seed, since neither changes the work. `quick` keeps no
    more than the first of the three kinds of cases.
    """
    chosen = operator.test if which == "test" else operator.bench
    numbers = chosen.seeds or list(seeds) or list(FALLBACK_SEEDS)
    combinations = _combinations(chosen.options)
    if which == "bench":
        family = usual_family(families or [DEFAULT_FAMILY])
        wanted = _timed(operator, variant, chosen, combinations, family, numbers[0])
    else:
        families = chosen.families or list(families) or [DEFAULT_FAMILY]
        wanted = _tested(operator, variant, chosen, combinations, families, numbers, quick)
    selection = Selection()
    for case in _unique(wanted):
        reason = unsupported(variant, case)
        if reason is None:
            selection.cases.append(case)
        else:
            selection.skipped.append(Skipped(case, reason))
    return selection


def case_of(operator: OperatorConfig, variant: VariantConfig, id: str, families: Sequence[str]) -> Case:
    """The case that a record names: of a shape in the configuration, or of one given as `seq=77,heads=2,…`.

    Any seed will do. Raises ConfigError when there is no such case, or the variant does not take it.
    """
    what, _, seed = id.rpartition("-s")
    first = what.split("-")[0]
    shapes = {first: _dims(first)} if "=" in first else operator.shapes
    possible = [
        Case(operator.name, shape, dict(dims), options, dtype, family, int(seed) if seed.isdigit() else 0)
        for shape, dims in shapes.items()
        for options in _combinations(operator.test.options)
        for dtype in dict.fromkeys([*variant.dtypes, *(d for v in operator.variants.values() for d in v.dtypes)])
        for family in families
    ]
    found = next((case for case in possible if case.id == id), None)
    if found is None:
        near = difflib.get_close_matches(id, [case.id for case in possible], 1, 0)
        raise ConfigError(
            f"there is no such case; the nearest is {near[0] if near else 'none'}",
            subject=id,
            hint=None
            if id.split("-")[0] in shapes
            else "exact calls are no cases: they are made whatever case is asked for",
        )
    if reason := unsupported(variant, found):
        raise ConfigError(f"{variant.key} {reason}", subject=id)
    return found


def shape_of(dims: Mapping[str, int]) -> str:
    """The name of a shape that the configuration does not have: `seq=77,heads=2`; `case_of` takes it."""
    return ",".join(f"{name}={size}" for name, size in dims.items())


def _dims(text: str) -> dict[str, int]:
    """`seq=77,heads=2` as dimensions."""
    try:
        return {name: int(value) for name, value in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ConfigError("is no list of dimensions like heads=2,seq=77", subject=text) from None


def covering_cases(cases: Sequence[Case], limited: Collection[str], most: int, *, pairs: bool = False) -> list[Case]:
    """A few small cases that between them hold what kernels have a branch for.

    That is: every data type, every value of every option and of every dimension in `limited`, every set of dimensions,
    and of each length (suite.LENGTHS) one that no tile divides, of one, a few and many tiles. With `pairs` each two of
    the first three together. Small cases come first; those whose every feature others have are left out. Where that
    leaves one size, a larger one follows: memory that is kept from the first call may be too small for it.
    """

    def features(case: Case) -> set[Any]:
        branches = [("dtype", case.dtype), *((name, str(value)) for name, value in case.options.items())]
        branches += [(name, str(case.dims[name])) for name in limited if name in case.dims]
        found: set[Any] = {*branches, frozenset(case.dims)}
        if pairs:
            found |= set(itertools.combinations(branches, 2))
        for name in LENGTHS:
            if (length := case.dims.get(name, 0)) % ROUND:
                found.add((name, "off every tile", length > ROUND, length > LONG))
        return found

    chosen: dict[str, set[Any]] = {}
    by_id = {case.id: case for case in cases}
    for case in sorted(cases, key=lambda case: math.prod(case.dims.values())):
        if features(case) - set().union(*chosen.values()):
            chosen[case.id] = features(case)
    for id in list(chosen):  # the smallest first: what they show, a larger one often shows too
        others = set().union(*(held for other, held in chosen.items() if other != id))
        if chosen[id] <= others:
            del chosen[id]
    found = [by_id[id] for id in chosen][:most]
    if len({frozenset(case.dims.items()) for case in found}) == 1 and len(found) < most:
        sizes = {math.prod(case.dims.values()): case for case in cases}
        largest = max((size for size in sizes if size <= GROWN), default=0)
        found += [sizes[largest]] if largest > math.prod(found[0].dims.values()) else []
    return found


def unsupported(variant: VariantConfig, case: Case) -> str | None:
    """Why a variant cannot take a case by its own declaration (data types, options, limits), or None."""
    if case.dtype not in variant.dtypes:
        return f"takes {_either(variant.dtypes)}, not {case.dtype}"
    for name, value in case.options.items():
        allowed = variant.options.get(name)
        if allowed is not None and value not in allowed:
            return f"takes {name} {_either(allowed)}, not {plain(value)}"
    for name, allowed in variant.limits.items():
        if name in case.dims and case.dims[name] not in allowed:
            return f"takes {name} {_either(allowed)}, not {case.dims[name]}"
    return None


def _timed(
    operator: OperatorConfig,
    variant: VariantConfig,
    chosen: CaseSelection,
    combinations: list[Options],
    family: str,
    seed: int,
) -> list[Case]:
    return [
        Case(operator.name, shape, dict(operator.shapes[shape]), dict(options), dtype, family, seed)
        for shape in chosen.shapes_on(variant.device)
        for options in combinations
        for dtype in variant.dtypes
        if not chosen.dtypes or dtype in chosen.dtypes
    ]


def _tested(
    operator: OperatorConfig,
    variant: VariantConfig,
    chosen: CaseSelection,
    combinations: list[Options],
    families: Sequence[str],
    seeds: Sequence[int],
    quick: bool,
) -> list[Case]:
    seed_of, dtype_of = itertools.cycle(seeds), itertools.cycle(variant.dtypes)
    main = operator.profile.shape
    family_shape = chosen.family_shape or main
    default = usual_family(families)

    def case(shape: str, options: Options, dtype: str, family: str, seed: int) -> Case:
        return Case(operator.name, shape, dict(operator.shapes[shape]), dict(options), dtype, family, seed)

    cases = []
    for dtype in variant.dtypes:
        seed = next(seed_of)
        cases += [case(main, options, dtype, default, seed) for options in combinations]
    if quick:
        return cases
    few = len(combinations) <= EVERY_COMBINATION
    covering = [_opposites_apart(combinations)] if few else _covering(chosen.options)
    for turn, shape in enumerate(s for s in chosen.shapes_on(variant.device) if s != main):
        seed, those = next(seed_of), covering[turn % len(covering)]
        count = max(len(those), len(variant.dtypes))  # of every type too
        in_turn = itertools.islice(itertools.cycle(those), count)
        cases += [case(shape, options, next(dtype_of), default, seed) for options in in_turn]
        if turn % len(covering) == len(covering) - 1:
            next(dtype_of)  # else an even number of types would always meet the same options
    values = {each for options in combinations for each in options.items()}
    for turn, family in enumerate(f for f in families if f != default):
        # The two cases differ in every option and, if there are several, in the data type.
        first = turn % len(combinations)
        met = set[tuple[str, Any]]()
        for repeat in range(FAMILY_REPEATS):
            options = combinations[first if repeat == 0 else len(combinations) - 1 - first]
            cases.append(case(family_shape, options, next(dtype_of), family, next(seed_of)))
            met |= options.items()
        next(dtype_of)
        for place, shape in enumerate(chosen.families_also_on):
            options = _with_most_of(values - met, combinations, turn + place)
            dtype = variant.dtypes[(turn // len(combinations) + place) % len(variant.dtypes)]
            cases.append(case(shape, options, dtype, family, seeds[turn % len(seeds)]))
            met |= options.items()
        for extra in range(EVERY_COMBINATION if values - met else 0):
            options = _with_most_of(values - met, combinations, turn + extra)
            cases.append(case(family_shape, options, next(dtype_of), family, next(seed_of)))
            met |= options.items()
            if values <= met:
                break
    return cases


def _with_most_of(wanted: set[tuple[str, Any]], combinations: list[Options], start: int) -> Options:
    """The combination with the most of these values, the first from a place on."""
    begin = start % len(combinations)
    return max(combinations[begin:] + combinations[:begin], key=lambda options: len(wanted & options.items()))


def _opposites_apart(combinations: list[Options]) -> list[Options]:
    """The combinations in an order in which two types, taken in turn, each meet those that differ in every option."""
    half = len(combinations) // 2
    return combinations[:half] + combinations[: -half - 1 : -1] + combinations[half : len(combinations) - half]


def _covering(options: dict[str, list[Any]]) -> list[list[Options]]:
    """Small sets of option combinations, each holding every value of every option; successive shapes take turns.

    Set t pairs the values of the options along a diagonal that is shifted by t, so that the sets together hold every
    pair of values.
    """
    if not options:
        return [[{}]]
    longest = max(len(values) for values in options.values())
    return [
        [
            {
                name: values[(row + shift * column) % len(values)]
                for column, (name, values) in enumerate(options.items())
            }
            for row in range(longest)
        ]
        for shift in range(longest)
    ]


def _combinations(options: dict[str, list[Any]]) -> list[Options]:
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def _unique(cases: list[Case]) -> list[Case]:
    return list({case.id: case for case in cases}.values())


def _either(values: Sequence[Any]) -> str:
    names = [plain(value) for value in values]
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
