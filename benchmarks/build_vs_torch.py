"""Clean build of every variant: kernelproof against torch.utils.cpp_extension.load, on the same cores, in one run.

    python benchmarks/build_vs_torch.py [--rounds 3] [--cores N] [--cuda-home DIR] [--only cpu|cuda]
        [--layout one-file|split] [--json FILE]

Both sides compile the same kernel files for the same architectures with the same flags, start from an empty folder and
have one process a variant: as many at once as there are cores, or with --one-by-one each in turn with all cores (a
loop of `load`; `snakemake -j1`). The peer's layout is one file, kernel and binding together, as PyTorch's tutorial on
custom operators has it; `--layout split` gives it the faster one that few use: the kernel's file free of PyTorch's
headers, and a small binding file beside it which includes them. kernelproof's side also disassembles and analyses
the machine code and hashes every tool; that is in its time.

With a CPU-only PyTorch the CUDA variants are left out, and the output says so.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kernelproof import build, config, records, toolchain  # noqa: E402
from kernelproof.config import Config, VariantConfig  # noqa: E402
from kernelproof.errors import ToolError  # noqa: E402
from kernelproof.processes import run  # noqa: E402

STRIDES = "{{{0}.stride(0), {0}.stride(1), {0}.stride(2)}}"
PLACEMENT = "{%s.is_cuda(), %s.is_cuda() ? %s.get_device() : 0}"
TYPE = "x.scalar_type()"
DTYPE = f"{TYPE} == at::kFloat ? Dtype::kFloat32 : {TYPE} == at::kHalf ? Dtype::kFloat16 : Dtype::kBfloat16"
ATTENTION = (
    "{q.data_ptr(), k.data_ptr(), v.data_ptr(), x.data_ptr(), "
    + ", ".join(STRIDES.format(name) for name in "qkvx")
    + ", q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3), scale, causal, %s, "
    + f"{PLACEMENT % ('q', 'q', 'q')}}}"
)
SCALES = ("q_scale", "k_scale", "v_scale")

# How each operator's arguments are filled in from tensors: the body of `run`, before the call of `launch`.
BODIES = {
    "attention": (
        "at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor x, double scale, bool causal",
        f"AttentionArgs args{ATTENTION % DTYPE};",
    ),
    "quantised_attention": (
        "at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor q_scale, at::Tensor k_scale, at::Tensor v_scale, "
        "at::Tensor x, double scale, bool causal",
        f"QuantisedAttentionArgs args{{{ATTENTION % 'Dtype::kFloat16'}, "
        + ", ".join(f"{name}.data_ptr<float>()" for name in SCALES)
        + ", "
        + ", ".join(f"{{{name}.stride(0), {name}.stride(1)}}" for name in SCALES)
        + ", q.scalar_type() == at::kByte ? Codec::kSimFp8 : Codec::kE4m3};",
    ),
    "qkt": (
        "at::Tensor q, at::Tensor k, at::Tensor q_scale, at::Tensor k_scale, at::Tensor x, double factor",
        "QktArgs args{q.data_ptr(), k.data_ptr(), q_scale.data_ptr<float>(), "
        "k_scale.data_ptr<float>(), x.data_ptr<float>(), "
        + ", ".join(STRIDES.format(name) for name in "qkx")
        + ", {q_scale.stride(0), q_scale.stride(1)}, {k_scale.stride(0), k_scale.stride(1)}, q.size(0), q.size(1), "
        + "q.size(2), k.size(2), q.size(3), q.scalar_type() == at::kByte ? QktInput::kCodes : "
        + "q.scalar_type() == at::kHalf ? QktInput::kFloat16 : QktInput::kBfloat16, factor, "
        + f"{PLACEMENT % ('q', 'q', 'q')}}};",
    ),
    "rmsnorm": (
        "at::Tensor x, at::Tensor weight, at::Tensor y, double eps",
        "RmsNormArgs args{x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.stride(0), y.stride(0), "
        f"x.size(0), x.size(1), eps, {DTYPE}, {PLACEMENT % ('x', 'x', 'x')}}};",
    ),
}
BINDING = """\
#include <torch/extension.h>
{stream_header}
#include "launch.h"

