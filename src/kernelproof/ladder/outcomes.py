"""How a step on the ladder ends, how grave what is wrong is, and the words for it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelproof.errors import (
    OUT_OF_TOUCH,
    KernelproofError,
    TestError,
    ValuesRefused,
    WorkerCrashed,
    WorkerReplyError,
    WorkerTimeout,
    describe_exit,
)
from kernelproof.records import (
    BIAS,
    BOUND,
    EXACT,
    GUARD_BANDS,
    INPUTS,
    LATE,
    NONFINITE,
    RELATION,
    RMS,
    UNWRITTEN,
    Case,
    CaseResult,
    Failure,
)

RUNGS = ("build", "load", "launch", "sanity", "correctness", "properties", "determinism", "sanitizer")
# What these need of the candidate is run before any of it is judged.
COLLECTED = ("correctness", "properties", "determinism")
NOTHING_DEMANDED = "nothing is demanded here: the reference's bound is infinite in every element"
HANDED = "a call hands over the arguments of make_call, in their order"
WRAP = (
    f" ({HANDED}, and outputs among them with `passing: destination` alone; wrap a function that takes others in a "
    'file of your own: entry: "file.py:function")'
)
BINDING = f" ({HANDED}: the function of the binding takes these)"
UNDECLARED = (
    ". If it does not take such a call: a variant declares the sizes that it takes, as in "
    "`limits: {%s: [64, 128]}`, its `dtypes` and `options` (config.yaml), and other cases are skipped; or it raises "
    "NotImplementedError"
)
# What says so in words: torch's own errors are RuntimeErrors, and are no refusal of a Python function's.
REFUSING = {"python": ("ValueError: ", "AssertionError: "), "C++": ("RuntimeError: ",)}
# What a launcher speaks of that refuses a size, a data type or an option, beside their names.
OF_A_CASE = {
    "take",
    "shape",
    "length",
    "dimension",
    "column",
    "multiple",
    "divisible",
    "dtype",
    "float",
    "half",
    "layout",
}
OF_A_CASE |= {"float32", "float16", "bfloat16", "fp32", "fp16", "bf16", "uint8", "int8"}
DEVICE_FAULT = "CUDA error"  # torch's words when a kernel failed
DEVICE_CAUSES = {
    "illegal memory access": "a kernel reads or writes where no tensor lies: a tail that no bound check guards, or an "
    "index with another tensor's stride",
    "misaligned address": "a vector access or an asynchronous copy whose address is no multiple of its size: the base "
    "or a row of a tensor is not aligned, or an index is off",
    "too many resources requested": "registers times threads, or shared memory, are more than a multiprocessor has",
    "invalid configuration argument": "the grid or the block has a size of 0 or too large a one",
    "illegal instruction": "the code was made for another GPU, or took a wrong path",
    "device-side assert": "an assert in a kernel did not hold; the log has its text",
}
TORCH_ADVICE = ("Search for `", "CUDA kernel errors might", "For debugging consider", "Compile with `TORCH_USE_CUDA")
# What is wrong, the least grave first: of several failures a rung tells the gravest.
BY_GRAVITY = (
    (BIAS,),
    (RMS,),
    (BOUND, EXACT, RELATION),
    (NONFINITE,),
    (LATE, UNWRITTEN, GUARD_BANDS, INPUTS),
    ("error", "refusal"),
    ("crash", "hang"),
)
GRAVITY = {kind: rank for rank, kinds in enumerate(BY_GRAVITY, 1) for kind in kinds}
NO_GRAVITY, ENDED = (0, 0.0), (GRAVITY["crash"], 0.0)


@dataclass(frozen=True)
class Outcome:
    """How one step ended: `passed`, `failed` or `skipped`, and why.

    gravity: of what is wrong, which decides what a rung tells. case: the id of the one whose call it was.
    """

    status: str
    message: str = ""
    gravity: tuple[int, float] = (0, 0.0)
    case: str = ""


def not_judged(case: Case, error: KernelproofError, hint: str = "") -> CaseResult:
    """The result of a case in which nothing was handed over."""
    result = CaseResult.of(case, "failed")
    result.failures = [Failure(kind(error), words(error) + hint)]
    return result


def undeclared(error: KernelproofError, abi: str, dims: Sequence[str], options: Iterable[str]) -> str:
    """What to do where a launcher says in words that it does not take a call, which the binding makes an error.

    dims: that the operator's shapes give; one that the launcher speaks of stands in the example. Who speaks of none of
    them, nor of an option or anything else that a case is made of, failed.
    """
    message = error.message
    said = isinstance(error, WorkerReplyError) and message.startswith(REFUSING["python" if abi == "python" else "C++"])
    if not said or DEVICE_FAULT in message:
        return ""
    words = {word.removesuffix("s") for word in re.findall("[a-z0-9]+", message.lower())}
    parts = {name: {p.removesuffix("s") for p in name.lower().split("_") if p[2:]} for name in (*dims, *options)}
    if not words & OF_A_CASE.union(*parts.values()):
        return ""
    spoken = set(re.findall(r"\w+", message.lower()))
    share = {name: (name.lower() in spoken, len(words & parts[name]) / max(1, len(parts[name]))) for name in dims}
    return UNDECLARED % max(reversed(dims), key=share.__getitem__, default="NAME")  # of none or several: the last


def mismatched(error: KernelproofError, abi: str) -> str:
    """What to do where a function takes other arguments than a call hands over: not its kernel is at fault."""
    said = isinstance(error, WorkerReplyError) and error.message.startswith("TypeError: ")
    if not said or "argument" not in error.message or "received an invalid combination" in error.message:  # torch's
        return ""
    return WRAP if abi == "python" else BINDING


def kind(error: KernelproofError) -> str:
    """How a call went wrong: `hang`, `refusal`, `error` or `crash`."""
    if isinstance(error, WorkerTimeout):
        return "hang"
    if isinstance(error, ValuesRefused):
        return "refusal"
    return "error" if isinstance(error, (WorkerReplyError, TestError)) else "crash"


def words(error: KernelproofError, when: str = "in the middle of a call") -> str:
    """What is said of a call that went wrong."""
    if isinstance(error, WorkerCrashed):
        if error.exit_code == OUT_OF_TOUCH:
            return (
                f"the process ended with exit code {OUT_OF_TOUCH} {when}, as it does without its connection to us: the "
                "candidate closed descriptors that are not its own, or called exit"
            )
        if error.exit_code >= 0:
            return f"the candidate ended the process with exit code {error.exit_code} {when}"
        return f"the process {describe_exit(error.exit_code)} {when}"
    if isinstance(error, WorkerTimeout):
        return f"it hung: no answer within {error.limit_s:g} s"
    message = _device_fault(error.message) if DEVICE_FAULT in error.message else error.message
    return f"{error.subject}: {message}" if error.subject else message


def _device_fault(message: str) -> str:
    """What CUDA says of a kernel that failed, without torch's general advice, and the likely cause."""
    said = "\n".join(line for line in message.splitlines() if not line.startswith(TORCH_ADVICE))
    cause = next((cause for fault, cause in DEVICE_CAUSES.items() if fault in said), None)
    return f"{said}. Likely cause: {cause}" if cause else said


def gravity_of(error: KernelproofError) -> tuple[int, float]:
    """Of a call that went wrong."""
    return GRAVITY[kind(error)], 0.0


def gravity(failures: Sequence[Failure], result: CaseResult) -> tuple[int, float]:
    """Of the gravest of some failures, and its ratio to the limit where it has one: an infinite one to 0."""
    rank = max((GRAVITY[failure.criterion] for failure in failures), default=0)
    ratios = {
        GRAVITY[BIAS]: result.bias_ratio,
        GRAVITY[RMS]: result.rms_ratio,
        GRAVITY[BOUND]: math.inf if result.max_bound_ratio is None else result.max_bound_ratio,
    }
    return rank, ratios.get(rank) or 0.0


def told(result: CaseResult, case: str) -> Outcome:
    """What a failed result amounts to; `case`: the id under which it is run again."""
    return Outcome("failed", listed(result.failures) or "", gravity(result.failures, result), case)


def listed(failures: Sequence[Failure]) -> str | None:
    """What is said of some failures; None where there are none."""
    return "; ".join(f"{f.criterion}: {f.message}" for f in failures) or None
