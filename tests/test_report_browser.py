"""Pages in a real browser: nothing asked of anybody, nothing on the console, nothing wider than the screen."""

import functools
import html
import http.server
import json
import re
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import report_records
import simulated_runs

from kernelproof import compare, history, report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr"
).split()
WIDTHS = (360, 390, 768, 1280)  # CSS pixels: a small and a usual phone, a tablet, a desk
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(BROWSERS)} is installed")

# Reads every frame once it is laid out. Rows of a plotted table must not reach into one another, as they do when a
# row's height is fixed and its cells wrap.
MEASURE = """
addEventListener('load', () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const rows = [...page.querySelectorAll('table.plotted tbody tr')].filter(row => row.offsetHeight);
    const spilling = rows.filter(row => {
      const end = row.getBoundingClientRect().bottom + 1;
      return [...row.children].some(cell => cell.getBoundingClientRect().bottom > end);
    });
    return {width: frame.clientWidth, needed: root.scrollWidth, height: root.scrollHeight, rows: rows.length,
            spilling: spilling.map(row => row.textContent.slice(0, 60))};
  });
  document.getElementById('found').textContent = JSON.stringify(found);
});
"""


@pytest.fixture(scope="module", params=["cpu", "gpu", "compare", "history"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in ("compare", "history"):
        before = simulated_runs.make(1, torch="2.4.1", day=1)
        after = simulated_runs.make(2, day=2, verdicts={"fast": "wrong"}, factors={"plain": 1.3}, machine_code="other")
        two = compare.compare(before, after) if request.param == "compare" else history.history([before, after])
        (folder / "report.html").write_text(two.html(), encoding="utf-8")
        return folder / "report.html"
    run = {"cpu": report_records.cpu_run, "gpu": report_records.gpu_run}[request.param]()
    found = report.read_all(report_records.write_run(folder, run), folder)
    path = folder / "report.html"
    path.write_text(report.render_html(found, report_records.SETTINGS), encoding="utf-8")
    return path


def browse(address: str, scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    profile = scratch / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", *arguments, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def console(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "CONSOLE" in line]


class Recorder(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and remembers what was asked for."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(page: Path) -> Iterator[str]:
    Recorder.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Recorder, directory=str(page.parent)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_one_request_and_a_silent_console(served: str, tmp_path: Path) -> None:
    """What the page may not load, its own Content-Security-Policy refuses aloud, on the console."""
    done = browse(f"{served}/report.html", tmp_path, "--dump-dom")
    assert Recorder.asked == ["/report.html"]
    assert console(done.stderr) == []
    assert "</footer>" in done.stdout


def test_the_check_of_the_console_would_see_a_request(tmp_path: Path, page: Path) -> None:
    asking = tmp_path / "asking.html"
    asking.write_text(
        page.read_text(encoding="utf-8").replace("</footer>", "<img src='http://192.0.2.1/x.png'></footer>")
    )
    assert console(browse(asking.as_uri(), tmp_path, "--dump-dom").stderr) != []


def test_nothing_is_wider_than_the_screen(page: Path, tmp_path: Path) -> None:
    source = html.escape(page.read_text(encoding="utf-8"))
    frames = "".join(f'<iframe width="{w}" height="900" style="border:0" srcdoc="{source}"></iframe>' for w in WIDTHS)
    opened = frames.replace(html.escape("<details"), html.escape("<details open"))
    for name, content in (("closed", frames), ("open", opened)):
        wrapper = tmp_path / f"{name}.html"
        wrapper.write_text(
            f'<!doctype html><meta charset="utf-8"><script>{MEASURE}</script><pre id="found"></pre>{content}',
            encoding="utf-8",
        )
        dom = browse(wrapper.as_uri(), tmp_path, "--dump-dom").stdout
        match = re.search(r'<pre id="found">(.+?)</pre>', dom)
        assert match, "the frames were not measured"
        found = json.loads(html.unescape(match[1]))
        assert [f["width"] for f in found] == list(WIDTHS)
        assert all(f["rows"] for f in found) == ('class="plotted"' in page.read_text(encoding="utf-8"))
        assert {f["width"]: f["needed"] for f in found if f["needed"] > f["width"]} == {}, name
        assert {f["width"]: f["spilling"] for f in found if f["spilling"]} == {}, name


@pytest.mark.parametrize("size", [(500, 900), (1280, 900)], ids=["narrow", "desktop"])
def test_a_screenshot_shows_something(size: tuple[int, int], page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(page.as_uri(), tmp_path, f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}")
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == size
    assert len(data) > 30_000  # an empty page of this size compresses to some 5 kB


def test_it_prints(page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    browse(page.as_uri(), tmp_path, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", paper.read_bytes())) >= (
        3 if page.parent.name[:3] in ("cpu", "gpu") else 1
    )
