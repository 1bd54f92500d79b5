"""junit.xml: one test case an SLO and one for validity, for CI systems that show them.

An SLO that holds for every request has a case that passes, whose output says the share of requests
that met it: how large that must be is said by `attainment`, which has a case of its own. It knows
summary.json's keys and nothing of a Run.

The one subtle rule: in XML 1.0 most control characters cannot be written at all, not even escaped,
so they are replaced.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from exporters import files
from tokenswarm.run import Run
from tokenswarm.slo import quantity

FILE = "junit.xml"
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(value: object) -> str:
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", str(value))


def _case(suite: ET.Element, classname: str, name: str, seconds: float) -> ET.Element:
    return ET.SubElement(
        suite, "testcase", classname=_text(classname), name=_text(name), time=f"{seconds:.3f}"
    )


def _add_check(suite: ET.Element, classname: str, check: dict[str, Any]) -> None:
    """A check that failed is a failure; one that could not be decided is an error."""
    case = _case(suite, classname, check["text"], 0.0)
    if check["passed"] is True:
        return
    actual = "no value" if check["actual"] is None else f"{check['actual']:.6g}"
    message = f"{check['text']}: got {actual}"
    kind = "failure" if check["passed"] is False else "error"
    element = ET.SubElement(case, kind, message=_text(message), type="slo")
    element.text = _text(check.get("detail") or message)


def _add_share(suite: ET.Element, classname: str, each: dict[str, Any]) -> None:
    """A case that says how many requests met an SLO of every request."""
    case = _case(suite, classname, f"{each['text']} (each request)", 0.0)
    text = "no request was judged"
    if each["evaluated"]:
        share = quantity(each["share"], "share")
        text = f"met by {each['met']} of {each['evaluated']} requests ({share})"
    ET.SubElement(case, "system-out").text = text


def build(summary: dict[str, Any]) -> bytes:
    """The XML document of a run's summary."""
    about = summary["run"]
    checks, reasons = summary["slo"]["checks"], summary["invalid_reasons"]
    shares = summary["slo"].get("per_request") or []  # summaries of older runs have none
    name = f"tokenswarm.{about['name']}"
    seconds = (about["ended"] or about["started"]) - about["started"]
    failed = sum(c["passed"] is False for c in checks) + bool(reasons)
    errors = sum(c["passed"] is None for c in checks)
    suite = ET.Element(
        "testsuite",
        name=_text(name), tests=str(len(checks) + len(shares) + 1), failures=str(failed),
        errors=str(errors), skipped="0", time=f"{seconds:.3f}",
    )  # fmt: skip
    case = _case(suite, name, "the run is valid", seconds)
    if reasons:
        message = "; ".join(reason["code"] for reason in reasons)
        element = ET.SubElement(case, "failure", message=_text(message), type="validity")
        element.text = _text("\n".join(f"{r['code']}: {r['detail']}" for r in reasons))
    for check in checks:
        _add_check(suite, name, check)
    for each in shares:
        _add_share(suite, name, each)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


class JUnit(files.FileAtEnd):
    """Writes junit.xml when a run ends."""

    def write(self, out: Path, run: Run, summary: dict[str, Any]) -> str | None:
        """Write the file."""
        return files.try_write(out / FILE, build(summary), run)
