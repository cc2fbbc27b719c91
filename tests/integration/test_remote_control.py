"""Workers answer inspection commands of Celery's remote control and know no control commands."""

from __future__ import annotations

import pytest
from celery.worker.control import Panel

from orchestrator import broker

CONTROL_COMMANDS = (
    "shutdown",
    "pool_restart",
    "pool_shrink",
    "revoke",
    "terminate",
    "rate_limit",
    "add_consumer",
    "cancel_consumer",
)
INSPECT_COMMANDS = ("ping", "stats", "active", "active_queues", "registered", "hello")


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the commands of this process after the test."""
    monkeypatch.setattr(Panel, "data", dict(Panel.data))
    monkeypatch.setattr(Panel, "meta", dict(Panel.meta))


def test_control_commands_are_removed() -> None:
    assert set(CONTROL_COMMANDS) <= Panel.data.keys()

    broker.disable_commands()

    assert not set(CONTROL_COMMANDS) & Panel.data.keys()
    assert {name for name, about in Panel.meta.items() if about.type == "control"} == broker.HARMLESS


def test_inspection_and_events_still_work() -> None:
    broker.disable_commands()

    assert {*INSPECT_COMMANDS, *broker.HARMLESS} <= Panel.data.keys()


def test_removing_the_commands_twice_changes_nothing() -> None:
    broker.disable_commands()
    known = set(Panel.data)
    broker.disable_commands()

    assert set(Panel.data) == known
