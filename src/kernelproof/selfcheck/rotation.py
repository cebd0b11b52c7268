"""Cold and hot calls for Nsight Compute: `python -m kernelproof.selfcheck.rotation '{...}'`.

The inputs are rotated as timing.py rotates them, and for comparison through more copies. A whole rotation comes first;
then some calls are made between cudaProfilerStart and cudaProfilerStop, for every size cold and then hot. Prints what
was called, in that order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelproof import images, judge, loading, timing
from kernelproof.records import Case
from kernelproof.selfcheck.operator import OPERATOR

CALLS = 4
FACTORS = (timing.CACHES_EXCEEDED, 4, 8)  # times the cache


def main() -> None:
    """Read the task from the command line: `candidate` (loading.Candidate), `sizes` (bytes)."""
    import torch

    task = json.loads(sys.argv[1])
    candidate = loading.Candidate(**task["candidate"])
    function = loading.load(candidate, Path(str(candidate.library)), Path(candidate.root))
    profiler: Any = torch.cuda.cudart() if candidate.device == "cuda" else None  # on a CPU nothing counts
    made = []
    for size in task["sizes"]:
        dims = {"elements": size // 4, "ns": 1, "iterations": 1, "plus_1": 1, "plus_2": 1}
        case = Case("spin", f"read_{size}", dims, {}, "float32")
        call = OPERATOR.make_call(case, judge.generator(case))
        with tempfile.TemporaryDirectory() as folder:
            spec = images.layout_images(call, Path(folder)).spec
            described = {"id": case.bench_id, "arguments": spec, "outputs": list(call.outputs)}
            for mode, times_cache in (*(("cold", factor) for factor in FACTORS), ("hot", 0)):
                timing.CACHES_EXCEEDED = times_cache or FACTORS[0]
                sets = timing.ArgumentSets(described, candidate.device, mode)
                first = max(1, CALLS - len(sets))
                for arguments in [*sets.arguments, *sets.arguments[:first]]:
                    function(*arguments)
                loading.synchronise(candidate.device)
                if profiler:
                    profiler.cudaProfilerStart()
                for index in range(first, first + CALLS):  # from the set that was used longest ago
                    function(*sets.arguments[index % len(sets)])
                loading.synchronise(candidate.device)
                if profiler:
                    profiler.cudaProfilerStop()
                entry = {"mode": mode, "size_bytes": size, "times_cache": times_cache, **sets.rotation}
                made += [entry] * CALLS
                del sets
                timing._release(candidate.device)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
