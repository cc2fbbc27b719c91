"""Work that is refused with 429: growing pauses, an alert, and a permanent failure after a day."""

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


def refuse_all(
    engine: Engine,
    retry_after: float | None = None,
    *,
    nothing_sent: bool = False,
    provider: str | None = None,
) -> None:
    def refuse(request: object) -> Completed:
        error = AgentRateLimited("slow down", retry_after=retry_after)
        error.nothing_sent, error.held_by = nothing_sent, provider
        raise error

    engine.agent.behaviour = refuse


def next_try(tenant: Tenant, activity_id: UUID) -> float:
    """Seconds until the next attempt."""
    with tenant_scope(tenant.pk):
        due_at = Wake.objects.get(activity_id=activity_id, state="pending").due_at
    return float((due_at - datetime.now(UTC)).total_seconds())


def let_refuse(engine: Engine, tenant: Tenant, activity_id: UUID, times: int) -> list[float]:
    """Let the activity be refused this many times; return the pause after each."""
    waits = []
    for _ in range(times):
        engine.make_due(tenant)
        engine.drain()
        waits.append(next_try(tenant, activity_id))
    return waits


def move_start_back(tenant: Tenant, activity_id: UUID, age: timedelta, *times: str) -> None:
    """Move the start of the consecutive refusals back by this much, and these other times as well."""
    with tenant_scope(tenant.pk):
        activity = Activity.objects.get(pk=activity_id)
        moved = {
            name: (datetime.fromisoformat(activity.error[name]) - age).isoformat()
            for name in ("since", *times)
        }
        Activity.objects.filter(pk=activity_id).update(error=activity.error | moved)


