"""Locust's web UI in a real Chromium: one sitting of several runs, as a person has it.

Set TOKENSWARM_PICTURES to a folder to keep the pictures.
"""

import csv
import io
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import chromium
import pytest
import yaml
from product import Finished, free_port, running, workload, written

from tokenswarm.simulator.process import EngineProcess

pytestmark = [
    pytest.mark.browser,
    pytest.mark.e2e,
    pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed"),
]

SLO = {"p90(ttft)": "<2s", "p50(tpot)": "<1s"}
LOOKS = [(1280, False), (1280, True), (390, False), (390, True)]

# Parts of the panel that lie on one another, texts of a chart that do, and what leaves its card.
OVERLAPS = """(() => {
  const panel = document.querySelector("#ts-panel"), found = [];
  const meet = (a, b, least) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > least;
  const pairs = (parts, least) => parts.forEach((a, i) => parts.slice(i + 1).forEach((b) => {
    if (meet(a.getBoundingClientRect(), b.getBoundingClientRect(), least))
      found.push(`${a.textContent.trim().slice(0, 30)} on ${b.textContent.trim().slice(0, 30)}`);
  }));
  const table = [...document.querySelectorAll("table")].find((t) => !panel.contains(t));
  const tabs = document.querySelector('[role="tablist"]');
  pairs([panel, table, tabs], 1);
  pairs([...panel.querySelectorAll(".card"), ...panel.querySelectorAll(":scope > div:not(.grid):not(.figures)")]
    .filter((e) => !e.parentElement.closest(".card")), 1);
  for (const svg of panel.querySelectorAll("svg")) pairs([...svg.querySelectorAll("text")], 4);
  for (const card of panel.querySelectorAll(".card:not(.wrap)"))
    if (card.scrollWidth > card.clientWidth + 1) found.push(`too wide: ${card.textContent}`);
  return found;
})()"""  # noqa: E501 - a script

# Titles of charts in which nothing is drawn.
EMPTY = """[...document.querySelectorAll("#ts-panel .chart")].filter((card) =>
  ![...card.querySelectorAll("polyline")].some((line) => line.getTotalLength() > 50)
).map((card) => card.querySelector("h3").firstChild.textContent)"""

TABLE = """(() => {
  const panel = document.querySelector("#ts-panel");
  const table = [...document.querySelectorAll("table")].find((t) => !panel.contains(t));
  return [...table.querySelectorAll("tbody tr")].map((r) => [...r.cells].map((c) => c.innerText));
})()"""

FORM = "document.querySelector('input[name=userCount]')"

# Names of the form's fields that a person sees.
FIELDS = """[...document.querySelectorAll("form input[name]")]
  .filter((field) => field.checkVisibility({visibilityProperty: true})
    && field.closest(".MuiCollapse-root")?.offsetHeight !== 0).map((field) => field.name)"""

FILL = """((name, value) => {
  const field = document.querySelector(`input[name="${name}"]`);
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, value);
  for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, {bubbles: true}));
})"""

PRESS = """((word) => {
  const button = [...document.querySelectorAll("button, a")]
    .find((b) => b.getClientRects().length && b.textContent.trim().toLowerCase() === word);
  if (button) button.click();
  return Boolean(button);
})"""


class Sitting:
    """A browser on the UI of `tokenswarm run --web`, and the folders of the runs it started."""

    def __init__(self, browser, going, url, folder, engine):
        self.browser, self.going, self.url, self.folder = browser, going, url, folder
        self.engine = engine
        self.seen = set()
        going.wait_for(lambda: self.state() == "ready", "the web UI")
        going.wait_for(lambda: len(self.stats().get("workers", ())) == 2, "the workers")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def stats(self):
        return json.loads(self.get("/stats/requests"))

    def state(self):
        try:
            return self.stats()["state"]
        except OSError:
            return None

    def open(self, path="/", width=1280, dark=False):
        self.browser.open(self.url + path, width=width, dark=dark)
        self.wait(f"document.querySelector('[role=tablist]') || {FORM}", "the page")

    def wait(self, script, what):
        """Await a true value of a script."""
        return self.going.wait_for(lambda: self.browser.run(f"Boolean({script})"), what)

    def press(self, word):
        """Press the button with this word, once it is there."""
        script = f"{PRESS}({json.dumps(word)})"
        self.going.wait_for(lambda: self.browser.run(script), f"the button '{word}'")

    def shown_form(self):
        """Bring up the start form, which hides behind New after a run."""
        if not self.browser.run(f"Boolean({FORM})"):
            self.press("new")
            self.wait(FORM, "the form")

    def start(self, **fields):
        """Fill the start form and press Start."""
        self.shown_form()
        for name, value in fields.items():
            self.browser.run(f"{FILL}({json.dumps(name)}, {json.dumps(str(value))})")
        self.press("start")

    def said(self, words):
        """Await words on the page; gives the whole text."""
        self.wait(f"document.body.innerText.includes({json.dumps(words)})", words)
        return self.browser.run("document.body.innerText")

    def drawn(self):
        """Await the LLM tab's panel with its table."""
        self.wait("document.querySelectorAll('#ts-panel .chart').length === 8", "the charts")
        self.wait(f"{TABLE}.length", "the table")

    def finished(self):
        """The run that began last, once it is judged."""

        def judged():
            found = set(self.folder.glob("runs/*/junit.xml")) - self.seen
            return found and self.state() == "stopped" and found

        (path,) = self.going.wait_for(judged, "a finished run")
        self.seen.add(path)
        return Finished(0, "", "", path.parent)

    def keep(self, name):
        folder = os.environ.get("TOKENSWARM_PICTURES")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.browser.picture(Path(folder) / f"web-{name}.png")


