"""The files of a finished or running run, read back: summary, request columns, timeline.

Everything that looks at runs afterwards (report, compare, study report) reads them here and
nowhere else. It knows nothing about what the numbers are used for. Nulls become NaN.

The one subtle rule: a run may still be going on, may have crashed or may be huge. A torn line
is counted, not an error, and of a file with more than `most` requests only every k-th line is
kept: `stride` says so, and every count that is shown must be multiplied by it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenswarm.records import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Codes = NDArray[np.int64]

NUMBERS = (
    "index", "due", "sent", "first_token", "last_token", "end", "due_offset_s",
    "ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s", "send_delay_s", "connect_s",
    "longest_gap_s", "prompt_tokens", "output_tokens", "prompt_tokens_expected",
    "output_tokens_expected", "output_chars", "events",
)  # fmt: skip
TEXTS = ("outcome", "stage", "worker", "error")
_GROUPS = ("run", "window", "requests", "throughput", "metrics", "slo")  # of a summary

MOST_REQUESTS = 1_000_000  # kept in memory: about 0.2 GB
MOST_ITL = 4_000_000  # samples kept where a run recorded them, 8 bytes each


@dataclass(frozen=True, slots=True)
class Requests:
    """Columns over the requests of requests.jsonl, in the order of the file.

    numbers: NaN where null. texts: name -> (different values, code of each request). itl holds
    the samples of each request one after the other, itl_ends where each request's end; both are
    None where the run did not record them.
    """

    numbers: dict[str, Floats]
    texts: dict[str, tuple[list[str], Codes]]
    warmup: NDArray[np.bool_]
    torn: int
    stride: int
    itl: Floats | None = None
    itl_ends: Codes | None = None

    def __len__(self) -> int:
        return len(self.warmup)

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    def is_text(self, name: str, value: str) -> NDArray[np.bool_]:
        """Which requests have this value in a text column."""
        values, codes = self.texts[name]
        found: NDArray[np.bool_] = codes == (values.index(value) if value in values else -1)
        return found

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which requests ended well; only they have latencies."""
        return self.is_text("outcome", "ok")

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which requests the figures of the summary cover: ok, and not of a warm-up stage."""
        return self.ok & ~self.warmup


def read_summary(folder: Path) -> dict[str, Any]:
    """summary.json of a run. Raises BadInput when it is missing or is not one."""
    import orjson

    path = folder / "summary.json"
    try:
        summary = orjson.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder}: {_no_run(folder)}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{path}: cannot be read: {error}; {_anew(folder)}") from None
    wrong = _not_a_summary(summary)
    if wrong is not None:
        raise BadInput(f"{path}: not the summary of a run: {wrong}; {_anew(folder)}")
    return dict(summary)


def _no_run(folder: Path) -> str:
    """Why there is no summary, and what to give instead."""
    if not folder.exists():
        return "no such folder; give the folder of a run (`--out`)"
    if not folder.is_dir():
        return "not a folder; give the folder of a run (`--out`)"
    if (folder / "requests.jsonl").is_file():
        return f"no summary.json there: the run goes on or has crashed; {_anew(folder)}"
    inner = min((path.parent for path in folder.glob("*/summary.json")), default=None)
    instead = f", such as {inner}" if inner is not None else " (`--out`)"
    return f"no summary.json there; give the folder of a run{instead}"


def _anew(folder: Path) -> str:
    return f"`tokenswarm report {folder}` makes it from the run's records, where there are any"


def _not_a_summary(summary: Any) -> str | None:
    """What is wrong with the shape of a summary; None when its figures can be read."""
    if not isinstance(summary, dict) or "metrics" not in summary:
        return "key 'metrics' is missing"
    for key in _GROUPS:
        if not isinstance(summary.get(key) or {}, dict):
            return f"'{key}' is not an object"
    figures = {f"metrics.{name}": found for name, found in (summary["metrics"] or {}).items()}
    rest = {name: summary.get(name) for name in ("throughput", "window")}
    for name, found in {**figures, **rest}.items():
        if not isinstance(found or {}, dict):
            return f"'{name}' is not an object"
        for key, value in (found or {}).items():
            if key != "ci95" and not isinstance(value, int | float | None):
                return f"'{name}.{key}' is not a number"
    return None


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Each JSON line of a file; None for one that is not a JSON object (torn, or foreign)."""
    import orjson

    with path.open("rb") as lines:
        for line in lines:
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                yield None
            else:
                yield row if isinstance(row, dict) else None


def read_timeline(path: Path | None) -> list[dict[str, Any]]:
    """All intervals of timeline.jsonl that can be read; none when there is no file."""
    if path is None or not path.is_file():
        return []
    return [row for row in read_lines(path) if row is not None]


def read_requests(path: Path, most: int = MOST_REQUESTS) -> Requests:
    """The columns of requests.jsonl; of more than `most` requests, only every k-th."""
    stride = _stride(path, most)
    numbers = {name: array("d") for name in NUMBERS}
    texts: dict[str, dict[str, int]] = {name: {} for name in TEXTS}
    codes = {name: array("q") for name in TEXTS}
    warmup = array("b")
    itl, itl_ends = array("d"), array("q")
    torn = 0
    for position, row in enumerate(read_lines(path)):
        if row is None or "outcome" not in row:
            torn += 1
            continue
        if position % stride:
            continue
        for name, column in numbers.items():
            value = row.get(name)
            column.append(float("nan") if value is None else value)
        for name, known in texts.items():
            codes[name].append(known.setdefault(str(row.get(name) or ""), len(known)))
        warmup.append(bool(row.get("warmup")))
        if row.get("itl_s") and len(itl) < MOST_ITL:
            itl.extend(row["itl_s"])
        itl_ends.append(len(itl))
    return _columns(numbers, texts, codes, warmup, torn, stride, itl, itl_ends)


def _columns(
    numbers: dict[str, array[float]], texts: dict[str, dict[str, int]],
    codes: dict[str, array[int]], warmup: array[int], torn: int, stride: int,
    itl: array[float], itl_ends: array[int],
) -> Requests:  # fmt: skip
    import numpy as np

    def of(column: array[Any]) -> Any:  # the same memory: a copy of a million requests is 0.2 GB
        return np.frombuffer(column, column.typecode) if column else np.empty(0, column.typecode)

    return Requests(
        {name: of(column) for name, column in numbers.items()},
        {n: (list(known), of(codes[n])) for n, known in texts.items()},
        of(warmup).astype(np.bool_),
        torn,
        stride,
        of(itl) if itl else None,
        of(itl_ends) if itl else None,
    )


def _stride(path: Path, most: int) -> int:
    """Keep every k-th line so that about `most` are kept; lines are counted, not parsed."""
    if path.stat().st_size < most * 200:  # no line is that short
        return 1
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return max(1, -(-lines // most))
