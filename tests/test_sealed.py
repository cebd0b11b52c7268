"""Kernels run from their cubins alone, on a GPU: described, started by our own launcher, and compared bit by bit.

A failure prints the variant's record without its cases, what was described, and the end of its log.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelproof import build, config, gpu, records, test
from kernelproof.config import Config
from kernelproof.errors import WorkerReplyError
from kernelproof.judging import Job
from kernelproof.ladder.climb import Climb
from kernelproof.ladder.session import Resources, Session
from kernelproof.loading import handed_over
from kernelproof.records import BuildRecord, TestRecord

REPOSITORY = Path(__file__).resolve().parents[1]
PRESENT, WHY = gpu.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")]

# RMSNorm in different launches. `WORK` stands for what the launcher does beside or in place of calling `norm`.
SOURCE = """
#include "../csrc/common/cuda_launch.h"
#include "../csrc/rmsnorm/launch.h"

namespace {

constexpr int kThreads = 32;
GLOBALS

__global__ void squares(const float *x, int64_t stride, int64_t cols, float *sum) {
    float found = 0.0f;
    for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
        found += x[blockIdx.x * stride + c] * x[blockIdx.x * stride + c];
    }
    for (int step = kThreads / 2; step > 0; step /= 2) found += __shfl_xor_sync(~0u, found, step);
    if (threadIdx.x == 0) sum[0] = found;
}

__global__ void norm(RmsNormArgs args, const float *sums, float scale) {
    const float *x = static_cast<const float *>(args.x) + blockIdx.x * args.x_stride;
    float *y = static_cast<float *>(args.y) + blockIdx.x * args.y_stride;
    float sum = sums == nullptr ? 0.0f : sums[blockIdx.x * args.y_stride];
    __syncwarp();
    if (sums == nullptr) {
        for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) sum += x[c] * x[c];
        for (int step = kThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    }
    const float inverse = 1.0f / sqrtf(sum / args.cols + static_cast<float>(args.eps));
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) {
        y[c] = x[c] * inverse * static_cast<const float *>(args.weight)[c] * scale;
    }
}

__global__ void squares_of_rows(RmsNormArgs args) {  // into the first element of each row of y
    const float *x = static_cast<const float *>(args.x) + blockIdx.x * args.x_stride;
    float sum = 0.0f;
    for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) sum += x[c] * x[c];
    for (int step = kThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x == 0) atomicAdd(static_cast<float *>(args.y) + blockIdx.x * args.y_stride, sum);
}

const char *start(const RmsNormArgs &args, void *stream, const float *sums, float scale) {
    return launch_kernel("norm", norm, {args.rows, kThreads}, args.placement, stream, args, sums, scale);
}

}  // namespace

