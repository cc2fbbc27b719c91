"""No lockouts after failed requests, because hostile agents send many of them."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_lockout(settings: Any, unthrottled: None) -> None:
    """Make each refusal depend on the token itself and not on the number of failures before it."""
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 10_000
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = 10_000
