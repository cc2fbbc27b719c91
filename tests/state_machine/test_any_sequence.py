"""For random sequences of events, the engine does what its documents say, and every invariant holds.

The sequences are the same each time, so that a failure is caused by the current change. `STATE_MACHINE_EXAMPLES=2000` looks for new
ones and shortens those that fail; `STATE_MACHINE_STEPS` makes them longer than 40 steps.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from activities import dispatch
from activities.admission import scripts
from activities.execution import claims, following_step, results
from activities.maintenance import recovery
from agents import adapters
from tenants.models import Tenant
from tenants.redis import SentCommand
from tests import cleaning
from tests.engine import Engine
from tests.state_machine.limits import Limits
from tests.state_machine.machine import FOLLOWED
from tests.state_machine.operators import BETWEEN, Anything
from tests.state_machine.tasks import NORMAL
from tests.state_machine.world import LONG, ROLES, World

EXAMPLES = int(os.environ.get("STATE_MACHINE_EXAMPLES", "0"))
STEPS = int(os.environ.get("STATE_MACHINE_STEPS", "40"))
LIMITS = Limits()

REPEATABLE = hypothesis_settings(max_examples=8, derandomize=True, database=None, phases=(Phase.generate,))
SEARCH = hypothesis_settings(max_examples=EXAMPLES or 1, print_blob=True)
COMMON: dict[str, Any] = {
    "stateful_step_count": STEPS,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}


@pytest.mark.long
@pytest.mark.timeout(0)
def test_engine_and_model_agree_after_every_step(
    database: None, make_tenant: Callable[..., Tenant], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each message runs one activity and the steps that follow it immediately, however slow the machine is.
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 1e6
    monkeypatch.setattr(dispatch, "_seats_for_next", lambda *arguments: 0)
    monkeypatch.setattr(claims, "CLAIM_SECONDS", 1e6)
    # What the process has learned in earlier tests would keep steps from following.
    monkeypatch.setattr(following_step, "LAST_STEPS", set())
    monkeypatch.setattr(following_step, "OTHERS_WAIT", threading.Event())
    monkeypatch.setattr(scripts.PassedSlot, "_is_known", False)
    monkeypatch.setattr(SentCommand, "is_answered", lambda self: True)
    FOLLOWED.clear()
    for name, value in LIMITS.settings().items():
        setattr(settings, name, value)
    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)
    monkeypatch.setattr(results, "HOLD_MOST_SECONDS", LONG)
    inline, find = adapters.get("inline"), adapters.get
    monkeypatch.setattr(adapters, "get", lambda name: inline if name == "anthropic" else find(name))

    def machine() -> Anything:
        return Anything(lambda: _begin(make_tenant), _end, LIMITS)

    @given(st.just(machine))  # because the machine takes notes, which Hypothesis allows only in its own tests
    @hypothesis_settings(max_examples=1, **COMMON)
    def what_is_seldom_drawn_happens(begin: Callable[[], Anything]) -> None:
        drawn = begin()
        for _ in range(6):  # a step follows only if admission answers in time
            drawn.others_act_while_steps_begin(BETWEEN)
            if set(BETWEEN) <= set(FOLLOWED):
                break
        assert set(BETWEEN) <= set(FOLLOWED), Counter(FOLLOWED)
        for accepts in (True, False):
            drawn.work_comes_in("dev", False, None, 2, None, False, NORMAL, False, "kept")
            drawn.engine_and_model_agree()
            drawn.a_run_costs_more_than_there_is(0, "result", accepts, "kept")
            drawn.engine_and_model_agree()
        drawn.teardown()

    what_is_seldom_drawn_happens()
    run_state_machine_as_test(machine, settings=_settings())


def _settings() -> hypothesis_settings:
    return hypothesis_settings(SEARCH if EXAMPLES else REPEATABLE, **COMMON)


def _begin(make_tenant: Callable[..., Tenant]) -> World:
    return World(Engine(list(ROLES), seats=1_000), make_tenant())


def _end(world: World) -> None:
    world.resume_all()  # because roles outlive their tenants
    world.engine.close()
    cleaning.empty_database()
    cleaning.empty_redis()
