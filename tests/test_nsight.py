"""What a report of Nsight Compute says, read through NVIDIA's own module."""

import csv
import sys
import types
from pathlib import Path

import pytest

from kernelproof import nsight, records
from kernelproof.errors import ProfileError

SAMPLE = Path(__file__).parent / "data" / "h200.ncu-rep"


class StandIn:
    """An object whose methods answer with what they were given: the reader only ever calls and reads."""

    def __init__(self, **answers: object) -> None:
        for name, answer in answers.items():
            setattr(self, name, answer if callable(answer) else lambda *a, answer=answer: answer)


def metric(value: object, unit: str = "", instances: dict[int, int] | None = None) -> StandIn:
    addresses, counts = list(instances or {}), list((instances or {}).values())
    return StandIn(
        value=value,
        unit=unit,
        num_instances=len(counts),
        has_correlation_ids=bool(counts),
        correlation_ids=StandIn(as_uint64=lambda i: addresses[i]),
        as_uint64=lambda i: counts[i],
    )


def rule(title: str, message: str, kind: int, speedup: tuple[int, float] | None = None) -> StandIn:
    return StandIn(
        name="Rule",
        has_rule_message=True,
        rule_message={"title": title, "message": message, "type": kind},
        has_speedup_estimation=speedup is not None,
        speedup_estimation=speedup and {"type": speedup[0], "speedup": speedup[1]},
    )


METRICS = {
    "gpu__time_duration.sum": metric(52576.0, "ns"),
    "launch__grid_dim_x": metric(63.0),
    "launch__grid_dim_y": metric(2.0),
    "launch__grid_dim_z": metric(1.0),
    "launch__block_dim_x": metric(256.0),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": metric(27.8, "%"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": metric(float("nan"), "%"),
    "dram__bytes_read.sum": metric(3e6, "byte"),
    "dram__bytes_write.sum": metric(1e6, "byte"),
    "smsp__cycles_elapsed.avg.per_second": metric(1e9, "hz"),
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed": metric(10.0),
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum.per_cycle_elapsed": metric(0.0),
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed": metric(20.0),
    nsight.SAMPLES: metric(10, "", {0x7F00: 1, 0x7F10: 5, 0x7F20: 3, 0x7F30: 1}),
}
SAMPLED = "smsp__pcsamp_warps_issue_stalled_"
SAMPLED_STALLS = {
    f"group:{SAMPLED}reasons": metric(f"{SAMPLED}wait,{SAMPLED}selected"),
    f"{SAMPLED}long_scoreboard": metric(6, "", {0x7F00: 0, 0x7F10: 4, 0x7F20: 2, 0x7F30: 0}),
    f"{SAMPLED}selected": metric(3, "", {0x7F00: 1, 0x7F10: 1, 0x7F20: 0, 0x7F30: 1}),
    f"{SAMPLED}wait": metric(1, "", {0x7F00: 0, 0x7F10: 0, 0x7F20: 1, 0x7F30: 0}),
    f"{SAMPLED}barrier": metric(0, "", {0x7F00: 0}),
    f"{SAMPLED}wait_not_issued": metric(9, "", {0x7F00: 9}),
}
COUNTED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COUNTED_STALLS = {
    COUNTED.format("gmma"): metric(2.5, "inst"),
    COUNTED.format("no_instruction"): metric(0.5, "inst"),
    COUNTED.format("selected"): metric(1.0, "inst"),
    COUNTED.format("membar"): metric(0.0, "inst"),
    COUNTED.format("misc"): metric(float("nan"), "inst"),
    COUNTED.format("selected_not_issued"): metric(7.0, "inst"),
}
RULES = [
    rule("", "no estimate", 1),
    rule("Local", "of a unit", 2, (1, 90.0)),
    rule("Small", "of the whole", 2, (2, 5.0)),
    rule("Large", "see @section:WarpStateStats:Warp State@ and @url:the guide:https://a.b/c.html#d@", 3, (2, 50.0)),
    StandIn(has_rule_message=False),
]
SOURCE = "__global__ void kernel()\n{\n    int i = threadIdx.x;\n    y[i] = x[i];\n}\n"


