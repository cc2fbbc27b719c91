"""After any sequence of requests, agents' answers and faults, all work comes to rest.

The sequences are the same each time, except for what happens at the same moment. `RANDOM_REQUESTS=1-200` runs those with these seeds, and
`RANDOM_REQUESTS_STEPS` sets their length. A failure prints the whole sequence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from activities import provider_batches
from activities.maintenance import recovery
from agents.adapters import inline
from agents.contracts import Parked
from tenants.api import throttling
from tenants.models import Tenant
from tests.engine import Engine
from tests.random_requests.sequence import PLANNER, ROLES, Sequence

FIRST, _, LAST = os.environ.get("RANDOM_REQUESTS", "1").partition("-")
STEPS = int(os.environ.get("RANDOM_REQUESTS_STEPS", "40"))


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
def test_everything_comes_to_rest(
    database: None,
    make_tenant: Callable[..., Tenant],
    api: Callable[..., Any],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0
    settings.ORCHESTRATOR_UNDO_SECONDS = 30.0  # answers in the console are held
    settings.ORCHESTRATOR_BATCH_AGE_SECONDS = settings.ORCHESTRATOR_REPUBLISH_SECONDS = 0
    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)
    read_result = inline._read_result
    monkeypatch.setattr(
        inline, "_read_result", lambda each: each if isinstance(each, Parked) else read_result(each)
    )
    monkeypatch.setattr(throttling.TenantThrottle, "allow_request", lambda self, request, view: True)
    tenant, engine = make_tenant(), Engine([*ROLES, PLANNER])
    sequence = Sequence(engine, tenant, lambda name: api("admin", tenant=tenant, person=name), seed)
    monkeypatch.setattr(provider_batches, "client_for", lambda batch, role: sequence.provider)
    try:
        for _ in range(STEPS):
            sequence.step()
        sequence.come_to_rest()
    except BaseException:
        sys.stdout.write("\n".join(sequence.log))
        raise
    finally:
        engine.close()
