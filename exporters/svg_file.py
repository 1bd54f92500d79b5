"""A picture of a report as an SVG file of its own, for a README or a slide.

It takes a figure out of a finished page and puts the page's style into it. It knows nothing of
what the picture shows. The one subtle rule: HTML lets attributes stand without quotes and
elements without content, an SVG file is XML and does not.
"""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import escape

_STYLE = Path(__file__).with_name("report.css")
_KEPT = re.compile(
    r"\s*(--|:root|@media \(prefers-color|\}|\.c\d |circle|\.grid|\.axis|\.line|\.point|\.rule"
    r"|svg text\b|line\.rule)"
)
_OWN = (
    ".card { fill: var(--card); }",
    "svg text.title { font-size: 14px; font-weight: 600; fill: var(--ink); }",
)
_TITLE, _NOTE = 28, 18  # heights of the lines above and below
_NOTE_LETTERS = 82  # that fit on a line of the note, for 440 units of width


def standalone(page: str, ident: str) -> str:
    """The figure with this id as an SVG file. Raises KeyError when the page has none."""
    found = re.search(rf'<figure id="{re.escape(ident)}".*?</figure>', page, re.DOTALL)
    if found is None:
        raise KeyError(ident)
    figure = found[0]
    inside = re.search(r'<svg viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg>', figure, re.DOTALL)
    assert inside is not None
    title = re.search(r"<h3>(.*?)</h3>", figure, re.DOTALL)
    note = re.search(r"<p class=note>(.*?)</p>", figure, re.DOTALL)
    lines = _wrapped(note[1]) if note else []
    width, height = int(inside[1]), int(inside[2])
    whole = height + _TITLE + 12 + _NOTE * len(lines)
    texts = [f'<text class="title" x="0" y="16">{title[1]}</text>'] if title else []
    for k, line in enumerate(lines):
        y = _TITLE + height + 12 + _NOTE * k
        texts.append(f'<text x="0" y="{y}">{line}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-14 -10 {width + 28} {whole + 14}">\n'
        f"<style>{escape(_style())}</style>\n"
        f'<rect class="card" x="-14" y="-10" width="{width + 28}" height="{whole + 14}"/>\n'
        f"{''.join(texts)}\n"
        f'<g transform="translate(0 {_TITLE})">{_as_xml(inside[3])}</g>\n</svg>\n'
    )


def _wrapped(text: str) -> list[str]:
    """Lines of the note; entities count as one letter."""
    lines = [""]
    for word in text.split():
        if len(re.sub(r"&\w+;", "x", f"{lines[-1]} {word}")) > _NOTE_LETTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _as_xml(inside: str) -> str:
    inside = re.sub(r"<line class=cursor[^>]*></line>", "", inside)  # follows a pointer
    inside = re.sub(r"<text[^>]*></text>", "", inside)
    return re.sub(
        "<[^>]*>", lambda tag: re.sub(r'(\s[\w-]+)=([^\s"\'>]+)', r'\1="\2"', tag[0]), inside
    )


def _style() -> str:
    """The page's rules for pictures: its colours by day and by night, and what begins with svg."""
    css = re.sub(r"/\*.*?\*/", "", _STYLE.read_text(encoding="utf-8"), flags=re.DOTALL)
    screen = css.partition("@media (max-width")[0]
    kept = [line.strip() for line in screen.splitlines() if _KEPT.match(line)]
    return "\n".join([*kept, *_OWN])
