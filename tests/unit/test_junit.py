from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from hand_made import objectives, record, run, worker

from exporters import junit, summary
from tokenswarm.records import Outcome
from tokenswarm.run import Run

SLO = {"p90(ttft)": "<2s", "p50(tpot)": "<5ms", "p999(e2e)": "<9s"}


def made(**over: Any) -> Run:
    rs = [record(k, due_s=10 + k * 0.1) for k in range(100)]
    return run(worker(0, *rs), objectives=objectives(SLO), **over)


def parsed(found: Run) -> ET.Element:
    suite = ET.fromstring(junit.build(summary.build(found))).find("testsuite")
    assert suite is not None
    return suite


def test_one_case_a_check_and_one_for_validity() -> None:
    suite = parsed(made())
    assert [c.get("name") for c in suite] == [
        "the run is valid", "p90(ttft) <2s", "p50(tpot) <5ms", "p999(e2e) <9s", "error_ratio <1%",
        "ok_requests >=1",
    ]  # fmt: skip
    assert {c.get("classname") for c in suite} == {"tokenswarm.hand-made"}
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "2", "1")
    assert suite.get("time") == "31.000"


def test_what_failed_says_why() -> None:
    valid, ttft, tpot, e2e, *_ = parsed(made())
    assert ttft.find("failure") is None
    failure = tpot.find("failure")
    assert failure is not None
    assert failure.get("message") == "p50(tpot) <5ms: got 0.02"
    assert failure.text == "20 ms, wanted <5ms"
    error = e2e.find("error")
    assert error is not None
    assert error.text == "100 values are too few for p999"
    invalid = valid.find("failure")
    assert invalid is not None
    assert invalid.get("message") == "insufficient_samples"


def test_a_good_run_has_no_failures() -> None:
    found = made()
    found.objectives = objectives({"p90(ttft)": "<2s"})
    suite = parsed(found)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "0", "0")
    assert all(len(case) == 0 for case in suite)


def test_an_slo_of_every_request_has_a_case_that_says_how_many_met_it() -> None:
    rs = [record(k, due_s=10 + k * 0.1, ttft_ms=100 if k < 75 else 3000) for k in range(99)]
    rs.append(record(99, Outcome.HTTP_ERROR, due_s=20))
    slo = {"ttft": "<2s", "main: tpot": "<50ms", "attainment": ">=80%", "error_ratio": "<5%"}
    found = run(worker(0, *rs), objectives=objectives(slo))
    for r in rs:
        found.workers["w0"].snapshot.stage(1).judge(r, found.objectives, "main")
    suite = parsed(found)
    said = {c.get("name"): c.findtext("system-out") for c in suite if len(c)}
    assert said == {
        "attainment >=80%": None,
        "ttft <2s (each request)": "met by 75 of 100 requests (75 %)",
        "main: tpot <50ms (each request)": "met by 99 of 100 requests (99 %)",
    }
    failed = [c.get("name") for c in suite if c.find("failure") is not None]
    assert failed == ["attainment >=80%"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "1", "0")


def test_an_slo_of_one_stage_names_it_once() -> None:
    found = made()
    found.objectives = objectives({"main: p90(ttft)": "<2s"})
    assert parsed(found)[1].get("name") == "main: p90(ttft) <2s"


def test_an_slo_of_every_request_that_judged_none_says_so() -> None:
    suite = parsed(run(worker(0), objectives=objectives({"ttft": "<2s"})))
    assert suite[-1].get("name") == "ttft <2s (each request)"
    assert suite[-1].findtext("system-out") == "no request was judged"


def test_texts_that_xml_cannot_hold_are_replaced() -> None:
    found = made(faults=[("internal_error", "bad \x00\x1b[31m <b> & \ud800 text")])
    found.workload.name = "a<b>&\x07"
    suite = parsed(found)
    assert suite.get("name") == "tokenswarm.a<b>&\N{REPLACEMENT CHARACTER}"
    failure = suite[0].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "bad \ufffd\ufffd[31m <b> & \ufffd text" in failure.text


def test_the_file_is_written_and_a_missing_folder_is_said(tmp_path: Path) -> None:
    found = made(out=tmp_path)
    exporter = junit.JUnit()
    exporter.start(found)
    exporter.interval(found)
    exporter.finish(found, summary.build(found))
    assert (tmp_path / "junit.xml").read_bytes() == junit.build(summary.build(found))
    found.out = tmp_path / "gone"
    said = summary.build(found)
    exporter.finish(found, said)
    exporter.close()
    assert "cannot write" in said["warnings"][-1]