@pytest.fixture(scope="module")
def sitting(tmp_path_factory):
    tmp, port = tmp_path_factory.mktemp("ui"), free_port()
    stages = [{"duration": "1s", "users": 2, "warmup": True}, {"requests": 80, "users": 4}]
    file = written(tmp, workload(load={"users": 3, "requests": 120}, slo=SLO))
    other = workload(
        name="open", load={"mode": "open", "rate_per_s": 5, "duration": "30s"}, slo=SLO
    )
    written(tmp / "other", other)
    written(tmp / "staged", workload(name="staged", load={"stages": stages}, slo=SLO))
    written(tmp / "bad", workload(load={"users": "three", "requests": 40}, modell=1))
    with (
        EngineProcess("--set", "base_ms=40", "itl_ms=8") as engine,
        chromium.Chromium() as browser,
    ):
        command = [sys.executable, "-m", "tokenswarm.cli", "run", str(file), "--host", engine.url,
                   "--workers", "2", f"--web={port}", "--export", "prometheus=off"]  # fmt: skip
        with running(command, tmp, cwd=tmp) as going:
            yield Sitting(browser, going, f"http://127.0.0.1:{port}", tmp, engine)
            os.killpg(going.process.pid, signal.SIGINT)
            assert "Traceback" not in going.finish().said


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_form_asks_for_what_can_be_changed_only(sitting, width, dark):
    sitting.open(width=width, dark=dark)
    sitting.shown_form()
    sitting.keep(f"form-{width}-{'dark' if dark else 'light'}")
    assert sitting.browser.run(FIELDS) == ["userCount", "host"]
    for word, field in (("advanced options", "runTime"), ("custom parameters", "ratePerS")):
        sitting.press(word)
        sitting.wait(f"{FIELDS}.includes('{field}')", word)
    sitting.wait("document.getAnimations().length === 0", "open parts")
    sitting.keep(f"form-open-{width}-{'dark' if dark else 'light'}")
    assert sitting.browser.run(FIELDS) == [
        "userCount", "host", "runTime", "profile", "ratePerS", "workload",
    ]  # fmt: skip
    assert "Ramp up" not in sitting.browser.run("document.body.innerText")
    assert sitting.browser.run("document.documentElement.scrollWidth") <= width
    assert sitting.browser.complaints() == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workload": "nowhere.yaml"}, "nowhere.yaml: "),
        ({"workload": "bad/workload.yaml"}, "bad/workload.yaml:"),
        ({"userCount": "0"}, "load.users=0: load.users: "),
        ({"host": "example"}, "--host 'example': not an http or https URL"),
        ({"ratePerS": "5"}, "rate per s: the workload is a closed loop"),
        (
            {"workload": "staged/workload.yaml", "runTime": "5s"},
            "run time: the workload has stages",
        ),
    ],
)
def test_a_mistake_in_the_form_is_said_there(sitting, fields, words):
    state = sitting.state()
    sitting.open()
    sitting.start(**fields)
    assert "Start new load test" in sitting.said(words)
    assert sitting.state() == state
    assert sitting.browser.complaints() == []
    assert sitting.browser.run("document.documentElement.scrollWidth") <= 1280
    sitting.keep(f"mistake-{words.split(':')[0].replace('/', '-').replace(' ', '-')}")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_server_that_is_not_there_is_said_on_every_tab(sitting, dark):
    before = set(sitting.folder.glob("runs/*/summary.json"))
    sitting.open()
    sitting.start(host=f"http://127.0.0.1:{free_port()}")
    sitting.said("The run was not started")
    sitting.open(width=390, dark=dark)
    sitting.said("The run was not started")
    sitting.keep(f"refused-{'dark' if dark else 'light'}")
    assert "refused" in sitting.browser.run("document.querySelector('#ts-problem').innerText")
    assert sitting.browser.run("document.documentElement.scrollWidth") <= 390
    assert sitting.browser.run(chromium.contrast("#ts-problem")) == []
    sitting.going.wait_for(lambda: sitting.state() == "stopped", "the end")
    sitting.press("close")
    assert sitting.browser.run("document.querySelector('#ts-problem').hidden")
    assert set(sitting.folder.glob("runs/*/summary.json")) == before


