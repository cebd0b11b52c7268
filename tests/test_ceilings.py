"""What a device reaches: measured for real on this CPU, with matrices and buffers small enough for a test."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import packed_run
import pytest
import torch

from kernelproof import ceilings, cli, gpu, lease, records
from kernelproof.config import Config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(ceilings, "SIZES", {"cpu": {ceilings.MATMUL: 256}})
    monkeypatch.setattr(ceilings, "LEAST_BYTES", 8 << 20)
    monkeypatch.setattr(ceilings, "GIB", 8 << 20)
    made = packed_run.make(tmp_path)
    return dataclasses.replace(made, bench=dataclasses.replace(made.bench, cpu_threads=1))


def measured(config: Config, device: str = "cpu") -> records.CeilingsRecord:
    path = config.record("bench", "ceilings", device)
    record = ceilings.run(config, device, path)
    assert records.read(path, records.CeilingsRecord) == record
    return record


def test_a_cpu_copies_and_multiplies(config: Config) -> None:
    record = measured(config)
    assert (record.status, record.device, record.threads, record.left_out) == ("ok", "cpu", 1, {})
    assert record.torch == torch.__version__
    assert [(c.name, c.unit) for c in record.ceilings] == [("copy", "B/s"), ("matmul_float32", "FLOP/s")]
    for ceiling in record.ceilings:
        assert 0 < ceiling.low <= ceiling.median <= ceiling.high
        assert 3 <= ceiling.samples <= ceilings.SAMPLES
    copy, product = record.ceilings
    assert "8 MiB to 8 MiB" in copy.how
    assert "256³ of float32" in product.how


def test_a_copy_moves_what_it_is_said_to_move(config: Config) -> None:
    for way in ceilings._copies(torch, "cpu"):
        assert way.amount == 2 * (8 << 20)
        way.call()


class Steady(ceilings.Clock):
    """A clock on which every call takes a millisecond, and the third sample is late."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def seconds(self, call: Any, count: int) -> float:
        call()
        self.batches.append(count)
        return count * (2e-3 if len(self.batches) == 5 else 1e-3)


def test_a_ceiling_is_the_median_with_its_spread() -> None:
    clock = Steady()
    found = ceilings._ceiling(ceilings.COPY, ceilings.Way("so", lambda: None, 1e9), clock)
    assert (found.median, found.low, found.high, found.samples) == (1e12, 5e11, 1e12, ceilings.SAMPLES)
    assert clock.batches == [1, 1, *[4] * ceilings.SAMPLES]  # 4 ms a sample


def test_what_cannot_be_measured_is_left_out_and_the_rest_stands(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> Any:
        raise RuntimeError("not enough memory: you tried to allocate 1073741824 bytes\nbacktrace")

    monkeypatch.setattr(ceilings, "_copies", no_memory)
    record = measured(config)
    assert record.status == "ok"
    assert record.left_out == {"copy": "not enough memory: you tried to allocate 1073741824 bytes"}
    assert record.get("copy") is None
    assert record.get("matmul_float32") is not None
    monkeypatch.setattr(ceilings, "_matmul", no_memory)
    record = measured(config)
    assert record.status == "failed"
    assert "copy: not enough memory" in str(record.reason)


def test_without_a_gpu(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "available", lambda: (False, "NVML Shared Library Not Found"))
    record = measured(config, "cuda")
    assert (record.status, record.reason) == ("not_run", "no GPU: NVML Shared Library Not Found")
    assert record.remedy
    assert record.ceilings == []


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU by name only, with the lock in a temporary folder of our own."""
    monkeypatch.setattr(lease.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(gpu, "available", lambda: (True, None))
    monkeypatch.setattr(gpu, "visible", lambda: ["GPU-one"])
    return gpu.uuid_sha256("GPU-one")


def test_a_gpu_is_held_while_it_is_measured(config: Config, board: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(*_: object) -> None:
        free = lease.lock(board)
        seen.append((free is None, os.environ.get("CUDA_VISIBLE_DEVICES")))
        if free is not None:
            os.close(free)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(ceilings, "_measure", look)
    measured(config, "cuda")
    measured(config, "cpu")
    assert seen == [(True, "GPU-one"), (False, None)]


def test_a_gpu_that_another_measures_on_is_left_alone(config: Config, board: str) -> None:
    config = dataclasses.replace(config, bench=dataclasses.replace(config.bench, gpu_wait_s=0))
    other = lease.lock(board)
    assert other is not None
    record = measured(config, "cuda")
    os.close(other)
    assert record.status == "not_run"
    assert "the GPU is in use by another kernelproof" in str(record.reason)
    assert "bench.gpu_wait_s" in str(record.remedy)
    assert record.ceilings == []


def test_the_command(config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(config.root)
    assert cli.main(["bench", "--ceilings", "--device", "cpu"]) == 0
    copy, product = capsys.readouterr().out.splitlines()
    assert copy.startswith("cpu: copy ")
    assert "TFLOP/s" in product
    assert records.read(Path("results/bench/ceilings/cpu.json"), records.CeilingsRecord).status == "ok"
    assert cli.main(["bench", "--ceilings"]) == 2
    assert "--ceilings needs --device" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_gpu_copies_and_multiplies(tmp_path: Path) -> None:
    present, why = gpu.available()
    if not present:
        pytest.skip(f"no GPU: {why}")
    record = measured(packed_run.make(tmp_path), "cuda")
    assert record.status == "ok"
    assert record.driver
    copy, product = record.get("copy"), record.get("tensor_bfloat16")
    assert copy is not None
    assert product is not None
    assert product.median > copy.median
    assert product.sm_clock_mhz
