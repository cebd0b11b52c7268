"""Every CUDA rung under the four tools of compute-sanitizer, at shapes with tails: no error."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelproof import build, config, gpu, toolchain
from kernelproof.config import VariantConfig

ROOT = Path(__file__).resolve().parents[1]
RUNNER = Path(__file__).with_name("sanitizer") / "run.cu"
OPERATORS = ("attention", "quantised_attention", "rmsnorm", "qkt")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PRESENT, WHY = gpu.available()
SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}"),
    pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed (it comes with the CUDA toolkit)"),
]


def rungs() -> list[VariantConfig]:
    """Every CUDA variant that is a kernel of its own; one that calls a library is the library's affair."""
    loaded = config.load(ROOT / "config.yaml", root=ROOT)
    found = [v for v in loaded.variants() if v.device == "cuda" and v.abi == "tvm_ffi" and not v.rungs]
    return [v for v in found if v.operator in OPERATORS and not v.name.startswith("cublas")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A program for each rung: the runner, linked with the rung's sources."""
    folder = tmp_path_factory.mktemp("sanitizer")
    cuda = toolchain.find_cuda()
    archs = toolchain.native_archs()

    def compiled(variant: VariantConfig) -> tuple[str, Path]:
        program = folder / f"{variant.operator}-{variant.name}"
        codes = [f"-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch}" for arch in archs]
        macros = [*build.macro_flags(variant.macros), f"-DOPERATOR={OPERATORS.index(variant.operator)}"]
        sources = [RUNNER, *(ROOT / source for source in variant.sources)]
        command = [cuda.tools["nvcc"].path, "-std=c++17", "-O3", "-lineinfo", *codes, *variant.flags, *macros]
        command += [f"-I{ROOT / 'csrc'}", f"-L{cuda.library_folder}", *sources, "-o", program]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return variant.key, program

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(compiled, rungs()))


@pytest.mark.parametrize("tool", TOOLS)
def test_no_rung_has_an_error(programs: dict[str, Path], tool: str) -> None:
    assert SANITIZER is not None

    def said(key: str) -> str:
        command = [SANITIZER, f"--tool={tool}", "--error-exitcode=9", str(programs[key])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return "" if done.returncode == 0 else f"{key}: {(done.stdout + done.stderr)[-2000:]}"

    with ThreadPoolExecutor(4) as pool:
        found = [text for text in pool.map(said, programs) if text]
    assert not found, "\n\n".join(found)
