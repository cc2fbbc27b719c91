"""Receivers of alerts that a test can see into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import environ
import pytest

from agents import outbound
from tests.receivers import HttpReceiver, MailReceiver, http_receiver, mail_receiver


@pytest.fixture(autouse=True)
def closed_world(settings: Any) -> Iterator[None]:
    """No channel of the platform, and nothing may be called, unless the test says so."""
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
