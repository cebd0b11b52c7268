"""How long `snakemake -j1 report` takes when there is nothing to do, against an empty workflow on the same machine.

Run it in the repository after a whole run: `python benchmarks/noop.py`. The two commands alternate, so that whatever
else the machine does falls on both. Prints medians, their spread and the ratio; ends with 1 when a line is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S, LIMIT_RATIO = 1.5, 2.0
ROOT = Path(__file__).resolve().parents[1]
EMPTY = "rule all:\n"


def timed(folder: Path, *arguments: str) -> tuple[float, str]:
    """Seconds that Snakemake takes, and what it said. Raises SystemExit when it fails."""
    command = [sys.executable, "-m", "snakemake", "-j1", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
    }
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    elapsed_s = time.perf_counter() - started
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed in {folder}:\n{said}")
    return elapsed_s, said


def main() -> int:
    """Measure and print; gives back the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    ours: list[float] = []
    empty: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Snakefile").write_text(EMPTY)
        timed(Path(folder))  # the first run of each fills caches
        _, said = timed(ROOT, "report", "--dry-run")
        if "Nothing to be done" not in said:
            raise SystemExit("there is something to do: run ./repro.sh first")
        timed(ROOT, "report")
        for number in range(rounds):
            first_ours = number % 2 == 0
            for mine in (first_ours, not first_ours):
                elapsed_s, _ = timed(ROOT, "report") if mine else timed(Path(folder))
                (ours if mine else empty).append(elapsed_s)
    ratio = statistics.median(ours) / statistics.median(empty)
    for name, values in (("kernelproof", ours), ("empty workflow", empty)):
        print(f"{name:15} {statistics.median(values):6.3f} s  [{min(values):.3f}, {max(values):.3f}]  n={len(values)}")
    print(f"ratio           {ratio:6.2f}    (lines: at most {LIMIT_S:g} s and {LIMIT_RATIO:g})")
    return int(statistics.median(ours) > LIMIT_S or ratio > LIMIT_RATIO)


if __name__ == "__main__":
    sys.exit(main())
