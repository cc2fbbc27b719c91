"""A tenant, and a run whose worker has died."""

from __future__ import annotations

from typing import Any

import pytest

from activities.models import ActivityRun
from agents.contracts import Completed, Output
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.recovery.losses import Died


@pytest.fixture
def killed_run(engine: Engine, acme: Tenant) -> ActivityRun:
    """A run whose worker died while the agent worked."""

    def die(request: Any) -> Completed:
        raise Died

    engine.agent.behaviour = die
    (activity_id,) = engine.submit(acme)
    with pytest.raises(Died):
        engine.deliver()
    engine.agent.behaviour = lambda request: Completed(Output(content="at last"))
    return engine.runs(acme, activity_id)[0]
