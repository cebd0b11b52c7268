"""What the variants of one run share: worker hosts, the judge, the fresh seed, and what this machine has for them."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from kernelproof.judging import Judge

if TYPE_CHECKING:
    from kernelproof.config import Config, VariantConfig
    from kernelproof.supervisor import WorkerHost

THREADS = 4  # of a CPU candidate: enough for races to show, few enough for tests to run beside each other


class Resources:
    """What every variant that one process tests can share: worker hosts, the judge, the fresh seed."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        # Drawn after the build, so that no kernel can have been made for it.
        self.fresh_seed = int.from_bytes(os.urandom(4), "little") >> 1
        self._hosts: dict[tuple[bool, int, bool], WorkerHost] = {}
        self._judges: dict[tuple[Path | None, float], Judge] = {}

    def host(
        self, variant: VariantConfig, threads: int, *, awake: bool = False, kinds: Iterable[str] = ()
    ) -> WorkerHost:
        """A warm worker host with what the variant needs; the first call starts it, and does not wait.

        kinds: data types of its tensors beyond those that it declares.
        """
        from kernelproof.memory import needs_torch
        from kernelproof.supervisor import WorkerHost

        results = variant.dtypes if variant.precision.output == "input" else [variant.precision.output]
        with_torch = needs_torch(variant.abi, variant.device, variant.dtypes, [*results, *kinds])
        awake = awake and with_torch  # else one host serves both kinds (WorkerHost)
        key = (with_torch, threads, awake)
        if key not in self._hosts:
            scratch = self.scratch / f"host-{len(self._hosts)}"
            scratch.mkdir(parents=True, exist_ok=True)
            self._hosts[key] = WorkerHost(
                device=variant.device,
                needs_torch=with_torch,
                scratch=scratch,
                threads=threads,
                private=[self.scratch],
                awake=awake,
            )
        return self._hosts[key]

    def judge(self, root: Path, modules: Iterable[str], limit_s: float) -> Judge:
        """The judge of a project's operators; the first call starts it, and does not wait.

        Projects whose operators are all kernelproof's own share one: no file of theirs is loaded there.
        """
        own = all(module.startswith("kernelproof.operators.") for module in modules)
        key = None if own else root, limit_s
        if key in self._judges and not self._judges[key].alive:
            self._judges.pop(key).close()
        if key not in self._judges:
            self._judges[key] = Judge(root, self.scratch, limit_s)
        return self._judges[key].of(root)

    def close(self) -> None:
        """End every host, and with them every worker, and the judges."""
        for host in self._hosts.values():
            host.close()
        for judge in self._judges.values():
            judge.close()
        self._hosts.clear()
        self._judges.clear()


class Session:
    """One run of the ladder: the configuration and the variants that climb."""

    def __init__(
        self, config: Config, variants: list[VariantConfig], resources: Resources, only: str | None = None
    ) -> None:
        self.config = config
        self.variants = variants
        self.resources = resources
        self.only = only  # the id of the one case that is to be tested
        self.root = config.root.resolve()
        self._families: dict[str, list[str]] = {}

    @functools.cached_property
    def gpu(self) -> tuple[bool, str | None]:
        """Whether a CUDA variant can run here, and if not, why."""
        from kernelproof import gpu

        present, why = gpu.available()
        version = _version("torch")
        if present and "+cpu" in version:
            return False, f"there is a GPU, but torch {version} is built without CUDA"
        return present, why

    @property
    def threads(self) -> int:
        """CPU threads that a candidate may use."""
        cores = len(os.sched_getaffinity(0))
        return min(THREADS, cores, self.config.bench.cpu_threads or cores)

    def lacking(self, variant: VariantConfig) -> tuple[str, str] | None:
        """What a variant cannot run without and is not here, and what to do about it; None where nothing is missing."""
        if variant.device == "cuda":
            present, why = self.gpu
            if not present:
                remedy = "run on a machine with an NVIDIA GPU, its driver, and a torch built for CUDA"
                return f"no usable GPU here ({why})", remedy
        absent = [name for name in variant.requires if not _installed(name)]
        if absent:
            remedy = f"install it beside torch: pip install {' '.join(map(repr, absent))}"
            return f"{', '.join(absent)} is not installed", remedy
        if variant.role == "baseline" and (package := _absent_package(variant, self.root)):
            remedy = f"install it, or mend operators.{variant.operator}.baselines.{variant.name}.entry"
            return f"{package}, which its entry {variant.entry!r} is in, is not installed", remedy
        return None

    def host(self, variant: VariantConfig, *, awake: bool = False, kinds: Iterable[str] = ()) -> WorkerHost:
        """The worker host for a variant, started if it is not; `awake`: idle threads spin for a while (WorkerHost).

        kinds: data types of its tensors beyond those that it declares.
        """
        return self.resources.host(variant, self.threads, awake=awake, kinds=kinds)

    @functools.cached_property
    def judge(self) -> Judge:
        """The judge, started if it is not. One that dies is not replaced in a session: what it was told is gone."""
        modules = {self.config.operator(variant.operator).module for variant in self.variants}
        return self.resources.judge(self.root, modules, self.config.test.operator_limit_s)

    def families(self, variant: VariantConfig) -> list[str]:
        """The input families of the variant's operator, where the configuration does not choose some."""
        settings = self.config.operator(variant.operator)
        if not settings.test.families and settings.module not in self._families:
            self._families[settings.module] = self.judge.families(settings.module)
        return settings.test.families or self._families[settings.module]

    def start(self) -> None:
        """Start the judge and the hosts that will be needed, so that their imports run beside one another."""
        for variant in self.variants:
            if variant.device == "cpu" or self.gpu[0]:
                self.resources.host(variant, self.threads)  # what its calls hold besides is the judge's to say
                assert self.judge


def _version(package: str) -> str:
    """A package's version without importing it; empty when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _absent_package(variant: VariantConfig, root: Path) -> str:
    """The package of a peer's callable, where there is none by that name; nothing is imported."""
    module = (variant.entry or "").partition(":")[0]
    if variant.abi != "python" or not module or module.endswith(".py"):
        return ""
    package = module.partition(".")[0]
    return "" if importlib.util.find_spec(package) or PathFinder.find_spec(package, [str(root)]) else package


def _installed(requirement: str) -> bool:
    wanted = Requirement(requirement)
    found = _version(wanted.name)
    return bool(found) and wanted.specifier.contains(found, prereleases=True)
