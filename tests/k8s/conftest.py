"""A small corpus, one cache for all pods, and workloads that end within seconds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml


def _word(rng: random.Random) -> str:
    return "".join(
        rng.choice("bdfklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(1, 4))
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the ShareGPT form with enough text for short prompts."""
    rng = random.Random(1)
    conversations = [
        {
            "id": str(number),
            "conversations": [
                {
                    "from": "human" if turn % 2 == 0 else "gpt",
                    "value": " ".join(_word(rng) for _ in range(120)) + ".",
                }
                for turn in range(4)
            ],
        }
        for number in range(200)
    ]
    file = tmp_path_factory.mktemp("corpus") / "sharegpt.json"
    file.write_text(json.dumps(conversations))
    return file


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/cache of every pod of this session: the corpus is indexed once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def workload(corpus: Path) -> Callable[..., str]:
    """A workload file with the given load (and other sections).

    Whether figures on a busy test machine are good enough is another test's business: the
    thresholds for a saturated generator are out of the way.
    """

    def text(load: dict[str, Any], **sections: Any) -> str:
        content: dict[str, Any] = {
            "name": "k8s",
            "seed": 7,
            "backend": {"kind": "openai-completions", "model": "demo"},
            "tokenizer": {"source": "tiktoken", "path": "cl100k_base"},
            "prompts": {
                "source": "sharegpt",
                "path": str(corpus),
                "input_tokens": 64,
                "output_tokens": 16,
            },
            "load": load,
            "validity": {"cpu": 1.0, "loop_lag_p99_s": 5, "coalesced_share": 1.0},
            **sections,
        }
        return yaml.safe_dump(content)

    return text
