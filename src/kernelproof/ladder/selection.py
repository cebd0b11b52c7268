"""Which cases of a variant each rung of the ladder takes, and how often a case is repeated."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kernelproof import suite
from kernelproof.cases import (
    Selection,
    case_of,
    covering_cases,
    select_cases,
    shape_of,
    unsupported,
    usual_family,
)
from kernelproof.judging import Job
from kernelproof.records import Case, CaseResult

if TYPE_CHECKING:
    from kernelproof.config import OperatorConfig, VariantConfig
    from kernelproof.ladder.session import Session

DEEP_SANITIZER = 4  # times as many cases at the deep level
REPEATED_CASES = 3
VECTOR, TILE = 8, 64  # elements that a vectorised kernel takes at a time; rows or keys of a usual tile
DRAWN_FAMILIES = 3
PROPERTY_FAMILIES = 3  # of which properties are tried on values
DRAWN_MEETINGS = 6  # of a family and an option's value in a data type that no case has
FENCED, FENCED_FAMILIES = 8, 4  # cases; input families, others in each run
QUICK_TRIALS = 10
DIMENSIONS_FIRST = 3  # that come first in a process of their own, whatever the number of data types and options
SMALL_ELEMENTS = 1 << 16  # a shape of no more may be the one that others are neighbours of though others are smaller
LARGE_ELEMENTS = (
    1 << 22
)  # a neighbour may have as many, whatever the shapes have: not all of them state every dimension
CPU_REPEATED_ELEMENTS = 40_000  # product of the dimensions: a hundred calls of a naive CPU kernel take a second or two


class RungCases:
    """The cases of one variant, by rung."""

    def __init__(self, session: Session, variant: VariantConfig) -> None:
        self.session = session
        self.variant = variant
        self.settings: OperatorConfig = session.config.operator(variant.operator)
        self.asked: dict[str, list[str]] | None = None  # ids of the cases that are asked for, by rung; None: all

    @property
    def trials(self) -> int:
        """How often a case is repeated; half of that by each of two processes, where threads may race."""
        settings = self.session.config.test
        return min(settings.trials, QUICK_TRIALS) if settings.level == "quick" else settings.trials

    @property
    def may_have_team(self) -> bool:
        """Whether it has code of its own that could run in several of the CPU's threads at a time."""
        return self.variant.device == "cpu" and (self.variant.role == "variant" or self.variant.abi != "python")

    @property
    def has_team(self) -> bool:
        """Whether it runs in several of the CPU's threads, which could race for memory."""
        return self.may_have_team and self.session.threads > 1

    @property
    def searches(self) -> bool:
        """Whether cases are drawn for it that nobody listed."""
        settings = self.session.config.test
        return settings.level == "deep" and self.variant.role == "variant" and not self.session.only

    @property
    def cases(self) -> list[Case]:
        """What it is tested on; nothing where it cannot run. Cases that it declares not to take are `left_out`."""
        return self._chosen.cases

    @functools.cached_property
    def left_out(self) -> list[CaseResult]:
        """Cases that it declares not to take, as results."""
        return [CaseResult.of(left_out.case, "skipped", left_out.reason) for left_out in self._chosen.skipped]

    @functools.cached_property
    def _chosen(self) -> Selection:
        session = self.session
        if session.lacking(self.variant):
            return Selection()
        if session.only:
            return Selection([case_of(self.settings, self.variant, session.only, self.families)])
        seeds = [*session.config.test.seeds, session.resources.fresh_seed]
        families = self.families
        quick = session.config.test.level == "quick"
        selection = select_cases(self.settings, self.variant, seeds=seeds, families=families, quick=quick)
        found = _with_fresh_seed(selection.cases, self.settings.profile.shape, session.resources.fresh_seed)
        if not quick:
            found += self._drawn_families(found, families) + self._drawn_meetings(found)
        return Selection(found, selection.skipped)

    def _drawn_meetings(self, cases: Sequence[Case]) -> list[Case]:
        """Some families that meet a value of an option in another data type, others in each run, on a small shape."""
        if self.variant.role != "variant":
            return []
        settings, seed = self.settings.test, self.session.resources.fresh_seed
        draw = random.Random(seed + 1)
        met = {(case.family, each, case.dtype) for case in cases for each in case.options.items()}
        missing = [
            (family, each, dtype)
            for family in dict.fromkeys(case.family for case in cases)
            for each in dict.fromkeys(each for case in cases for each in case.options.items())
            for dtype in self.variant.dtypes
            if (family, each, dtype) not in met
        ]
        small = [c for c in cases if c.shape in (settings.families_also_on or [settings.family_shape]) and elements(c)]
        found: list[Case] = []
        for family, (name, value), dtype in draw.sample(missing, min(DRAWN_MEETINGS, len(missing))):
            like = [case for case in small if case.dtype == dtype and case.options.get(name) == value]
            like = like or [dataclasses.replace(case, dtype=dtype) for case in small if case.options.get(name) == value]
            if like:
                smallest = min(map(elements, like))
                chosen = draw.choice([case for case in like if elements(case) == smallest])
                found.append(dataclasses.replace(chosen, family=family, seed=seed))
        return [case for case in _first_of_each(found, lambda case: case.id) if not unsupported(self.variant, case)]

    def _drawn_families(self, cases: Sequence[Case], families: Sequence[str]) -> list[Case]:
        """Some families, others in each run, on the shape that is profiled: what is right elsewhere only is seen."""
        main = [c for c in cases if (c.shape, c.family) == (self.settings.profile.shape, self.family)]
        others = [family for family in families if family != self.family]
        if not main or self.settings.test.family_shape in ("", self.settings.profile.shape):
            return []
        seed = self.session.resources.fresh_seed
        draw = random.Random(seed)
        chosen = draw.sample(others, min(DRAWN_FAMILIES, len(others)))
        return [dataclasses.replace(draw.choice(main), family=family, seed=seed) for family in chosen]

    @functools.cached_property
    def property_cases(self) -> list[Case]:
        """What the properties are tried on: two cases of each data type that differ in every option, on fresh seeds.

        And a small one of each kind (`_kinds`) that these are not of, with options drawn anew in each run: of
        KINDS_OF_EACH in each data type, of the others in one. None at the quick level.
        """
        if self.session.config.test.level == "quick":
            return []
        if self.session.only:
            return self._filled
        seed = self.session.resources.fresh_seed
        shapes = [self.settings.test.family_shape, self.settings.profile.shape]
        kinds = _kinds_of(self._filled)
        every = frozenset(itertools.chain(*kinds.values()))
        draw, found = random.Random(seed), dict[str, list[Case]]()
        for dtype in dict.fromkeys(case.dtype for case in self._filled):
            mine = sorted(
                (case for case in self._filled if case.dtype == dtype),
                key=lambda case: shapes.index(case.shape) if case.shape in shapes else len(shapes),
            )
            shape = [case for case in mine if case.shape == mine[0].shape]
            chosen = {json.dumps(case.options): case for case in (shape[0], _most_different(shape[0], shape))}
            found[dtype] = list(chosen.values())

        def missing(cases: Iterable[Case], wanted: frozenset[str] = every) -> frozenset[str]:
            return wanted.difference(*(kinds[case.id] for case in cases))

        def add(dtypes: Collection[str], wanted: frozenset[str]) -> bool:
            """Add a case of a wanted kind: of the type that has fewest, and of most kinds that none is of yet."""
            new = wanted | missing(itertools.chain(*found.values()))

            def rank(case: Case) -> tuple[int, int, bool, int]:
                own = kinds[case.id]
                return len(found[case.dtype]), -len(own & new), "strides" not in own, elements(case)

            possible = [case for case in self._usual if case.dtype in dtypes and kinds[case.id] & wanted]
            possible = [c for c in possible if elements(c) <= LARGEST or kinds[c.id] & wanted & KINDS_OF_EACH]
            if possible:
                best = min(map(rank, possible))
                chosen = draw.choice([case for case in possible if rank(case) == best])
                found[chosen.dtype].append(chosen)
            return bool(possible)

        for dtype, has in found.items():
            while (wanted := missing(has, KINDS_OF_EACH)) and add([dtype], wanted):
                pass
        while (wanted := missing(itertools.chain(*found.values()))) and add(found, wanted):
            pass
        for dtype, has in found.items():
            has += _with_every_value([case for case in self._usual if case.dtype == dtype], has)
        every_case = [case for each in found.values() for case in each]
        usual = [dataclasses.replace(case, family=self.family, seed=seed) for case in every_case]
        return usual + self._in_other_families(usual, draw)

    def _in_other_families(self, cases: Sequence[Case], draw: random.Random) -> list[Case]:
        """Small ones of some property cases in other families: a path that only their values take may keep results."""
        others = [family for family in self.families if family != self.family]
        small = sorted((case for case in cases if elements(case) > 1), key=elements)[: len(cases) // 2 + 1]
        if not small or self.variant.role != "variant":
            return []
        chosen = draw.sample(others, min(PROPERTY_FAMILIES, len(others)))
        return [dataclasses.replace(draw.choice(small), family=family) for family in chosen]

    @property
    def sanitizer_tools(self) -> list[str]:
        """compute-sanitizer's tools that it is run under; none at the quick level, for a baseline or on a CPU."""
        settings = self.session.config.test
        wanted = self.variant.device == "cuda" and self.variant.role == "variant" and settings.level != "quick"
        return settings.sanitizer.tools if wanted else []

    @functools.cached_property
    def sanitizer_cases(self) -> list[Case]:
        """The few small cases that they see."""
        if self.session.only:
            return self._filled
        settings = self.session.config.test
        deep = settings.level == "deep"
        limited = {name for variant in self.settings.variants.values() for name in variant.limits}
        most = settings.sanitizer.cases * (DEEP_SANITIZER if deep else 1)
        return covering_cases(self._usual or self._filled, sorted(limited), most, pairs=deep)

    @property
    def viewed_cases(self) -> list[Case]:
        """What is also laid out in other ways (Judge.views): a case of each data type and shape. Not of baselines."""
        if self.variant.role != "variant":
            return []
        return _first_of_each(self.property_cases, lambda case: (case.dtype, case.shape))

    @property
    def spaced_cases(self) -> list[Case]:
        """Of those the smallest of each data type, without a size of 1 if it can be: its elements are moved apart."""
        rising = sorted(self.viewed_cases, key=lambda case: (not _has_every_stride(case), elements(case)))
        return _first_of_each(rising, lambda case: case.dtype)

    @property
    def fenced_cases(self) -> list[Case]:
        """Small cases that hold every option between them, to be put where memory ends too.

        And the main shape's first, since what is read too far may depend on sizes, and the smallest of some other
        families, since it may depend on values.
        """
        if self.variant.role != "variant" or self.variant.device != "cpu" or not self._filled:
            return []
        main = [case for case in self._usual if case.shape == self.settings.profile.shape]
        chosen = [*main[:1], *self._of_other_families(FENCED_FAMILIES)]
        found = [*covering_cases(self._usual or self._filled, (), FENCED), *chosen]
        return _first_of_each(found, lambda case: case.id)

    @property
    def shifted_cases(self) -> list[Case]:
        """A case of each further data type and shape that begins off its boundary with all of its tensors."""
        if self.variant.role != "variant" or not self.viewed_cases or self.session.only:
            return []
        seen = {(case.dtype, case.shape) for case in self.viewed_cases}
        listed = [case for case in self._usual if case.shape in self.settings.shapes]
        first = _first_of_each(listed, lambda case: (case.dtype, case.shape))
        return [case for case in first if (case.dtype, case.shape) not in seen]

    @functools.cached_property
    def neighbours(self) -> dict[str, list[list[Case]]]:
        """A small shape with most dimensions, each then taken from the nearest smaller and larger shape.

        A kernel that keeps something by a part of a call's sizes (a mask by its rows, a workspace) is right wherever
        all of them differ. A list is for one process: `rising` the smaller ones, the shape, the larger ones; `falling`
        the other way. Dimensions take turns to come first, lengths before others: what is kept is often of the first
        call. In every data type and combination of options that the shape is tested with, in turn; on no size that no
        shape has. The same where one case alone is run again.
        """
        if self.variant.role != "variant" or not self._filled:
            return {}
        every = select_cases(self.settings, self.variant, families=self.families).cases
        usual = [case for case in every if case.family == self.family and elements(case)]
        if not usual:
            return {}
        first = _between(usual)
        beside = _next_sizes(first, usual)
        shapes = {first.shape: first.dims, **{shape_of(dims): dims for dims in beside.values()}}
        refused = self.session.judge.declared(dataclasses.replace(self.settings, shapes=shapes)).refused
        taken = {shape for shape in shapes if shape == first.shape or shape not in refused}
        if len(taken) == 1:
            return {}
        bases = [case for case in usual if case.shape == first.shape]
        bases = list({(case.dtype, json.dumps(case.options)): case for case in bases}.values())
        turned = sorted(first.dims, key=lambda name: name not in suite.LENGTHS)
        found: dict[str, list[list[Case]]] = {"rising": [], "falling": []}
        for turn in range(max(len(bases), 2, min(len(turned), DIMENSIONS_FIRST))):
            base, seed = bases[turn % len(bases)], self.property_cases[0].seed + 2 * (turn // len(bases))
            way = -1 if turn % 2 == 0 else 1
            ends = ([beside[name, end] for name in turned if (name, end) in beside] for end in (way, -way))
            before, after = ([shape_of(dims) for dims in end] for end in ends)
            cases = [
                dataclasses.replace(base, shape=shape, dims=shapes[shape], seed=seed)
                for shape in (*before, first.shape, *after)
                if shape in taken
            ]
            again = dataclasses.replace(base, shape=first.shape, dims=first.dims, seed=seed + 1)
            sequence = [case for case in [*cases, again] if not unsupported(self.variant, case)]
            found["falling" if turn % 2 else "rising"].append(sequence)
            turned.append(turned.pop(0))
        return found

    @property
    def zero_copy_cases(self) -> list[Case]:
        """What is also called on inputs in the host's memory: the main shape in each data type and the largest ones."""
        if self.variant.role != "variant" or self.session.config.test.level == "quick":
            return []
        main = [c for c in self._filled if (c.shape, c.family) == (self.settings.profile.shape, self.family)]
        chosen = [*_first_of_each(main, lambda case: case.dtype), *self.repeated_cases]
        chosen = [case for case in chosen if self.session.only or case.family == self.family]
        return _first_of_each(chosen, lambda case: case.id)

    @property
    def _filled(self) -> list[Case]:
        """The cases without a size of 0: of those a kernel has to do nothing but come back."""
        return [case for case in self.cases if self.session.only or elements(case)]

    @property
    def _usual(self) -> list[Case]:
        """The cases of usual values."""
        return [case for case in self._filled if case.family == self.family]

    @property
    def families(self) -> list[str]:
        """The input families that it is tested on."""
        return self.session.families(self.variant)

    @property
    def family(self) -> str:
        """The input family of usual values."""
        return usual_family(self.families)

    @functools.cached_property
    def repeated_cases(self) -> list[Case]:
        """Those of the cases that are repeated."""
        if self.session.only or not self._filled:
            return self._filled
        found = _repeated(self._filled, self.settings, self.variant.device)
        if self.has_team:  # however busy the cores are, threads that share a long call overlap
            longest = max((c for c in self._filled if c.shape in self.settings.shapes), key=elements, default=found[0])
            found += [longest] if longest not in found else []
        if self.variant.role == "variant" and self.session.config.test.level != "quick":
            found += self._of_other_families(DRAWN_FAMILIES)  # a race may lie where only their values lead
        return found

    def _of_other_families(self, most: int) -> list[Case]:
        """The smallest case of some families that are not the usual one, others in each run."""
        smallest = _first_of_each(sorted(self._filled, key=elements), lambda case: case.family)
        others = [case for case in smallest if case.family != self.family]
        return random.Random(self.session.resources.fresh_seed).sample(others, min(most, len(others)))

    def sanity_jobs(self) -> Iterator[tuple[Job, Case]]:
        """The exact calls in every data type and with every combination of options, as far as it takes them."""
        for case in _distinct(self._filled):
            for name, exact in self.session.judge.exact_cases(self.settings.module, case).items():
                if not unsupported(self.variant, exact):
                    yield Job(case, "sanity", name), exact

    def judged_jobs(self) -> list[Job]:
        """Every call that is judged by itself, but for those that the deep level draws."""
        return [*(Job(case) for case in self.cases), *(job for job, _ in self.sanity_jobs())]

    def asked_for(self, rung: str, cases: list[Case]) -> list[Case]:
        """Those of the cases on which a rung is to be climbed."""
        return cases if self.asked is None else [c for c in cases if c.id in self.asked.get(rung, [])]


def _with_fresh_seed(cases: list[Case], main_shape: str, seed: int) -> list[Case]:
    """The cases, in each shape and data type some with the seed that nobody could know before the build.

    The main shape's first ones are there once more. Of others one, drawn by that seed, has it instead of its own; where
    there is only one, it is there once more.
    """
    main = [case for case in cases if case.shape == main_shape] or cases
    repeated = [
        dataclasses.replace(c, seed=seed) for c in main if (c.family, c.dtype) == (main[0].family, main[0].dtype)
    ]
    alike = defaultdict[tuple[str, str], list[Case]](list)
    for case in (*cases, *repeated):
        if case.family == main[0].family:
            alike[case.shape, case.dtype].append(case)
    draw, renewed = random.Random(seed), dict[str, Case]()
    for found in alike.values():
        if all(case.seed != seed for case in found):
            chosen = draw.choice(found)
            fresh = dataclasses.replace(chosen, seed=seed)
            if len(found) > 1:
                renewed[chosen.id] = fresh
            else:
                repeated.append(fresh)
    return _first_of_each([*(renewed.get(case.id, case) for case in cases), *repeated], lambda case: case.id)


def _repeated(cases: list[Case], settings: OperatorConfig, device: str) -> list[Case]:
    """The cases that are repeated: on a GPU the profiled shape, then the largest; on a CPU the largest small ones."""
    limit = CPU_REPEATED_ELEMENTS if device == "cpu" else float("inf")
    found = sorted((c for c in cases if elements(c) <= limit), key=elements, reverse=True)
    found.sort(key=lambda c: device == "cpu" or c.shape != settings.profile.shape)
    return _first_of_each(found or [min(cases, key=elements)], lambda case: case.shape)[:REPEATED_CASES]


def _most_different(case: Case, among: list[Case]) -> Case:
    """The case whose options differ most."""
    return max(among, key=lambda other: sum(other.options[name] != value for name, value in case.options.items()))


def _sizes(cases: Sequence[Case]) -> dict[str, list[int]]:
    """By dimension all sizes that cases have, rising."""
    found: dict[str, set[int]] = defaultdict(set)
    for case in cases:
        for name, size in case.dims.items():
            found[name].add(size)
    return {name: sorted(sizes) for name, sizes in found.items()}


def _between(cases: Sequence[Case]) -> Case:
    """A case of most dimensions, of a small shape, and with smaller and larger sizes to as many of its own as may be.

    Beside a shape of ones there are no smaller ones, and larger ones may never come to where a kernel begins to tile.
    """
    lengths, listed = frozenset(suite.LENGTHS), _sizes(cases)

    def order(case: Case) -> tuple[float, ...]:
        sides = sum((size > listed[name][0]) + (size < listed[name][-1]) for name, size in case.dims.items())
        given = -len(lengths & case.dims.keys()), -len(case.dims)
        return *given, elements(case) > SMALL_ELEMENTS, -sides, elements(case)

    return min(cases, key=order)


def _next_sizes(first: Case, cases: Sequence[Case]) -> dict[tuple[str, int], dict[str, int]]:
    """A case's dimensions with one from the nearest other shape: by its name and 1 for a larger, -1 for a smaller one.

    None is larger than the largest of the cases, or LARGE_ELEMENTS: all largest sizes in one shape are nobody's.
    """
    most, listed, found = max(LARGE_ELEMENTS, *map(elements, cases)), _sizes(cases), {}
    for name, size in first.dims.items():
        changed = [{**first.dims, name: other} for other in listed[name]]
        small = [dims for dims in changed if math.prod(dims.values()) <= most]
        whole = [dims for dims in small if dims.get("heads", 0) % dims.get("kv_heads", 1) == 0]
        if smaller := [dims for dims in whole if dims[name] < size]:
            found[name, -1] = smaller[-1]
        if larger := [dims for dims in whole if dims[name] > size]:
            found[name, 1] = larger[0]
    return found


def _with_every_value(cases: Sequence[Case], has: Sequence[Case]) -> list[Case]:
    """The smallest of some cases with a value of an option that none of those that there are has, nor one of these."""
    found: list[Case] = []
    met = {each for case in has for each in case.options.items()}
    for case in sorted(cases, key=elements):
        if not case.options.items() <= met:
            found.append(case)
            met |= case.options.items()
    return found


def elements(case: Case) -> int:
    """The product of the dimensions: not the cost, but it grows with it."""
    return math.prod(case.dims.values())


def _has_every_stride(case: Case) -> bool:
    """Whether no dimension is of size 1, whose stride matters to nobody."""
    return all(size > 1 for size in case.dims.values())


SEQUENCES = ("seq", "seq_k")
LARGEST = 1 << 24  # product of the dimensions, of a case that is tried for a kind alone
KINDS_OF_EACH = frozenset(("strides", "vectors", "tails"))
LONG = 256  # elements along a dimension that a kernel goes over in several steps


def _kinds_of(cases: Sequence[Case]) -> dict[str, frozenset[str]]:
    """Each case's kinds, by its id, and `most NAME` where of a LONG dimension no other case has more."""
    most: dict[str, int] = {}
    for case in cases:
        for name, size in _along(case).items():
            most[name] = max(size, most.get(name, LONG))
    return {
        case.id: _kinds(case) | {f"most {name}" for name, size in _along(case).items() if size == most[name]}
        for case in cases
    }


def _along(case: Case) -> dict[str, int]:
    """The dimensions that tensors may be contiguous along, as far as one knows by name."""
    return {name: size for name, size in case.dims.items() if name not in SEQUENCES}


def _kinds(case: Case) -> frozenset[str]:
    """What a case is of, of the kinds that kernels treat in another way.

    strides: every one matters. vectors, tails: VECTOR divides the last dimension of its size or more, along which
    tensors usually are contiguous (none of SEQUENCES), or leaves something over. tail of NAME: of this LONG dimension
    it leaves something over, since of several tensors each may have a last one of its own. tiles: TILE divides all
    SEQUENCES. And each dimension that its shape gives: what others leave out is as large as another one there (as many
    heads of keys as of queries), or of no effect.
    """
    lengths = [size for name, size in case.dims.items() if name in SEQUENCES]
    along = {name: size for name, size in _along(case).items() if size >= VECTOR}
    last = next(reversed(along.values()), 0)
    found = {
        "strides": _has_every_stride(case),
        "vectors": not case.dims or (last > 0 and last % VECTOR == 0),
        "tails": last % VECTOR != 0,
        "tiles": bool(lengths) and all(size % TILE == 0 for size in lengths),
    }
    tails = (f"tail of {name}" for name, size in along.items() if size >= LONG and size % VECTOR)
    return frozenset((*(kind for kind, is_of_it in found.items() if is_of_it), *tails, *case.dims))


def _distinct(cases: list[Case]) -> list[Case]:
    """One case for each data type and combination of options."""
    return _first_of_each(cases, lambda case: (case.dtype, json.dumps(case.options)))


def _first_of_each(cases: Sequence[Case], kind: Callable[[Case], Hashable]) -> list[Case]:
    """The first case of each kind, in their order."""
    first: dict[Hashable, Case] = {}
    for case in cases:
        first.setdefault(kind(case), case)
    return list(first.values())
