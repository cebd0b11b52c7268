"""The bench stage: all contenders of one operator on one device, measured against one another.

`run` is the table of contents: who takes part, on what; K fresh processes; are the outputs of the timed calls right;
what do the samples say. Only contenders that the test stage found correct are timed. One that fails on the way is
dropped by name and the others go on.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernelproof import fingerprints, own_modules, records, repository
from kernelproof.config import Config, check_declared
from kernelproof.contest.entrants import Entrant, arenas_of, cannot_run, entrants_of
from kernelproof.contest.measurement import IMAGES, Measurement
from kernelproof.contest.outputs import judge_outputs
from kernelproof.contest.summary import Summary
from kernelproof.errors import LeaseError, blamed
from kernelproof.processes import scratch_folder
from kernelproof.records import BenchRecord

if TYPE_CHECKING:
    from kernelproof.operators import Operator

LEAVING_S, LOOK_S = 20.0, 0.1  # in which who had a GPU before writes its record and ends: over 3 s on a busy host
WAITED, HELD = "waited_s", "held_s"  # for others to leave the GPU; from then on until others may have it


def run(config: Config, operator: str, device: str, output: Path, only: str | None = None) -> BenchRecord:
    """Measure, judge, summarise; write the record and, beside it, every sample as compressed CSV.

    only: the one variant that is measured, against the baselines alone; the record says so of the others.

    Raises OSError where nothing can be written beside `output`, and ConfigError where the operator's module does not
    take what the configuration asks of it; then nothing is written, and what an earlier run left stays. On a machine
    without the device nobody asks the module.
    """
    from kernelproof import gpu
    from kernelproof.lease import own_cores

    started = time.monotonic()
    state = repository.of_files(config.root, own_modules.files_of(config.operator(operator).module, config.root))
    record = BenchRecord(operator=operator, device=device, provenance=state)
    record.settings = fingerprints.of(config, "bench", f"{operator}-{device}")
    entrants = entrants_of(config, config.operator(operator), device, only)
    record.contenders = [entrant.contender for entrant in entrants]
    samples_path = output.with_suffix(".csv.gz")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=output.parent):
        pass  # what cannot be written there is told before anything is measured
    if reason := cannot_run(device, entrants, only):
        record.status, (record.reason, record.remedy) = records.NOT_RUN, reason
    else:
        try:
            with own_cores(device), blamed(config.operator(operator).module, config.root):
                _measure_and_summarise(config, record, entrants, samples_path)
        except LeaseError as busy:
            record.status, record.reason, record.remedy = records.NOT_RUN, busy.message, busy.hint
    if record.status == records.NOT_RUN and (device == "cpu" or gpu.available()[0]):
        with blamed(config.operator(operator).module, config.root):
            _declared_operator(config, operator)
    if record.samples is None:
        samples_path.unlink(missing_ok=True)  # of an earlier run: they are not this record's
    record.duration_s = round(time.monotonic() - started - record.states.get(WAITED, 0.0), 3)
    records.write(output, record)
    return record


def _declared_operator(config: Config, name: str) -> Operator:
    """The operator of that name. Raises ConfigError where it does not take what the configuration asks of it."""
    from kernelproof import operators

    settings = config.operator(name)
    operator = operators.load(settings.module, config.root)
    check_declared(config, settings, operators.declared(operator, settings))
    return operator


@contextlib.contextmanager
def _board(config: Config, record: BenchRecord) -> Iterator[None]:
    """Hold a GPU while it is measured on; say how long we waited for it and held it, and who was there before us."""
    if record.device != "cuda":
        yield
        return
    from kernelproof import gpu, lease

    asked = time.monotonic()
    with lease.gpu_lease(config.bench.gpu_wait_s, "bench") as record.gpu:
        had = time.monotonic()
        record.states[WAITED] = round(had - asked, 3)
        record.states["others_before"] = _others_on(gpu.index_of_first_visible(os.environ["CUDA_VISIBLE_DEVICES"]))
        yield
        record.states[HELD] = round(time.monotonic() - had, 3)


def _others_on(board: int) -> int | None:
    """How many processes stay on a board that is now ours; None where NVML does not say.

    Those of whoever had it before us may still be ending.
    """
    from kernelproof import gpu

    deadline = time.monotonic() + LEAVING_S
    while (seen := gpu.compute_processes(board)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return None if seen is None else len(seen)


def _measure_and_summarise(config: Config, record: BenchRecord, entrants: list[Entrant], samples_path: Path) -> None:
    """All of it, from the host's start on; a GPU is held from when interpreters and inputs are there until the end."""
    from kernelproof.supervisor import WorkerHost

    started = time.monotonic()
    with scratch_folder("bench") as folder, contextlib.ExitStack() as held:
        threads = config.bench.cpu_threads or len(os.sched_getaffinity(0))
        # The host imports torch while we do the same, and what is needed after the measurements.
        home = folder / "host"
        home.mkdir()
        with WorkerHost(
            device=record.device, needs_torch=True, scratch=home, threads=threads, private=[folder], measures=True
        ) as host:
            operator = _declared_operator(config, record.operator)
            import pandas  # noqa: F401
            import scipy.stats  # noqa: F401

            arenas = arenas_of(config.operator(record.operator), operator, entrants, folder / IMAGES)
            if not arenas:
                record.status, record.reason = records.NOT_RUN, "no correct contender accepts any benchmark case"
                return
            if record.device == "cuda":
                host.wait_until_ready()  # and not while nobody else may have the GPU
            else:
                host.spawn().close()  # wait for the host here, where it counts as start-up
            held.enter_context(_board(config, record))
            measurement = Measurement(config, record.device, entrants, arenas, host, folder)
            found = measurement.run()
            found.cores = sorted(host.cores) if record.device == "cpu" else []
            startup_s = time.monotonic() - started - record.states.get(WAITED, 0.0)
            startup_s -= found.measuring_s + found.counters.get("seconds", 0.0)
            checked = judge_outputs(config, measurement, operator)
        # Still held: references were computed on the GPU, and this process counts as one there until it ends.
        measurement.drop_escaped()
        record.threads = threads if record.device == "cpu" else None
        record.cases = [arena.cost for arena in arenas]
        record.modes = list(config.bench.modes)
        record.processes = config.bench.processes
        record.startup_s = round(startup_s, 3)
        Summary(config, record, entrants, arenas, found).fill(checked, samples_path)