@pytest.fixture(scope="module")
def runs(sitting):
    """Runs started and stopped one after the other: (run, Locust's CSV, Locust's report)."""
    found = {}

    def begin(**fields):
        sitting.open()
        sitting.start(host=sitting.engine.url, **fields)
        sitting.going.wait_for(lambda: sitting.state() == "running", "the start")

    def end(name):
        run = sitting.finished()
        found[name] = run, sitting.get("/stats/requests/csv"), sitting.get("/stats/report")

    begin(workload="workload.yaml", userCount=3)
    end("by requests")
    begin(userCount=5, runTime="3s")
    end("by time")
    begin(workload="other/workload.yaml", ratePerS=20, runTime="4s")
    end("another workload")
    begin(workload="workload.yaml", ratePerS=0, userCount=4, runTime="60s")
    sitting.open("/?tab=llm")
    sitting.drawn()
    sitting.wait(f"{EMPTY}.length === 0", "lines in all charts")
    sitting.keep("going-on")
    text = sitting.browser.run("document.querySelector('#ts-panel').innerText")
    assert re.search(r"failed\s+0\s", text)
    assert re.search(r"■ users 4\b", text.replace("\xa0", " "))
    sitting.press("stop")
    end("stopped")
    begin(workload="staged/workload.yaml", userCount=4, runTime="")
    end("stages")
    return found


NAMES = ["by requests", "by time", "another workload", "stopped", "stages"]


