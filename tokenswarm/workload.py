"""Workload files: YAML in, a Workload or every mistake with its line out; and back to YAML.

    load(path, sets)     the Workload of a file, with `--set` settings applied
    parse(text, name)    the same from text
    dump(workload)       YAML with every default written out, which load() reads back as equal

What a workload may say is in workload_model.py, how YAML is read in yaml_source.py; here both
meet. The one subtle rule: a relative path that does not exist where the command runs, but does
beside the workload file, is taken from there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tokenswarm import __version__, spec, yaml_source
from tokenswarm.prompts import WITHOUT_TOKENIZER
from tokenswarm.records import BadInput
from tokenswarm.workload_hardware import Hardware
from tokenswarm.workload_load import Load, Stage
from tokenswarm.workload_model import (
    Backend,
    Record,
    Retry,
    Timeouts,
    Tokenizer,
    Validity,
    Workload,
)
from tokenswarm.workload_prompts import Prompts
from tokenswarm.yaml_source import Source

__all__ = [
    "Backend",
    "Hardware",
    "Load",
    "Prompts",
    "Record",
    "Retry",
    "Stage",
    "Timeouts",
    "Tokenizer",
    "Validity",
    "Workload",
    "dump",
    "load",
    "parse",
]

_PATHS: tuple[tuple[str, str], ...] = (
    ("backend", "ca_file"),
    ("tokenizer", "path"),
    ("tokenizer", "chat_template"),
    ("prompts", "path"),
    ("load", "trace"),
)
_MUST_EXIST: tuple[tuple[str, str], ...] = (("backend", "ca_file"), ("load", "trace"))


def load(path: str | Path, sets: Sequence[str] = ()) -> Workload:
    """The workload of a file; BadInput has all mistakes, each with file:line or --set."""
    return _workload(yaml_source.read(path), str(path), sets, Path(path).parent)


def parse(text: str, name: str = "workload.yaml", sets: Sequence[str] = ()) -> Workload:
    """The workload of a YAML or JSON text; `name` stands for the file in messages."""
    return _workload(text, name, sets, None)


def dump(workload: Workload) -> str:
    """The workload as YAML with every default written out."""
    data = workload.model_dump(mode="json", by_alias=True)
    body: str = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None,
    )
    return f"# Resolved by tokenswarm {__version__}: every default is written out.\n{body}"


def _workload(text: str, name: str, sets: Sequence[str], folder: Path | None) -> Workload:
    source = yaml_source.parse(text, name)
    yaml_source.apply(source, sets)
    data = source.data
    if data.get("name") is None:
        data["name"] = re.sub(r"[^\w.+-]+", "-", Path(name).stem).strip("-.") or "workload"
    if _lacks_tokenizer(data):
        data["tokenizer"] = _likely_tokenizer(str(data["backend"]["model"]))
    if folder is not None:
        _look_beside(data, folder)
    missing = list(_missing_files(data))
    try:
        workload = Workload.model_validate(data)
    except ValidationError as error:
        raise _bad_input(source, [*missing, *spec.problems_of(error)]) from None
    if missing:
        raise _bad_input(source, missing)
    return workload


def _lacks_tokenizer(data: dict[str, Any]) -> bool:
    """Whether one must be guessed: prompts are to be cut, and none is named."""
    backend, prompts = data.get("backend"), data.get("prompts")
    if data.get("tokenizer") is not None or not isinstance(prompts, dict):
        return False
    needs_none = prompts.get("source") in WITHOUT_TOKENIZER
    return isinstance(backend, dict) and backend.get("model") is not None and not needs_none


def _likely_tokenizer(model: str) -> dict[str, Any]:
    """The model's own where this machine has it, else an encoding that is always there."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    is_here = (hub / f"models--{model.replace('/', '--')}").is_dir()
    if is_here or (Path(model) / "tokenizer.json").is_file():
        return {"source": "hf", "path": model, "guessed": True}
    return {"source": "tiktoken", "path": "cl100k_base", "guessed": True}


def _bad_input(source: Source, problems: list[spec.Problem]) -> BadInput:
    """All mistakes in the order of the file, those of the command line last."""

    def order(problem: spec.Problem) -> tuple[bool, int]:
        place = source.place(problem[0])
        return place.startswith("--set"), source.line(problem[0])

    unique = dict.fromkeys(problems)
    return BadInput(*(source.problem(*problem) for problem in sorted(unique, key=order)))


def _look_beside(data: dict[str, Any], folder: Path) -> None:
    """Make relative paths that exist only beside the workload file point there."""
    for section, key in _file_keys(data):
        named = section.get(key)
        if isinstance(named, str) and named and not _exists(named) and _exists(folder / named):
            section[key] = str(folder / named)


def _exists(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _file_keys(data: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for section, key in _PATHS:
        if isinstance(data.get(section), dict):
            yield data[section], key
    load = data.get("load")
    stages = load.get("stages") if isinstance(load, dict) else None
    for stage in stages if isinstance(stages, list) else ():
        shape = stage.get("shape") if isinstance(stage, dict) else None
        series = shape.get("series") if isinstance(shape, dict) else None
        if isinstance(series, dict):
            yield series, "file"


def _missing_files(data: dict[str, Any]) -> Iterator[spec.Problem]:
    for section, key in _MUST_EXIST:
        named = data[section].get(key) if isinstance(data.get(section), dict) else None
        if isinstance(named, str) and named and not _exists(named):
            yield (section, key), f"no such file: {spec.show(named)}"


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line and quotes every text that would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out, each time."""
        del data
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = isinstance(yaml_source.scalar(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "'")


_Dumper.add_representer(str, _text)
