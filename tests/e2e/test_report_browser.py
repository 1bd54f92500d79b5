"""The report in a real Chromium: what a person sees, on a desk and on a phone, by day and night.

Set TOKENSWARM_PICTURES to a folder to keep the pictures.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
sys.path.insert(0, str(Path(__file__).parent))
import chromium
import run_folder

from exporters import compare_report, html_report, study_report
from tokenswarm import economics
from tokenswarm.compare import compare

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed"),
]

# Texts of one picture that overlap by more than a hair, and texts that leave their picture.
COLLISIONS = """(() => {
  const found = [];
  for (const figure of document.querySelectorAll("figure.chart")) {
    const frame = figure.getBoundingClientRect();
    const texts = [...figure.querySelectorAll("svg text")];
    const boxes = texts.map(t => t.getBoundingClientRect());
    boxes.forEach((a, i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1)
        found.push(`${figure.id}: '${texts[i].textContent}' leaves the picture`);
      boxes.slice(i + 1).forEach((b, k) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 4)
          found.push(`${figure.id}: ${texts[i].textContent} on ${texts[i + 1 + k].textContent}`);
      });
    });
  }
  return found;
})()"""

INK = """[...document.querySelectorAll("figure.chart")].filter(figure =>
  ![...figure.querySelectorAll("path.line, path.bar, path.point")].some(p => p.getTotalLength() > 5)
).map(figure => figure.id)"""


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = run_folder.write(
        tmp_path_factory.mktemp("run"), run_folder.rows(n=1500, burst=True, itl=True)
    )
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["utilization"] = economics.utilization(
        summary, economics.Hardware("H100-SXM", 8, 3350e9, 989e12, 8, 80e9),
        economics.Model(70e9, 2.0, 327_680), {"sequences": 9.3, "context_tokens": 8000.0},
    )  # fmt: skip
    path.write_text(json.dumps(summary))
    return write(folder)


def write(folder):
    summary = json.loads((folder / "summary.json").read_text())
    html = html_report.build(summary, folder / "requests.jsonl", folder / "timeline.jsonl")
    path = folder / "report.html"
    path.write_text(html)
    return path


def keep(browser, name):
    folder = os.environ.get("TOKENSWARM_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.picture(Path(folder) / f"{name}.png")


@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_can_be_read(browser, report, width, dark):
    browser.open(report.as_uri(), width=width, dark=dark)
    keep(browser, f"report-{width}-{'dark' if dark else 'light'}")
    assert browser.complaints() == []
    assert browser.requested() == [report.as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(COLLISIONS) == []
    assert browser.run(INK) == []
    assert browser.run(chromium.contrast()) == []
    assert browser.run("document.querySelectorAll('#roofline path.line').length") == 2


@pytest.fixture(scope="module")
def other_pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = [
        run_folder.write(folder / name, run_folder.rows(n=900, seed=k, speed=speed))
        for k, (name, speed) in enumerate((("base", 1.0), ("slow", 1.3), ("fast", 0.7)))
    ]
    pages = {
        "compare": compare_report.html(compare(runs[0], runs[1:])),
        "study": study_report.build(run_folder.write_study(folder / "study"), answer_limit_s=25.6),
    }
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html)
    return folder


@pytest.mark.parametrize("name", ["compare", "study"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_other_pages_can_be_read(browser, other_pages, name, width, dark):
    page = other_pages / f"{name}.html"
    browser.open(page.as_uri(), width=width, dark=dark)
    keep(browser, f"{name}-{width}-{'dark' if dark else 'light'}")
    assert browser.complaints() == []
    assert browser.requested() == [page.as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(COLLISIONS) == []
    assert browser.run(INK) == []
    assert browser.run(chromium.contrast()) == []


def test_the_verdict_is_seen_without_scrolling(browser, report):
    browser.open(report.as_uri(), width=390, height=700)
    bottom = browser.run("document.querySelector('.verdict').getBoundingClientRect().bottom")
    assert 0 < bottom < 300


def test_a_pointer_on_a_picture_shows_its_values(browser, report):
    browser.open(report.as_uri())
    browser.run("document.querySelector('#time-ttft_s').scrollIntoView()")
    box = browser.run(
        "(b => [b.x + b.width / 2, b.y + b.height / 2])"
        "(document.querySelector('#time-ttft_s .plot').getBoundingClientRect())"
    )
    browser.hover(*box)
    shown = browser.run("document.querySelector('#time-ttft_s .tip').innerText")
    words = shown.replace("\xa0", " ").split("\n")
    assert len(words) == 4
    assert [w.split()[0] for w in words[1:]] == ["p50", "p90", "p99"]
    assert all(w.split()[-1] in ("ms", "s") for w in words[1:])


def test_it_prints(browser, report, tmp_path):
    browser.open(report.as_uri(), dark=True)
    browser.print(tmp_path / "report.pdf")
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 12


def test_a_report_of_100000_requests_is_small_and_opens_quickly(browser, tmp_path):
    rows = run_folder.rows(n=100_000, seconds=3600.0)
    folder = run_folder.write(tmp_path, rows, with_timeline=False)
    began = time.process_time()
    path = write(folder)
    built = time.process_time() - began
    took = browser.open(path.as_uri())
    keep(browser, "report-100000")
    assert path.stat().st_size < 1_000_000  # the promise is 10 MB
    assert took < 3
    assert built < 15  # about 3 s on a quiet core
    assert browser.complaints() == []
    assert browser.run(INK) == []