def action(metrics: dict[str, StandIn] = METRICS) -> StandIn:
    lines = {0x7F00: 3, 0x7F10: 4, 0x7F20: 4}
    found = StandIn(
        name="kernel(float *)",
        metric_by_name=lambda name: metrics.get(name),
        metric_names=tuple(metrics),
        rule_results=RULES,
        source_info=lambda address: (
            StandIn(file_name="/proc/self/cwd/csrc/k.cu", line=lines[address]) if address in lines else None
        ),
        sass_by_pc=lambda address: (
            f"  OP.{address:x}   " if address != 0x7F00 else "@P0   BRA `(.L_x_0) 0x7f91b4fb36d0"
        ),
        source_files={"/proc/self/cwd/csrc/k.cu": SOURCE},
    )
    found.NameBase_DEMANGLED = 1
    return found


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "report.ncu-rep"
    path.write_bytes(b"NVR")
    install(monkeypatch, [[action()]])
    return path


def read(report: Path, root: Path | None = None) -> list[records.ProfiledKernel]:
    return nsight.kernels_of(nsight.actions(report), root=root)


def install(monkeypatch: pytest.MonkeyPatch, ranges: list[list[StandIn]]) -> None:
    module = types.ModuleType("ncu_report")
    module.load_report = lambda path: ranges  # type: ignore[attr-defined]
    for number, name in enumerate(("NONE", "OK", "OPTIMIZATION", "WARNING")):
        setattr(module, f"MsgType_{name}", number)
    module.SpeedupType_LOCAL, module.SpeedupType_GLOBAL = 1, 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    nsight.reader.cache_clear()


def test_launch_and_metrics(report: Path) -> None:
    (kernel,) = read(report)
    assert (kernel.name, kernel.grid, kernel.block) == ("kernel(float *)", [63, 2, 1], [256])
    assert kernel.duration_us == pytest.approx(52.576)
    assert kernel.metrics["sm__throughput.avg.pct_of_peak_sustained_elapsed"] == records.Metric(27.8, "%")
    # Not a number is no value, and a metric that was asked for and is missing is there without one.
    assert kernel.metrics["dram__throughput.avg.pct_of_peak_sustained_elapsed"].value is None
    assert kernel.metrics["smsp__inst_executed_pipe_tensor.sum"].value is None
    assert set(nsight.METRICS) <= set(kernel.metrics)


def test_advice_by_its_estimated_speedup(report: Path) -> None:
    (kernel,) = read(report)
    assert [(a.message, a.severity, a.estimated_speedup_percent, a.scope) for a in kernel.rules] == [
        ("Large: see Warp State and the guide", "warning", 50.0, "global"),
        ("Small: of the whole", "optimization", 5.0, "global"),
        ("Local: of a unit", "optimization", 90.0, "local"),
        ("no estimate", "ok", None, None),
    ]


def test_hot_lines_gather_their_instructions(report: Path) -> None:
    (kernel,) = read(report)
    hot, cold, no_line = kernel.hot_lines
    assert (hot.file, hot.line, hot.source, hot.samples, hot.share) == ("csrc/k.cu", 4, "y[i] = x[i];", 8, 0.8)
    assert hot.instructions == [
        records.HotInstruction(0x10, "OP.7f10", 0.5),
        records.HotInstruction(0x20, "OP.7f20", pytest.approx(0.3)),
    ]
    # An instruction without line information stands for itself.
    assert no_line == records.HotLine("SASS", 0x30, "OP.7f30", 1, 0.1)
    assert (cold.line, cold.source, cold.share) == (3, "int i = threadIdx.x;", 0.1)
    assert cold.instructions == [records.HotInstruction(0, "@P0 BRA `(.L_x_0)", 0.1)]
    assert [line.stall for line in kernel.hot_lines] == [None] * 3
    assert kernel.stalls == []


