"""Variants over several runs: in the order of time, honest about what was compared with what."""

import json
import os
import re
import socket
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from simulated_runs import make, write

from kernelproof import charts, cli, history
from kernelproof.errors import ExitCode, RecordError
from kernelproof.runs import Unread


def test_runs_are_in_the_order_of_their_time() -> None:
    found = history.history([make(3, name="c", day=3), make(1, name="a", day=1), make(2, name="b", day=2)])
    assert [side.name for side in found.runs] == ["a", "b", "c"]
    assert [line.key for line in found.lines] == ["op/fast", "op/plain"]  # baselines are no variants
    fast = found.lines[0]
    assert [point.run for point in fast.points] == [1, 2, 3]
    assert fast.points[0].change is None
    assert all(point.change and point.change.verdict == "undecided" for point in fast.points[1:])
    assert fast.points[0].time_us == pytest.approx(9.0, rel=0.1)
    assert found.exit_code == ExitCode.WELL


def test_a_change_is_told_where_it_happened_and_no_other_place() -> None:
    made = [
        make(seed, day=seed, machine_code=code, factors={"fast": factor})
        for seed, code, factor in ((1, "one", 1.0), (2, "one", 1.0), (3, "two", 1.4), (4, "two", 1.4))
    ]
    fast = history.history(made).lines[0]
    assert [point.change.verdict if point.change else "" for point in fast.points] == [
        "",
        "undecided",
        "slower",
        "undecided",
    ]


def test_another_gpu_is_shown_and_not_compared() -> None:
    found = history.history([make(1, day=1), make(2, day=2, gpu="NVIDIA L4"), make(3, day=3)])
    points = found.lines[0].points
    assert [point.why_not for point in points[1:]] == [
        "the GPU models differ: NVIDIA H200 and NVIDIA L4",
        "the GPU models differ: NVIDIA L4 and NVIDIA H200",
    ]
    picture = found._pictures()[0][1]
    assert len(picture.spots) == 3
    assert len(picture.joins) == 1, "only the two runs of one model are joined"


def test_a_case_of_other_sizes_is_no_time_of_the_same_line() -> None:
    old, new, newer = make(1, day=1), make(2, day=2), make(3, day=3)
    for case in old.benches["op-cuda"].cases:
        case.dims["size"] = 7
    points = history.history([old, new, newer]).lines[0].points
    assert [point.time_us is None for point in points] == [True, False, False]
    assert points[0].why_not == "its case had other sizes: size=7"
    assert points[1].change is None
    assert points[2].change is not None


def test_a_variant_that_broke_in_the_last_run() -> None:
    found = history.history([make(1, day=1), make(2, day=2, verdicts={"fast": "wrong"})])
    assert found.exit_code == ExitCode.BAD_VERDICT
    assert "no longer correct in the last: op/fast" in found.summary
    mended = history.history([make(1, day=1, verdicts={"fast": "wrong"}), make(2, day=2)])
    assert mended.exit_code == ExitCode.WELL
    wrong = history.history([make(day, day=day, verdicts={"fast": "wrong"}) for day in (1, 2)])
    assert wrong.exit_code == ExitCode.WELL, "nothing broke"
    assert "not correct in the last, nor before: op/fast" in wrong.summary
    assert wrong.mark == "⚠️"


def test_what_the_last_run_does_not_show_is_not_called_well() -> None:
    untested = history.history([make(1, day=1), make(2, day=2), make(3, day=3, verdicts={"fast": "not_run"})])
    assert untested.exit_code == ExitCode.COULD_NOT_RUN
    assert "correct before and not tested in the last: op/fast." in untested.summary
    assert untested.markdown().startswith("## ⚠️")
    assert "not all could be seen" in untested.html()
    before = history.history(
        [make(1, day=1), make(2, day=2, verdicts={"fast": "wrong"}), make(3, day=3, only=["plain"])]
    )
    assert before.exit_code == ExitCode.WELL, "it was wrong when it was last tested"
    unreadable = make(2, day=2)
    unreadable.unread.append(Unread("test/op-plain.json", "it is empty"))
    found = history.history([make(1, day=1), unreadable])
    assert found.exit_code == ExitCode.COULD_NOT_RUN
    assert "1 record not read" in found.summary


