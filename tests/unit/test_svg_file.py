from __future__ import annotations

import re
from xml.dom import minidom

import pytest

from exporters import svg_file
from exporters.charts import Chart, Line, Points, figure
from exporters.scales import Axis

NOTE = "Borders (the medians): $0.06 & 36.8 tokens/s. " + "Dashed: the best speed for money. " * 3


@pytest.fixture
def page() -> str:
    marks = [Line("a", [0, 1], [0, 1], 0), Points("b", [0.5], [0.5], 1, ["seqs n=8"])]
    chart = Chart("speed", "Price < speed", Axis("x", ""), Axis("y", ""), marks, note=NOTE)
    return f"<html><figure id=other></figure>{figure(chart)}<p class=note>not this</p></html>"


def test_it_is_xml_with_the_pictures_lines_and_texts(page: str) -> None:
    document = minidom.parseString(svg_file.standalone(page, "speed"))
    classes = [path.getAttribute("class") for path in document.getElementsByTagName("path")]
    assert [c.split()[0] for c in classes] == ["line", "point"]
    texts = [t.firstChild.data for t in document.getElementsByTagName("text") if t.firstChild]
    assert texts[0] == "Price < speed"
    assert {"x", "y", "seqs n=8"} <= set(texts)
    assert "not this" not in texts


def test_the_note_is_wrapped_and_whole(page: str) -> None:
    document = minidom.parseString(svg_file.standalone(page, "speed"))
    (group,) = document.getElementsByTagName("g")
    notes = [t.firstChild.data for t in document.getElementsByTagName("text")
             if t.parentNode is not group][1:]  # fmt: skip
    assert " ".join(notes) == NOTE.strip()
    assert max(len(line) for line in notes) <= 82
    assert len(notes) == 2


def test_its_colours_are_inside_for_day_and_night(page: str) -> None:
    style = re.search(r"<style>(.*?)</style>", svg_file.standalone(page, "speed"), re.DOTALL)
    assert style is not None
    assert style[1].count("--c0: #") == 2
    assert "prefers-color-scheme: dark" in style[1]
    assert style[1].count("{") == style[1].count("}")


def test_a_picture_that_is_not_there(page: str) -> None:
    with pytest.raises(KeyError):
        svg_file.standalone(page, "slow")
