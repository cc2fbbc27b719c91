"""The sample agents, started once for all tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.sample_agents.desk import ARTICLE, TEXT_AGENTS, Agents, Json, run_agents


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with run_agents(TEXT_AGENTS, tmp_path_factory.mktemp("text")) as agents_server:
        yield agents_server


@pytest.fixture(scope="session")
def keywords(agents: Agents) -> Json:
    return agents.output("keyword-researcher", input={"content": ARTICLE})


@pytest.fixture(scope="session")
def brief(agents: Agents, keywords: Json) -> Json:
    return agents.output("content-brief-writer", input=keywords)
