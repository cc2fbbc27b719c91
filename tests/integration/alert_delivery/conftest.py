"""Receivers of alerts whose messages a test can read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import environ
import pytest

from agents import outbound
from tests.receivers import HttpReceiver, MailReceiver, http_receiver, mail_receiver


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


@pytest.fixture
def mails(settings: Any) -> Iterator[MailReceiver]:
    with mail_receiver() as running:
        settings.EMAIL_URL = f"smtp://127.0.0.1:{running.port}"
        for name, value in environ.Env.email_url_config(settings.EMAIL_URL).items():
            setattr(settings, name, value)
        yield running
