"""Fixtures of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine import Engine


@pytest.fixture
def engine(database: None) -> Iterator[Engine]:
    """Three roles, ten seats, a scripted agent."""
    running = Engine(["qa", "dev", "seo"])
    yield running
    running.close()


@pytest.fixture
def one_at_a_time(settings: object) -> None:
    """Each message runs exactly one activity."""
    settings.ORCHESTRATOR_CONTINUE_SECONDS = -1.0  # type: ignore[attr-defined]