def test_a_line_tells_what_its_warps_waited_for(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [[action(METRICS | SAMPLED_STALLS)]])
    (kernel,) = read(report)
    # Seven of its eight samples waited, six of them for memory; a warp that issues does not wait.
    assert kernel.hot_lines[0].stall == records.Stall("long_scoreboard", 6 / 8)
    assert [line.stall for line in kernel.hot_lines[1:]] == [None, None]


def test_stalls_of_a_kernel_are_counted_where_counters_are(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [[action(METRICS | SAMPLED_STALLS)]])
    (sampled,) = read(report)
    assert [(stall.reason, stall.share) for stall in sampled.stalls] == [
        ("long_scoreboard", 0.6),
        ("selected", 0.3),
        ("wait", 0.1),
    ]
    install(monkeypatch, [[action(METRICS | SAMPLED_STALLS | COUNTED_STALLS)]])
    (counted,) = read(report)
    assert counted.stalls == [
        records.Stall("warpgroup_arrive", 0.625),
        records.Stall("selected", 0.25),
        records.Stall("no_instructions", 0.125),
    ]


def test_a_report_that_samples_only_idle_schedulers(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = {name: found for name, found in SAMPLED_STALLS.items() if name.endswith("_not_issued")}
    install(monkeypatch, [[action(METRICS | only)]])
    (kernel,) = read(report)
    assert kernel.stalls == [records.Stall("wait", 1.0)]


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/proc/self/cwd/csrc/rmsnorm/one_pass.cu", "csrc/rmsnorm/one_pass.cu"),
        (
            "/proc/self/cwd/results/store/toolkit-f93497ee42f6/targets/x/include/a.hpp",
            "<toolkit>/targets/x/include/a.hpp",
        ),
        ("{root}/csrc/triton_flash.py", "csrc/triton_flash.py"),
        ("/usr/include/a.h", "/usr/include/a.h"),
    ],
)
def test_files_are_named_from_the_root(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch, file: str, shown: str
) -> None:
    found = action()
    found.source_info = lambda address: StandIn(file_name=file.format(root=tmp_path), line=1)
    install(monkeypatch, [[found]])
    (kernel,) = read(report, root=tmp_path)
    assert {line.file for line in kernel.hot_lines} == {shown}


def test_a_source_that_was_not_imported_is_read_from_the_repository(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/k.cu").write_text(SOURCE)
    found = action()
    found.source_files = dict
    install(monkeypatch, [[found]])
    (kernel,) = read(report, root=tmp_path)
    assert kernel.hot_lines[0].source == "y[i] = x[i];"


def test_operations_and_bytes(report: Path) -> None:
    (kernel,) = read(report)
    assert kernel.roofline["fp32_flops_per_s"] == pytest.approx(50e9)
    assert kernel.roofline["fp32_flops"] == pytest.approx(50e9 * 52.576e-6)
    assert kernel.roofline["dram_bytes"] == 4e6
    assert kernel.roofline["fp32_intensity"] == pytest.approx(50e9 * 52.576e-6 / 4e6)


def test_every_counter_that_has_a_value_is_in_the_table(report: Path) -> None:
    rows = list(csv.reader(nsight.counters_csv(nsight.actions(report)).splitlines()))
    assert rows[0] == ["launch", "kernel", "metric", "unit", "value"]
    assert ["0", "kernel(float *)", "gpu__time_duration.sum", "ns", "52576.0"] in rows
    assert {row[2] for row in rows[1:]} == METRICS.keys() - {"dram__throughput.avg.pct_of_peak_sustained_elapsed"}


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_report_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "report.ncu-rep"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProfileError, match="empty or was not written"):
        read(path)


def test_a_report_without_kernels_is_an_error(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [])
    with pytest.raises(ProfileError, match="holds no kernel"):
        read(report)


def test_a_report_without_durations_is_an_error(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [[action({})]])
    with pytest.raises(ProfileError, match="incomplete"):
        read(report)


