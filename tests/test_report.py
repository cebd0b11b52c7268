"""The report as a whole: gold files, and what must hold of any page whatever the records say."""

import dataclasses
import html.parser
import itertools
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import report_records
from defects import REPOSITORY

from kernelproof import claims, config, rendering, report
from kernelproof.config import CRITERIA
from kernelproof.errors import RecordError
from kernelproof.records import (
    BenchRecord,
    BuildRecord,
    CaptureRecord,
    CaseResult,
    CeilingsRecord,
    CompilerAdvice,
    Failure,
    ManifestRecord,
    Metric,
    ProfileRecord,
    Provenance,
    Record,
    RuleAdvice,
    Rung,
    TestRecord,
    UntimedRow,
)
from kernelproof.views import bench as bench_view
from kernelproof.views import capture as capture_view
from kernelproof.views import profile as profile_view
from kernelproof.views import verdict as verdict_view
from kernelproof.views.common import LIMITS

GOLD = Path(__file__).parent / "gold" / "report"
RUNS = {"cpu": report_records.cpu_run, "gpu": report_records.gpu_run}
VOID = {"meta", "link", "br", "img", "input", "hr"}
# Elements whose end may be left out (HTML, section 13.1.2.4), each with what its start ends as well.
ENDED_BY = {"td": {"td", "th"}, "th": {"td", "th"}, "tr": {"td", "th", "tr"}, "li": {"li"}}
ENDED_BY |= {"dt": {"dt", "dd"}, "dd": {"dt", "dd"}}

Run = tuple[ManifestRecord, dict[str, Record]]


def render(root: Path, run: Run) -> tuple[str, str]:
    found = report.read_all(report_records.write_run(root, run), root)
    return report.render_html(found, report_records.SETTINGS), report.render_summary(found, report_records.SETTINGS)


def _head(text: str) -> str:
    return text.partition("</head>")[0]


