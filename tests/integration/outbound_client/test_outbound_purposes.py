"""An exception for one purpose does not apply to others, even over open connections."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from agents import outbound
from agents.exceptions import OutboundRefused
from agents.outbound import policy
from orchestrator.settings import unsafe
from tests.integration.outbound_client.peers import Serve, answering, ok

OTHERS = (outbound.WEBHOOKS, outbound.DATA_SOURCES, outbound.NOTIFICATIONS)


def call(url: str, purpose: str) -> int:
    return outbound.send(
        "GET", url, headers={}, deadline_seconds=5.0, max_bytes=1_000, purpose=purpose
    ).status


def test_an_address_for_agents_is_refused_for_other_purposes(serve: Serve, settings: Any) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agents=127.0.0.1:{server.port}",)
    url = f"http://127.0.0.1:{server.port}/"

    assert call(url, policy.AGENTS) == 200
    for purpose in OTHERS:
        with pytest.raises(OutboundRefused):
            outbound.check_url(url, purpose=purpose)
        with pytest.raises(OutboundRefused):
            call(url, purpose)

    assert server.connections == 1


def test_a_name_for_agents_is_refused_for_other_purposes(
    serve: Serve, settings: Any, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    names["agents.internal"] = ["127.0.0.1"]
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agents=agents.internal:{server.port}",)

    assert call(f"http://agents.internal:{server.port}/", policy.AGENTS) == 200
    for purpose in OTHERS:
        with pytest.raises(OutboundRefused):
            call(f"https://agents.internal:{server.port}/", purpose)

    assert server.connections == 1


@pytest.mark.parametrize("purpose", policy.PURPOSES)
def test_an_entry_without_a_purpose_applies_to_all(serve: Serve, purpose: str) -> None:
    assert call(f"http://127.0.0.1:{serve(answering(ok(b''))).port}/", purpose) == 200


def test_an_unknown_purpose_is_a_configuration_error(settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("agent=agents.internal:8080",)

    with pytest.raises(ImproperlyConfigured, match="data-sources"):
        outbound.check_url("https://8.8.8.8/")


def test_production_refuses_our_own_servers_for_any_purpose() -> None:
    environment = {"AGENT_EGRESS_ALLOW": "webhooks=db.internal:5432, agents=127.0.0.2:8000"}

    assert len(list(unsafe._egress(environment))) == 2