const char *launch(const RmsNormArgs &args, void *stream) {
    if (args.dtype != Dtype::kFloat32) return "float32 alone";
    cudaStream_t own = static_cast<cudaStream_t>(stream);
    (void)own;
    WORK
}
"""
PLAIN = "return start(args, stream, nullptr, 1.0f);"
WORK = {
    "plain": ("", PLAIN),
    # A fill, a kernel that adds to what was filled, and a kernel that reads it: in this order or wrong.
    "two_kernels": (
        "",
        """
        const cudaError_t status = cudaMemset2DAsync(args.y, args.y_stride * 4, 0, 4, args.rows, own);
        if (status != cudaSuccess) return cuda_message("fill", status);
        const char *why = launch_kernel("sums", squares_of_rows, {args.rows, kThreads}, args.placement, stream, args);
        return why ? why : start(args, stream, static_cast<const float *>(args.y), 1.0f);""",
    ),
    "workspace": (
        "float *workspace = nullptr;",
        """
        if (workspace == nullptr && cudaMalloc(&workspace, 1 << 20) != cudaSuccess) return "no memory";
        const char *why = launch_kernel("sums", squares, {1, kThreads}, args.placement, stream,
                                        static_cast<const float *>(args.x), args.x_stride, args.cols, workspace);
        return why ? why : start(args, stream, nullptr, 1.0f);""",
    ),
    "device_variable": (
        "__device__ int calls;\n__global__ void count() { ++calls; }",
        """
        const char *why = launch_kernel("count", count, {1, 1}, args.placement, stream);
        return why ? why : start(args, stream, nullptr, 1.0f);""",
    ),
    "own_stream": (
        "cudaStream_t side = nullptr;",
        """
        if (side == nullptr) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
        return start(args, side, nullptr, 1.0f);""",
    ),
    "stream_zero": ("", "return start(args, nullptr, nullptr, 1.0f);"),
    "copies": (
        "",
        """
        cudaMemcpyAsync(args.y, args.x, 4, cudaMemcpyDeviceToDevice, own);
        return start(args, stream, nullptr, 1.0f);""",
    ),
    # Its kernel is wrong; the host mends the result when the caller's stream is idle, which no launch shows.
    "host_mends": (
        "",
        """
        const char *why = start(args, stream, nullptr, 2.0f);
        cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
        cudaStreamIsCapturing(own, &capturing);
        if (why != nullptr || capturing != cudaStreamCaptureStatusNone) return why;
        return start(args, stream, nullptr, 1.0f);""",
    ),
    # The second half of a row is copied in the background and nobody waits for it: it has always arrived by then.
    "half_waited": (
        """
        __device__ __forceinline__ void queue_copy(float *to_smem, const float *from) {
            const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to_smem));
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
        }
        __global__ void half_waited(RmsNormArgs args) {
            __shared__ float row_smem[4096];
            const float *x = static_cast<const float *>(args.x) + blockIdx.x * args.x_stride;
            float *y = static_cast<float *>(args.y) + blockIdx.x * args.y_stride;
            const int64_t half = args.cols / 2;
            for (int64_t c = threadIdx.x; c < half; c += kThreads) queue_copy(&row_smem[c], &x[c]);
            asm volatile("cp.async.commit_group;" ::: "memory");
            for (int64_t c = half + threadIdx.x; c < args.cols; c += kThreads) queue_copy(&row_smem[c], &x[c]);
            asm volatile("cp.async.commit_group;" ::: "memory");
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            const long long begin = clock64();
            while (clock64() - begin < 60000) {
            }
            __syncwarp();
            float sum = 0.0f;
            for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) sum += row_smem[c] * row_smem[c];
            for (int step = kThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            const float inverse = 1.0f / sqrtf(sum / args.cols + static_cast<float>(args.eps));
            for (int64_t c = threadIdx.x; c < args.cols; c += kThreads) {
                y[c] = row_smem[c] * inverse * static_cast<const float *>(args.weight)[c];
            }
        }
        """,
        """
        return launch_kernel("half_waited", half_waited, {args.rows, kThreads}, args.placement, stream, args);""",
    ),
    "refuses_17_rows": ("", 'if (args.rows == 17) return "not 17 rows";\n    ' + PLAIN),
}

CONFIG = """\
schema: kernelproof.config/1
project: sealed
archs: [native]
operators:
  rmsnorm:
    module: kernelproof.operators.rmsnorm
    binding: csrc/rmsnorm/binding.cc
    include: [csrc]
    shapes: {{tiny: {{rows: 3, cols: 8}}, odd: {{rows: 17, cols: 101}}, long: {{rows: 512, cols: 4096}}}}
    test: {{shapes: [tiny, odd, long], families: [normal]}}
    bench: {{shapes: [odd]}}
    profile: {{shape: odd}}
    variants:
{variants}
  attention:
    module: kernelproof.operators.attention
    binding: csrc/attention/binding.cc
    include: [csrc]
    shapes: {{small: {{batch: 1, heads: 2, seq: 130, head_dim: 64}}}}
    test: {{shapes: [small], options: {{causal: [false, true], layout: [bhsd, bshd]}}, families: [normal]}}
    bench: {{shapes: [small]}}
    profile: {{shape: small}}
    variants:
      fp16_wgmma:
        device: cuda
        sources: [csrc/attention/fp16_wgmma.cu]
        dtypes: [float16]
        precision: {{output: input, p: input}}
      fp16_cluster:
        device: cuda
        sources: [csrc/attention/fp16_cluster.cu]
        dtypes: [float16]
        precision: {{output: input, p: input}}
