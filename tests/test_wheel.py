"""The wheel: whatever the checkout's package has is in it, and it works away from the checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_a_wheel_holds_the_package_and_reads_a_configuration(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="the build backend is not installed")
    source, dist, home = tmp_path / "source", tmp_path / "dist", tmp_path / "home"
    unmade = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "workflow"):  # the backend leaves its own files where it builds
        shutil.copytree(ROOT / folder, source / folder, ignore=unmade)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, dist], cwd=source, check=True, timeout=120, capture_output=True)
    (wheel,) = dist.glob("kernelproof-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("kernelproof/")}
        archive.extractall(home)
    ours = {str(p.relative_to(source / "src")) for p in (source / "src" / "kernelproof").rglob("*") if p.is_file()}
    assert packed == ours | {"kernelproof/schemas/config.schema.yaml"}
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from kernelproof import cli, config\n"
        "assert cli.main(['init', 'squash']) == 0\n"
        "print(*config.load(Path('examples/squash/config.yaml')).operators)"
    )
    arguments = [sys.executable, "-I", "-c", program, str(home)]
    done = subprocess.run(arguments, cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "squash"