class Page(html.parser.HTMLParser):
    """What a test asks of a page: its elements, that they nest, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        self.faults += [f"<{tag}> has {name} twice" for name in names if names.count(name) > 1]
        self.elements.append((tag, dict(attrs)))
        while self.open and self.open[-1] in ENDED_BY.get(tag, ()):
            self.open.pop()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in ENDED_BY:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes nothing")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def checked(text: str) -> Page:
    """A page that is well-formed, asks nothing of anybody and runs nothing."""
    page = Page(text)
    assert page.faults == []
    assert page.open == []
    assert not page.of("script", "iframe", "object", "embed", "img", "form", "base")
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            assert re.match(r"#|data:,", attributes.get(name) or "#"), (tag, attributes)
    assert not re.search(r"url\(|@import|expression\(", text)
    identities = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identities) == len(set(identities))
    targets = {(a["href"] or "")[1:] for a in page.of("a")}
    assert targets <= set(identities)
    return page


# --- gold files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_page_and_summary_are_as_agreed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page, summary = render(tmp_path, RUNS[name]())
    for path, text in ((GOLD / f"{name}.html", page), (GOLD / f"{name}.md", summary)):
        if request.config.getoption("--update-gold"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{path} differs; look at it, then: pytest --update-gold"


@pytest.mark.parametrize("name", RUNS)
def test_the_page_stands_alone(name: str, tmp_path: Path) -> None:
    text, _ = render(tmp_path, RUNS[name]())
    page = checked(text)
    assert text.startswith("<!doctype html>")
    assert page.of("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.of("meta")
    assert len(page.of("h1")) == len(page.of("main")) == _head(text).count("<title>") == 1
    policy = next(a["content"] for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert len(text.encode()) <= 1_000_000
    for attributes in page.of("svg"):
        inside_row = not attributes.get("width") and not (attributes.get("class") or "").startswith("fill")
        assert inside_row or attributes.get("aria-hidden") == "true" or attributes.get("role") == "img", attributes


def test_how_to_reproduce_what_a_repository_of_ones_own_measured(tmp_path: Path) -> None:
    facts, found = report_records.cpu_run()
    facts.members = [member for member in facts.members if member.path != "source/repro.sh"]
    read = report.read_all(report_records.write_run(tmp_path, (facts, found)), tmp_path)
    settings = replace(report_records.SETTINGS, source="my kernels/config.yaml")
    _, _, script = report.render_summary(read, settings).partition("### How to reproduce")
    lines = [line for line in script.splitlines() if not line.startswith("#")]
    file = "'my kernels/config.yaml'"
    whole = f'kernelproof run -- --snakefile "$KERNELPROOF/Snakefile" --configfile {file} --forceall'
    assert whole in lines
    assert "export KERNELPROOF=/path/to/the/clone" in lines
    assert f"kernelproof test --config {file} --operator attention --variant cpu_naive" in lines
    assert any(line.startswith(f"kernelproof bench --config {file} --operator attention") for line in lines)
    assert not [line for line in lines if line.startswith("./repro.sh")]


def test_the_summary_tells_what_failed_from_what_was_not_run(tmp_path: Path) -> None:
    facts, found = report_records.gpu_run()
    wrong = found["results/test/attention/fp16_wmma.json"]
    assert isinstance(wrong, TestRecord)
    again = "kernelproof test --operator attention --variant fp16_wmma --case c"
    wrong.status, wrong.reason, wrong.repeat = "failed", "correctness: bound: off", again
    page, summary = render(tmp_path, (facts, found))
    _, _, gaps = summary.partition("### Not run or failed\n")
    assert "Not run or failed, and why" in page
    assert f"| test, failed | `attention/fp16_wmma` | `correctness: bound: off` | `to see it again: {again}` |" in gaps
    assert f"To do: to see it again: {again}" in page
    assert "| test | `attention/fp16_tiled` | `it was not built` |" in gaps
    facts, found = report_records.cpu_run()
    capture = found["results/capture/capture.json"]
    assert isinstance(capture, CaptureRecord)
    capture.probes = {}
    assert "### Not run\n" in render(tmp_path, (facts, found))[1]


def test_the_page_tells_of_who_crashed_what_the_reason_tells(tmp_path: Path) -> None:
    facts, found = report_records.gpu_run()
    crashed = found["results/test/attention/fp16_wmma.json"]
    assert isinstance(crashed, TestRecord)
    crashed.status, crashed.verdict = "failed", "crashed"
    crashed.rungs = [Rung(name, "failed", message=f"it failed in {name}") for name in ("correctness", "properties")]
    crashed.reason = "properties: it failed in properties; failed too: correctness"
    page, _ = render(tmp_path, (facts, found))
    assert re.findall(r"<pre[^>]*>(it failed in \w+)</pre>", page) == ["it failed in properties"]


def test_a_baseline_that_is_wrong_is_told_from_the_variants(tmp_path: Path) -> None:
    facts, found = report_records.gpu_run()
    said = "it is the baseline's own result that does not meet them"
    assert not any(said in text.replace("&#39;", "'") for text in render(tmp_path / "all correct", (facts, found)))
    tested = found["results/test/attention/sdpa_cudnn.json"]
    assert isinstance(tested, TestRecord)
    tested.status, tested.verdict, tested.reason = "failed", "wrong", "correctness: rms: 1.2 times the limit"
    verdict = next(v for v in facts.verdicts if v.variant == "sdpa_cudnn")
    verdict.correctness, verdict.reason = "wrong", tested.reason
    page, summary = render(tmp_path / "one wrong", (facts, found))
    assert f"sdpa_cudnn: it is held to the same criteria as the variants, and {said}" in checked(page).text
    assert said in summary
    assert re.findall(r'name">(\w+)</span> <small>baseline</small>', page) == ["sdpa_cudnn"]


def test_the_same_records_give_the_same_bytes_anywhere(tmp_path: Path) -> None:
    page, summary = render(tmp_path, report_records.gpu_run())
    script = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[1:3]\n"
        "import report_records as r; from kernelproof import report\n"
        "found = report.read_all(Path(sys.argv[3]), Path(sys.argv[4]))\n"
        "out = report.render_html(found, r.SETTINGS) + report.render_summary(found, r.SETTINGS)\n"
        "sys.stdout.buffer.write(out.encode())"
    )
    source, here = Path(report.__file__).parents[1], Path(__file__).parent
    facts = tmp_path / "results" / "manifest" / "4f1c9a6be2d0.json"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Kolkata", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", script, source, here, facts, tmp_path],
        cwd="/",
        env=environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == page + summary


def test_torch_is_not_needed() -> None:
    script = "import sys; import kernelproof.report; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(report.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0


# --- what the page says -----------------------------------------------------------------------------------------------


def test_the_verdict_of_a_gpu_run(tmp_path: Path) -> None:
    text, summary = render(tmp_path, report_records.gpu_run())
    page = checked(text)
    for sentence in (
        "3 of 6 variants are correct; the one speed claim holds.",
        "fp16_wmma is wrong.",
        "fp16_async crashed.",
        "fp16_tiled failed to build.",
        "The fastest correct variant, fp16_fused, takes 0.911× the time of sdpa_cudnn",
        "every case whose length is not a multiple of 64",
        "rows 40 to 63 of each 64",
        "The grid of 64 blocks is smaller than the 132 multiprocessors",
        "ERR_NVGPUCTRPERM",
        "Identical machine code:",
        "undecided",
    ):
        assert sentence in page.text, sentence
    assert summary.startswith("## ❌ Not accepted: 3 of 6 variants are correct")


def test_boards_that_are_alike_are_counted() -> None:
    capture = report_records.capture(gpu=True)
    (board,) = capture.probes["gpu"].value
    capture.probes["gpu"].value = [board, {**board, "uuid_sha256": "another"}, {**board, "power_limit_w": 600.0}]
    (line,) = [fact.value for fact in capture_view.machine(capture) if fact.name == "GPU"]
    one = "NVIDIA H200, sm 9.0, driver 580.95.05"
    assert line == f"2 × {one}, 700.0 W limit; {one}, 600.0 W limit"


def test_one_core_is_no_cores(tmp_path: Path) -> None:
    manifest, records = report_records.cpu_run()
    capture = next(record for record in records.values() if isinstance(record, report_records.CaptureRecord))
    capture.probes["cpu"].value["usable_cores"] = 1
    assert "Platinum 8480+, 1 core usable" in checked(render(tmp_path, (manifest, records))[0]).text


def test_the_verdict_of_a_run_without_a_gpu(tmp_path: Path) -> None:
    text, summary = render(tmp_path, report_records.cpu_run())
    page = checked(text)
    for sentence in (
        "All 2 variants that could run are correct, 2 need a GPU; the one speed claim was not judged.",
        "fp16_scalar and fp16_fused were not run: no NVIDIA GPU",
        "Would have run: attention/fp16_scalar, attention/fp16_fused",
        "run on a machine with an NVIDIA GPU and its driver",
        "Measured and bundled apart:",
        report_records.EARLIER,
    ):
        assert sentence in page.text, sentence
    assert summary.startswith("## ⚠️ Incomplete")
    assert report_records.EARLIER in summary


def test_a_variant_above_the_gate_in_one_case_does_not_pass(tmp_path: Path) -> None:
    """The page's first case alone would have read as passing."""
    manifest, records = report_records.gpu_run()
    bench = records["results/bench/attention-cuda.json"]
    assert isinstance(bench, report_records.BenchRecord)
    row = [row for row in bench.oracle if row.variant == "fp16_fused"][-1]
    row.high, row.passed, row.reason = 0.97, False, "upper bound 0.97 > 0.95"
    text, summary = render(tmp_path, (manifest, records))
    assert "3 of 6 variants are correct; the one speed claim is not shown to hold." in checked(text).text
    assert "`sdpa_cudnn` | fails, not shown within the limit in 1 of 8 cases |" in summary
    silent = replace(report_records.SETTINGS, gated=frozenset())
    found = report.read_all(tmp_path / "results" / "manifest" / "4f1c9a6be2d0.json", tmp_path)
    summary = report.render_summary(found, silent)
    assert "3 of 6 variants are correct; no speed is claimed." in summary
    assert (
        "| **0.911×** faster ⚑ | 0.907–0.916 | `sdpa_cudnn` | no claim, not shown within the limit in 1 of 8 cases |"
        in summary
    )


