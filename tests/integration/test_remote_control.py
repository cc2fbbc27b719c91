"""Workers answer queries of Celery's remote control without secrets, and refuse its commands with the reason."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from celery.worker.control import Panel
from kombu.clocks import LamportClock

from orchestrator import broker
from orchestrator.celery import app
from tests import quick_python, servers

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
    monkeypatch.setattr(state, "merge_revoked", vars(state)["merge_revoked"])


def send(command: str, **arguments: Any) -> Any:
    """The reply of a worker."""
    worker = SimpleNamespace(
        app=SimpleNamespace(conf=app.conf, bugreport=app.bugreport, clock=LamportClock()), hostname="w@local"
    )
    return Panel.data[command](worker, **arguments)


@pytest.mark.parametrize("command", CONTROL_COMMANDS)
def test_a_command_is_refused_with_what_to_do_instead(command: str, caplog: pytest.LogCaptureFixture) -> None:
    broker.disable_commands()
    broker.disable_commands()

    with caplog.at_level(logging.WARNING):
        reply = send(command, task_id="7", queue="agent__seo", n=1)

    assert "SIGTERM" in reply["error"]
    assert "API" in reply["error"]
    assert [(vars(record)["action"], vars(record)["command"]) for record in caplog.records] == [
        ("remote_command_refused", command)
    ]


def test_inspection_and_events_still_work() -> None:
    before = dict(Panel.data)

    broker.disable_commands()

    kept = {*INSPECT_COMMANDS, *broker.HARMLESS}
    assert {name: Panel.data[name] for name in kept} == {name: before[name] for name in kept}
    assert {name for name, about in Panel.meta.items() if about.type == "control"} > broker.HARMLESS


def test_a_worker_that_says_hello_revokes_nothing() -> None:
    broker.disable_commands()

    send("hello", from_node="other@local", revoked=["a task"])

    assert "a task" not in state.revoked


def test_reports_show_celerys_own_settings_and_no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what Flower and `celery inspect` show of a worker, and what people paste into reports of faults."""
    hidden = "correct-horse"
    for name in ("REDIS_URL", "MONGODB_URI", "EMAIL_URL", "CELERY_BROKER_URL"):
        monkeypatch.setattr(f"django.conf.settings.{name}", f"redis://worker:{hidden}@localhost:1/0")
    # A test process may have a broker of its own, which it sets here.
    monkeypatch.setattr(app.conf, "broker_url", f"redis://worker:{hidden}@localhost:1/0")
    monkeypatch.setattr("django.conf.settings.SLACK_WEBHOOK_URL", f"https://chat.example.com/{hidden}")

    for shown in (send("conf"), send("conf", with_defaults=True), send("report"), app.bugreport()):
        assert hidden not in str(shown)
        assert "task_acks_late" in str(shown)
        assert "localhost:1" in str(shown)
        assert "MONGODB" not in str(shown)


@pytest.mark.usefixtures("database")
def test_a_task_can_be_called_from_the_command_line(settings: Any) -> None:
    command = servers.celery_command("call", "retention.look_after")

    called = quick_python.run(command, env=servers.environment(settings))

    assert called.returncode == 0, called.stderr
    assert len(called.stdout.strip()) == 36
