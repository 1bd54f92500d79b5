"""The runs that are compared: read from their folders, and whether they may be compared at all.

Knows summaries, request logs and workload files; nothing of figures and their intervals.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm.records import BadInput
from tokenswarm.run_files import Requests, read_requests, read_summary

# Sections of a workload in which two runs may differ for another reason than the server.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "prompts": ("prompts", "seed"),
    "load": ("load",),
    "request options": ("backend.kind", "backend.extra_body", "backend.connection", "retry"),
    "timeouts": ("timeouts",),
}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs."""

    folder: str
    summary: dict[str, Any]
    requests: Requests | None
    workload: dict[str, Any]

    @property
    def name(self) -> str:
        """Last part of the folder's name."""
        return Path(self.folder).name or self.folder


def load(folder: Path) -> Side:
    """A run from its folder; a run without requests.jsonl has no intervals."""
    folder = Path(folder)
    log = folder / "requests.jsonl"
    return Side(
        str(folder),
        read_summary(folder),
        read_requests(log) if log.is_file() else None,
        read_workload(folder / "workload.yaml"),
    )


def read_workload(path: Path) -> dict[str, Any]:
    """The resolved workload as plain data, flat: load.users -> 8; empty when there is none."""
    import yaml

    if not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    return dict(_flat(found, "")) if isinstance(found, dict) else {}


def _flat(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    inner: Iterable[tuple[Any, Any]] | None = None
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    if inner is None:
        yield path, value
        return
    for key, part in inner:
        yield from _flat(part, f"{path}.{key}" if path else str(key))


def lacks_gaps(side: Side) -> bool:
    """Whether a run with gaps between tokens recorded none of them."""
    gaps = (side.summary.get("metrics") or {}).get("itl_s") or {}
    return bool(gaps.get("count")) and side.requests is not None and side.requests.itl is None


def same_folder(one: Side, other: Side) -> bool:
    """Whether they are one run, by whatever path."""
    return Path(one.folder).resolve() == Path(other.folder).resolve()


def comparable(base: Side, new: Side) -> tuple[list[str], list[str]]:
    """(reasons not to compare, things to know) about two runs."""
    refused, warnings = [], []
    for side in (base, new):
        if not side.summary.get("valid"):
            codes = [str(r.get("code")) for r in side.summary.get("invalid_reasons") or []]
            refused.append(f"{side.name} is invalid ({', '.join(codes) or 'no reason given'})")
    if same_folder(base, new):
        warnings.append(f"{new.folder} is compared with itself: nothing can differ")
    unknown = [side.name for side in (base, new) if not side.workload]
    if len(unknown) == 1:
        warnings.append(f"{unknown[0]} has no workload.yaml: whether the workloads are the same "
                        "is not known")  # fmt: skip
    differing = {name: keys for name in _SECTIONS if (keys := differing_keys(base, new, name))}
    texts = [
        f"{name}: {key} is {base.workload.get(key)} in {base.name}, "
        f"{new.workload.get(key)} in {new.name}"
        for name, keys in differing.items() for key in keys[:3]
    ]  # fmt: skip
    if len(differing) > 1:
        refused.append("the workloads differ in more than one thing: " + "; ".join(texts))
    elif differing:
        warnings.append("the workloads differ, so this compares that: " + "; ".join(texts))
    if tokenizers_differ(base, new):
        warnings.append("the tokenizers differ: figures in tokens are not comparable, "
                        "characters per second stand instead")  # fmt: skip
    return refused, warnings


def tokenizers_differ(base: Side, new: Side) -> bool:
    """Whether tokens mean different things in the two runs."""
    a, b = ((s.summary.get("run") or {}).get("tokenizer") for s in (base, new))
    return bool(a != b)


def differing_keys(base: Side, new: Side, section: str) -> list[str]:
    """Keys of a section that have other values; nothing when a workload file is missing."""
    if not base.workload or not new.workload:
        return []
    keys = sorted({*base.workload, *new.workload})
    mine = [k for k in keys if any(k == p or k.startswith(p + ".") for p in _SECTIONS[section])]
    return [k for k in mine if base.workload.get(k) != new.workload.get(k)]