void run({parameters}) {{
    {body}
    const char *message = launch(args, {stream});
    TORCH_CHECK(message == nullptr, message);
}}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {{ module.def("run", &run); }}
"""


def main() -> None:
    """Measure both sides in alternation and print the ratio with its range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="clean builds of everything by each side")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--one-by-one", action="store_true", help="build the variants in turn")
    parser.add_argument("--cuda-home", type=Path, help="the CUDA toolkit for both sides")
    parser.add_argument("--only", choices=["cpu", "cuda"], help="variants of one device")
    parser.add_argument("--layout", choices=["one-file", "split"], default="one-file", help="of the PyTorch extensions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--one", nargs=4, metavar=("SIDE", "OPERATOR", "VARIANT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        side, operator, variant, folder = arguments.one
        if side == "kernelproof":
            build_ours(operator, variant, Path(folder), arguments.cores)
        else:
            build_theirs(operator, variant, Path(folder), arguments.cores, arguments.layout)
        return
    measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Alternate the sides, `rounds` times each."""
    os.chdir(ROOT)
    loaded = config.load(ROOT / "config.yaml", root=ROOT)
    cuda, why_not = cuda_for_both(arguments.cuda_home)
    if cuda is not None:
        os.environ |= {"CUDA_HOME": str(cuda.home), toolchain.CUDA_HOME_VARIABLE: str(cuda.home)}
        if runtime := unversioned_runtime(cuda):
            os.environ["LIBRARY_PATH"] = runtime
    # A dispatcher is linked with its rungs, which no one file of the peer's layout could hold.
    compiled = [v for v in loaded.variants() if v.abi == "tvm_ffi" and not v.rungs]
    variants = [v for v in compiled if arguments.only in (None, v.device)]
    left_out = [v.key for v in variants if v.device == "cuda" and cuda is None]
    variants = [v for v in variants if v.key not in left_out]
    print(f"{platform.machine()}, {arguments.cores} cores; {version_line(cuda)}")
    print(f"variants: {', '.join(v.key for v in variants)}")
    if left_out:
        print(f"left out: {', '.join(left_out)}: {why_not}")
    at_once = 1 if arguments.one_by_one else min(arguments.cores, len(variants))
    print(f"the peer's layout: {arguments.layout}")
    print(f"order: {'one by one' if arguments.one_by_one else f'{at_once} at once'}")
    times: dict[str, list[float]] = {"kernelproof": [], "torch": []}
    for index in range(arguments.rounds):
        sides = list(times) if index % 2 == 0 else list(reversed(times))
        for side in sides:
            times[side].append(clean_build(side, loaded, variants, arguments, at_once))
            print(f"round {index + 1}: {side:12} {times[side][-1]:8.2f} s", flush=True)
    ratios = [theirs / ours for ours, theirs in zip(times["kernelproof"], times["torch"], strict=True)]
    print(f"kernelproof: {spread(times['kernelproof'])} s")
    print(f"torch:       {spread(times['torch'])} s")
    print(f"ratio:       {spread(ratios)} × faster ({len(ratios)} rounds: median, range)")
    if arguments.json:
        payload = {
            "times_s": times,
            "ratios": ratios,
            "variants": [v.key for v in variants],
            "cores": arguments.cores,
            "at_once": at_once,
        }
        records.atomic_write(arguments.json, json.dumps(payload, indent=1) + "\n")


def cuda_for_both(cuda_home: Path | None) -> tuple[toolchain.CudaToolchain | None, str]:
    """The toolkit that both sides can use, or None and why not."""
    torch = toolchain.package_folder("torch")
    if torch is None or not (torch / "lib" / "libtorch_cuda.so").is_file():
        return None, "this PyTorch is built without CUDA and cannot compile a CUDA extension"
    try:
        return toolchain.find_cuda(cuda_home), ""
    except ToolError as error:
        return None, str(error)


def unversioned_runtime(cuda: toolchain.CudaToolchain) -> str | None:
    """A folder with `libcudart.so`, which the peer links with and the toolkit's wheels lack; None where it is there."""
    if (cuda.library_folder / "libcudart.so").exists():
        return None
    folder = tempfile.mkdtemp(prefix="build-vs-torch-")
    atexit.register(shutil.rmtree, folder)
    versioned = next(cuda.library_folder.glob("libcudart.so.*"))
    (Path(folder) / "libcudart.so").symlink_to(versioned)
    return folder


def version_line(cuda: toolchain.CudaToolchain | None) -> str:
    """The versions that matter for the comparison."""
    host = toolchain.find_host_compiler()
    nvcc = f", nvcc {cuda.version}" if cuda else ""
    return f"Python {platform.python_version()}, torch {build._version_of('torch')}, g++ {host.tool.version}{nvcc}"


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def clean_build(
    side: str, loaded: Config, variants: list[VariantConfig], arguments: argparse.Namespace, at_once: int
) -> float:
    """Seconds from an empty folder to every variant's library, one process a variant, `at_once` of them at a time."""
    with tempfile.TemporaryDirectory(prefix="build-vs-torch-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "csrc", folder / "csrc")
        config.save(loaded, folder / "results" / "config.json")
        options = ["--cores", str(max(1, arguments.cores // at_once)), "--layout", arguments.layout]

        def one(variant: VariantConfig) -> None:
            run(
                [sys.executable, __file__, *options, "--one", side, variant.operator, variant.name, folder],
                cwd=folder,
                env={**os.environ, "PATH": f"{toolchain.find_ninja().parent}{os.pathsep}{os.environ['PATH']}"},
            )

        started = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, variants))
        return time.perf_counter() - started


def build_ours(operator: str, variant: str, folder: Path, cores: int) -> None:
    """One variant by the build stage."""
    loaded = dataclasses.replace(config.load(folder / "results" / "config.json"), root=folder)
    record = build.run(loaded, operator, variant, loaded.record("build", operator, variant), cores=cores)
    if record.status != "ok":
        sys.exit(f"{operator}/{variant}: {record.reason}\n{record.compiler_message}")


def build_theirs(operator: str, variant: str, folder: Path, cores: int, layout: str) -> None:
    """One variant as a PyTorch extension."""
    loaded = dataclasses.replace(config.load(folder / "results" / "config.json"), root=folder)
    chosen = loaded.operator(operator).variant(variant)
    work = folder / "extensions" / f"{operator}_{variant}"
    work.mkdir(parents=True)
    parameters, body = BODIES[operator]
    on_cuda = chosen.device == "cuda"
    sources = [folder / source for source in chosen.sources]
    binding = work / "torch_binding.cc"
    if layout == "one-file":
        binding = work / f"extension{sources[0].suffix}"
    binding.write_text(
        BINDING.format(
            parameters=parameters,
            body=body,
            stream_header="#include <ATen/cuda/CUDAContext.h>" if on_cuda else "",
            stream="at::cuda::getCurrentCUDAStream()" if on_cuda else "nullptr",
        )
    )
    if layout == "one-file":
        kernels = "".join(f'#include "{source}"\n' for source in sources)
        binding.write_text(f"#include <torch/extension.h>\n{kernels}{binding.read_text()}")
        sources = []
    archs = toolchain.resolve_archs(chosen.archs or loaded.archs) if on_cuda else []
    os.environ["MAX_JOBS"] = str(cores)
    if archs:
        os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(torch_arch(arch) for arch in archs)
    from torch.utils import cpp_extension

    macros = build.macro_flags(chosen.macros)
    cpp_extension.load(
        name=f"{operator}_{variant}",
        sources=[str(path) for path in [binding, *sources]],
        extra_include_paths=[str(folder / "csrc"), str(folder / "csrc" / operator)],
        extra_cflags=["-O3", *macros, *([] if on_cuda else chosen.flags)],
        extra_cuda_cflags=["-O3", "-lineinfo", "--threads", str(cores), *macros, *chosen.flags] if on_cuda else None,
        extra_ldflags=["-fopenmp"] if "-fopenmp" in chosen.flags else None,
        build_directory=str(work),
        with_cuda=on_cuda,
    )


def torch_arch(arch: str) -> str:
    """`sm_90a` as PyTorch writes it: `9.0a`."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}{arch[len('sm_') + len(digits) :]}"


if __name__ == "__main__":
    main()
