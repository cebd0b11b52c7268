"""Records of the activity API as plain data. That CUPTI gives them is tested where there is a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest

from kernelproof import cupti, gpu, processes

KERNEL, COPY = 10, 1
NAMES = {KERNEL: "", COPY: "Memcpy"}


def record(name: Any, start: int, end: int, grid: int = 132, kind: int = KERNEL) -> SimpleNamespace:
    sizes = {f"{what}_{axis}": 1 for what in ("grid", "block", "cluster") for axis in "xyz"} | {
        "grid_x": grid,
        "block_x": 128,
    }
    return SimpleNamespace(
        kind=kind, name=name, start=start, end=end, static_shared_memory=1024, dynamic_shared_memory=32, **sizes
    )


def test_a_kernel_is_described_in_words() -> None:
    found = cupti.described(record(b"_ZN5naive7rmsnormIfEEv11RmsNormArgs", 5, 9), NAMES)
    assert found == {
        "name": "void naive::rmsnorm<float>(RmsNormArgs)",
        "grid": [132, 1, 1],
        "block": [128, 1, 1],
        "cluster": [],
        "shared_bytes": 1056,
        "start_ns": 5,
        "end_ns": 9,
    }
    assert cupti.described(record("", 5, 9, kind=COPY), NAMES)["name"] == "Memcpy"


def test_launches_are_counted_per_call() -> None:
    entries = [
        cupti.described(record(name, start, start + length, grid), NAMES)
        for name, start, length, grid in (
            ("split", 0, 6000, 8),
            ("combine", 7000, 1000, 4),
            ("split", 9000, 6400, 8),
            ("combine", 16000, 1000, 4),
        )
    ]
    found = cupti.per_call(entries, 2)
    assert [(one["name"], one["count"], one["duration_us"]) for one in found] == [
        ("split", 1.0, 6.2),
        ("combine", 1.0, 1.0),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not gpu.available()[0], reason=f"needs a GPU: {gpu.available()[1]}")
def test_a_real_kernel_is_seen() -> None:
    """In a process of its own: a loaded CUPTI changes the timings of all that comes after it."""
    import os
    import subprocess
    import sys

    if cupti.version() is None:
        pytest.skip("cupti-python is not installed")
    code = (
        "import json, torch; from kernelproof import cupti\n"
        "x = torch.ones(1 << 20, device='cuda'); torch.cuda.synchronize()\n"
        "def work():\n    x.add_(1); torch.cuda.synchronize()\n"
        "print(json.dumps([cupti.traced(work), cupti.traced(work)]))"
    )
    environment = {**os.environ, "PYTHONPATH": processes.python_path()}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    import json

    for found in json.loads(done.stdout.splitlines()[-1]):
        (one,) = found
        assert "elementwise" in one["name"]
        assert 500 < one["end_ns"] - one["start_ns"] < 100_000