def test_a_variant_that_came_later_or_was_never_timed() -> None:
    first, second = make(1, day=1, only=("plain", "cudnn")), make(2, day=2)
    for run in (first, second):
        run.benches["op-cuda"].times = [row for row in run.benches["op-cuda"].times if row.contender != "plain"]
    found = history.history([first, second])
    assert [line.key for line in found.lines] == ["op/fast"]
    assert [point.verdict for point in found.lines[0].points] == ["missing", "correct"]
    assert [line.key for line in found.without_times] == ["op/plain"]
    assert "Without times" in found.markdown()


def test_too_few_runs_and_nothing_in_common(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="give two or more"):
        history.run([tmp_path])
    with pytest.raises(RecordError, match="no two of them"):
        history.history([make(1, only=("fast",)), make(2, only=("plain",))])


def test_the_command_in_all_its_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(write(make(seed, day=seed, commit=f"{seed}"), tmp_path / str(seed))) for seed in (1, 2, 3)]
    files = {form: tmp_path / f"h.{form}" for form in ("markdown", "html", "svg")}
    options = [part for form, path in files.items() for part in (f"--{form}", str(path))]
    assert cli.main(["history", *folders, "--json", *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == history.SCHEMA
    assert [side["commits"] for side in printed["runs"]] == [[digit * 12] for digit in "123"]
    assert "| 2 | correct |" in files["markdown"].read_text()
    page, svg = files["html"].read_text(), files["svg"].read_text()
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    drawing = ElementTree.fromstring(svg)
    circles = [element for element in drawing.iter() if element.tag.endswith("circle")]
    assert len(circles) == 6
    assert cli.main(["history", folders[0], folders[0]]) == 0


def test_a_link_stays_one_and_a_device_takes_the_text(tmp_path: Path) -> None:
    folders = [str(write(make(seed, day=seed), tmp_path / str(seed))) for seed in (1, 2)]
    there, link, pipe = tmp_path / "there.md", tmp_path / "link.md", tmp_path / "pipe"
    link.symlink_to(there)
    assert cli.main(["history", *folders, "--markdown", str(link)]) == 0
    assert link.is_symlink()
    assert there.read_text().startswith("## ")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert cli.main(["history", *folders, "--markdown", str(pipe)]) == 0
    assert os.read(reader, 3) == b"## "
    os.close(reader)
    assert pipe.is_fifo()
    bound = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bound))
        assert cli.main(["history", *folders, "--markdown", str(bound)]) == 2  # nobody can write there
    assert bound.is_socket()


# --- the picture ------------------------------------------------------------------------------------------------------


def reading(value: float, group: str = "m") -> charts.Reading:
    return charts.Reading(value, value * 0.999, value * 1.001, group, "good", "")


def test_noise_does_not_fill_the_picture() -> None:
    picture = charts.series([reading(10.0), reading(10.02)])
    assert picture is not None
    assert abs(picture.spots[0].y - picture.spots[1].y) < 0.05 * picture.height
    assert picture.spots[0].y > picture.spots[1].y, "slower is higher"


def test_gaps_are_gaps() -> None:
    picture = charts.series([reading(1.0), None, reading(2.0), reading(3.0, "other")])
    assert picture is not None
    assert len(picture.spots) == 3
    assert len(picture.joins) == 1
    assert [tick.label for tick in picture.numbers] == ["1", "2", "3", "4"]
    lost = charts.Reading(None, 0.0, 0.0, "machine", "bad", "wrong, and not timed")
    broken = charts.series([reading(1.0), lost, reading(2.0)])
    assert broken
    assert (len(broken.joins), broken.spots[1].y, broken.spots[1].kind) == (0, broken.height, "bad")
    assert charts.series([lost, None]) is None
    assert charts.series([None, None]) is None
    many = charts.series([reading(1.0)] * 40)
    assert many is not None
    assert len(many.numbers) <= 13