def test_each_run_is_what_the_form_said(runs):
    used = {n: yaml.safe_load((runs[n][0].folder / "workload.yaml").read_text()) for n in NAMES}
    assert [used[n]["load"]["users"] for n in ("by requests", "by time", "stopped")] == [3, 5, 4]
    assert len(runs["by requests"][0].rows) == 120
    assert max(row["due_offset_s"] for row in runs["by time"][0].rows) < 3
    assert (used["another workload"]["name"], used["another workload"]["load"]["mode"]) == (
        "open", "open",
    )  # fmt: skip
    assert used["another workload"]["load"]["rate_per_s"] == 20
    assert runs["another workload"][0].summary["window"]["seconds"] == pytest.approx(4)
    assert len({runs[n][0].summary["run"]["id"] for n in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_throughput_is_that_of_the_records(runs, name):
    finished = runs[name][0]
    window = finished.summary["window"]
    ends = [row["last_token"] for row in finished.rows if row["outcome"] == "ok"]
    inside = sum(window["start"] <= end < window["end"] for end in ends)
    rate = finished.summary["throughput"]["requests_per_s"]
    # a window that ends by a number of requests is cut at 10 ms
    assert rate * window["seconds"] == pytest.approx(inside, abs=4)


@pytest.mark.parametrize("name", NAMES)
def test_locusts_own_csv_and_report_are_right(runs, name):
    finished, text, report = runs[name]
    ok = [row for row in finished.rows if row["outcome"] == "ok"]
    rows = {row["Name"]: row for row in csv.DictReader(io.StringIO(text))}
    name = finished.summary["run"]["name"]
    assert set(rows) == {f"{name} openai-completions", "Aggregated"}
    mean_ms = 1000 * sum(row["e2e_s"] for row in ok) / len(ok)
    for row in rows.values():
        assert int(row["Request Count"]) == finished.summary["requests"]["ok"] == len(ok)
        assert float(row["Average Response Time"]) == pytest.approx(mean_ms, rel=0.02)
    assert f'"num_requests": {len(ok)}' in report


def shown(figure):
    return ["-" if figure[key] is None else round(1000 * figure[key], 3)
            for key in ("mean", "p50", "p90", "p99", "max")]  # fmt: skip


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_tab_can_be_read_and_shows_the_summarys_figures(sitting, runs, width, dark):
    summary = runs["stages"][0].summary
    sitting.open("/?tab=llm", width=width, dark=dark)
    sitting.drawn()
    sitting.keep(f"{width}-{'dark' if dark else 'light'}")
    browser = sitting.browser
    assert browser.complaints() == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERLAPS) == []
    assert browser.run(EMPTY) == []
    assert browser.run(chromium.contrast("#ts-panel")) == []
    assert browser.run("document.querySelector('#ts-panel').classList.contains('dark')") == dark
    rows = []
    for stage in summary["stages"]:
        name = stage["name"]  # "warmup": one that is not called so has "(warm-up)" added
        for metric in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
            figure = stage["metrics"][metric]
            rows.append([name, f"{metric[:-2].upper()} (ms)", figure["count"], *shown(figure)])
    table = browser.run(TABLE)
    assert [[*row[:2], *(c if c == "-" else float(c) for c in row[2:])] for row in table] == rows
    text = browser.run("document.querySelector('#ts-panel').innerText")
    # on a busy machine a worker may start late, and the run then says so
    assert ("valid, SLOs passed" if summary["valid"] else "invalid: its numbers must not") in text
    assert f"{summary['requests']['ok']}" in text
    for check in summary["slo"]["checks"]:
        assert f"PASS {check['text']}: {check['detail']}" in text


def test_locusts_own_switch_of_colours_is_followed(sitting, runs):
    sitting.open("/?tab=llm", dark=False)
    sitting.drawn()
    dark = "document.querySelector('#ts-panel').classList.contains('dark')"
    switch = "[...document.querySelectorAll('header button')].at(-1)"
    assert not sitting.browser.run(dark)
    sitting.browser.run(f"{switch}.click()")
    sitting.wait(dark, "dark colours")
    assert sitting.browser.run(chromium.contrast("#ts-panel")) == []
    sitting.browser.run(f"{switch}.click()")
    sitting.wait(f"!{dark}", "light colours")


def test_the_panel_is_on_its_own_tab_only(sitting, runs):
    sitting.open("/?tab=llm")
    sitting.drawn()
    sitting.press("statistics")
    sitting.wait("document.querySelector('#ts-panel').hidden", "another tab")
    sitting.press("llm")
    sitting.wait("!document.querySelector('#ts-panel').hidden", "the tab again")
    sitting.drawn()
    assert sitting.browser.run(OVERLAPS) == []


def test_files_can_be_fetched_and_the_report_opens(sitting, runs):
    finished = runs["stages"][0]
    sitting.open("/?tab=llm")
    sitting.drawn()
    links = sitting.browser.run(
        "[...document.querySelectorAll('#ts-panel a')].map((a) => a.getAttribute('href'))"
    )
    assert [link.rpartition("/")[2] for link in links] == [
        "report.html", "summary.json", "requests.jsonl", "timeline.jsonl", "junit.xml",
        "workload.yaml", "workers.json",
    ]  # fmt: skip
    for link in links:
        assert sitting.get(link) == (finished.folder / link.rpartition("/")[2]).read_text()
    sitting.browser.open(sitting.url + links[0])
    assert sitting.browser.complaints() == []
    words = "Valid run, all SLOs met" if finished.summary["valid"] else "Invalid run: "
    assert words in sitting.browser.run("document.body.innerText")


def test_other_files_cannot_be_fetched(sitting, runs):
    for name in ("console.log", "..%2F..%2Fworkload.yaml", "%2Fetc%2Fpasswd"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            sitting.get(f"/tokenswarm/files/{name}")


def test_a_run_that_goes_on_cannot_be_edited(sitting, runs):
    sitting.open()
    sitting.start(host=sitting.engine.url, workload="workload.yaml", userCount=2, runTime="60s")
    sitting.going.wait_for(lambda: sitting.state() == "running", "the start")
    sitting.press("edit")
    sitting.wait(FORM, "the form")
    sitting.browser.run(f"{FILL}('userCount', '9')")
    sitting.press("update")
    assert "The run was not changed" in sitting.said("a run is going on and its plan is fixed")
    sitting.keep("edit")
    sitting.open("/?tab=llm")
    sitting.drawn()
    sitting.press("stop")
    finished = sitting.finished()
    used = yaml.safe_load((finished.folder / "workload.yaml").read_text())
    assert used["load"]["users"] == 2
    assert finished.codes == ["cut_short"]
    sitting.wait("document.querySelector('#ts-panel .bad')", "the verdict")
    assert "invalid: its numbers must not be used" in sitting.said("cut_short: ")
    sitting.keep("stopped")
