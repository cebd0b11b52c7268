"""cpu_flash against torch's CPU SDPA: mission shape, float32, the same threads, interleaved, in fresh processes.

`python benchmarks/attention_cpu.py [--threads 2]` in the repository; builds cpu_flash where it has not been built.
Prints both times and the ratio with its interval (stretched bootstrap over processes); ends with 1 when ours is slower.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kernelproof import build, config, images, judge, operators, statistics  # noqa: E402
from kernelproof.cases import enumerate_cases  # noqa: E402
from kernelproof.supervisor import WorkerHost  # noqa: E402

Samples = dict[tuple[str, str, str], dict[int, dict[int, list[float]]]]
OURS, PEER = "cpu_flash", "sdpa_default_cpu"


def library(settings: config.Config) -> str:
    """Where cpu_flash's library is, built now if it is not there."""
    path = settings.record("build", "attention", OURS)
    record = build.run(settings, "attention", OURS, path, None)
    if record.library is None:
        raise SystemExit(f"{OURS} does not build: {record.reason}")
    return str((settings.root / record.library.path).resolve())


def contenders(settings: config.Config) -> list[dict[str, Any]]:
    """Both, as timing.measure wants them."""
    found = []
    for name in (OURS, PEER):
        variant = settings.operator("attention").variant(name)
        fields = {key: getattr(variant, key) for key in ("name", "abi", "device", "passing", "entry")}
        found.append(
            {**fields, "library": library(settings) if name == OURS else None, "root": str(settings.root.resolve())}
        )
    return found


def payload(settings: config.Config, folder: Path) -> list[dict[str, Any]]:
    """The mission shape, with and without a causal mask, its inputs in files."""
    attention = settings.operator("attention")
    mission = dataclasses.replace(attention, bench=dataclasses.replace(attention.bench, shapes=["mission"]))
    operator = operators.load(attention.module, ROOT)
    found = []
    for case in enumerate_cases(mission, attention.variant(OURS), "bench"):
        spec = images.layout_images(operator.make_call(case, judge.generator(case)), folder / case.bench_id).spec
        found.append({"id": case.bench_id, "contenders": [OURS, PEER], "arguments": spec, "outputs": ["o"]})
    return found


def measure(settings: config.Config, arguments: argparse.Namespace) -> Samples:
    """Every sample: case, mode and contender -> process -> block -> µs."""
    samples: Samples = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    with tempfile.TemporaryDirectory() as folder:
        plan = {"action": "time", "device": "cpu", "modes": ["hot", "cold"], "blocks": arguments.blocks}
        plan |= {"sample_ms": 1.0, "max_seconds": 4.0, "epoch": time.time()}
        plan |= {"scratch": folder, "journal": f"{folder}/journal"}
        host = WorkerHost(
            device="cpu", needs_torch=True, scratch=Path(folder), threads=arguments.threads, measures=True
        )
        with host:
            both, cases = contenders(settings), payload(settings, Path(folder))
            for process in range(arguments.processes):
                worker = host.spawn()
                plan["seed"] = process
                found = worker.request("measure", timeout_s=600, contenders=both, cases=cases, plan=plan)
                worker.close()
                if found["outcomes"]:
                    raise SystemExit(str(found["outcomes"]))
                columns = [
                    found["samples"][name] for name in ("case", "mode", "contender", "method", "block", "time_us")
                ]
                for case_id, mode, name, method, block, time_us in zip(*columns, strict=True):
                    if method == "cpu_clock":
                        samples[case_id, mode, name][process][block].append(time_us)
    return samples


def main() -> int:
    """Measure and print; gives back the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=16)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    samples = measure(config.load(), arguments)
    slower = False
    print(f"{arguments.threads} threads, {arguments.processes} processes of {arguments.blocks} blocks; torch is {PEER}")
    for case_id, mode in dict.fromkeys((case_id, mode) for case_id, mode, _ in samples):
        ours, theirs = samples[case_id, mode, OURS], samples[case_id, mode, PEER]
        mine, other = (statistics.time_estimate(blocks, statistics.Settings()) for blocks in (ours, theirs))
        ratio = statistics.ratio_estimate(ours, theirs, statistics.Settings())
        if not (mine and other and ratio):
            raise SystemExit(f"{case_id} {mode}: never timed in the same block")
        times = f"{OURS} {mine.value / 1000:.3f} ms, torch {other.value / 1000:.3f} ms"
        print(f"{case_id} {mode:4}: {times}; ratio {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")
        slower |= ratio.value > 1
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
