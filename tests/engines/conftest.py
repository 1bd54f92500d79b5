"""One vLLM and one llama.cpp server for all tests of this folder, started when first wanted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import real_engine


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_engine.Engine]:
    with real_engine.vllm(tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture(scope="session")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_engine.Engine]:
    with real_engine.llama_server(tmp_path_factory.mktemp("llamacpp")) as running:
        yield running
