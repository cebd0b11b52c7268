"""Realistic records of two runs, for tests of the report: one on a machine without a GPU, one on an H200.

Everything is computed from fixed formulas: the same records every time, nothing drawn, nothing timed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kernelproof.records import (
    BenchCase,
    BenchRecord,
    BudgetRow,
    BuildRecord,
    CaptureRecord,
    CaseResult,
    Ceiling,
    CeilingsRecord,
    Compiler,
    Contender,
    Cubin,
    EnergyRow,
    Failure,
    FileHash,
    Histogram,
    HotInstruction,
    HotLine,
    KernelResources,
    ManifestRecord,
    Member,
    Metric,
    NotSealed,
    OracleRow,
    Probe,
    ProfiledKernel,
    ProfileRecord,
    PropertyResult,
    Provenance,
    RatioRow,
    Record,
    RuleAdvice,
    Rung,
    Sanitizer,
    SanitizerFinding,
    SanitizerRun,
    Sealing,
    SourcePlace,
    Stall,
    TestRecord,
    TimeRow,
    Verdict,
    write,
)
from kernelproof.views.common import Settings

COMMIT = "4f1c9a6be2d07c5583ab6d1f09e7c2b8a1d35e60"
EARLIER = "9b02e7d41c86f35a7710ce4d92ab5f6031e8d47c"
MEASURED = Provenance(COMMIT, "main", False, None, "2026-03-14T08:50:11Z", "2026-03-14T09:26:53Z", "0.1.0")
SETTINGS = Settings(
    project="kernelproof",
    profile_shapes={"attention": "mission", "rmsnorm": "medium"},
    profile_options={"attention": {}, "rmsnorm": {}},
    ideas={
        "attention/cpu_naive": "three loops in float32, one query row at a time",
        "attention/cpu_flash": "blocked over keys with an online softmax, vectorised, one thread per block of rows",
        "attention/fp16_scalar": "flash with an online softmax, scalar arithmetic, FP32 accumulation",
        "attention/fp16_wmma": "WMMA for Q·Kᵀ and P·V, scores through shared memory",
        "attention/fp16_async": "cp.async double buffering",
        "attention/fp16_fused": "WMMA, scores stay in registers",
        "attention/fp16_tiled": "64×64 tiles",
        "attention/fp16_swizzled": "three stages, swizzled shared memory",
        "rmsnorm/one_pass": "a row lives in registers between the sum and the scaling, so it is read once",
    },
    gated=frozenset({"attention/fp16_fused"}),
)
NO_GPU = "no NVIDIA GPU: NVML Shared Library Not Found"
GPU_REMEDY = "run on a machine with an NVIDIA GPU and its driver"

SHAPES = {
    "mission": (1, 8, 512, 64),
    "b1h8s2048": (1, 8, 2048, 64),
    "s63": (1, 2, 63, 64),
    "s513": (1, 2, 513, 64),
}
FAMILIES = ("normal", "peaky", "sink_last", "heavy_tailed", "mean_shift", "masked_rows")
MIXES = {
    "fp16_scalar": {
        "fp32": 212,
        "integer": 118,
        "shared memory": 96,
        "global memory": 24,
        "special function": 6,
        "conversion": 40,
        "control": 31,
        "barrier": 8,
        "move": 44,
        "constant memory": 12,
    },
    "fp16_fused": {
        "tensor": 96,
        "fp32": 88,
        "fp16": 24,
        "integer": 74,
        "matrix load/store": 40,
        "async copy": 22,
        "special function": 16,
        "conversion": 32,
        "warp exchange": 16,
        "control": 22,
        "barrier": 6,
        "move": 38,
        "global memory": 8,
        "other": 2,
    },
}


def digest(text: str) -> str:
    """A stand-in for a file's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


# --- capture ----------------------------------------------------------------------------------------------------------


