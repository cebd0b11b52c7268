"""Which calls of a variant can be run from its cubins alone, and with which launches: the supervisor's side.

Every call that is judged by itself is outlined by the judge and described by a process that holds the candidate's
library, before any of them is run; then that process ends. What it said is checked against the build's record. A call
whose launch has no description runs as a library, and the record says how many did and why.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import builds, replies, sass, toolchain
from kernelproof.errors import WorkerError, WorkerReplyError
from kernelproof.launches import Indescribable, checked, kept, signature
from kernelproof.records import BuildRecord, FileHash, NotSealed, Sealing

if TYPE_CHECKING:
    from kernelproof.config import VariantConfig
    from kernelproof.supervisor import Worker

FAILURES_ALLOWED = 2  # of the process that describes; after that no further call is described


@dataclass(frozen=True)
class Described:
    """One kind of call: what it launches, or why that cannot be said."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""
    refused: bool = False


class Sealer:
    """The descriptions of one variant's calls.

    `root`: of the project. `built`: the variant's build. Without a description every call runs as a library.
    """

    def __init__(self, root: Path, variant: VariantConfig, built: BuildRecord) -> None:
        found = builds.cubins_for(built.cubins, toolchain.native_archs())
        self.cubins = [cubin for cubin in found if cubin.kernels]  # a dispatcher's own source has none
        self.files = [{"path": str(root / c.path), "sha256": c.sha256} for c in self.cubins]
        self._kernels: dict[str, int] = {}
        self._unread: dict[str, list[list[int]]] = {}
        for kernel in (kernel for cubin in self.cubins for kernel in cubin.kernels):
            self._kernels[kernel.name] = self._kernels.get(kernel.name, 0) + 1
            if kernel.parameters_unread:
                self._unread[kernel.name] = kernel.parameters_unread
        self._bar = self._barred(root, variant)
        self._outlines: dict[str, dict[str, Any]] = {}  # by a job's key
        self._found: dict[str, Described] = {}  # by signature
        self._failures = 0
        self._sealed: dict[str, None] = {}  # keys of the jobs that ran from the cubins
        self._left: dict[str, dict[str, None]] = {}  # reason → keys of those that did not

    def _barred(self, root: Path, variant: VariantConfig) -> str:
        """Why no call of the variant can be sealed; empty when nothing speaks against it."""
        if not self.cubins:
            archs = ", ".join(toolchain.native_archs()) or "an unknown architecture"
            return f"its build has no kernel of its own for this GPU ({archs})"
        if variant.passing != "destination":
            return "it returns its outputs in memory of its own"
        for cubin in self.cubins:
            if why := builds.altered(cubin, root):
                return f"{why}; build it again"
            try:
                state = sass.state_of((root / cubin.path).read_bytes())
            except ValueError as error:
                return f"{cubin.path} cannot be read: {error}"
            if state:
                return f"beside its parameters it rests on {state[0]}"
        return ""

    def describe(
        self, outlines: Mapping[str, dict[str, Any]], worker: Callable[[], Worker], limit_s: float
    ) -> list[tuple[str, str]]:
        """Have calls described that are not yet; `outlines` by job. `worker` gives a process that holds the library.

        Gives back which jobs cannot be sealed, and why; refused calls are none of them.
        """
        self._outlines |= outlines
        for outline in outlines.values():
            kind = signature(outline)
            if kind not in self._found:
                self._found[kind] = self._described(outline, worker, limit_s)
        found = {key: self._found[signature(outline)] for key, outline in outlines.items()}
        return [(key, one.reason) for key, one in found.items() if not one.steps and not one.refused]

    def _described(self, outline: dict[str, Any], worker: Callable[[], Worker], limit_s: float) -> Described:
        if self._bar:
            return Described(reason=self._bar)
        if self._failures > FAILURES_ALLOWED:
            return Described(reason=f"the process that described its calls failed {self._failures} times")
        try:
            answer = worker().request("describe", timeout_s=limit_s, outline=outline, unread=self._unread)
            if not isinstance(answer, dict):
                raise Indescribable("its process gave no description")
            for kind in ("refused", "reason"):
                if kind in answer:
                    replies.expect(answer, {kind: replies.text})
                    return Described(reason=answer[kind], refused=kind == "refused")
            steps = checked(answer.get("steps"), outline, self._kernels)
            return Described([dataclasses.asdict(step) for step in steps])
        except Indescribable as error:
            return Described(reason=str(error))
        except WorkerError as error:
            self._failures += 1
            if isinstance(error, WorkerReplyError):
                worker().close()  # an error can leave the whole CUDA context unusable
            return Described(reason=f"the process that was to describe it failed: {error.message}")

    def knows(self, key: str) -> bool:
        """Whether a job has been outlined."""
        return key in self._outlines

    def refusal(self, keys: Sequence[str]) -> str | None:
        """The candidate's words, where it does not take one of these calls."""
        found = [self._found[signature(self._outlines[key])] for key in keys]
        return next((one.reason for one in found if one.refused), None)

    def launches(self, keys: Sequence[str]) -> list[list[dict[str, Any]]] | None:
        """What the calls of one request launch; None when one of them has to run as a library."""
        found = [self._found[signature(self._outlines[key])] for key in keys]
        return [one.steps for one in found] if all(one.steps for one in found) else None

    def ran(self, keys: Sequence[str], *, sealed: bool) -> None:
        """Note that the calls of a request were made, and how."""
        if sealed:
            self._sealed.update(dict.fromkeys(keys))
            return
        reasons = [self._found[signature(self._outlines[key])].reason for key in keys]
        # Calls that share a request share its process.
        first = next(filter(None, reasons))
        for key, reason in zip(keys, reasons, strict=True):
            self._left.setdefault(reason or first, {})[key] = None

    def record(self) -> Sealing:
        """How many calls ran from the cubins, and why others did not."""
        left = [NotSealed(reason, len(keys), next(iter(keys))) for reason, keys in self._left.items()]
        files = [FileHash(cubin.path, cubin.sha256, cubin.bytes) for cubin in self.cubins]
        return Sealing(len(self._sealed), sum(len(keys) for keys in self._left.values()), left, files)

    def evidence(self) -> str | None:
        """Every description that was used, and for which calls, as JSON; None when there is none."""
        calls: dict[str, list[str]] = {}
        for key in self._sealed:
            calls.setdefault(signature(self._outlines[key]), []).append(key)
        if not calls:
            return None
        kinds = [
            {"calls": keys, "arguments": json.loads(kind), "steps": self._found[kind].steps}
            for kind, keys in calls.items()
        ]
        return kept(kinds)
