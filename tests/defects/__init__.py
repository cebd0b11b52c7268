"""Small kernels for the tests of the ladder, compiled once a run by the C++ compiler alone.

Each is a right RMSNorm with one fault. Those that the verifier must condemn are pieces of the museum (tests/museum);
here lie those that it only has to contain, and further ones that a test needs.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelproof import config, fingerprints, records
from kernelproof.config import Config
from kernelproof.loading import Candidate, handed_over
from kernelproof.records import BuildRecord, FileHash

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PIECES = HERE.parent / "museum" / "rmsnorm"
BAND_BYTES = 4096

# Source of a tensor that no clock sees computed, for Python candidates.
LAZY = """
class Lazy(torch.Tensor):
    '''Computed by whoever reads it, after the call.'''

    @staticmethod
    def __new__(cls, like, make):
        made = torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        made.make = make
        return made

    def data_ptr(self):
        return 0

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        return function(*(each.make() if isinstance(each, Lazy) else each for each in arguments), **(named or {}))
""".strip()


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kernelproof-defects-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _tvm_ffi() -> Path:
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _compile(*arguments: str | Path) -> None:
    include = [f"-I{folder}" for folder in (REPOSITORY, PIECES, _tvm_ffi() / "include")]
    flags = ["-std=c++20", "-O0", "-fPIC", "-fopenmp", *include]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, *arguments], check=True)


@functools.cache
def _binding() -> Path:
    target = _folder() / "binding.o"
    _compile("-c", REPOSITORY / "csrc" / "rmsnorm" / "binding.cc", "-o", target)
    return target


@functools.cache
def library(name: str) -> Path:
    """The shared library of `<name>.cc`, of this folder or of the museum's."""
    source = next(folder / f"{name}.cc" for folder in (HERE, PIECES) if (folder / f"{name}.cc").is_file())
    target = _folder() / f"{name}.so"
    runtime = _tvm_ffi() / "lib"
    _compile("-shared", source, _binding(), "-o", target, f"-L{runtime}", "-ltvm_ffi", f"-Wl,-rpath,{runtime}")
    return target


def candidate(name: str) -> dict[str, Any]:
    """What a worker is told of a kernel of this folder."""
    return dataclasses.asdict(Candidate("tvm_ffi", "cpu", "destination", "run", str(library(name)), str(HERE)))


@dataclass
class CallFiles:
    """A call as images, without torch, and the result that it should give."""

    folder: Path  # of its images, and the worker's own
    arguments: dict[str, Any]
    expected: np.ndarray[Any, Any]

    def output(self, name: str = "y") -> np.ndarray[Any, Any]:
        """What the worker handed over."""
        data = handed_over(self.folder, self.arguments[name]["image"]).read_bytes()[BAND_BYTES:-BAND_BYTES]
        return np.frombuffer(data, np.float32).reshape(self.arguments[name]["shape"])

    def error(self, name: str = "y") -> float:
        """The largest difference from the expected result."""
        return float(np.abs(self.output(name) - self.expected).max())


def rmsnorm_call(folder: Path, rows: int = 6, cols: int = 10) -> CallFiles:
    """An RMSNorm call of float32 tensors with random bands and poison."""
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((rows, cols), np.float32), random.standard_normal(cols, np.float32)
    expected = x / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-5) * weight
    poison = random.standard_normal((rows, cols), np.float32)
    arguments = {
        "x": image(folder, "x", x),
        "weight": image(folder, "weight", weight),
        "y": image(folder, "y", poison),
        "eps": 1e-5,
    }
    return CallFiles(folder, arguments, expected)


def image(folder: Path, name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Write an array as an image; gives back its descriptor."""
    path = folder / f"{name}.img"
    path.write_bytes(os.urandom(BAND_BYTES) + array.tobytes() + os.urandom(BAND_BYTES))
    strides = [stride // array.itemsize for stride in array.strides]
    return {
        "image": str(path),
        "offset": BAND_BYTES,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "strides": strides,
    }


def project(folder: Path, *names: str, **settings: Any) -> Config:
    """A project whose variants are these kernels, already built. `settings` replace fields of its `test` section."""
    variants = "".join(
        f"      {name}: {{device: cpu, sources: [config.yaml], dtypes: [float32], precision: {{output: float32}}}}\n"
        for name in names
    )
    text = f"""schema: kernelproof.config/1
project: defects
operators:
  rmsnorm:
    module: kernelproof.operators.rmsnorm
    binding: config.yaml
    shapes:
      tiny: {{rows: 3, cols: 8}}
      odd: {{rows: 17, cols: 101}}
      even: {{rows: 16, cols: 96}}
    test: {{shapes: [tiny, odd, even], families: [normal, integers]}}
    bench: {{shapes: [even]}}
    profile: {{shape: even}}
    variants:
{variants}test:
  seeds: [0]
  trials: 20
  time_limit_s: {{launch: 4, sanity: 4, correctness: 4, determinism: 4}}
"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(text)
    found = config.load(folder / "config.yaml", root=folder)
    found = dataclasses.replace(found, test=dataclasses.replace(found.test, **settings))
    for name in names:
        shutil.copy(library(name), folder / f"{name}.so")
        made = FileHash(f"{name}.so", records.sha256_file(folder / f"{name}.so"))
        made_with = fingerprints.of(found, "build", f"rmsnorm/{name}")
        record = BuildRecord(settings=made_with, operator="rmsnorm", variant=name, library=made, signature="s")
        records.write(found.record("build", "rmsnorm", name), record)
    return found
