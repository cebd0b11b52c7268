"""How long a whole run takes after installation, from nothing, and how much of it is not work.

`python benchmarks/whole_run.py [--cores 2]` copies what git tracks to a temporary folder and runs the workflow there
with this interpreter. Work is the time in which at least one stage was between its start and its end
(results/run/events.jsonl); the rest is Snakemake, and the start of interpreters before a stage begins. Ends with 1 when
a line is missed.

With `--first` only what the project began with takes part (FIRST), at the shapes that it began with, and variants alone
are profiled; with `--limit 180` that is the line for a run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

LIMIT_S, LIMIT_SHARE = 120.0, 0.15
SDPA = ("default", "flash", "math")
FIRST = {
    "attention": {"cpu_naive", "cpu_flash", "fp16_scalar", "fp16_wmma", "sdpa_efficient", "sdpa_cudnn"}
    | {f"sdpa_{backend}{device}" for backend in SDPA for device in ("", "_cpu")},
    "qkt": {"simfp8_qkt", "qkt_torch", "qkt_half"},
    "rmsnorm": {"cpu_rows", "naive", "rmsnorm_torch", "rmsnorm_torch_cpu"},
}
ROOT = Path(__file__).resolve().parents[1]


def copy_tracked(target: Path) -> None:
    """What git tracks, and its history, so that the run knows its commit."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(target)], check=True)
    changed = subprocess.run(
        ["git", "ls-files", "-z", "-m"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, changed.split("\0")):
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, target / name)


def keep_first(config: Path) -> None:
    """Take out of a configuration what is not in FIRST, shapes that are timed on a GPU only, profiles of baselines."""
    data = yaml.safe_load(config.read_text(encoding="utf-8"))
    data["operators"] = {name: data["operators"][name] for name in FIRST}
    for name, operator in data["operators"].items():
        operator["bench"].pop("cuda_shapes", None)
        operator["profile"].pop("baselines", None)
        for kind in ("variants", "baselines"):
            operator[kind] = {key: value for key, value in operator[kind].items() if key in FIRST[name]}
    config.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def covered_s(intervals: list[tuple[float, float]]) -> float:
    """Seconds in which at least one interval was open."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def stage_intervals(events: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Start and end of every stage and subject, by stage."""
    open_at: dict[tuple[str, str, int], float] = {}
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        key = (event["stage"], event["subject"], event["pid"])
        if event["event"] == "start":
            open_at[key] = event["t"]
        elif key in open_at:
            found[event["stage"]].append((open_at.pop(key), event["t"]))
    return found


def main() -> int:
    """Measure and print; gives back the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--first", action="store_true", help="only what the project began with")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="the line for the whole run")
    parser.add_argument("--keep", type=Path, help="leave the run in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary) / "run"
        copy_tracked(folder)
        if arguments.first:
            keep_first(folder / "config.yaml")
        path = os.pathsep.join(filter(None, [str(folder / "src"), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "kernelproof", "run", "--cores", str(arguments.cores)]
        started = time.monotonic()
        done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False)
        wall_s = time.monotonic() - started
        if done.returncode not in (0, 1):  # 1: some verdict is bad, which is no matter here
            raise SystemExit(f"the run ended with {done.returncode}")
        lines = (folder / "results/run/events.jsonl").read_text().splitlines()
    by_stage = stage_intervals([json.loads(line) for line in lines])
    work_s = covered_s([interval for intervals in by_stage.values() for interval in intervals])
    print(f"\n{'stage':10} {'jobs':>5} {'seconds':>8}  (at least one job of the stage at work)")
    for stage, intervals in by_stage.items():
        print(f"{stage:10} {len(intervals):5} {covered_s(intervals):8.2f}")
    share = 1 - work_s / wall_s
    print(f"\nwhole run {wall_s:.1f} s (line: {arguments.limit:g} s)")
    print(f"Snakemake and process start-up {share:.1%} (line: {LIMIT_SHARE:.0%})")
    return int(wall_s > arguments.limit or share > LIMIT_SHARE)


if __name__ == "__main__":
    sys.exit(main())