def test_pauses_double_with_each_consecutive_refusal_up_to_a_limit(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS = 60.0
    refuse_all(engine)
    (activity_id,) = engine.submit(acme)

    waits = let_refuse(engine, acme, activity_id, 6)

    for wait, about in zip(waits, [5, 10, 20, 40, 60, 60], strict=True):
        assert 0.85 * about - 2 < wait < 1.15 * about
    assert len(set(waits[-2:])) == 2  # jitter, so that work refused together does not return together
    activity = engine.get(acme, activity_id)
    assert (activity.status, activity.attempts, activity.error["in_a_row"]) == ("created", 0, 6)


@pytest.mark.parametrize(
    "retry", [{"strategy": "fixed"}, {"multiplier": 1}, {"base_seconds": 0}, {"jitter": 0}]
)
def test_pauses_grow_whatever_the_retry_policy(engine: Engine, acme: Tenant, retry: dict[str, Any]) -> None:
    refuse_all(engine)
    (activity_id,) = engine.submit(acme, retry=retry)

    waits = let_refuse(engine, acme, activity_id, 5)

    assert waits[4] > 10
    assert waits[4] > 2 * waits[2]


def test_the_retry_after_of_the_provider_overrides_the_pause(engine: Engine, acme: Tenant) -> None:
    refuse_all(engine)
    (activity_id,) = engine.submit(acme)
    let_refuse(engine, acme, activity_id, 5)

    refuse_all(engine, retry_after=3)
    (wait,) = let_refuse(engine, acme, activity_id, 1)

    assert 1.5 < wait <= 3


def test_another_failure_or_a_success_ends_the_consecutive_refusals(engine: Engine, acme: Tenant) -> None:
    def fail(request: object) -> Completed:
        raise RetryableAgentError("broken")

    refuse_all(engine)
    (activity_id,) = engine.submit(acme, max_attempts=5)
    let_refuse(engine, acme, activity_id, 5)

    engine.agent.behaviour = fail
    let_refuse(engine, acme, activity_id, 1)
    assert "in_a_row" not in engine.get(acme, activity_id).error
    refuse_all(engine)

    assert let_refuse(engine, acme, activity_id, 1)[0] < 6
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    engine.make_due(acme)
    engine.drain()
    assert (engine.status(acme, activity_id), engine.get(acme, activity_id).error) == ("done", None)


def test_a_call_that_was_not_sent_does_not_change_the_count_of_refusals(engine: Engine, acme: Tenant) -> None:
    refuse_all(engine)
    (activity_id,) = engine.submit(acme)
    let_refuse(engine, acme, activity_id, 3)

    refuse_all(engine, retry_after=2, nothing_sent=True)
    let_refuse(engine, acme, activity_id, 2)

    assert engine.get(acme, activity_id).error["in_a_row"] == 3
    refuse_all(engine)
    assert 30 < let_refuse(engine, acme, activity_id, 1)[0] < 46


def test_one_alert_is_raised_for_a_role_that_is_refused_for_long(
    engine: Engine, acme: Tenant, api: Callable[..., Any]
) -> None:
    refuse_all(engine)
    first, second = engine.submit(acme, count=2)
    engine.drain()
    assert api("viewer").get("/api/v1/alerts/", {"kind": "rate_limited"}).json()["results"] == []

    for activity_id in (first, second, first):
        move_start_back(acme, activity_id, timedelta(minutes=20))
    engine.make_due(acme)
    engine.drain()

    (alert,) = api("viewer").get("/api/v1/alerts/", {"kind": "rate_limited"}).json()["results"]
    assert "qa" in alert["title"]
    assert {engine.status(acme, each) for each in (first, second)} == {"created"}


@pytest.mark.parametrize("retry_after", [None, 7])
def test_work_that_is_refused_for_a_day_fails_and_can_be_replayed(
    engine: Engine, acme: Tenant, api: Callable[..., Any], retry_after: float | None
) -> None:
    refuse_all(engine, retry_after)
    (activity_id,) = engine.submit(acme)
    engine.drain()
    move_start_back(acme, activity_id, timedelta(hours=23, minutes=59))
    engine.make_due(acme)
    engine.drain()
    assert engine.status(acme, activity_id) == "created"

    move_start_back(acme, activity_id, timedelta(minutes=1))
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


def test_time_in_which_refused_work_waited_for_something_else_does_not_count(
    engine: Engine, acme: Tenant
) -> None:
    refuse_all(engine)
    (activity_id,) = engine.submit(acme)
    engine.drain()
    move_start_back(acme, activity_id, timedelta(days=3), "last")  # as if its role was paused after the first
    engine.make_due(acme)
    engine.drain()
    status, refusals = engine.status(acme, activity_id), engine.get(acme, activity_id).error["in_a_row"]

    refuse_all(engine, nothing_sent=True)
    engine.make_due(acme)
    engine.drain()
    move_start_back(acme, activity_id, timedelta(hours=22, minutes=55))
    for _ in range(2):
        refuse_all(engine)
        engine.make_due(acme)
        engine.drain()
        status_later = engine.status(acme, activity_id)
        move_start_back(acme, activity_id, timedelta(minutes=10))

    assert (status, refusals) == ("created", 2)
    assert status_later == "failed", "an hour of the pause counts"


def test_refusals_of_the_provider_that_the_role_used_before_do_not_count(
    engine: Engine, acme: Tenant
) -> None:
    refuse_all(engine, provider="one")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    move_start_back(acme, activity_id, timedelta(hours=25))

    refuse_all(engine, provider="other")
    engine.make_due(acme)
    engine.drain()

    assert engine.status(acme, activity_id) == "created"
    assert engine.get(acme, activity_id).error["in_a_row"] == 1


def test_a_retry_resets_the_count_of_refusals(engine: Engine, acme: Tenant, api: Callable[..., Any]) -> None:
    refuse_all(engine)
    (activity_id,) = engine.submit(acme)
    engine.drain()
    move_start_back(acme, activity_id, timedelta(hours=25))
    engine.make_due(acme)
    engine.drain()
    assert engine.status(acme, activity_id) == "failed"

    api("operator").post(f"/api/v1/activities/{activity_id}/retry/")
    engine.drain()

    assert (engine.status(acme, activity_id), engine.get(acme, activity_id).error["in_a_row"]) == (
        "created",
        1,
    )


def test_while_a_provider_pauses_normal_work_of_the_role_waits_and_urgent_work_is_tried(
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
    assert 10 < why.estimate_seconds < 32


def test_after_the_pause_of_a_provider_refused_work_precedes_later_work(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_TICK_SECONDS = 30.0  # the pause ends before the leader's next round

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


def test_a_provider_limit_without_a_known_end_does_not_hold_other_work_back(
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
