"""Stored addresses are checked again at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from activities.notifications import backends
from activities.notifications import webhooks as webhook_posting
from activities.notifications.backends import DeliveryProblem
from agents import health, outbound
from agents.contracts import AdapterSettings
from agents.exceptions import AgentError
from agents.models import Agent
from agents.outbound import client as outbound_client
from agents.outbound import transport
from agents.runner import run_agent
from pipelines.exceptions import SourceUnavailable
from pipelines.models import Dataset
from pipelines.tables import fetched
from tests.cases import in_one_test
from tests.hostile_addresses import GOOD_NAME, GOOD_URL, Listener, Names
from tests.subjects import RecordingLink, a_request

pytestmark = pytest.mark.usefixtures("database")


def _call_http(url: str) -> Any:
    return run_agent(a_request(AdapterSettings("http", url)), link=RecordingLink())


def _call_model(adapter: str) -> Callable[[str], Any]:
    def call(url: str) -> Any:
        settings = AdapterSettings(adapter, url, {"type": "bearer", "token": "k"}, "m-1")
        return run_agent(a_request(settings), link=RecordingLink())

    return call


def _check_health(url: str) -> Any:
    finding = health.call_agent(Agent(role="x", health_url=url), "")
    if not finding.reachable:
        raise AgentError(finding.detail)


def _check_endpoint(url: str) -> Any:
    finding = health.call_agent(Agent(role="x"), url)
    if not finding.reachable:
        raise AgentError(finding.detail)


def _read_rows(url: str) -> Any:
    dataset = Dataset(tenant_id=uuid4(), name="x", source="api", fields={"id": "string"}, location=url)
    return list(fetched.read_typed_rows(dataset))


def _send_event(url: str) -> Any:
    """Raise for a failed delivery, because posting itself never raises."""
    outcome = webhook_posting.post(url, {}, message_id="m", secrets=["whsec_" + 8 * "QUJD"])
    assert not outcome.was_accepted
    raise AgentError(outcome.error)


CALLS: dict[str, Callable[[str], Any]] = {
    "agent": _call_http,
    "model": _call_model("openai"),
    "other model": _call_model("anthropic"),
    "health": _check_health,
    "health of an endpoint": _check_endpoint,
    "alert": lambda url: backends.post(backends.Target(url), b"{}"),
    "data source": _read_rows,
    "event": _send_event,
}


@in_one_test("name", CALLS)
def test_a_stored_hostile_address_is_refused_when_it_is_called(
    monkeypatch: pytest.MonkeyPatch, hostile: tuple[str, ...], name: str
) -> None:
    """Such a row may be older than a rule, or written around it."""
    connected: list[Any] = []
    monkeypatch.setattr(transport, "_connect", lambda *place: connected.append(place))

    for url in hostile:
        with pytest.raises((AgentError, DeliveryProblem, SourceUnavailable)):
            CALLS[name](url)
        assert connected == [], url


@pytest.mark.parametrize("name", CALLS)
def test_a_name_that_becomes_internal_after_the_check_is_refused(
    monkeypatch: pytest.MonkeyPatch, names: Names, listener: Listener, name: str
) -> None:
    names.flips[GOOD_NAME] = ["127.0.0.1"]
    url = f"https://{GOOD_NAME}:{listener.port}/run"
    outbound.check_url(url)

    with pytest.raises((AgentError, DeliveryProblem, SourceUnavailable)):
        CALLS[name](url)

    assert names.lookups == [GOOD_NAME, GOOD_NAME]


def test_a_name_is_resolved_once_per_call(
    monkeypatch: pytest.MonkeyPatch, names: Names, listener: Listener
) -> None:
    """The name changes after its first lookup, and the call still connects to the checked address."""
    names.flips[GOOD_NAME] = ["127.0.0.1"]
    connected: list[Any] = []

    def connect(address: Any, port: int) -> Any:
        connected.append((str(address), port))
        raise OSError("nobody there")

    monkeypatch.setattr(transport, "_connect", connect)

    for call in CALLS.values():
        names.lookups.clear()
        with pytest.raises((AgentError, DeliveryProblem, SourceUnavailable)):
            call(f"https://{GOOD_NAME}:{listener.port}/run")
        assert names.lookups == [GOOD_NAME]

    assert set(connected) == {("93.184.216.34", listener.port)}


def test_every_call_has_a_deadline_and_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their effects are tested with the client."""
    bounds: list[tuple[float, int]] = []

    class Stopped(BaseException):
        """No code of the project catches it."""

    def record_bounds(seconds: float, max_bytes: int, *more: Any, **options: Any) -> Any:
        bounds.append((seconds, max_bytes))
        raise Stopped

    monkeypatch.setattr("agents.outbound.budget.call_budget", record_bounds)
    monkeypatch.setattr("agents.outbound.call_budget", record_bounds)
    assert outbound_client.budget.call_budget is record_bounds

    for call in CALLS.values():
        with pytest.raises(Stopped):
            call(GOOD_URL)

    assert len(bounds) == len(CALLS)
    assert all(0 < seconds <= 3_600 and 0 < most <= 64_000_000 for seconds, most in bounds), bounds
