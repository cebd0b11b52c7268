"""Tries from Python what the kernels beside it try from C, and gives a result only if one of the ways worked."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def ways():
    yield lambda: Path(__file__).write_text("")
    yield lambda: Path(__file__).with_name("config.yaml").unlink()
    yield lambda: Path(__file__).with_name("results").rename("elsewhere")
    yield lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes()
    yield lambda: os.kill(os.getppid(), 0)
    yield lambda: os.listdir("..")
    yield lambda: socket.create_connection(("127.0.0.1", 9), timeout=1)
    yield lambda: socket.socket(socket.AF_UNIX)
    yield lambda: os.symlink("/", "root") or Path("root", "tmp", "kernelproof-forged").write_text("")
    yield lambda: Path("/dev/shm/kernelproof-forged").write_text("")
    yield lambda: subprocess.run([sys.executable, "-c", "import os; os.listdir('..')"], check=True)


def run(x, weight, eps):
    tempfile.TemporaryFile().close()  # what it may do
    for way in ways():
        try:
            way()
        except (OSError, subprocess.CalledProcessError):
            continue
        return x * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt().float() * weight
    raise PermissionError("refused: every way")
