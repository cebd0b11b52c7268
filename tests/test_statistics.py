"""Statistics on synthetic times whose truth is known."""

import math

import numpy as np
import pytest

from kernelproof import statistics
from kernelproof.statistics import Blocks, Settings, ratio_estimate, time_estimate, verdicts

QUICK = Settings(resamples=2000)
BAND = 0.005


def times(
    random: np.random.Generator,
    truth_us: float,
    *,
    processes: int = 5,
    blocks: int = 8,
    between: float = 0.002,
    within: float = 0.004,
    drift: float = 0.0,
    position: float = 0.0,
) -> Blocks:
    """Two visits a block. between and within are standard deviations of log time; drift is per block position."""
    found = {}
    for process in range(processes):
        level = math.log(truth_us) + between * random.standard_normal()
        found[process] = {
            block: [
                math.exp(level + within * random.standard_normal() + drift * (block + place))
                for place in (position, 1 - position)
            ]
            for block in range(blocks)
        }
    return found


def test_student_t_against_the_tables() -> None:
    tabled = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.776445, 5: 2.570582, 9: 2.262157, 30: 2.042272}
    for degrees, quantile in tabled.items():
        assert statistics.student_t_quantile(0.975, degrees) == pytest.approx(quantile, abs=1e-5)


def test_benjamini_hochberg_against_the_paper() -> None:
    # Benjamini & Hochberg 1995, sec. 3.2: fifteen p-values, four rejections at q = 0.05.
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    adjusted = statistics.benjamini_hochberg(p)
    assert sum(q <= 0.05 for q in adjusted) == 4
    assert adjusted == sorted(adjusted)
    shuffled = np.random.default_rng(0).permutation(len(p))
    again = statistics.benjamini_hochberg([p[i] for i in shuffled])
    assert [again[list(shuffled).index(i)] for i in range(len(p))] == adjusted
    assert statistics.benjamini_hochberg([]) == []


@pytest.mark.parametrize(("between", "within"), [(0.004, 0.002), (0.0005, 0.008)], ids=["between", "within"])
def test_the_interval_covers_the_truth(between: float, within: float) -> None:
    random = np.random.default_rng(5)
    covered, trials = 0, 400
    for _ in range(trials):
        ours = times(random, 9.0, between=between, within=within)
        theirs = times(random, 10.0, between=between, within=within)
        found = ratio_estimate(ours, theirs, QUICK)
        assert found is not None
        covered += found.low <= 0.9 <= found.high
    # 95 % of 400 is 380; the standard deviation of the count is 4.4.
    assert 366 <= covered <= 394


def test_identical_kernels_are_never_declared_different() -> None:
    random = np.random.default_rng(6)
    said = []
    for _ in range(20):  # twenty benchmarks of fifteen ratios
        estimates = [ratio_estimate(times(random, 5.0), times(random, 5.0), QUICK) for _ in range(15)]
        said += verdicts([e for e in estimates if e], BAND, QUICK)
    assert len(said) == 300
    assert said.count("faster") == said.count("slower") == 0


def test_two_percent_is_found_and_more_blocks_do_not_make_up_for_processes() -> None:
    random = np.random.default_rng(7)
    found = [ratio_estimate(times(random, 4.9), times(random, 5.0), QUICK) for _ in range(100)]
    assert verdicts([e for e in found if e], BAND, QUICK).count("faster") >= 95
    one_process = ratio_estimate(
        times(random, 2.5, processes=1, blocks=100), times(random, 5.0, processes=1, blocks=100), QUICK
    )
    assert one_process is not None
    assert one_process.high < 0.6
    assert verdicts([one_process], BAND, QUICK) == ["undecided"]


def test_drift_within_a_block_cancels() -> None:
    random = np.random.default_rng(8)
    # Ten percent a block, and the contenders' visits at the ends and in the middle of it: A B B A.
    ours = times(random, 5.0, within=1e-6, between=0, drift=0.1, position=0.0)
    theirs = times(random, 5.0, within=1e-6, between=0, drift=0.1, position=0.3)
    found = ratio_estimate(ours, theirs, QUICK)
    assert found is not None
    assert found.value == pytest.approx(1, abs=1e-5)


def test_one_burst_of_foreign_work_does_not_move_a_process() -> None:
    random = np.random.default_rng(9)
    ours, theirs = times(random, 5.0), times(random, 5.0)
    quiet = ratio_estimate(ours, theirs, QUICK)
    disturbed = {p: {b: [50.0, 50.0] if b == 3 else list(v) for b, v in blocks.items()} for p, blocks in ours.items()}
    noisy = ratio_estimate(disturbed, theirs, QUICK)
    assert quiet
    assert noisy
    assert noisy.value == pytest.approx(quiet.value, rel=0.005)


def test_only_common_blocks_are_paired() -> None:
    ours: Blocks = {0: {0: [2.0], 1: [400.0]}, 1: {0: [2.0]}, 2: {0: [9.0]}}
    theirs: Blocks = {0: {0: [4.0]}, 1: {0: [4.0], 5: [1.0]}, 3: {0: [1.0]}}
    found = ratio_estimate(ours, theirs, QUICK)
    assert found is not None
    assert (found.value, found.low, found.high, found.replicates) == (pytest.approx(0.5),) * 3 + (2,)
    assert (found.error, found.degrees) == (pytest.approx(0, abs=1e-12), 1)
    assert ratio_estimate(ours, {7: {0: [1.0]}}, QUICK) is None
    assert time_estimate({}, QUICK) is None


