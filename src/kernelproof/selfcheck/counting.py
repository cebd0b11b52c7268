"""How many bytes cold calls read from memory: `python -m kernelproof.selfcheck.counting '{...}'`.

A process of its own, which asks for two counters and nothing else: NVIDIA's module that reads reports (2025.3.1) has
ended in a segmentation fault on this one, for which ncu had not found the kernel's source.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path
from typing import Any

from kernelproof import nsight, processes
from kernelproof.errors import BenchError

DRAM_READ = "dram__bytes_read.sum"


def main() -> None:
    """Read the task from the command line: `rotation` (that module's own), `folder`; print one entry a launch."""
    faulthandler.enable()
    task = json.loads(sys.argv[1])
    print(json.dumps(counted(json.dumps(task["rotation"]), Path(task["folder"]))))


def counted(rotation: str, folder: Path) -> list[dict[str, Any]]:
    """Each launch of the rotation with `dram_bytes` and `duration_us`. Raises ToolError, ProfileError or BenchError."""
    ncu = nsight.find_ncu()
    if ncu is None:
        raise BenchError("Nsight Compute (ncu) is not installed")
    nsight.reader()
    report = folder / "rotation.ncu-rep"
    target = [sys.executable, "-m", "kernelproof.selfcheck.rotation", rotation]
    # The caches are left as the calls before leave them: that is what is to be proved.
    command = nsight.command(ncu, report, target, [], [DRAM_READ, nsight.DURATION], cache_control="none")
    done = processes.run(command, timeout_s=120, log=folder / "logs" / "rotation.log")
    made = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[{")))
    launches = nsight.actions(report)
    if len(launches) != len(made):
        raise BenchError(f"{len(launches)} launches were profiled and {len(made)} were made")
    found = []
    for entry, launch in zip(made, launches, strict=True):
        dram_bytes, duration_us = nsight.bytes_of(launch, DRAM_READ), nsight.duration_us(launch)
        if dram_bytes is None:
            raise BenchError(f"this GPU has no counter {DRAM_READ}")
        found.append({**entry, "dram_bytes": dram_bytes, "duration_us": duration_us})
    return found


if __name__ == "__main__":
    main()
