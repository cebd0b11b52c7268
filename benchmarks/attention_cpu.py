"""cpu_flash against torch's CPU SDPA: mission shape, float32, the same threads, interleaved, in fresh processes.

`python benchmarks/attention_cpu.py [--threads 2]` builds, tests and times the two in a temporary folder, with the
commands that a run uses. Prints both times and the ratio with its interval; ends with 1 when ours is slower.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kernelproof import records  # noqa: E402
from kernelproof.processes import python_path  # noqa: E402
from kernelproof.records import BenchRecord  # noqa: E402

OURS, PEER = "cpu_flash", "sdpa_default_cpu"


def measured(folder: Path, arguments: argparse.Namespace) -> BenchRecord:
    """The record of the benchmark stage on these two alone; what was not tested takes no part in it."""
    shutil.copy2(ROOT / "config.yaml", folder)
    shutil.copytree(ROOT / "csrc", folder / "csrc")

    def command(stage: str, *options: str) -> None:
        words = [sys.executable, "-m", "kernelproof", stage, "--operator", "attention", *options]
        subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": python_path()}, check=True)

    both = ["--variant", OURS, "--variant", PEER]
    command("build", *both)
    command("test", *both, "--level", "quick")
    settings = {"processes": arguments.processes, "max_seconds": 1.0, "cpu_threads": arguments.threads}
    chosen = [f"bench.{name}={value}" for name, value in settings.items()]
    command("bench", "--device", "cpu", *(word for value in chosen for word in ("--set", value)))
    return records.read(folder / "results/bench/attention-cpu.json", BenchRecord)


def main() -> int:
    """Measure and print; gives back the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--processes", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), arguments)
    times = {
        (row.case, row.mode, row.contender): row.median_us / 1000 for row in found.times if row.method == "cpu_clock"
    }
    print(f"{found.threads} threads, {arguments.processes} processes; torch is {PEER}")
    ratios = [row for row in found.ratios if (row.variant, row.baseline) == (OURS, PEER)]
    for row in ratios:
        ours, theirs = (times[row.case, row.mode, name] for name in (OURS, PEER))
        print(
            f"{row.case} {row.mode:4}: {OURS} {ours:.3f} ms, torch {theirs:.3f} ms; "
            f"ratio {row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"
        )
    return int(not ratios or any(row.ratio > 1 for row in ratios))


if __name__ == "__main__":
    sys.exit(main())