def test_an_unknown_unit_is_not_guessed_at(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [[action(METRICS | {"dram__bytes_read.sum": metric(1.0, "furlong")})]])
    with pytest.raises(ProfileError, match="furlong"):
        read(report)


# What ncu 2025.3 prints for `--csv --page raw --print-units base`, with fewer columns.
PRINTED = """\
==PROF== Disconnected
"ID","Process ID","Kernel Name","Grid Size","dram__bytes_read.sum","gpu__time_duration.sum"
"","","","","byte","ns"
"0","17","read(const float *, long)","(132, 1, 1)","8,388,608","2,912"
"1","17","read(const float *, long)","(132, 1, 1)","{bytes}","2,880"
"""


def test_what_ncu_itself_prints_is_read() -> None:
    names = ["dram__bytes_read.sum", "gpu__time_duration.sum"]
    printed = PRINTED.format(bytes="0")
    found = nsight.counted(printed, names)
    assert [[launch.values[name] for name in names] for launch in found] == [[8388608.0, 2912.0], [0.0, 2880.0]]
    assert {launch.kernel for launch in found} == {"read(const float *, long)"}
    with pytest.raises(ProfileError, match=r"lts__t_bytes.sum: launch 0 has no number: ncu printed None for it"):
        nsight.counted(printed, ["lts__t_bytes.sum"])
    with pytest.raises(ProfileError, match=r"dram__bytes_read.sum: launch 1 has no number: ncu printed 'n/a' for it"):
        nsight.counted(PRINTED.format(bytes="n/a"), names)
    with pytest.raises(ProfileError, match="unknown unit 'furlong'"):
        nsight.counted(printed.replace('"byte"', '"furlong"'), names)
    assert nsight.counted("==WARNING== No kernels were profiled.\n", names) == []


@pytest.mark.skipif(not SAMPLE.is_file(), reason="no sample of a real report here")
def test_a_real_report_and_what_is_not_one(tmp_path: Path) -> None:
    pytest.importorskip("ncu_report")
    nsight.reader.cache_clear()
    kernels = read(SAMPLE)
    assert kernels[0].duration_us > 0
    assert kernels[0].hot_lines
    garbage = tmp_path / "garbage.ncu-rep"
    garbage.write_bytes(b"this is no report" * 100)
    with pytest.raises(ProfileError, match="no kernel, or is damaged"):
        read(garbage)


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("a @section:Occupancy:Occupancy@ b", "a Occupancy b"),
        ("@url:CUDA Guide:https://docs.nvidia.com/a/b.html#c-d@.", "CUDA Guide."),
        ("@sass:0x7f10:this load@", "this load"),
        ("@source:k.cu:12:this line@", "this line"),
        ("mail a@b.c  and\n more", "mail a@b.c and more"),
    ],
)
def test_links_in_messages_become_words(marked: str, plain: str) -> None:
    assert nsight.plain_text(marked) == plain


def test_the_command_changes_no_setting() -> None:
    program = ["python", "x.py"]
    command = nsight.command(Path("ncu"), Path("out.ncu-rep"), program, ["Occupancy"], ["a.sum"], source=True)
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert command[command.index("--cache-control") + 1] == "all"
    assert command[command.index("--section") + 1] == "Occupancy"
    assert command[command.index("--metrics") + 1] == "a.sum"
    counting = nsight.counting_command(Path("ncu"), Path("out.csv"), program, ["a.sum", "b.avg"])
    assert counting[counting.index("--clock-control") + 1] == "none"
    assert counting[counting.index("--cache-control") + 1] == "none"
    assert counting[counting.index("--metrics") + 1] == "a.sum,b.avg"
    for line in (command, counting):
        assert line[-2:] == program
        assert "sudo" not in " ".join(line)


def test_a_named_ncu_that_is_not_there_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELPROOF_NCU", str(tmp_path / "ncu"))
    assert nsight.find_ncu() is None
    (tmp_path / "ncu").touch()
    assert nsight.find_ncu() == tmp_path / "ncu"
