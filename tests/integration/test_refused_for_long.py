"""Agents and providers that answer 429: their work comes back ever more seldom, people hear of it, and it ends one day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities import dead_letters, outbox, wait_reasons
from activities.models import Activity, Wake
from agents.contracts import AgentRequest, Completed, Output
from agents.exceptions import AgentRateLimited, RetryableAgentError
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def refusing(engine: Engine, retry_after: float | None = None, *, nothing_sent: bool = False) -> None:
    def refuse(request: object) -> Completed:
        error = AgentRateLimited("slow down", retry_after=retry_after)
        error.nothing_sent = nothing_sent
        raise error

    engine.agent.behaviour = refuse


def next_try(tenant: Tenant, activity_id: UUID) -> float:
    """In so many seconds."""
    with tenant_scope(tenant.pk):
        due_at = Wake.objects.get(activity_id=activity_id, state="pending").due_at
    return float((due_at - datetime.now(UTC)).total_seconds())


def refused(engine: Engine, tenant: Tenant, activity_id: UUID, times: int) -> list[float]:
    """Let it be refused so often; how long it waits after each."""
    waits = []
    for _ in range(times):
        engine.make_due(tenant)
        engine.drain()
        waits.append(next_try(tenant, activity_id))
    return waits


def since(tenant: Tenant, activity_id: UUID, age: timedelta) -> None:
    """As if the row of refusals had begun so long ago."""
    with tenant_scope(tenant.pk):
        activity = Activity.objects.get(pk=activity_id)
        began = datetime.fromisoformat(activity.error["since"]) - age
        Activity.objects.filter(pk=activity_id).update(error=activity.error | {"since": began.isoformat()})


def test_each_refusal_in_a_row_is_waited_for_twice_as_long_up_to_the_bound(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS = 60.0
    refusing(engine)
    (activity_id,) = engine.submit(acme)

    waits = refused(engine, acme, activity_id, 6)

    for wait, about in zip(waits, [5, 10, 20, 40, 60, 60], strict=True):
        assert 0.85 * about - 2 < wait < 1.15 * about
    assert len(set(waits[-2:])) == 2  # jitter: what was refused together does not come back together
    shown = engine.get(acme, activity_id)
    assert (shown.status, shown.attempts, shown.error["in_a_row"]) == ("created", 0, 6)


@pytest.mark.parametrize(
    "retry", [{"strategy": "fixed"}, {"multiplier": 1}, {"base_seconds": 0}, {"jitter": 0}]
)
def test_no_retry_policy_makes_refusals_come_at_one_pace(
    engine: Engine, acme: Tenant, retry: dict[str, Any]
) -> None:
    refusing(engine)
    (activity_id,) = engine.submit(acme, retry=retry)

    waits = refused(engine, acme, activity_id, 5)

    assert waits[4] > 10
    assert waits[4] > 2 * waits[2]


def test_what_the_provider_says_is_obeyed_whatever_came_before(engine: Engine, acme: Tenant) -> None:
    refusing(engine)
    (activity_id,) = engine.submit(acme)
    refused(engine, acme, activity_id, 5)

    refusing(engine, retry_after=3)
    (wait,) = refused(engine, acme, activity_id, 1)

    assert 1.5 < wait <= 3


def test_a_success_and_another_failure_end_the_row(engine: Engine, acme: Tenant) -> None:
    def breaks(request: object) -> Completed:
        raise RetryableAgentError("broken")

    refusing(engine)
    (activity_id,) = engine.submit(acme, max_attempts=5)
    refused(engine, acme, activity_id, 5)

    engine.agent.behaviour = breaks
    refused(engine, acme, activity_id, 1)
    assert "in_a_row" not in engine.get(acme, activity_id).error
    refusing(engine)

    assert refused(engine, acme, activity_id, 1)[0] < 6
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    engine.make_due(acme)
    engine.drain()
    assert (engine.status(acme, activity_id), engine.get(acme, activity_id).error) == ("done", None)


def test_a_call_that_was_held_back_here_neither_counts_nor_ends_the_row(engine: Engine, acme: Tenant) -> None:
    refusing(engine)
    (activity_id,) = engine.submit(acme)
    refused(engine, acme, activity_id, 3)

    refusing(engine, retry_after=2, nothing_sent=True)
    refused(engine, acme, activity_id, 2)

    assert engine.get(acme, activity_id).error["in_a_row"] == 3
    refusing(engine)
    assert 30 < refused(engine, acme, activity_id, 1)[0] < 46


def test_people_hear_once_of_a_role_that_is_refused_for_long(
    engine: Engine, acme: Tenant, api: Callable[..., Any]
) -> None:
    refusing(engine)
    first, second = engine.submit(acme, count=2)
    engine.drain()
    assert api("viewer").get("/api/v1/alerts/", {"kind": "rate_limited"}).json()["results"] == []

    for activity_id in (first, second, first):
        since(acme, activity_id, timedelta(minutes=20))
    engine.make_due(acme)
    engine.drain()

    (alert,) = api("viewer").get("/api/v1/alerts/", {"kind": "rate_limited"}).json()["results"]
    assert "qa" in alert["title"]
    assert {engine.status(acme, each) for each in (first, second)} == {"created"}


@pytest.mark.parametrize("retry_after", [None, 7])
def test_what_is_refused_for_a_day_has_failed_and_can_be_tried_again(
    engine: Engine, acme: Tenant, api: Callable[..., Any], retry_after: float | None
) -> None:
    refusing(engine, retry_after)
    (activity_id,) = engine.submit(acme)
    engine.drain()
    since(acme, activity_id, timedelta(hours=23, minutes=59))
    engine.make_due(acme)
    engine.drain()
    assert engine.status(acme, activity_id) == "created"

    since(acme, activity_id, timedelta(minutes=1))
    engine.make_due(acme)
    engine.drain()

    (letter,) = api("viewer").get("/api/v1/dead-letters/").json()["results"]
    assert (letter["activity"], letter["reason"], letter["error"]["code"]) == (
        str(activity_id),
        "rate_limited",
        "rate_limited",
    )
    dead_letters.handle_waiting()
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    api("operator").post(f"/api/v1/dead-letters/{letter['id']}/replay/")
    engine.drain()
    assert engine.status(acme, activity_id) == "done"


def test_a_replay_begins_a_new_row(engine: Engine, acme: Tenant, api: Callable[..., Any]) -> None:
    refusing(engine)
    (activity_id,) = engine.submit(acme)
    engine.drain()
    since(acme, activity_id, timedelta(hours=25))
    engine.make_due(acme)
    engine.drain()
    assert engine.status(acme, activity_id) == "failed"

    api("operator").post(f"/api/v1/activities/{activity_id}/retry/")
    engine.drain()

    assert (engine.status(acme, activity_id), engine.get(acme, activity_id).error["in_a_row"]) == (
        "created",
        1,
    )


def test_while_a_provider_is_waited_for_other_work_of_the_role_keeps_its_place_and_urgent_work_may_try(
    engine: Engine, acme: Tenant
) -> None:
    def refuse(request: object) -> Completed:
        error = AgentRateLimited("asked to be left alone", retry_after=30)
        error.held_by = "openai at api.example"
        raise error

    engine.agent.behaviour = refuse
    engine.serve(acme, max_concurrency=1)
    first, second, third = engine.submit(acme, count=3)
    engine.drain()
    (urgent,) = engine.submit(acme, priority=1)
    engine.drain()

    why = wait_reasons.why(acme.pk, third)
    assert [call.activity_id for call in engine.agent.calls] == [first, urgent]
    assert engine.get(acme, second).attempts == 0
    assert (why.code, why.holder) == ("provider_limit", "openai at api.example")
    assert why.estimate_seconds == pytest.approx(30, abs=5)


def test_what_a_provider_has_refused_goes_before_what_came_after_it_when_the_time_is_over(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_TICK_SECONDS = 30.0  # the time is over before the leader looks again

    def refuse_once(request: AgentRequest) -> Completed:
        if len(engine.agent.calls) > 1:
            return Completed(Output(content="done"))
        error = AgentRateLimited("has no room for now", code="provider_limit", retry_after=20)
        error.held_by = "openai at api.example"
        raise error

    engine.agent.behaviour = refuse_once
    engine.serve(acme, max_concurrency=1)
    first, second = engine.submit(acme, count=2)
    engine.drain()
    outbox.promote()
    engine.end_holds()
    engine.drain()

    assert [call.activity_id for call in engine.agent.calls] == [first, first, second]


def test_a_provider_that_may_have_room_at_any_time_holds_nobody_else_back(
    engine: Engine, acme: Tenant
) -> None:
    def refuse(request: object) -> Completed:
        error = AgentRateLimited("is called by as many as it bears", code="provider_limit", retry_after=2)
        error.held_by, error.room_is_timed = "openai at api.example", False
        raise error

    engine.agent.behaviour = refuse
    ids = engine.submit(acme, count=3)
    engine.drain()

    assert [call.activity_id for call in engine.agent.calls] == ids
