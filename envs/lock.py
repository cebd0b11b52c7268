"""Remake the locks of this folder from their .in files: `python envs/lock.py [--upgrade] [UV]` (see README.md).

Each lock names every package, direct or not, with the SHA-256 of each of its files, for Python 3.11 and newer. One
environment is made from several locks, so each is resolved under the constraints of those before it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
# In the order in which they constrain one another.
LOCKS = {
    "installer": [],
    "build": [],
    "tool": ["build"],
    "cuda": ["tool"],
    "torch-cuda": ["build", "tool", "cuda"],
    "torch": ["build", "tool"],
    "dev": ["build", "tool", "torch"],
}
TORCH_HASH = re.compile(r"(^torch==(\S+) \\\n)((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Remake every lock; the uv to use is the last argument or the one on the PATH."""
    options = [argument for argument in arguments if argument.startswith("--")]
    uv = next((argument for argument in arguments if not argument.startswith("--")), "uv")
    for name, constraints in LOCKS.items():
        command = [uv, "pip", "compile", f"{name}.in", "--output-file", f"{name}.txt", "--generate-hashes", "--quiet"]
        command += ["--universal", "--python-version", "3.11"]
        command += ["--no-header", "--no-emit-index-url", "--no-emit-find-links"]
        command += [part for constraint in constraints for part in ("--constraint", f"{constraint}.txt")]
        # A folder or index with torch's CPU build would get into the lock of the default build too.
        hidden = ("UV_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL") if name != "torch" else ()
        environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"UV_NO_CONFIG": "1"}
        subprocess.run([*command, *options], cwd=FOLDER, env=environment, check=True)
    pin_cpu_torch(FOLDER / "torch.txt", FOLDER / "torch-cpu.sha256")
    return 0


def pin_cpu_torch(lock: Path, digests: Path) -> None:
    """Put the published digests of torch's CPU build in place of those of the one file that this machine has."""
    listed = {name: digest for digest, name in (line.split() for line in digests.read_text().splitlines())}

    def with_all(match: re.Match[str]) -> str:
        hashes = [f"    --hash=sha256:{digest}" for name, digest in listed.items() if f"-{match[2]}-" in name]
        if not set(re.findall("sha256:([0-9a-f]+)", match[3])) <= set(listed.values()):
            raise SystemExit(f"{lock}: torch {match[2]} is not in {digests}: add its files' digests there")
        return match[1] + " \\\n".join(hashes) + "\n"

    lock.write_text(TORCH_HASH.sub(with_all, lock.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