test: {{seeds: [0], trials: 5}}
"""
HOPPER = ("fp16_wgmma", "fp16_cluster")


def is_hopper() -> bool:
    return PRESENT and gpu.gpus()[0].compute_capability == "9.0"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Every variant, built."""
    folder = tmp_path_factory.mktemp("sealed")
    shutil.copytree(REPOSITORY / "csrc", folder / "csrc")
    (folder / "kernels").mkdir()
    for name, (globals_, work) in WORK.items():
        (folder / "kernels" / f"{name}.cu").write_text(SOURCE.replace("GLOBALS", globals_).replace("WORK", work))
    variants = "\n".join(
        f"      {name}: {{device: cuda, sources: [kernels/{name}.cu], dtypes: [float32], "
        "precision: {output: float32}}"
        for name in WORK
    )
    (folder / "config.yaml").write_text(CONFIG.format(variants=variants))
    settings = config.load(folder / "config.yaml", root=folder)
    wanted = [("rmsnorm", name) for name in WORK]
    wanted += [("attention", name) for name in HOPPER if is_hopper()]

    def made(key: tuple[str, str]) -> BuildRecord:
        return build.run(settings, *key, settings.record("build", *key), None, 2)

    built = [made(wanted[0])]
    with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)) // 2)) as pool:
        built += pool.map(made, wanted[1:])
    for record in built:
        assert record.status == records.OK, f"{record.variant}: {record.compiler_message or record.reason}"
    return settings


def climbed(settings: Config, operator: str, name: str, sealed: str = "auto") -> TestRecord:
    started = time.monotonic()
    settings = dataclasses.replace(settings, test=dataclasses.replace(settings.test, sealed=sealed))
    test.run(settings, operator, [name], settings.results / "test" / operator)
    record = records.read(settings.record("test", operator, name), TestRecord)
    print(f"{operator}/{name} ({sealed}): {record.verdict}, {record.trust}, {time.monotonic() - started:.1f} s")
    return record


def launches_of(settings: Config, record: TestRecord) -> str:
    """The descriptions that a record's sealed calls were launched from; empty when there are none."""
    kept = record.sealing.launches if record.sealing else None
    return (settings.root / kept.path).read_text() if kept else ""


def story(settings: Config, record: TestRecord) -> str:
    """All that is needed to see what went wrong."""
    plain = dataclasses.asdict(record)
    plain["cases"] = [case for case in plain["cases"] if case["status"] != "passed"][:4]
    del plain["error_histogram"]
    log = (settings.root / record.log).read_text()[-6000:] if record.log else ""
    return "\n".join([json.dumps(plain, indent=1, default=str), launches_of(settings, record)[:6000], log])


@pytest.mark.parametrize("name", ["plain", "two_kernels"])
def test_a_variant_climbs_the_ladder_without_its_library(project: Config, name: str) -> None:
    record = climbed(project, "rmsnorm", name, "required" if name == "plain" else "auto")
    assert (record.verdict, record.trust) == ("correct", "sealed"), story(project, record)
    assert record.sealing is not None
    assert record.sealing.library == 0
    steps = json.loads(launches_of(project, record))["kinds"][0]["steps"]
    kinds = ["kernel" if step["kernel"] else "fill" for step in steps]
    assert kinds == {"plain": ["kernel"], "two_kernels": ["fill", "kernel", "kernel"]}[name], story(project, record)


@pytest.mark.skipif(not is_hopper(), reason="wgmma, tensor maps and clusters need compute capability 9.0")
@pytest.mark.parametrize("name", HOPPER)
def test_tensor_maps_and_clusters_are_launched_from_their_descriptions(project: Config, name: str) -> None:
    record = climbed(project, "attention", name)
    assert (record.verdict, record.trust) == ("correct", "sealed"), story(project, record)
    launches = launches_of(project, record)
    for kind in json.loads(launches)["kinds"]:
        (step,) = kind["steps"]
        named = {address["argument"] for address in step["addresses"]}
        assert named == {"q", "k", "v", "o"}, launches[:4000]
        assert (step["kernel"]["cluster"][0] > 1) == (name == "fp16_cluster"), launches[:4000]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("workspace", "memory that is none of the call's tensors, such as a workspace"),
        ("device_variable", "beside its parameters it rests on the device variable"),
        ("copies", "beside kernels it queues a copy of memory"),
        ("own_stream", "it queued no work on the caller's stream"),
        ("stream_zero", "RuntimeError: norm: "),
    ],
)
def test_what_cannot_be_described_runs_as_a_library_and_says_why(project: Config, name: str, reason: str) -> None:
    record = climbed(project, "rmsnorm", name)
    # Work on another stream than the caller's is not in order: the library's calls show that.
    verdict = "wrong" if "stream" in name else "correct"
    assert (record.verdict, record.trust) == (verdict, "library"), story(project, record)
    assert record.sealing is not None
    assert record.sealing.sealed == 0, story(project, record)
    assert all(reason in left.reason for left in record.sealing.left), story(project, record)


