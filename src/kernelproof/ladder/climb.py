"""What each rung of the ladder does, and what a variant's way up it amounts to.

The candidate runs in worker processes; the reference is computed here, from the seed, and never leaves this process.
torch takes two seconds to import, so it is imported when a result must first be judged, while the worker host starts,
and not at all for a variant that cannot run on this machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import records
from kernelproof.cases import enumerate_cases
from kernelproof.errors import RecordError, WorkerCrashed, WorkerError, WorkerReplyError, WorkerTimeout, describe_exit
from kernelproof.records import BuildRecord, Case, CaseResult, Failure, Rung, TestRecord

if TYPE_CHECKING:
    from kernelproof.config import Config, OperatorConfig, VariantConfig
    from kernelproof.operators import Call, Operator, Reference
    from kernelproof.supervisor import Worker, WorkerHost

RUNGS = ("build", "load", "launch", "sanity", "correctness", "determinism")
CRASHES_ALLOWED = 2  # after that many the remaining cases are not run
REPEATED_CASES = 3
CPU_REPEATED_ELEMENTS = 40_000  # product of the dimensions: a hundred calls of a naive CPU kernel take a second or two
REFERENCES_KEPT_BYTES = 512 << 20


@dataclass(frozen=True)
class Outcome:
    """How one step ended: `passed`, `failed` or `skipped`, and why."""

    status: str
    message: str = ""


class Session:
    """What the variants of one run share: the configuration, the worker hosts, the fresh seed, the references."""

    def __init__(self, config: Config, variants: list[VariantConfig], scratch: Path) -> None:
        self.config = config
        self.scratch = scratch
        self.root = config.root.resolve()
        # Drawn after the build, so that no kernel can have been made for it.
        self.fresh_seed = int.from_bytes(os.urandom(4), "little") >> 1
        self.climbs = [Climb(self, variant) for variant in variants]
        self._hosts: dict[bool, WorkerHost] = {}
        self._current: Climb | None = None
        self._operators: dict[str, Operator] = {}
        self._gpu: tuple[bool, str | None] | None = None
        self._prepared: dict[str, tuple[Call, Reference, int]] = {}

    def gpu(self) -> tuple[bool, str | None]:
        """Whether a CUDA variant can run here, and if not, why."""
        if self._gpu is None:
            from kernelproof import gpu

            self._gpu = gpu.available()
        return self._gpu

    def host(self, variant: VariantConfig) -> WorkerHost:
        """A warm worker host with what the variant needs; the first call starts it, and does not wait."""
        from kernelproof.loading import needs_torch
        from kernelproof.supervisor import WorkerHost

        key = needs_torch(variant.abi, variant.device, variant.dtypes)
        if key not in self._hosts:
            scratch = self.scratch / ("host-torch" if key else "host")
            scratch.mkdir(parents=True, exist_ok=True)
            threads = self.config.bench.cpu_threads
            self._hosts[key] = WorkerHost(device=variant.device, needs_torch=key, scratch=scratch, threads=threads)
        return self._hosts[key]

    def enter(self, climb: Climb) -> None:
        """Tests of `climb` begin: the worker of the variant before it ends."""
        if self._current is not None and self._current is not climb:
            self._current.leave()
        self._current = climb

    def operator(self, name: str) -> Operator:
        """The operator's module (imports torch)."""
        if name not in self._operators:
            from kernelproof import operators

            self._operators[name] = operators.load(self.config.operator(name).module, self.root)
        return self._operators[name]

    def judge_device(self, variant: VariantConfig) -> str:
        """Where references are computed: on the GPU for CUDA variants, in float64 there as well."""
        return "cuda" if variant.device == "cuda" else "cpu"

    def prepare(self, variant: VariantConfig, case: Case) -> tuple[Call, Reference]:
        """Inputs and reference of a case; kept, since all variants and baselines of an operator share them."""
        from kernelproof import judge

        precision = judge.resolved(variant.precision, case.dtype)
        key = json.dumps([case.id, case.operator, case.dims, dataclasses.asdict(precision), variant.device])
        if key not in self._prepared:
            operator = self.operator(variant.operator)
            call = operator.make_call(case, judge.generator(case))
            reference = operator.reference(call, precision, self.judge_device(variant))
            size = sum(t.nbytes for t in [*call.tensors.values(), reference.output, reference.bound])
            while self._prepared and size + sum(s for _, _, s in self._prepared.values()) > REFERENCES_KEPT_BYTES:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[key] = (call, reference, size)
        call, reference, _ = self._prepared[key]
        return call, reference

    def close(self) -> None:
        """End every worker and host."""
        if self._current is not None:
            self._current.leave()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
