"""Cold and hot calls for Nsight Compute: `python -m kernelproof.selfcheck.rotation '{...}'`.

The inputs are rotated as timing.py rotates them. A whole rotation comes first; then some calls are made between
cudaProfilerStart and cudaProfilerStop, for every size cold and then hot. Prints the modes and sizes in that order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from kernelproof import images, judge, loading, timing
from kernelproof.records import Case
from kernelproof.selfcheck.operator import OPERATOR

CALLS = 6


def main() -> None:
    """Read the task from the command line: `candidate` (loading.Candidate), `sizes` (bytes)."""
    import torch

    task = json.loads(sys.argv[1])
    candidate = loading.Candidate(**task["candidate"])
    function = loading.load(candidate, Path(str(candidate.library)), Path(candidate.root))
    profiler = torch.cuda.cudart()
    made = []
    for size in task["sizes"]:
        dims = {"elements": size // 4, "ns": 1, "iterations": 1, "plus_1": 1, "plus_2": 1}
        case = Case("spin", f"read_{size}", dims, {}, "float32")
        call = OPERATOR.make_call(case, judge.generator(case))
        with tempfile.TemporaryDirectory() as folder:
            spec = images.layout_images(call, Path(folder)).spec
            described = {"id": case.bench_id, "arguments": spec, "outputs": list(call.outputs)}
            for mode in ("cold", "hot"):
                sets = timing.ArgumentSets(described, "cuda", mode)
                for arguments in [*sets.arguments, *sets.arguments[: max(1, CALLS - len(sets))]]:
                    function(*arguments)  # ends where the profiled calls begin: at the set used longest ago
                torch.cuda.synchronize()
                turn = [(index + max(1, CALLS - len(sets))) % len(sets) for index in range(CALLS)]
                profiler.cudaProfilerStart()
                for index in turn:
                    function(*sets.arguments[index])
                torch.cuda.synchronize()
                profiler.cudaProfilerStop()
                made += [{"mode": mode, "size_bytes": size, **sets.rotation}] * CALLS
                del sets
                torch.cuda.empty_cache()
    print(json.dumps(made))


if __name__ == "__main__":
    main()