def capture(gpu: bool) -> CaptureRecord:
    board = {
        "index": 0,
        "name": "NVIDIA H200",
        "uuid_sha256": digest("gpu")[:16],
        "compute_capability": "9.0",
        "multiprocessors": 132,
        "driver": "580.95.05",
        "cuda_driver": "13.0",
        "memory_total_bytes": 150_754_820_096,
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201,
        "power_w": 76.3,
        "power_limit_w": 700.0,
        "temperature_c": 31,
        "throttle_reasons": ["gpu_idle"],
        "ecc": True,
        "mig": False,
        "pcie": {"generation": 5, "width": 16},
        "errors": {"processes": "Insufficient Permissions"},
    }
    nvcc = {"version": "13.0.88", "sha256": digest("nvcc"), "origin": "wheels"}
    return CaptureRecord(
        provenance=MEASURED,
        duration_s=0.41,
        probes={
            "cpu": Probe(
                "ok",
                {
                    "model": "Intel(R) Xeon(R) Platinum 8480+",
                    "usable_cores": 16 if gpu else 2,
                    "flags": ["avx2", "fma", "avx512f"],
                },
            ),
            "memory": Probe("ok", {"total_bytes": 137_438_953_472, "available_bytes": 120_000_000_000}),
            "os": Probe("ok", {"name": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-28", "libc": "glibc 2.36"}),
            "gpu": Probe("ok", [board]) if gpu else Probe("absent", None, NO_GPU),
            "cuda_toolchain": Probe("ok", {"nvcc": nvcc, "ptxas": {**nvcc, "sha256": digest("ptxas")}}),
            "host_compiler": Probe("ok", {"name": "g++", "version": "12.2.0", "sha256": digest("g++")}),
            "python": Probe("ok", {"version": "3.12.11", "implementation": "CPython"}),
            "packages": Probe(
                "ok", {"apache-tvm-ffi": "0.1.11", "jinja2": "3.1.6", "numpy": "2.4.2", "torch": "2.11.0+cu130"}
            ),
            "git": Probe("ok", {"commit": COMMIT, "branch": "main", "dirty": False}),
            "container": Probe("absent", None, "no sign of a container"),
            "environment": Probe("ok", {"OMP_NUM_THREADS": "2"}),
            "limits": Probe("failed", None, "PermissionError: [Errno 13] Permission denied: '/dev/shm'"),
        },
    )


# --- build ------------------------------------------------------------------------------------------------------------


def build(
    operator: str, variant: str, device: str, mix: dict[str, int] | None = None, registers: int = 96
) -> BuildRecord:
    ending = "cu" if device == "cuda" else "cc"
    record = BuildRecord(
        provenance=MEASURED,
        duration_s=2.31 if device == "cuda" else 1.12,
        operator=operator,
        variant=variant,
        device=device,
        signature=digest(operator + variant)[:32],
        sources=[FileHash(f"csrc/{operator}/{variant}.{ending}", digest(variant))],
        headers=[FileHash("csrc/common/mma.cuh", digest("mma"))],
        macros={"BLOCK_M": 64, "USE_CP_ASYNC": None},
        flags=["-O3", "-lineinfo"],
        archs=["sm_89", "sm_90a"] if device == "cuda" else [],
        compiler=Compiler("nvcc", "13.0.88", digest("nvcc"), "wheels") if device == "cuda" else None,
        host_compiler=Compiler("g++", "12.2.0", digest("g++"), "system"),
        commands=[f"{'nvcc' if device == 'cuda' else 'g++'} -O3 -DBLOCK_M=64 -c csrc/{operator}/{variant}.{ending}"],
        log=f"results/store/build/{digest(operator + variant)[:16]}/build.log",
        library=FileHash(
            f"results/store/build/{digest(operator + variant)[:16]}/lib.so", digest(variant + "so"), 812_344
        ),
    )
    for number, arch in enumerate(record.archs):
        kernel = KernelResources(
            f"_Z9attentionI6__halfLi64EEv{variant}",
            f"void {variant}_kernel<__half, 64, (bool)1>(AttentionArgs, const __half *, float)",
            registers + 4 * number,
            49_152,
            0,
            0,
            0,
            612,
            digest(variant + arch),
        )
        counts = {name: round(n * (1 + 0.06 * number)) for name, n in (mix or MIXES["fp16_scalar"]).items()}
        record.cubins.append(
            Cubin(
                arch,
                f"results/store/build/{variant}/{arch}.cubin",
                digest(variant + arch),
                24_568,
                digest(variant + arch + "s"),
                counts,
                {},
                [kernel],
            )
        )
        record.budget.append(BudgetRow(arch, kernel.name, "registers", 120, kernel.registers, kernel.registers <= 120))
        record.budget.append(BudgetRow(arch, kernel.name, "shared_bytes", 65_536, kernel.shared_bytes, True))
    return record


COMPILER_MESSAGE = (
    "csrc/attention/fp16_tiled.cu(41): \x1b[01;31merror\x1b[0m: "
    'static assertion failed with "BLOCK_N must divide by 16"\n'
    '    static_assert(BLOCK_N % 16 == 0, "BLOCK_N must divide by 16");\n'
    "    ^\n"
    "          detected during instantiation of "
    '"void tiled_kernel<T,BLOCK_N>(const T *) [with T=__half, BLOCK_N=24]" at line 88\n\n'
    "csrc/attention/fp16_tiled.cu(88): error: <script>alert('compilers & templates <T> can say anything')</script>\n\n"
    '2 errors detected in the compilation of "csrc/attention/fp16_tiled.cu".\n'
)


def failed_build(variant: str) -> BuildRecord:
    record = build("attention", variant, "cuda")
    return replace(
        record,
        status="failed",
        reason="nvcc ended with exit code 2",
        remedy="see the compiler's message",
        library=None,
        cubins=[],
        budget=[],
        compiler_message=COMPILER_MESSAGE,
    )


# --- test -------------------------------------------------------------------------------------------------------------


def case_results(
    dtype: str, level: float, fails: Callable[[str, str], Failure | None] = lambda shape, family: None
) -> list[CaseResult]:
    """Every shape and family, plain and causal; errors of about `level` of the bound, and those that `fails` names."""
    found = []
    for shape, (batch, heads, seq, dim) in SHAPES.items():
        for causal in (False, True):
            for number, family in enumerate(FAMILIES):
                failure = fails(shape, family)
                share = level * (0.7 + 0.05 * number + 0.04 * len(shape))
                found.append(
                    CaseResult(
                        "-".join([shape, *(["causal"] if causal else []), "bhsd", dtype, family, "s0"]),
                        shape,
                        {"batch": batch, "heads": heads, "seq": seq, "head_dim": dim},
                        {"causal": causal, "layout": "bhsd"},
                        dtype,
                        family,
                        0,
                        "failed" if failure else "passed",
                        [failure] if failure else [],
                        max_abs_error=2.1e-4 * share if not failure else 0.448,
                        max_bound_ratio=share if not failure else 912.4,
                        rms_error=1e-5,
                        rms_ratio=0.61 * share if not failure else 41.0,
                        bias=1e-7,
                        bias_ratio=0.2 * share,
                        first_bad_index=[0, 3, 511, 0] if failure else None,
                        duration_s=0.02,
                        unwritten=1536 if failure and failure.criterion == "unwritten" else 0,
                        unwritten_where="rows 40 to 63 of each 64"
                        if failure and failure.criterion == "unwritten"
                        else None,
                    )
                )
    return found


def properties(dtype: str, failed: str = "") -> list[PropertyResult]:
    """What is tried between calls, on two cases; `failed` names one that does not hold."""
    claims = {
        "new values": "other values in the same memory give their own result",
        "permuted keys": "reordering keys and values together changes nothing",
    }
    return [
        PropertyResult(name, claim, f"s500-{options}-{dtype}-normal-s88213", "failed" if name == failed else "passed")
        for name, claim in claims.items()
        for options in ("bhsd", "causal-bshd")
    ]


def histogram(level: float, over: int = 0) -> Histogram:
    """A skewed bump with its end at `level` of the bound, and `over` elements far above it."""
    edges = [0.0, *(10 ** (exponent / 4) for exponent in range(-24, 13))]
    centre = math.log10(level) - 0.75
    counts = [
        round(2_000_000 * math.exp(-(((math.log10(high) - centre) / (0.9 if math.log10(high) < centre else 0.3)) ** 2)))
        if high <= level * 1.01
        else 0
        for high in edges[1:]
    ]
    counts[0] = 40_000
    for number in range(28, 34):
        counts[number] += over // 6
    return Histogram(edges, counts)


def rungs(failed: str | None = None, message: str | None = None) -> list[Rung]:
    """The ladder up to and including the rung that failed."""
    spent = {"build": 0.0, "load": 0.21, "launch": 0.04, "sanity": 0.31, "correctness": 4.2}
    spent |= {"properties": 1.1, "determinism": 0.9}
    found, over = [], False
    for name, seconds in spent.items():
        status = "skipped" if over else "failed" if name == failed else "passed"
        over = over or status == "failed"
        found.append(
            Rung(name, status, 0.0 if status == "skipped" else seconds, message if status == "failed" else None)
        )
    return found


def correct_test(
    operator: str, variant: str, device: str, dtype: str, level: float, role: str = "variant"
) -> TestRecord:
    sealed = role == "variant" and device == "cuda"
    return TestRecord(
        provenance=MEASURED,
        duration_s=5.6,
        operator=operator,
        variant=variant,
        role=role,
        device=device,
        trust="python" if role == "baseline" else "sealed" if sealed else "library",
        precision={"output": "input", "p": "input" if device == "cuda" else "float32", "accumulate": "float32"},
        sealing=Sealing(104, 0) if sealed else None,
        isolation="landlock-7+seccomp" if device == "cpu" else "process",
        refused=["writing outside its folder", "sockets"] if device == "cpu" else [],
        verdict="correct",
        rungs=rungs(),
        cases=case_results(dtype, level),
        properties=properties(dtype),
        bias_suite=2e-6,
        bias_suite_ratio=0.04,
        error_histogram=histogram(level),
        trials=100,
        fresh_seed=88_213,
        build_signature=digest(operator + variant)[:32],
        junit=f"results/test/{operator}/{variant}.xml",
        log=f"results/test/{operator}/{variant}.log",
    )


SANITIZER_CASES = ["s1-bhsd-float16-normal-s2", "s500-causal-bshd-float16-normal-s1"]
RACE = SanitizerFinding(
    kind="Analysis",
    level="error",
    own=True,
    message="a write at csrc/attention/fp16_wmma.cu:88 (K_smem[row][column] = K[row];) and a read at "
    "csrc/attention/fp16_wmma.cu:102 (sum += Q_rmem[d] * K_smem[key][d];) touch the same shared memory in "
    "fp16_wmma::attention<__half, 64>(AttentionArgs): no barrier orders them; put __syncthreads() (within a warp "
    "__syncwarp()) between",
    text="Race reported between Write access at _ZN9fp16_wmma+0x90 and Read access at _ZN9fp16_wmma+0x100",
    kernel="fp16_wmma::attention<__half, 64>(AttentionArgs)",
    places=[
        SourcePlace("attention", "csrc/attention/fp16_wmma.cu", 88, "K_smem[row][column] = K[row];", "write"),
        SourcePlace("attention", "csrc/attention/fp16_wmma.cu", 102, "sum += Q_rmem[d] * K_smem[key][d];", "read"),
    ],
    count=508,
)
LIBRARYS = SanitizerFinding(
    kind="Precise",
    level="error",
    own=False,
    message="a read of 4 bytes outside every buffer in cutlass::Kernel: a tail that no bound check guards, or an index "
    "that was computed for a padded shape",
    text="Invalid __global__ read of size 4 bytes",
    kernel="cutlass::Kernel",
    places=[SourcePlace("cutlass::Kernel")],
    thread=[31, 0, 0],
    block=[2, 0, 0],
    address="0x7f93600001e8",
    bytes=4,
)


def sanitized(*, raced: bool) -> Sanitizer:
    """Four tools that found nothing; or racecheck a race, memcheck something in a library, and one that broke off."""
    runs = [SanitizerRun(tool, "passed", 2.5, len(SANITIZER_CASES)) for tool in ("memcheck", "racecheck")]
    runs += [SanitizerRun(tool, "passed", 1.5, len(SANITIZER_CASES)) for tool in ("initcheck", "synccheck")]
    if raced:
        runs[0].findings = [LIBRARYS]
        runs[1].findings, runs[1].failures = [RACE], [Failure("racecheck", f"{RACE.message} [508 times]")]
        runs[1].status = "failed"
        runs[3] = SanitizerRun(
            "synccheck",
            "skipped",
            60.0,
            reason="it did not end within 60 s",
            remedy="raise test.sanitizer.time_limit_s",
        )
    return Sanitizer("2025.3.1.0", SANITIZER_CASES, runs)


def sanitizer_missing() -> Sanitizer:
    """No tool on the machine."""
    why, remedy = "compute-sanitizer: it is missing: looked for /usr/local/cuda/bin/compute-sanitizer", "install it"
    tools = ("memcheck", "racecheck", "initcheck", "synccheck")
    return Sanitizer(None, SANITIZER_CASES, [SanitizerRun(t, "skipped", reason=why, remedy=remedy) for t in tools])


def on_gpu(record: TestRecord, sanitizer: Sanitizer) -> TestRecord:
    """The record with its last rung."""
    record.sanitizer = sanitizer
    failed = [failure for run in sanitizer.runs for failure in run.failures]
    message = f"{failed[0].criterion}: {failed[0].message}" if failed else sanitizer.runs[0].reason
    status = "failed" if failed else sanitizer.runs[0].status
    record.rungs.append(Rung("sanitizer", status, sanitizer.runs[0].duration_s, message))
    return record


def not_tested(operator: str, variant: str, device: str, role: str, reason: str, remedy: str | None) -> TestRecord:
    return TestRecord("not_run", reason, remedy, MEASURED, 0.0, operator, variant, role, device)


# --- bench ------------------------------------------------------------------------------------------------------------


def bench_case(shape: str, dims: tuple[int, int, int, int], causal: bool, dtype: str) -> BenchCase:
    batch, heads, seq, dim = dims
    size = 2 if dtype == "float16" else 4
    flops = 4.0 * batch * heads * seq * seq * dim * (0.5 if causal else 1.0)
    moved = float(batch * heads * seq * dim * size)
    return BenchCase(
        "-".join([shape, *(["causal"] if causal else []), dtype]),
        shape,
        {"batch": batch, "heads": heads, "seq": seq, "head_dim": dim},
        {"causal": causal},
        dtype,
        flops,
        3 * moved,
        moved,
    )


def times(
    name: str, case: str, median: float, spread: float, methods: Sequence[str], modes: Sequence[str]
) -> list[TimeRow]:
    """Rows by every method; the first of `methods` decides, and event pairs are host-bound."""
    found = []
    for mode in modes:
        base = median * (1.07 if mode == "cold" else 1.0)
        for method in methods:
            value = {"event_pair": base + 5.4, "eager": base + 41.0, "floor": 1.15, "ncu": base + 1.1}.get(method, base)
            flags = (
                ["event pair differs from graph slope by 5.4 µs after the floor"]
                if method == "event_pair" and base < 8
                else []
            )
            if method == "floor" and mode == "cold":
                continue
            if method == "graph_slope":
                flags = {"fp16_fused": ["not_traced", "power_capped"], "fp16_scalar": ["power_capped"]}.get(name, [])
            reasons = ["event pair longer by 4.25 µs; likely: host-bound"] if flags else []
            interval = (value * (1 - spread), value * (1 + spread))
            found.append(TimeRow(name, case, mode, method, value, *interval, 200, 5, flags, reasons))
            if method == "ncu":
                found[-1].dram_bytes = 1_573_888.0 if mode == "cold" else 4_096.0
    return found


def oracle(variant: str, case: str, mode: str, best: str, ratio: float, spread: float) -> tuple[RatioRow, OracleRow]:
    low, high = ratio * (1 - spread), ratio * (1 + spread)
    verdict = (
        "faster"
        if high < 0.995
        else "slower"
        if low > 1.005
        else "same"
        if low > 0.995 and high < 1.005
        else "undecided"
    )
    passed = high <= 0.95
    reason = "" if passed else f"the interval's upper end is {high:.3f}, above 0.95"
    flags = {"fp16_fused": ["not_traced", "power_capped"], "fp16_scalar": ["power_capped"]}.get(variant, [])
    return RatioRow(variant, best, case, mode, ratio, low, high, verdict, 0.005 + 1.4 * spread, flags), OracleRow(
        variant, case, mode, best, ratio, low, high, passed, reason, flags
    )


def cpu_bench() -> BenchRecord:
    contenders = {
        "cpu_flash": 2310.0,
        "cpu_naive": 18_420.0,
        "sdpa_default_cpu": 2604.0,
        "sdpa_flash_cpu": 2598.0,
        "sdpa_math_cpu": 6120.0,
    }
    cases = [bench_case("mission", SHAPES["mission"], causal, "float32") for causal in (False, True)]
    record = BenchRecord(
        provenance=MEASURED,
        duration_s=31.4,
        operator="attention",
        device="cpu",
        cases=cases,
        modes=["hot", "cold"],
        processes=5,
        threads=2,
        samples="results/bench/attention-cpu.csv.gz",
        startup_s=4.1,
        contenders=[
            Contender(n, "variant" if n.startswith("cpu_") else "baseline", "tvm_ffi", "correct", True, "timed")
            for n in contenders
        ],
        states={"load_average": [0.4, 0.3, 0.2], "governor": "performance"},
    )
    for case in cases:
        for name, median in contenders.items():
            record.times += times(
                name, case.id, median * (0.62 if case.options["causal"] else 1), 0.011, ["cpu_clock"], record.modes
            )
        for name in ("cpu_flash", "cpu_naive"):
            for mode in record.modes:
                ratio, row = oracle(name, case.id, mode, "sdpa_flash_cpu", contenders[name] / 2598.0, 0.012)
                record.ratios.append(ratio)
                record.oracle.append(row)
    return record


GPU_TIMES = {
    "fp16_scalar": 143.0,
    "fp16_async": 31.0,
    "fp16_fused": 8.31,
    "fp16_swizzled": 9.05,
    "fp16_wmma": 21.7,
    "sdpa_cudnn": 9.12,
    "sdpa_flash": 9.87,
    "sdpa_efficient": 22.0,
    "sdpa_math": 63.7,
    "sdpa_default": 9.86,
}
GPU_VERDICTS = {"fp16_async": "crashed", "fp16_wmma": "wrong"}


def gpu_bench() -> BenchRecord:
    cases = [bench_case(s, SHAPES[s], causal, "float16") for s in ("mission", "b1h8s2048") for causal in (False, True)]
    record = BenchRecord(
        provenance=MEASURED,
        duration_s=48.2,
        operator="attention",
        device="cuda",
        cases=cases,
        modes=["hot", "cold"],
        processes=5,
        samples="results/bench/attention-cuda.csv.gz",
        startup_s=21.0,
        states={
            "sm_clock_mhz": {"median": 1980, "lowest": 1965},
            "temperature_c": [31, 44],
            "throttle_reasons": [],
        },
        discarded=[{"contender": "sdpa_math", "case": "mission-float16", "reason": "sw_power_cap", "samples": 3}],
        kernels_in_interval={
            "fp16_fused": [{"name": "fused_kernel<__half, 64>", "count": 1}],
            "sdpa_flash": [
                {"name": "flash_fwd_splitkv_kernel", "count": 1},
                {"name": "flash_fwd_splitkv_combine_kernel", "count": 1},
            ],
        },
    )
    for name in GPU_TIMES:
        verdict = GPU_VERDICTS.get(name, "correct")
        role = "variant" if name.startswith("fp16") else "baseline"
        outcome = "its process was killed by SIGSEGV in the test" if verdict == "crashed" else "timed"
        record.contenders.append(
            Contender(name, role, "tvm_ffi" if role == "variant" else "python", verdict, verdict == "correct", outcome)
        )
    record.contenders.insert(
        5, Contender("fp16_tiled", "variant", "tvm_ffi", "failed_to_build", False, "it was not built")
    )
    methods = ["graph_slope", "event_pair", "ncu", "eager", "floor"]
    record.states["counters"] = {"status": "ok", "left_out": {}, "seconds": 9.1}
    record.energy = [
        EnergyRow("fp16_fused", "mission-float16", "hot", 2.31e-3, 4.1e-5, 13_440, 0.104, 298.0),
        EnergyRow("sdpa_math", "mission-float16", "hot", reason="the board's energy counter did not advance"),
    ]
    for case in cases:
        scale = (13.0 if case.shape == "b1h8s2048" else 1.0) * (0.68 if case.options["causal"] else 1.0)
        for name, median in GPU_TIMES.items():
            if name != "fp16_async":
                spread = 0.06 if name == "fp16_swizzled" else 0.004
                record.times += times(name, case.id, median * scale, spread, methods, record.modes)
        for mode in record.modes:
            for name in ("fp16_scalar", "fp16_fused", "fp16_swizzled"):
                ratio, row = oracle(
                    name,
                    case.id,
                    mode,
                    "sdpa_cudnn",
                    GPU_TIMES[name] / 9.12,
                    0.055 if name == "fp16_swizzled" else 0.005,
                )
                record.ratios.append(ratio)
                record.oracle.append(row)
            record.oracle.append(OracleRow("fp16_wmma", case.id, mode, None, None, None, None, False, "it is wrong"))
    return record


# --- profile ----------------------------------------------------------------------------------------------------------


def gpu_ceilings() -> CeilingsRecord:
    copied, product = "a kernel that negates, 1024 MiB to 1024 MiB, read and written", "of bfloat16, normal values"
    return CeilingsRecord(
        provenance=MEASURED,
        duration_s=4.4,
        device="cuda",
        model="NVIDIA H100 80GB HBM3",
        driver="580.82.07",
        torch="2.11.0+cu130",
        ceilings=[
            Ceiling("copy", "B/s", 4.05e12, 4.04e12, 4.06e12, 8, copied, 1980),
            Ceiling(
                "tensor_bfloat16", "FLOP/s", 7.1e14, 6.98e14, 7.3e14, 8, f"8192³ {product}", 1590, ["sw_power_cap"]
            ),
        ],
        left_out={"matmul_float32": "CUDA out of memory"},
    )


def gpu_profile(variant: str, busy: float, role: str = "variant") -> ProfileRecord:
    kernel = ProfiledKernel(
        f"void {variant}_kernel<__half, 64, (bool)1>(AttentionArgs, const __half *, float)",
        [64, 1, 1],
        [128, 1, 1],
        GPU_TIMES[variant] * 0.97,
        metrics={
            "sm__throughput.avg.pct_of_peak_sustained_elapsed": Metric(busy, "%"),
            "dram__throughput.avg.pct_of_peak_sustained_elapsed": Metric(3.4, "%"),
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": Metric(
                busy * 0.5 if "fused" in variant else 0.0, "%"
            ),
            "sm__warps_active.avg.pct_of_peak_sustained_active": Metric(22.9, "%"),
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": Metric(131_072, ""),
            "dram__bytes_read.sum": Metric(1.59, "Mbyte"),
            "dram__bytes_write.sum": Metric(524_288, "byte"),
            "smsp__inst_executed.sum": Metric(1_204_000 if role == "variant" else 902_144, "inst"),
            "launch__registers_per_thread": Metric(116 if role == "variant" else 168, "register/thread"),
            "smsp__thread_inst_executed_per_inst_executed.ratio": Metric(31.98, ""),
        },
        rules=[
            RuleAdvice(
                "SOLBottleneck", "info", "This kernel exhibits low compute throughput and memory bandwidth utilization."
            ),
            RuleAdvice(
                "LaunchConfiguration",
                "optimization",
                "The grid of 64 blocks is smaller than the 132 multiprocessors on the device: 68 are idle.",
                51.5,
            ),
            RuleAdvice(
                "SharedMemoryConflicts",
                "optimization",
                "Shared loads have a 2.0-way bank conflict across all 65536 requests.",
                17.25,
            ),
        ],
        hot_lines=[
            HotLine(
                "csrc/attention/fp16_fused.cu",
                132,
                "mma_m16n8k16(S_rmem[n], Q_rmem[k], K_rmem[n][k]);",
                412,
                0.31,
                Stall("math_pipe_throttle", 0.62),
                [
                    HotInstruction(0x1A40, "HMMA.16816.F32 R24, R4, R8, R24", 0.12),
                    HotInstruction(0x1A60, "HMMA.16816.F32 R28, R4, R10, R28", 0.08),
                ],
            ),
            HotLine(
                "csrc/attention/fp16_fused.cu", 158, "const float p = exp2f(S_rmem[n][i] - row_max[i]);", 214, 0.161
            ),
        ],
        stalls=[
            Stall("long_scoreboard", 0.41 if "fused" in variant else 0.22),
            Stall("selected", 0.24),
            Stall("math_pipe_throttle", 0.18),
            Stall("a_reason_of_tomorrow", 0.05),
            Stall("sleeping", 0.004),
        ],
        roofline={"peak_dram_bytes_per_s": 4.8e12, "peak_fp32_flops_per_s": 6.6e13, "dram_bytes": 1.6e6},
    )
    return ProfileRecord(
        provenance=MEASURED,
        duration_s=6.2,
        operator="attention",
        variant=variant,
        role=role,
        case="mission-float16",
        cost={"flops": 536_870_912.0, "bytes_read": 1_572_864.0, "bytes_written": 524_288.0},
        cache_control="all",
        replay_s=1.9,
        report=FileHash(f"results/profile/attention/{variant}.ncu-rep", digest(variant + "ncu"), 1_204_224),
        csv=f"results/profile/attention/{variant}.csv",
        tool_version="2025.3.1.0",
        kernels=[kernel],
    )


# --- the two runs -----------------------------------------------------------------------------------------------------


def cpu_run() -> tuple[ManifestRecord, dict[str, Record]]:
    """No GPU: CPU variants go through everything, CUDA variants are built only; some records are older."""
    found: dict[str, Record] = {"results/capture/capture.json": capture(gpu=False)}
    for variant, device in (
        ("cpu_naive", "cpu"),
        ("cpu_flash", "cpu"),
        ("fp16_scalar", "cuda"),
        ("fp16_fused", "cuda"),
    ):
        found[f"results/build/attention/{variant}.json"] = build("attention", variant, device, MIXES.get(variant))
    for variant, level in (("cpu_naive", 0.31), ("cpu_flash", 0.22)):
        found[f"results/test/attention/{variant}.json"] = correct_test("attention", variant, "cpu", "float32", level)
    for name, level in (("sdpa_default_cpu", 0.24), ("sdpa_flash_cpu", 0.24), ("sdpa_math_cpu", 0.19)):
        found[f"results/test/attention/{name}.json"] = correct_test(
            "attention", name, "cpu", "float32", level, "baseline"
        )
    for variant in ("fp16_scalar", "fp16_fused"):
        found[f"results/test/attention/{variant}.json"] = not_tested(
            "attention", variant, "cuda", "variant", NO_GPU, GPU_REMEDY
        )
        found[f"results/profile/attention/{variant}.json"] = ProfileRecord(
            "not_run", NO_GPU, GPU_REMEDY, MEASURED, 0.0, "attention", variant, "variant", "mission-float16"
        )
    found["results/bench/attention-cpu.json"] = cpu_bench()
    found["results/bench/attention-cuda.json"] = BenchRecord(
        "not_run", NO_GPU, GPU_REMEDY, MEASURED, 0.0, "attention", "cuda"
    )
    verdicts = [
        Verdict("attention", "cpu_naive", "variant", "cpu", "ok", "correct", "slower", 7.09, "not_run", False),
        Verdict("attention", "cpu_flash", "variant", "cpu", "ok", "correct", "faster", 0.889, "not_run", False),
        Verdict(
            "attention", "fp16_scalar", "variant", "cuda", "ok", "not_run", "not_run", None, "not_run", False, NO_GPU
        ),
        Verdict(
            "attention", "fp16_fused", "variant", "cuda", "ok", "not_run", "not_run", None, "not_run", False, NO_GPU
        ),
        *(
            Verdict("attention", n, "baseline", "cpu", "ok", "correct", "", None, "not_run", False)
            for n in ("sdpa_default_cpu", "sdpa_flash_cpu", "sdpa_math_cpu")
        ),
    ]
    earlier = replace(MEASURED, commit=EARLIER, utc="2026-03-13T16:02:40Z")
    manifest = _manifest(COMMIT[:12], verdicts, found)
    manifest.measured = {"capture": MEASURED, "build": earlier, "test": earlier, "bench": earlier, "profile": earlier}
    return manifest, found


def gpu_run() -> tuple[ManifestRecord, dict[str, Record]]:
    """An H200: a fast and correct variant, one undecided, one slow, one wrong, one that crashed, one not built."""
    found: dict[str, Record] = {"results/capture/capture.json": capture(gpu=True)}
    unwritten = Failure("unwritten", "1 536 of 262 144 elements hold the poison: rows 40 to 63 of each 64")
    wrong_off_grid = Failure("bound", "the largest error is 0.448 at [0, 3, 511, 0], 912 times its bound")
    for variant, mix, registers in (
        ("fp16_scalar", None, 72),
        ("fp16_fused", MIXES["fp16_fused"], 116),
        ("fp16_swizzled", MIXES["fp16_fused"], 128),
        ("fp16_wmma", MIXES["fp16_fused"], 88),
        ("fp16_async", MIXES["fp16_fused"], 96),
    ):
        found[f"results/build/attention/{variant}.json"] = build("attention", variant, "cuda", mix, registers)
    found["results/build/attention/fp16_tiled.json"] = failed_build("fp16_tiled")
    for variant, level in (("fp16_scalar", 0.27), ("fp16_fused", 0.41), ("fp16_swizzled", 0.42)):
        found[f"results/test/attention/{variant}.json"] = on_gpu(
            correct_test("attention", variant, "cuda", "float16", level),
            sanitizer_missing() if variant == "fp16_swizzled" else sanitized(raced=False),
        )
    swizzled = found["results/test/attention/fp16_swizzled.json"]
    assert isinstance(swizzled, TestRecord)
    swizzled.trust = "library"
    reason = "it hands attention memory that is none of the call's tensors, such as a workspace"
    swizzled.sealing = Sealing(100, 4, [NotSealed(reason, 4, "b1h8s2048-float16-normal-s0")])
    wrong = correct_test("attention", "fp16_wmma", "cuda", "float16", 0.38)
    wrong.verdict, wrong.rungs = (
        "wrong",
        rungs("correctness", "16 of 48 cases failed: every case whose length is not a multiple of 64"),
    )
    wrong.cases = case_results(
        "float16",
        0.38,
        lambda shape, family: (
            unwritten
            if shape == "s63"
            else wrong_off_grid
            if shape == "s513" and family in ("peaky", "sink_last")
            else None
        ),
    )
    wrong.error_histogram = histogram(0.38, 18_000)
    wrong = on_gpu(wrong, sanitized(raced=True))
    found["results/test/attention/fp16_wmma.json"] = wrong
    crashed = not_tested(
        "attention", "fp16_async", "cuda", "variant", "the candidate's process was killed by SIGSEGV", None
    )
    crashed.status, crashed.verdict = "failed", "crashed"
    crashed.rungs = rungs(
        "sanity", "the candidate's process was killed by SIGSEGV\nCUDA error: an illegal memory access was encountered"
    )
    found["results/test/attention/fp16_async.json"] = crashed
    tiled = not_tested("attention", "fp16_tiled", "cuda", "variant", "it was not built", None)
    tiled.verdict, tiled.rungs = "failed_to_build", rungs("build", "nvcc ended with exit code 2")
    found["results/test/attention/fp16_tiled.json"] = tiled
    for name, level in (
        ("sdpa_cudnn", 0.44),
        ("sdpa_flash", 0.43),
        ("sdpa_efficient", 0.43),
        ("sdpa_math", 0.52),
        ("sdpa_default", 0.43),
    ):
        found[f"results/test/attention/{name}.json"] = correct_test(
            "attention", name, "cuda", "float16", level, "baseline"
        )
    found["results/bench/attention-cuda.json"] = gpu_bench()
    found["results/bench/ceilings/cuda.json"] = gpu_ceilings()
    found["results/profile/attention/sdpa_cudnn.json"] = gpu_profile("sdpa_cudnn", 31.0, "baseline")
    found["results/profile/attention/fp16_scalar.json"] = gpu_profile("fp16_scalar", 38.2)
    found["results/profile/attention/fp16_fused.json"] = gpu_profile("fp16_fused", 27.6)
    found["results/profile/attention/fp16_swizzled.json"] = ProfileRecord(
        "not_run",
        "the driver does not permit this user to read GPU performance counters (ERR_NVGPUCTRPERM)",
        "ask the administrator for the driver option NVreg_RestrictProfilingToAdminUsers=0",
        MEASURED,
        0.4,
        "attention",
        "fp16_swizzled",
        "variant",
        "mission-float16",
    )
    verdicts = [
        Verdict("attention", "fp16_scalar", "variant", "cuda", "ok", "correct", "slower", 15.68, "ok", False),
        Verdict(
            "attention",
            "fp16_wmma",
            "variant",
            "cuda",
            "ok",
            "wrong",
            "not_run",
            None,
            "not_run",
            True,
            "16 of 48 cases failed: every case whose length is not a multiple of 64",
        ),
        Verdict(
            "attention",
            "fp16_async",
            "variant",
            "cuda",
            "ok",
            "crashed",
            "not_run",
            None,
            "not_run",
            True,
            "the candidate's process was killed by SIGSEGV",
        ),
        Verdict(
            "attention",
            "fp16_tiled",
            "variant",
            "cuda",
            "failed",
            "failed_to_build",
            "not_run",
            None,
            "not_run",
            True,
            'static assertion failed with "BLOCK_N must divide by 16"',
        ),
        Verdict("attention", "fp16_fused", "variant", "cuda", "ok", "correct", "faster", 0.911, "ok", False),
        Verdict("attention", "fp16_swizzled", "variant", "cuda", "ok", "correct", "undecided", 0.992, "not_run", False),
        *(
            Verdict("attention", n, "baseline", "cuda", "ok", "correct", "", None, "not_run", False)
            for n in GPU_TIMES
            if n.startswith("sdpa")
        ),
    ]
    manifest = _manifest(COMMIT[:12], verdicts, found)
    manifest.identical_machine_code = [["attention/fp16_async", "attention/fp16_wmma"]]
    return manifest, found


def _manifest(folder: str, verdicts: list[Verdict], found: dict[str, Record]) -> ManifestRecord:
    members = [
        Member(f"records/{path.removeprefix('results/')}", digest(path), 4_096 + 17 * len(path), "measurement")
        for path in found
    ]
    members += [
        Member("config.yaml", digest("config"), 9_114, "identity"),
        Member("source/repro.sh", digest("repro.sh"), 1_733, "identity"),
        Member("records/capture/pip.txt", digest("pip"), 2_048, "context"),
    ]
    return ManifestRecord(
        provenance=MEASURED,
        project="kernelproof",
        folder=folder,
        overall="",
        verdicts=verdicts,
        measured=dict.fromkeys(("capture", "build", "test", "bench", "profile"), MEASURED),
        tools={"nvcc": "13.0.88", "torch": "2.11.0+cu130"},
        records=list(found),
        members=members,
    )


def write_run(root: Path, run: tuple[ManifestRecord, dict[str, Record]]) -> Path:
    """Write a run's records below `root`; gives back the path of the manifest's facts."""
    manifest, found = run
    for path, record in found.items():
        write(root / path, record)
    facts = root / "results" / "manifest" / f"{manifest.folder}.json"
    write(facts, manifest)
    return facts
