"""Receivers of alerts whose messages a test can read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import outbound
from tests.receivers import HttpReceiver, http_receiver


@pytest.fixture(autouse=True)
def no_outside_world(settings: Any) -> Iterator[None]:
    """The platform has no channel, and no address may be called unless the test allows it."""
    settings.SLACK_WEBHOOK_URL = settings.ALERT_EMAIL = settings.EMAIL_URL = ""
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    yield
    outbound.close_connections()


@pytest.fixture
def receiver(settings: Any) -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (running.place,)
        yield running