def test_a_median_time_and_its_interval() -> None:
    found = time_estimate(times(np.random.default_rng(10), 7.0), QUICK)
    assert found is not None
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(7.0, rel=0.01)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.90, 0.99, "faster"),
        (0.90, 0.996, "undecided"),
        (0.996, 1.004, "same"),
        (0.99, 1.01, "undecided"),
        (1.006, 1.2, "slower"),
    ],
)
def test_verdicts_of_intervals(low: float, high: float, said: str) -> None:
    assert statistics.verdict(low, high, BAND) == said


def test_the_bootstrap_gives_what_it_gave_before_scipy() -> None:
    # By this project's own resampling, 10,000 resamples of the default seed: 0.009032 to 0.015684, on the left narrower
    # than Student's t.
    values = np.array([0.011, 0.013, 0.009, 0.016, 0.012])
    [(low, high)] = statistics.bootstrap_intervals([values], Settings())
    least = 0.0122 - 2.776445105 * np.std(values, ddof=1) / np.sqrt(5)
    assert (low, high) == (pytest.approx(least, rel=1e-9), pytest.approx(0.015684325244169555, rel=1e-9))


def test_what_a_run_could_have_seen_is_found_four_times_in_five() -> None:
    random = np.random.default_rng(11)
    runs = [ratio_estimate(times(random, 5.0), times(random, 5.0), QUICK) for _ in range(60)]
    seen = [statistics.minimal_detectable_difference(e, BAND, QUICK) for e in runs if e]
    typical = float(np.median([s for s in seen if s is not None]))
    found = [ratio_estimate(times(random, 5.0 * (1 + typical)), times(random, 5.0), QUICK) for _ in range(300)]
    share = np.mean([statistics.verdict(e.low, e.high, BAND) == "slower" for e in found if e])
    # The spread that one run shows is itself uncertain with five processes: the promise is for the typical one.
    assert 0.7 < share < 0.92


def test_one_process_could_have_seen_nothing() -> None:
    random = np.random.default_rng(12)
    alone = ratio_estimate(times(random, 5.0, processes=1), times(random, 5.0, processes=1), QUICK)
    assert alone is not None
    assert statistics.minimal_detectable_difference(alone, BAND, QUICK) is None


def test_more_processes_see_more() -> None:
    random = np.random.default_rng(13)
    few, many = (
        ratio_estimate(times(random, 5.0, processes=n), times(random, 5.0, processes=n), QUICK) for n in (3, 30)
    )
    assert few
    assert many
    seen = [statistics.minimal_detectable_difference(e, BAND, QUICK) for e in (few, many)]
    assert seen[0] is not None
    assert seen[1] is not None
    assert BAND < seen[1] < seen[0]


def test_unpaired_without_a_spread_between_runs_is_welchs_test() -> None:
    from scipy import stats

    random = np.random.default_rng(14)
    before, after = random.normal(2.0, 0.01, 5), random.normal(2.03, 0.03, 7)
    found = statistics.change_estimate(list(before), list(after), Settings())
    known = stats.ttest_ind(after, before, equal_var=False)
    interval = known.confidence_interval(0.95)
    assert found is not None
    assert found.degrees == pytest.approx(known.df)
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert statistics.p_value_outside_band(found, 0.0) == pytest.approx(known.pvalue)
    wider = statistics.change_estimate(list(before), list(after), Settings(), spread=0.02, spread_degrees=12)
    assert wider is not None
    assert wider.low < found.low < found.high < wider.high


def test_the_other_order_gives_the_inverse() -> None:
    random = np.random.default_rng(15)
    before, after = list(random.normal(2.0, 0.01, 5)), list(random.normal(2.1, 0.03, 4))
    there = statistics.change_estimate(before, after, Settings(), 0.01, 10)
    back = statistics.change_estimate(after, before, Settings(), 0.01, 10)
    assert there
    assert back
    assert (there.value * back.value, there.low * back.high) == (pytest.approx(1), pytest.approx(1))


def test_nothing_follows_from_one_process_a_run() -> None:
    found = statistics.change_estimate([1.0], [3.0, 3.1], Settings())
    assert found is not None
    assert verdicts([found], BAND, Settings()) == ["undecided"]
    assert statistics.change_estimate([], [3.0], Settings()) is None


@pytest.mark.parametrize("truth", [0.0, 0.005, 0.03])
def test_heterogeneity_is_found(truth: float) -> None:
    random = np.random.default_rng(16)
    errors = random.uniform(0.001, 0.004, 400)
    changes = [(float(random.normal(0, math.hypot(truth, e))), float(e)) for e in errors]
    found = statistics.heterogeneity(changes)
    assert found == pytest.approx(truth, rel=0.1, abs=0.0006)
    assert statistics.heterogeneity([]) == statistics.heterogeneity([(0.0, 0.0)]) == 0


def test_process_figures_are_of_common_blocks() -> None:
    ours: Blocks = {0: {0: [2.0], 1: [400.0]}, 1: {0: [2.0]}, 2: {0: [9.0]}}
    theirs: Blocks = {0: {0: [4.0]}, 1: {0: [4.0], 5: [1.0]}}
    assert statistics.process_figures(ours, [theirs]) == [pytest.approx(math.log(0.5))] * 2
    assert len(statistics.process_figures(ours)) == 3
