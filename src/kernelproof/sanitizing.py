"""The process that compute-sanitizer watches: `python -m kernelproof.sanitizing PLAN`, started by `sanitizer`.

It loads one candidate and calls it on a few cases, which the judge has laid out as images. Nothing is handed over and
nothing is judged: the tool around it does the looking. So that it sees as much as it can, every buffer is an allocation
of its own with its exact size (no guard bands: the byte past the end belongs to nobody), outputs are left as they were
allocated, and each case is called on other values in the same inputs.

Four tools start such a process for each variant, so it must start fast: a TVM-FFI candidate is called without torch,
its tensors are DLPack views of memory from the CUDA driver.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelproof.memory import Memory, memory_of, payload, payload_bytes, without_torch
from kernelproof.processes import end_with


def main() -> None:
    """Carry out a plan; every step is a line of its progress file, so that it is known how far this process came."""
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    end_with(plan["supervisor"])
    with Path(plan["progress"]).open("a", encoding="utf-8", buffering=1) as progress:

        def say(state: str, **facts: Any) -> None:
            progress.write(json.dumps({"state": state, "time_s": time.monotonic(), **facts}) + "\n")

        call_all(plan, say)


def call_all(plan: Mapping[str, Any], say: Callable[..., None]) -> None:
    """Load the candidate and make every call.

    plan: `candidate` (loading.Candidate), and `calls`: for each case the arguments of its calls as an image's worker
    gets them, all laid out alike, and which of them are outputs. After an error no further call is made: it can leave
    the CUDA context unusable.
    """
    from kernelproof.loading import Candidate, load

    candidate = Candidate(**plan["candidate"])
    if candidate.abi == "tvm_ffi":
        without_torch()
    try:
        memory = memory_of(candidate.abi, candidate.device)
        function = load(candidate, Path(candidate.library) if candidate.library else None, Path(candidate.root))
    except Exception as error:
        say("unloadable", message=_words(error))
        return
    say("loaded")
    for number, case in enumerate(plan["calls"]):
        say("calling", call=number)
        try:
            call_case(function, candidate.passing, memory, case["values"], case["outputs"])
        except NotImplementedError as error:
            say("refused", call=number, message=_words(error))
        except Exception as error:
            say("failed", call=number, message=_words(error))
            return
        else:
            say("returned", call=number)
    say("finished")


def call_case(
    function: Callable[..., Any], passing: str, memory: Memory, values: list[dict[str, Any]], outputs: list[str]
) -> None:
    """Call a candidate once on each set of values; inputs stay where they are, outputs are allocated anew each time."""
    images = {name: value for name, value in values[0].items() if isinstance(value, dict)}
    inputs = {name: memory.allocate(payload_bytes(image)) for name, image in images.items() if name not in outputs}
    for arguments in values:
        for name, buffer in inputs.items():
            memory.write(buffer, payload(arguments[name]))
        fresh = {name: memory.allocate(payload_bytes(images[name])) for name in outputs}
        views = {name: memory.view(buffer, images[name]) for name, buffer in (inputs | fresh).items()}
        given = {name: views.get(name, value) for name, value in arguments.items()}
        if passing == "return":
            given = {name: value for name, value in given.items() if name not in outputs}
        function(*given.values())
        memory.synchronise()
        del views, given
        for buffer in fresh.values():
            memory.free(buffer)
    for buffer in inputs.values():
        memory.free(buffer)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


if __name__ == "__main__":
    main()
