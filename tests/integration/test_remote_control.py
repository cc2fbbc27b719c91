"""Anyone who reaches the broker may ask a worker and not command it."""

from __future__ import annotations

import pytest
from celery.worker.control import Panel

from orchestrator import broker

ORDERS = (
    "shutdown",
    "pool_restart",
    "pool_shrink",
    "revoke",
    "terminate",
    "rate_limit",
    "add_consumer",
    "cancel_consumer",
)
QUESTIONS = ("ping", "stats", "active", "active_queues", "registered", "hello")


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this process are put back afterwards."""
    monkeypatch.setattr(Panel, "data", dict(Panel.data))
    monkeypatch.setattr(Panel, "meta", dict(Panel.meta))


def test_a_worker_knows_no_order() -> None:
    assert set(ORDERS) <= Panel.data.keys()

    broker.disable_commands()

    assert not set(ORDERS) & Panel.data.keys()
    assert {name for name, about in Panel.meta.items() if about.type == "control"} == broker.HARMLESS


def test_a_worker_answers_questions_and_may_be_watched() -> None:
    broker.disable_commands()

    assert {*QUESTIONS, *broker.HARMLESS} <= Panel.data.keys()


def test_forgetting_twice_is_forgetting_once() -> None:
    broker.disable_commands()
    known = set(Panel.data)
    broker.disable_commands()

    assert set(Panel.data) == known
