"""No address may be called unless the test allows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import outbound


@pytest.fixture(autouse=True)
def no_outside_world(settings: Any) -> Iterator[None]:
    settings.SLACK_WEBHOOK_URL = settings.ALERT_EMAIL = settings.EMAIL_URL = ""
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    yield
    outbound.close_connections()