def test_host_code_that_does_more_than_it_shows_is_found_out(project: Config) -> None:
    assert climbed(project, "rmsnorm", "host_mends", "never").verdict == "correct"
    record = climbed(project, "rmsnorm", "host_mends")
    assert record.verdict == "wrong", story(project, record)
    assert "test.sealed=never" in (record.remedy or "")


def test_a_copy_that_is_not_waited_for_shows_where_inputs_arrive_slowly(project: Config) -> None:
    """8 MB take 160 µs and more across the bus, and a few from the GPU's own memory: the kernel leaves them 30."""
    record = climbed(project, "rmsnorm", "half_waited")
    failed = {rung.name for rung in record.rungs if rung.status == "failed"}
    assert (record.verdict, failed) == ("wrong", {"properties"}), story(project, record)
    wrong = [p for p in record.properties if p.status == "failed"]
    assert {p.name for p in wrong} == {"zero-copy"}, story(project, record)
    assert {p.case.partition("-")[0] for p in wrong} == {"long"}, story(project, record)
    right = climbed(project, "rmsnorm", "plain")
    slow = {(p.case.partition("-")[0], p.status) for p in right.properties if p.name == "zero-copy"}
    assert slow == {("odd", "passed"), ("long", "passed"), ("tiny", "passed")}, story(project, right)


def test_a_call_that_the_launcher_refuses_fails_as_it_does_without_sealing(project: Config) -> None:
    record = climbed(project, "rmsnorm", "refuses_17_rows")
    assert (record.verdict, record.trust) == ("wrong", "library"), story(project, record)
    assert record.sealing is not None
    assert record.sealing.sealed > 0, story(project, record)
    assert all("not 17 rows" in left.reason for left in record.sealing.left), story(project, record)


# --- bit for bit ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    found = Resources(tmp_path_factory.mktemp("workers"))
    yield found
    found.close()


@pytest.mark.parametrize(
    ("operator", "name"), [("rmsnorm", "plain"), ("rmsnorm", "two_kernels"), *(("attention", name) for name in HOPPER)]
)
def test_the_bits_are_the_librarys(project: Config, resources: Resources, operator: str, name: str) -> None:
    """One call on the same images, from the library and from the cubin; compared whole, guard bands included."""
    if name in HOPPER and not is_hopper():
        pytest.skip("wgmma, tensor maps and clusters need compute capability 9.0")
    variant = project.operator(operator).variant(name)
    climb = Climb(Session(project, [variant], resources), variant)
    climb.build()
    calls, job, found = climb.calls, Job(climb.selection.cases[0]), []
    try:
        launches = calls.launches([job])
        assert launches is not None, calls.sealer and calls.sealer.record()
        early = [bool(step["kernel"] and step["kernel"]["overlapping"]) for step in launches[0]]
        assert any(early) == (name in HOPPER), "as csrc/ launches it"
        calls.images.mkdir(exist_ok=True)
        laid = climb.session.judge.lay_out(climb.settings.module, job, calls.images / "0")
        images = {key: value["image"] for key, value in laid.arguments.items() if isinstance(value, dict)}
        for sealed in (False, True):
            worker = calls.ready_worker(sealed=sealed)
            call = {"arguments": laid.arguments, "outputs": laid.outputs, "launches": launches}
            worker.request("run", timeout_s=60, **call)
            found.append({key: handed_over(worker.scratch, image).read_bytes() for key, image in images.items()})
    finally:
        climb.finish()
    before = {key: Path(image).read_bytes() for key, image in images.items()}
    changed = [key for key in before if found[0][key] != before[key]]
    assert changed == laid.outputs
    assert [key for key in before if found[0][key] != found[1][key]] == []


def test_a_cubin_that_was_changed_is_not_run(project: Config, resources: Resources) -> None:
    variant = project.operator("rmsnorm").variant("plain")
    climb = Climb(Session(project, [variant], resources), variant)
    climb.build()
    calls = climb.calls
    calls.launches([Job(climb.selection.cases[0])])
    assert calls.sealer is not None
    calls.sealer.files[0]["sha256"] = "0" * 64
    with pytest.raises(WorkerReplyError, match="not the file that the build made"):
        calls.ready_worker(sealed=True)
    climb.finish()