def test_an_undecided_ratio_whose_interval_leaves_1_out_is_explained(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    bench = records["results/bench/attention-cuda.json"]
    assert isinstance(bench, BenchRecord)
    for row in bench.ratios:
        row.verdict = "undecided"
    next(v for v in manifest.verdicts if v.variant == "fp16_fused").speed = "undecided"
    text, summary = render(tmp_path, (manifest, records))
    said = f"the interval leaves 1 out, but not clearly enough among {len(bench.ratios)} comparisons"
    assert said in checked(text).text
    assert said in summary
    assert said not in render(tmp_path, report_records.gpu_run())[1]
    for row in bench.ratios:
        row.flags = ["cores_shared"]
    assert "undecided: other programs had its cores" in render(tmp_path, (manifest, records))[1]


def test_what_one_process_said_has_no_interval(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    bench = records["results/bench/attention-cuda.json"]
    assert isinstance(bench, BenchRecord)
    for row in bench.ratios:
        row.low = row.high = row.ratio
        row.verdict, row.detectable = "undecided", None
    for oracle in bench.oracle:
        oracle.low = oracle.high = oracle.ratio
        oracle.undecided = True
    for time in bench.times:
        time.low_us = time.high_us = time.median_us
    for verdict in manifest.verdicts:
        verdict.speed = "undecided" if verdict.speed else verdict.speed
    text, summary = render(tmp_path, (manifest, records))
    page = checked(text)
    assert re.search(
        r"Undecided: the fastest correct variant, fp16_fused, takes [\d.]+× the time of .*: one process", page.text
    )
    assert "no interval" in summary
    assert not re.search(r"(\d+\.\d+)–\1\b", page.text + summary)


def test_what_was_not_run_for_one_reason_is_one_line_below_the_results(tmp_path: Path) -> None:
    manifest, records = report_records.cpu_run()
    manifest.verdicts.sort(key=lambda verdict: verdict.device != "cuda")
    page = checked(render(tmp_path, (manifest, records))[0])
    assert page.text.index("attention on cpu") < page.text.index("attention on cuda")
    assert page.text.count(f"2 variants not run: {report_records.NO_GPU}") == 1
    assert page.text.count(f"2 contenders not run: {report_records.NO_GPU}") == 1


def test_the_headline_names_few_variants_and_their_operators_where_there_are_several(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    wrong = next(verdict for verdict in manifest.verdicts if verdict.variant == "fp16_wmma")
    manifest.verdicts += [replace(wrong, variant=f"tiled_{number}") for number in range(6)]
    assert (
        "fp16_wmma, tiled_0, tiled_1, tiled_2 and 3 more are wrong."
        in checked(render(tmp_path, (manifest, records))[0]).text
    )
    slow = replace(wrong, operator="rmsnorm", variant="fast", correctness="correct", reason="the gate: " + "slow " * 99)
    manifest.verdicts.append(slow)
    text, summary = render(tmp_path, (manifest, records))
    (sentence,) = re.findall(r"<p>([^<]*are wrong\.[^<]*)</p>", text)
    assert sentence.startswith(
        "attention/fp16_wmma, attention/tiled_0, attention/tiled_1, attention/tiled_2 and 3 more"
    )
    assert sentence.endswith("slow slow….")
    assert "rmsnorm/fast: the gate: slow" in sentence
    assert len(sentence) < 500
    assert "attention/fp16\\_async crashed" in summary
    manifest.verdicts += [replace(slow, variant=f"fast_{number}") for number in range(9)]
    assert "6 more correct variants are not accepted." in checked(render(tmp_path, (manifest, records))[0]).text


def test_where_nothing_was_tested_nobody_is_called_incorrect(tmp_path: Path) -> None:
    manifest, records = report_records.cpu_run()
    for verdict in manifest.verdicts:
        verdict.correctness, verdict.bad = "missing", True
    rest = {path: record for path, record in records.items() if not isinstance(record, TestRecord)}
    manifest.records = list(rest)
    page, summary = render(tmp_path, (manifest, rest))
    assert "Nothing was tested: 4 variants have no record of a test; " in checked(page).text.replace("\u202f", " ")
    assert "None of" not in summary
    manifest.verdicts[0].correctness, manifest.verdicts[0].bad = "correct", False
    assert "The variant that was tested is correct, 3 have no record of a test" in render(tmp_path, (manifest, rest))[1]


def test_the_ladder_names_who_was_found_wrong_when_timed(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    bench = records["results/bench/attention-cuda.json"]
    assert isinstance(bench, BenchRecord)
    (contender,) = [each for each in bench.contenders if each.name == "fp16_swizzled"]
    contender.correct, contender.verdict, contender.outcome = False, "wrong", "timed, but wrong: a result is off"
    next(v for v in manifest.verdicts if v.variant == "fp16_swizzled").correctness = "wrong"
    text, _ = render(tmp_path, (manifest, records))
    page = checked(text)
    assert '<a class="over nowrap" href="#bench-attention-cuda">✗ wrong when timed</a>' in text
    assert "2 of 6 variants are correct" in page.text
    said = "2 passed, 1 passed but found wrong when timed, 3 failed, of the baselines 5 passed"
    assert page.text.count(said) == 2


def test_of_identical_machine_code_no_more_is_said_than_is_so(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    assert "Their sources, macros or flags differ" in checked(render(tmp_path, (manifest, records))[0]).text
    (twins,) = manifest.identical_machine_code
    one, other = (records[f"results/build/{name}.json"] for name in twins)
    assert isinstance(one, BuildRecord)
    assert isinstance(other, BuildRecord)
    other.sources, other.macros, other.flags = one.sources, one.macros, one.flags
    page = checked(render(tmp_path, (manifest, records))[0])
    assert "differ in settings that no compiler is given" in page.text
    assert "never reached the compiler" not in page.text


def test_wider_limits_than_the_criteria_stand_in_the_headline(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    wide = dataclasses.replace(CRITERIA, bound_factor=1e7)
    assert (CRITERIA.looser, wide.looser) == ({}, {"bound_factor": 1e7})
    for record in records.values():
        if isinstance(record, TestRecord):
            record.looser = wide.looser
    text, summary = render(tmp_path, (manifest, records))
    said = "Results were judged with wider limits than kernelproof's own: bound_factor 1e+07 instead of 1."
    assert said in checked(text).text
    assert said in summary.replace("\\", "")
    assert "Accepted:" not in summary


def test_the_quick_level_stands_in_the_headline(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    assert "quick level" not in render(tmp_path, (manifest, records))[1]
    for record in records.values():
        if isinstance(record, TestRecord):
            record.level = "quick"
    text, summary = render(tmp_path, (manifest, records))
    said = "Tested at the quick level: one shape on normal values, and no properties."
    assert said in checked(text).text
    assert said in summary
    assert "Accepted:" not in summary


def test_who_has_no_ratio_may_be_the_fastest(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    for record in records.values():
        if isinstance(record, report_records.BenchRecord):
            for row in record.oracle:
                if row.variant == "fp16_fused":
                    row.ratio = row.low = row.high = None
    page = checked(render(tmp_path, (manifest, records))[0])
    assert "the fastest correct variant that has a ratio, fp16_swizzled, takes" in page.text
    assert "No ratio: fp16_fused." in page.text


def test_without_a_baseline_that_is_said_and_times_stand_alone(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    why = "no baseline is configured for cuda"
    manifest.verdicts = [verdict for verdict in manifest.verdicts if verdict.role == "variant"]
    for record in records.values():
        if isinstance(record, report_records.BenchRecord):
            for row in record.oracle:
                row.best_baseline = row.ratio = row.low = row.high = None
                row.reason = why
    text = checked(render(tmp_path, (manifest, records))[0]).text
    assert "There is no ratio to show: no baseline is configured." in text
    assert len(re.findall(rf"\d\sµs in [^:]*, hot: {why}", text)) == 3


def test_the_criteria_are_the_defaults() -> None:
    assert config.load(REPOSITORY / "config.yaml", root=REPOSITORY).test.tolerance == CRITERIA


@pytest.mark.parametrize(
    ("correct", "wrong", "number", "left", "said"),
    [
        (1, 0, 1, "", "The variant is correct"),
        (0, 0, 1, "1 needs a GPU", "The variant that could run is not shown to be correct, 1 needs a GPU"),
        (0, 1, 1, "1 needs a GPU", "The variant that could run is wrong, 1 needs a GPU"),
        (0, 0, 0, "3 need a GPU", "No variant could run, 3 need a GPU"),
        (1, 0, 3, "2 were not run", "1 of 3 variants that could run is correct, 2 were not run"),
    ],
)
def test_the_headline_counts_what_could_run(correct: int, wrong: int, number: int, left: str, said: str) -> None:
    assert verdict_view._correctwords(correct, number, left, wrong=wrong) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([claims.NO_CLAIM], "no speed is claimed"),
        ([claims.PASSES, claims.PASSES, claims.NO_CLAIM], "2 of 2 speed claims hold"),
        ([claims.PASSES, claims.FAILS], "1 of 2 speed claims holds"),
        ([claims.FAILS], "the one speed claim is not shown to hold"),
        ([claims.PASSES, claims.PASSES, claims.NOT_RUN], "2 of 2 speed claims hold, 1 was not judged"),
        ([claims.NOT_RUN, claims.NOT_RUN], "none of 2 speed claims was judged"),
    ],
)
def test_the_headline_counts_claims_only(words: list[str], said: str) -> None:
    assert verdict_view._claimwords(words) == said


def test_advice_is_ordered_by_its_estimate(tmp_path: Path) -> None:
    text, _ = render(tmp_path, report_records.gpu_run())
    first = text.index('id="profile"')
    places = [text.index(name, first) for name in ("LaunchConfiguration", "SharedMemoryConflicts", "SOLBottleneck")]
    assert places == sorted(places)


def test_advice_on_a_part_of_the_kernel_comes_after_that_on_the_whole_and_says_so(tmp_path: Path) -> None:
    """A page once began with a rule's 90 % of what it looks at, which is no speed-up of the kernel."""
    manifest, found = report_records.gpu_run()
    kernel = next(
        r for r in found.values() if isinstance(r, ProfileRecord) and r.role == "variant" and r.kernels
    ).kernels[0]
    kernel.rules = [
        RuleAdvice("PartOfIt", "optimization", "of a unit", 90.0, "local"),
        RuleAdvice("WholeKernel", "optimization", "of the kernel", 4.0, "global"),
    ]
    text, _ = render(tmp_path, (manifest, found))
    whole, part = text.index("WholeKernel"), text.index("PartOfIt")
    assert whole < part
    assert text.count("of its part") == 1


def test_energy_that_was_taken_while_the_board_was_idle_is_not_shown(tmp_path: Path) -> None:
    manifest, found = report_records.gpu_run()
    (bench,) = (record for record in found.values() if isinstance(record, BenchRecord) and record.energy)
    (row,) = (row for row in bench.energy if row.joules_per_call)
    (slope,) = (
        time.median_us
        for time in bench.times
        if (time.contender, time.case, time.mode, time.method) == (row.contender, row.case, row.mode, "graph_slope")
    )
    for share, shown in ((0.9, True), (0.36, False)):
        row.seconds = row.calls * slope / 1e6 / share
        text, _ = render(tmp_path, (manifest, found))
        assert (bool(re.search("2.31.mJ", text)), "No energy: the board was idle" in text) == (shown, not shown)


def test_a_variant_stands_beside_the_fastest_profiled_baseline(tmp_path: Path) -> None:
    manifest, found = report_records.gpu_run()
    slow = report_records.gpu_profile("sdpa_math", 12.0, "baseline")
    other_case = report_records.gpu_profile("sdpa_flash", 12.0, "baseline")
    other_case.case, other_case.kernels[0].duration_us = "mission-bfloat16", 0.1
    found |= {f"results/profile/attention/{p.variant}.json": p for p in (slow, other_case)}
    manifest.records = list(found)
    records = report.read_all(report_records.write_run(tmp_path, (manifest, found)), tmp_path)
    views = {view.record.variant: view for view in profile_view.profiles(records, LIMITS[0])}
    assert list(views)[-1].startswith("sdpa")  # variants come first
    assert views["sdpa_cudnn"].comparison is None
    comparison = views["fp16_fused"].comparison
    assert comparison is not None
    assert comparison.baseline == "sdpa_cudnn"
    rows = {row.name: row for row in comparison.rows}
    stalls = [text.replace("\u202f", " ") for text in (rows["Longest stall"].ours, rows["Longest stall"].theirs)]
    assert rows["Time"].ratio == "0.911×"
    assert rows["Registers a thread"] == profile_view.ComparisonRow("Registers a thread", "116", "168", "")
    assert stalls == ["long scoreboard 41 %", "long scoreboard 22 %"]


def test_a_profile_is_held_against_what_was_measured(tmp_path: Path) -> None:
    manifest, found = report_records.gpu_run()
    records = report.read_all(report_records.write_run(tmp_path, (manifest, found)), tmp_path)
    view = next(v for v in profile_view.profiles(records, LIMITS[0]) if v.record.variant == "fp16_fused")
    read, traffic, rate = (text.replace("\u202f", " ") for text in view.statements)
    assert read.startswith("1.52 MiB read from DRAM, 1.011× the 1.50 MiB that any kernel has to read; ncu emptied")
    assert "% of the copy bandwidth that was measured on this machine (4.05 TB/s)" in traffic
    assert "of the rate of tensor bfloat16 products" in rate
    bare = dataclasses.replace(view.record, cost={})
    assert profile_view._statements(bare, None) == []


def test_a_roofline_has_the_measured_ceilings_of_its_data_types(tmp_path: Path) -> None:
    manifest, found = report_records.gpu_run()

    def labels() -> list[str]:
        records = report.read_all(report_records.write_run(tmp_path, (manifest, found)), tmp_path)
        (view,) = bench_view.benches(records, report_records.SETTINGS, LIMITS[0])
        assert view.roof is not None
        return [line.label.replace("\u202f", " ") for line in view.roof.picture.lines]

    assert labels() == ["copy, 4.05 TB/s", "tensor bfloat16, 710 TFLOP/s"]
    bench, ceilings = found["results/bench/attention-cuda.json"], found["results/bench/ceilings/cuda.json"]
    assert isinstance(bench, BenchRecord)
    assert isinstance(ceilings, CeilingsRecord)
    for case in bench.cases:
        case.dtype = "float8_e4m3fn"
    # Not measured for this type: the counters' peak stands in, and says so. 16 bits would be another roof.
    assert labels() == ["copy, 4.05 TB/s", "peak fp32 by the counters, 66.0 TFLOP/s"]
    ceilings.ceilings = []
    assert labels() == ["peak dram by the counters, 4.80 TB/s", "peak fp32 by the counters, 66.0 TFLOP/s"]


def test_isolation_is_told_where_it_is_stated(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    tests = [record for record in records.values() if isinstance(record, report_records.TestRecord)]
    for record in tests:
        record.isolation, record.refused = "", []
    assert "Isolation of" not in checked(render(tmp_path, (manifest, records))[0]).text
    tests[0].isolation, tests[0].refused = "landlock-4+seccomp", ["sockets", "capabilities"]
    page = checked(render(tmp_path, (manifest, records))[0])
    assert "landlock-4+seccomp" in page.text
    assert "refused: sockets; capabilities" in page.text


def test_what_a_rung_was_passed_without_is_told(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    tests = [record for record in records.values() if isinstance(record, report_records.TestRecord)]
    assert not any("was passed by" in text for text in render(tmp_path, (manifest, records)))
    baseline = next(record for record in tests if record.role == "baseline")
    for record in (tests[0], baseline):
        next(rung for rung in record.rungs if rung.name == "sanity").message = "no exact call was made"
    page, summary = render(tmp_path, (manifest, records))
    who = f"{tests[0].variant}, {baseline.variant}"
    assert f"sanity was passed by {who}, but no exact call was made." in checked(page).text
    assert f"**sanity** was passed by {who.replace('_', chr(92) + '_')}, but no exact call was made." in summary
    assert summary.index("was passed by") < summary.index("### Where"), "it stands with the operator's results"


def test_advice_of_the_compiler_stands_at_its_variant_and_accuses_nobody(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    before = render(tmp_path, (manifest, records))
    assert not any("ptxas’ words" in text for text in before)
    chosen = next(r for r in records.values() if isinstance(r, report_records.BuildRecord) and r.status == "ok")
    text = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to <ill> formed pipeline stage"
    chosen.advice = [
        *(CompilerAdvice(text, "C7514", f"void k<{number}>(int)", "sm_90a") for number in range(5)),
        CompilerAdvice("Potential Performance Loss: 'setmaxnreg' ignored to allow debugging.", "C7506"),
    ]
    page, summary = render(tmp_path, (manifest, records))
    shown = checked(page).text
    where = "k<0>, k<1>, k<2> and 2 more kernels, sm_90a"
    assert f"each is waited for before the next one starts ({where}). In ptxas’ words: C7514: {text}" in shown
    assert shown.count("setmaxnreg does nothing") == summary.count("setmaxnreg does nothing") == 1
    assert f"Advice on `{chosen.variant}`: wgmma is not asynchronous here" in summary
    assert f"`C7514: {text}`" in summary
    assert summary.index("Advice on") < summary.index("### Where"), "it stands with the operator's results"
    assert [line for line in summary.splitlines() if line.startswith(("##", "|"))] == [
        line for line in before[1].splitlines() if line.startswith(("##", "|"))
    ]


def test_a_mode_without_a_time_says_why(tmp_path: Path) -> None:
    manifest, records = report_records.cpu_run()
    bench = records["results/bench/attention-cpu.json"]
    assert isinstance(bench, BenchRecord)
    why = "already when hot: one visit takes 0.6 s, more than the budget of 0.25 s (bench.max_seconds sets it)"
    for name in ("cpu_naive", "sdpa_math_cpu"):
        bench.times = [row for row in bench.times if (row.contender, row.mode) != (name, "cold")]
        bench.untimed += [UntimedRow(name, case.id, "cold", "too slow", why) for case in bench.cases]
    for row in bench.oracle:
        if (row.variant, row.mode) == ("cpu_naive", "cold"):
            row.ratio = row.low = row.high = row.best_baseline = None
            row.reason = f"the variant has no time here: too slow, {why}"
    text, summary = render(tmp_path, (manifest, records))
    page = checked(text)
    assert page.text.count(f"Not timed: cpu_naive cold, too slow, {why}; sdpa_math_cpu cold, too slow, {why}.") == 2
    assert page.text.count(f"not timed cold in 2 of 2 cases: too slow, {why}") == 1, "beside the variant's verdict"
    assert text.count(">too slow<") == 2 * 2 + 2, "in the table of each case for both, in the oracle's for the variant"
    assert re.search(r"\| `cpu_naive` \| 18\.\d+ \([^)]*\) \| too slow \|", summary)
    for name in ("cpu_naive", "sdpa_math_cpu"):
        said = rf"\n`{name}`: not timed cold in 2 of 2 cases: too slow, already when hot: one visit takes 0\S*6 s,"
        assert re.search(said, summary)


def test_a_wrong_contender_is_drawn_and_not_ranked(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    for record in records.values():
        if isinstance(record, report_records.BenchRecord):
            for row in record.times:
                if row.contender == "fp16_wmma":
                    row.median_us = row.low_us = row.high_us = 1.5
    page = checked(render(tmp_path, (manifest, records))[0])
    assert "The fastest correct variant, fp16_fused" in page.text


def test_a_fast_and_wrong_variant_has_no_speed(tmp_path: Path) -> None:
    """Even when the benchmark was made while the variant still passed its test."""
    manifest, records = report_records.gpu_run()
    fused = next(v for v in manifest.verdicts if v.variant == "fp16_fused")
    fused.correctness, fused.reason = "wrong", "the test found a race"
    text, summary = render(tmp_path, (manifest, records))
    page = checked(text)
    assert "2 of 6 variants are correct; the one speed claim was not judged." in page.text
    assert "Undecided: the fastest correct variant, fp16_swizzled, takes 0.938–1.047 times the time of" in page.text
    assert "| `fp16_fused` | ❌ wrong | – |" in summary


# --- records that are missing, failed, not run or unreadable ----------------------------------------------------------


def stages_of(run: Run) -> list[str]:
    return sorted({Path(path).parts[1] for path in run[1]})


def without(stage: str) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        kept = {path: record for path, record in run[1].items() if Path(path).parts[1] != stage}
        return dataclasses.replace(run[0], records=list(kept)), kept

    return change


def with_status(stage: str, status: str) -> Callable[[Run], Run]:
    """Every record of a stage bare but for its status, as a stage leaves it that could not do its work."""

    def change(run: Run) -> Run:
        found = {}
        for path, record in run[1].items():
            names = {f: getattr(record, f) for f in ("operator", "variant", "role", "device") if hasattr(record, f)}
            bare = type(record)(status=status, reason="the reason is this", remedy="the remedy is that", **names)
            found[path] = bare if Path(path).parts[1] == stage else record
        return run[0], found

    return change


@pytest.mark.parametrize("stage", stages_of(report_records.gpu_run()))
@pytest.mark.parametrize("state", ["missing", "failed", "not_run"])
def test_a_stage_in_any_state_renders(stage: str, state: str, tmp_path: Path) -> None:
    change = without(stage) if state == "missing" else with_status(stage, state)
    text, summary = render(tmp_path, change(report_records.gpu_run()))
    page = checked(text)
    if state != "missing":
        assert "the reason is this" in page.text
        assert "the remedy is that" in page.text
        assert "the reason is this" in summary


def test_a_stage_that_was_cut_short_says_how_many_of_its_records_are_missing(tmp_path: Path) -> None:
    manifest, found = report_records.gpu_run()
    gaps = [
        {"stage": "build", "subject": f"attention/later_{n}", "reason": "the record does not exist"} for n in (1, 2)
    ]
    run = dataclasses.replace(manifest, missing=gaps), found
    notes = {
        note.name: note.badge
        for note in verdict_view.stage_notes(report.read_all(report_records.write_run(tmp_path, run), tmp_path))
    }
    assert notes["build"].word.endswith("2 without a record")
    assert notes["build"].kind != "good"
    assert "without" not in notes["capture"].word


def test_profiles_that_no_variant_asks_for_are_not_missed(tmp_path: Path) -> None:
    manifest, found = report_records.gpu_run()
    left = {path: record for path, record in found.items() if not isinstance(record, ProfileRecord)}

    def word(gaps: list[dict[str, str]]) -> str:
        run = dataclasses.replace(manifest, missing=gaps), left
        records_of_it = report.read_all(report_records.write_run(tmp_path, run), tmp_path)
        return next(note.badge.word for note in verdict_view.stage_notes(records_of_it) if note.name == "profile")

    assert word([]) == "not needed"
    assert word([{"stage": "profile", "subject": "attention/fast", "reason": "gone"}]) == "no record"


def test_no_record_at_all(tmp_path: Path) -> None:
    text, summary = render(
        tmp_path,
        (ManifestRecord(folder="no-git-12345678", provenance=Provenance(no_commit="git is not installed")), {}),
    )
    page = checked(text)
    assert "There is no variant to judge." in page.text
    assert "git is not installed" in page.text
    assert "| commit | git is not installed |" in summary
    assert "no variant to judge" in summary


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the record does not exist"),
        ("{", "the record cannot be read"),
        ('{"schema": "kernelproof.test/99"}', "kernelproof.test/99"),
        ('{"schema": "kernelproof.banana/1"}', "is not one that the report knows"),
        ('{"schema": "kernelproof.test/1", "colour": 1}', "unknown field"),
        ("[]", "is not one that the report knows"),
    ],
)
def test_an_unreadable_record_is_told(content: str | None, words: str, tmp_path: Path) -> None:
    facts = report_records.write_run(tmp_path, report_records.gpu_run())
    victim = tmp_path / "results/test/attention/fp16_fused.json"
    victim.unlink()
    if content is not None:
        victim.write_text(content)
    found = report.read_all(facts, tmp_path)
    page = checked(report.render_html(found, report_records.SETTINGS))
    assert words in page.text
    assert "results/test/attention/fp16_fused.json" in page.text
    assert "Not accepted" in page.text


def test_facts_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        report.read_all(tmp_path / "nothing.json", tmp_path)


# --- hostile text -----------------------------------------------------------------------------------------------------

HOSTILE = (
    '<script>alert(1)</script>" onmouseover="x\' \x1b[31mred\x1b[0m \0 \u202e |]]> --> {{ 7*7 }} {% raw %} '
    "`x` @octocat #1 https://example.org ![i](http://e.org/i.png)\n```\n````\n| a | b |\n"
)


# Words that kernelproof itself chooses and that decide what is shown at all.
OWN_WORDS = frozenset(
    ("role", "status", "verdict", "mode", "modes", "method", "correctness", "build", "speed", "device")
)


def poison(value: object, spared: frozenset[str] = frozenset()) -> object:
    """Every text in a record followed by something that no template may let through."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, list):
        return [poison(item, spared) for item in value]
    if isinstance(value, dict):
        return {poison(key): poison(item, spared) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # What is not one of its words is not read at all.
        hints = typing.get_type_hints(type(value), include_extras=True)
        words = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.Annotated}
        names = [f.name for f in dataclasses.fields(value) if f.name not in spared | words]
        return dataclasses.replace(value, **{name: poison(getattr(value, name), spared) for name in names})
    return value


def prose(markdown: str) -> str:
    """Markdown without fenced blocks and code spans, whose text GitHub shows as it is."""
    lines, fence = [], ""
    for line in markdown.splitlines():
        if fence or line.startswith("```"):
            marks = re.match(r"`*", line)[0]  # type: ignore[index]
            fence = marks if not fence else "" if marks == fence and line == fence else fence
        else:
            lines.append(re.sub(r"(?<!\\)(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", line))
    assert not fence
    return "\n".join(lines)


@pytest.mark.parametrize("spared", [OWN_WORDS, frozenset()], ids=["texts", "everything"])
def test_hostile_text_stays_text(spared: frozenset[str], tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    hostile = {path: poison(record, spared) for path, record in records.items()}
    changed = poison(manifest, spared)
    assert isinstance(changed, ManifestRecord)
    changed.records, changed.folder = list(records), "folder"
    text, summary = render(tmp_path, (changed, hostile))  # type: ignore[arg-type]
    page = checked(text)
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7*7 }}" in page.text
    for character in ("\x1b", "\0", "\u202e"):
        assert character not in text + summary
    plain = prose(summary).replace("\\<", "").replace("@<!-- -->", "")
    assert set(re.findall(r"<[^ >]*>?", plain)) <= {"<details>", "</details>", "<summary>", "</summary>"}
    outside_html = re.sub(r"<summary>.*?</summary>", "", plain)
    assert not re.search(r"(?<!\\)(!\[|\]\()|@\w|https?:", outside_html)


def test_every_table_of_the_summary_is_rectangular(tmp_path: Path) -> None:
    manifest, records = report_records.gpu_run()
    for verdict in manifest.verdicts:
        verdict.reason = "a | b `c` \n d"
    _, summary = render(tmp_path, (manifest, records))
    blocks = re.findall(r"(?m)(?:^\|.*\n)+", summary)
    assert len(blocks) >= 4
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
        assert re.match(r"\|( -+:? \|)+$", block.splitlines()[1])


# --- size -------------------------------------------------------------------------------------------------------------


def large_run() -> Run:
    """Far more of everything than fits one megabyte."""
    manifest, records = report_records.gpu_run()
    for record in records.values():
        match record:
            case report_records.TestRecord(variant="fp16_wmma"):
                failure = Failure("bound", "the largest error is far above its bound " * 6)
                record.cases = [
                    CaseResult(
                        f"mission-causal-float16-normal-s{n}",
                        f"shape{n % 40}",
                        {"seq": n},
                        {"causal": True},
                        "float16",
                        "normal",
                        n,
                        "failed",
                        [failure],
                    )
                    for n in range(4000)
                ]
            case report_records.BuildRecord():
                record.compiler_message = "error: expected an expression; this goes on and on\n" * 20_000
                record.cubins = [dataclasses.replace(c, kernels=c.kernels * 300) for c in record.cubins]
            case report_records.ProfileRecord():
                for kernel in record.kernels:
                    kernel.metrics |= {f"metric_{n}": Metric(1.0, "") for n in range(100)}
                    kernel.rules += [RuleAdvice(f"Rule{n}", "info", "advice " * 40) for n in range(60)]
                record.kernels *= 40
    return manifest, records


def test_a_page_that_would_be_too_large_is_shortened_and_says_so(tmp_path: Path) -> None:
    text, summary = render(tmp_path, large_run())
    page = checked(text)
    assert len(text.encode()) <= report.MAX_HTML_BYTES
    assert len(summary) <= report.MAX_SUMMARY_CHARACTERS
    assert "Parts were shortened" in page.text
    assert "more failing cases" in page.text
    assert "more characters in the log" in page.text


def test_least_detail_comes_last() -> None:
    figures = [dataclasses.astuple(limits) for limits in LIMITS]
    assert all(all(a >= b for a, b in zip(more, less, strict=True)) for more, less in itertools.pairwise(figures))


def test_a_page_that_cannot_be_made_small_enough_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_HTML_BYTES", 1000)
    with pytest.raises(RecordError, match="least detail"):
        render(tmp_path, report_records.cpu_run())


def test_a_ratio_is_marked_where_its_times_are_doubtful_and_not_for_a_power_cap(tmp_path: Path) -> None:
    html, summary = render(tmp_path, report_records.gpu_run())
    assert 'title="flagged: not traced">⚑' in html
    assert "flagged: power" not in html
    marked = {line.split("`")[1] for line in summary.splitlines() if "⚑ |" in line}
    assert marked == {"fp16_fused"}
    assert "⚑: a time that the ratio rests on is flagged" in summary


# --- colours ----------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    channels = (
        [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        if len(colour) == 7
        else [int(c * 2, 16) / 255 for c in colour[1:]]
    )
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(scheme: str) -> None:
    style = (rendering.TEMPLATES / "style.css.j2").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", light))
    if scheme == "dark":
        colours |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", dark.split("* {", 1)[0]))
    pairs = [
        (text, ground)
        for text in ("ink", "muted", "ours", "good", "bad", "warn", "info")
        for ground in ("paper", "card")
    ]
    pairs += [(kind, f"{kind}-soft") for kind in ("good", "bad", "warn", "info")] + [
        ("muted", "quiet-soft"),
        ("ink", "quiet-soft"),
    ]
    low = {
        pair: round(contrast(*(colours[name] for name in pair)), 2)
        for pair in pairs
        if contrast(*(colours[n] for n in pair)) < 4.5
    }
    assert not low


def test_a_plainer_page_keeps_its_name_and_loses_what_hovers() -> None:
    body = '<p title="a">b<svg><title>c</title><line class="grid" x1="1"/></svg>'
    page = f"<head><title>kept</title></head>{body}"
    assert report._plainer(page) == '<head><title>kept</title></head><p>b<svg><line class="grid" x1="1"/></svg>'
