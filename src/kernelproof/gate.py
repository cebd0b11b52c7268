"""`kernelproof gate`: do the records bear out what is claimed?

Correctness comes first: a variant that was found wrong, crashed, hung or did not build fails the gate, whatever its
speed. Speed is demanded only of variants with `gate: true` in config.yaml: in every case and mode that was measured,
the upper bound of ours / fastest correct baseline must be at most `gate.max_ratio`. What was not run is listed as not
run; it neither passes nor fails, except that a gate on which nothing at all was judged could not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelproof import claims, records
from kernelproof.claims import FAILS, NO_CLAIM, NOT_RUN, PASSES
from kernelproof.config import Config, VariantConfig
from kernelproof.errors import ExitCode, RecordError
from kernelproof.records import BenchRecord, TestRecord

BAD_VERDICTS = {"wrong", "crashed", "hung", "failed_to_build"}


@dataclass(frozen=True)
class Row:
    """One variant: its correctness and, of its claim, the case and mode with the highest upper bound."""

    operator: str
    variant: str
    device: str
    correctness: str  # the test's verdict, or `not run`
    speed: str  # passes, fails, no claim, not run
    status: str  # passes, fails, not run
    reason: str
    case: str | None = None
    mode: str | None = None
    best_baseline: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class GateResult:
    """Every variant, and the limit that claims were held to."""

    max_ratio: float
    rows: list[Row] = field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """0: everything that ran holds. 1: something does not. 2: nothing was judged."""
        statuses = {row.status for row in self.rows}
        if FAILS in statuses:
            return ExitCode.BAD_VERDICT
        return ExitCode.WELL if PASSES in statuses else ExitCode.COULD_NOT_RUN

    @property
    def summary(self) -> str:
        """The decision in one sentence."""
        count = {status: sum(row.status == status for row in self.rows) for status in (PASSES, FAILS, NOT_RUN)}
        figures = f"{count[PASSES]} passed, {count[FAILS]} failed, {count[NOT_RUN]} not run"
        return {
            ExitCode.WELL: f"The gate passes: {figures}.",
            ExitCode.BAD_VERDICT: f"The gate fails: {figures}.",
        }.get(self.exit_code, f"Nothing was judged: {figures}.")

    def as_json(self) -> dict[str, Any]:
        """The decision, for a program."""
        rows = [asdict(row) for row in self.rows]
        return {
            "passed": self.exit_code == ExitCode.WELL,
            "summary": self.summary,
            "max_ratio": self.max_ratio,
            "rows": rows,
        }

    def markdown(self) -> str:
        """The decision, as a table for a terminal or a pull request."""
        lines = [
            self.summary,
            "",
            "| variant | device | correctness | speed | ours / best baseline | verdict | reason |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in self.rows:
            figure = (
                "" if row.ratio is None else f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}] vs {row.best_baseline}"
            )
            cells = (
                f"{row.operator}/{row.variant}",
                row.device,
                row.correctness,
                row.speed,
                figure,
                row.status,
                row.reason,
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
        return "\n".join(lines)


def run(config: Config, records_dir: Path) -> GateResult:
    """Judge the records below a folder: `results`, or a report's folder with the records in it.

    Raises RecordError when the folder is not there or a record in it cannot be read.
    """
    if not records_dir.is_dir():
        raise RecordError("there is no such folder of records", subject=str(records_dir), hint="run ./repro.sh first")
    return GateResult(config.gate.max_ratio, list(_rows(config, _root_of(records_dir))))


def _root_of(folder: Path) -> Path:
    """Where `test/` and `bench/` are: the folder itself, or the `results` or `records` folder in it."""
    candidates = (folder, folder / "results", folder / "records")
    return next((path for path in candidates if (path / "test").is_dir() or (path / "bench").is_dir()), folder)


def _rows(config: Config, root: Path) -> Iterator[Row]:
    for operator in config.operators.values():
        for variant in operator.variants.values():
            yield _row(variant, root)


def _row(variant: VariantConfig, root: Path) -> Row:
    who = (variant.operator, variant.name, variant.device)
    unjudged = NOT_RUN if variant.gate else NO_CLAIM
    test = _read(root / "test" / variant.operator / f"{variant.name}.json", TestRecord)
    if test is None or test.verdict == records.NOT_RUN:
        reason = (test.reason if test else None) or "there is no test record"
        return Row(*who, NOT_RUN, unjudged, NOT_RUN, reason)
    if test.verdict != "correct":
        reason = test.reason or "correctness is a precondition"
        status = FAILS if test.verdict in BAD_VERDICTS else NOT_RUN
        return Row(*who, test.verdict.replace("_", " "), unjudged, status, reason)
    bench = _read(root / "bench" / f"{variant.operator}-{variant.device}.json", BenchRecord)
    if (fault := claims.found_by_bench(bench, variant.name)) is not None:
        return Row(*who, fault[0], unjudged, FAILS, fault[1])
    claim = claims.judge(variant.name, claimed=variant.gate, correct=True, bench=bench)
    status = PASSES if claim.word == NO_CLAIM else claim.word
    reason = claim.why if variant.gate else f"gate: false; {claim.why}"
    judged = Row(*who, "correct", claim.word, status, reason)
    if (case := claim.decisive) is None:
        return judged
    return replace(
        judged,
        case=case.case,
        mode=case.mode,
        best_baseline=case.best_baseline,
        ratio=case.ratio,
        low=case.low,
        high=case.high,
    )


def _read(path: Path, kind: type[records.R]) -> records.R | None:
    return records.read(path, kind) if path.is_file() else None
