"""What a worker takes of the machine while it runs: room on the disk, processes. The supervisor looks now and then."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

ENTRY_BYTES = 4096  # what a file or folder costs besides its content
DEPTH = 64  # folders in folders; with long names a path that the system takes ends before


def disk_bytes(folder: Path) -> float:
    """Bytes on the disk beneath a folder; infinite where folders are nested deeper than `DEPTH`, or than a path."""
    total, waiting = 0.0, [(str(folder), 0)]
    while waiting:
        path, depth = waiting.pop()
        if depth > DEPTH:
            return float("inf")
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    total += ENTRY_BYTES + _own_bytes(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue  # it is gone, or was never there
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return float("inf")
    return total


def deleted_bytes(pids: list[int], folder: Path) -> int:
    """Bytes of deleted files that processes hold open, on the file system of a folder: they fill it unseen."""
    device, found = folder.stat().st_dev, {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    file = os.stat(entry.path)
                    if file.st_dev == device and file.st_nlink == 0 and stat.S_ISREG(file.st_mode):
                        found[file.st_ino] = 512 * file.st_blocks
    return sum(found.values())


def memory_kills() -> int:
    """How many processes this machine's system has killed so far because memory ran out; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def most_memory_bytes(pid: int) -> int:
    """The most memory that a process has held at a time (VmHWM, man 5 proc); 0 where that is not known."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def members(host: int, group: int) -> list[int]:
    """Processes that descend from `host` and belong to a process group, whose leader is one of them.

    A list of children may lack some while others end (man 5 proc), so the leader is not looked for in one.
    """
    found = list(dict.fromkeys((host, group)))
    for pid in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    children = map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
                    found += [child for child in children if child not in found]
    return [pid for pid in found if _group(pid) == group]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _own_bytes(path: str) -> int:
    with contextlib.suppress(OSError):
        return 512 * os.lstat(path).st_blocks
    return 0


def threads_at_work(pids: list[int]) -> int:
    """Threads of these processes that have a core or wait for one (man 5 proc)."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    found += Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    return found


def busy_s(cores: Iterable[int]) -> float:
    """Seconds that these cores have been at work for anybody, or were away with another machine's (man 5 proc_stat)."""
    names, ticks = {f"cpu{core}" for core in cores}, 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            name, *spent = line.split()
            if name in names:
                user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, spent[:8])
                ticks += user + nice + system + irq + softirq + stolen
    return ticks / os.sysconf("SC_CLK_TCK")
