"""Periods start once for every active deliverable, with work for the planner."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import Any

import pytest

from activities.models import Activity, Wake
from pipelines import deliverables
from pipelines.deliverables import starting
from pipelines.exceptions import DeliverableNotActive
from pipelines.models import Deliverable, DeliverablePeriod, Pipeline
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, in_another_thread, simultaneously
from tests.integration.periods.months import MAY, PLAN, answering, change_without_waiting, count, counts, save

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_every_active_deliverable_gets_a_period_and_its_planner_work(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    deliverables.create(acme.pk, {"key": "ads", "name": "Ads", "pipelines": ["flow"]})
    deliverables.create(acme.pk, {"key": "old", "name": "Old", "pipelines": ["flow"], "status": "paused"})
    deliverables.create(acme.pk, {"key": "gone", "name": "Gone", "pipelines": ["flow"], "status": "ended"})

    started = deliverables.start_new_periods(acme.pk, today=date(2028, 2, 17))

    assert {(p.starts_on, p.ends_on, p.status) for p in started} == {
        (date(2028, 2, 1), date(2028, 2, 29), "planning")
    }
    with tenant_scope(acme.pk):
        assert {p.deliverable.key for p in DeliverablePeriod.objects.all()} == {"blog", "ads"}
        planning = Activity.objects.get(deliverable_id=blog.pk)
        wake = Wake.objects.get(activity=planning)
    period = next(p for p in started if p.deliverable_id == blog.pk)
    assert (planning.agent_role, planning.pk, wake.reason) == (
        "activity-planner",
        period.planner_activity_id,
        "scheduled",
    )
    assert planning.dedup_key == f"{acme.pk}:{period.pk}:scheduled"


def test_the_planner_receives_the_pipelines_and_the_last_period(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    save(acme, "flow", {"id": "a", "agent_role": "qa"}, params={"city": "Oslo"}, description="Writes.")
    save(acme, "other", {"id": "a", "agent_role": "qa"})
    deliverables.change(acme.pk, blog.pk, {"pipelines": ["flow", "other"], "description": "On bees."})
    with tenant_scope(acme.pk):
        Pipeline.objects.filter(key="other").update(enabled=False)
    (_april,) = deliverables.start_new_periods(acme.pk, today=date(2026, 4, 30))
    engine.agent.behaviour = answering(PLAN)
    engine.drain()

    deliverables.start_new_periods(acme.pk, today=MAY)
    engine.drain()

    requests = [call.params for call in engine.agent.calls if call.agent_role == "activity-planner"]
    assert requests[0]["last_period"] is None
    assert requests[1]["last_period"] == {
        "starts_on": "2026-04-01", "ends_on": "2026-04-30", "status": "completed", "target": None, "planned": 2,
            "completed": 2, "failed": 0,
        "cancelled": 0, "at_risk": False, "at_risk_reason": "",
    }  # fmt: skip
    assert requests[1]["deliverable"] == {
        "key": "blog", "name": "Blog", "description": "On bees.", "params": {"tone": "calm"},
    }  # fmt: skip
    assert requests[1]["pipelines"] == [
        {"key": "flow", "name": "Flow", "description": "Writes.",
         "params": {"type": "object", "properties": {"city": {"type": "string", "default": "Oslo"}}}}
    ]  # fmt: skip
    assert requests[1]["plan_schema"]["required"] == ["items"]


def test_starting_periods_again_starts_nothing(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    second = deliverables.start_new_periods(acme.pk, today=date(2026, 5, 31))
    engine.drain()
    third = deliverables.start_new_periods(acme.pk, today=MAY)

    assert (second, third) == ([], [])
    assert count(acme, Activity, agent_role="activity-planner") == 1
    assert counts(acme, may) == ("completed", 2, 2, 0, 0)


def test_ten_concurrent_starts_start_each_period_once(engine: Engine, acme: Tenant) -> None:
    for number in range(5):
        deliverables.create(acme.pk, {"key": f"d{number}", "name": f"D{number}", "pipelines": ["flow"]})

    outcomes = simultaneously(*[partial(deliverables.start_new_periods, acme.pk, today=MAY)] * 10)

    assert sorted(len(started) for started in outcomes) == [0] * 9 + [5]
    assert count(acme, DeliverablePeriod) == 5
    assert count(acme, Activity, agent_role="activity-planner") == 5


def test_a_concurrent_manual_and_automatic_start_start_one_period(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    by_hand = partial(deliverables.start_period, acme.pk, blog.pk, today=MAY, actor="user:ann")

    outcomes = simultaneously(by_hand, partial(deliverables.start_new_periods, acme.pk, today=MAY), by_hand)

    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert count(acme, DeliverablePeriod) == count(acme, Activity) == 1


def test_a_start_that_dies_leaves_nothing_and_can_be_repeated(
    engine: Engine, acme: Tenant, blog: Deliverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(starting, "submit", die)
        with pytest.raises(KeyboardInterrupt):
            deliverables.start_new_periods(acme.pk, today=MAY)

    assert count(acme, DeliverablePeriod) == 0
    assert len(deliverables.start_new_periods(acme.pk, today=MAY)) == 1
    assert count(acme, Activity) == 1


def test_a_start_ignores_other_and_inactive_tenants(
    engine: Engine, acme: Tenant, blog: Deliverable, other_tenant: Tenant, make_tenant: Any
) -> None:
    inactive = make_tenant("inactive", is_active=False)
    deliverables.create(inactive.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})
    deliverables.create(other_tenant.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})

    started = {each.slug: deliverables.start_new_periods(each.pk, today=MAY) for each in (acme, inactive)}

    assert {slug: len(periods) for slug, periods in started.items()} == {"acme": 1, "inactive": 0}
    assert count(other_tenant, DeliverablePeriod) == 0


def test_a_paused_deliverable_can_be_started_only_if_its_period_exists(
    engine: Engine, acme: Tenant, blog: Deliverable, may: DeliverablePeriod
) -> None:
    deliverables.change(acme.pk, blog.pk, {"status": "paused"})
    start = partial(deliverables.start_period, acme.pk, blog.pk, actor="user:ann")

    period, is_new = start(today=date(2026, 5, 20))

    assert (period.pk, is_new) == (may.pk, False)
    with pytest.raises(DeliverableNotActive, match="is paused"):
        start(today=date(2026, 6, 1))


def test_deleting_a_deliverable_during_its_start_leaves_both_or_none(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    outcomes = simultaneously(
        partial(deliverables.start_new_periods, acme.pk, today=MAY),
        partial(deliverables.delete, acme.pk, blog.pk),
    )

    errors = [getattr(outcome, "code", outcome) for outcome in outcomes if isinstance(outcome, Exception)]
    assert errors in ([], ["deliverable_in_use"])
    assert count(acme, DeliverablePeriod) == count(acme, Deliverable) == len(errors)


def test_a_deliverable_cannot_be_paused_or_deleted_during_its_start(
    engine: Engine, acme: Tenant, blog: Deliverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, errors = starting._create, []

    def meanwhile(*args: Any) -> Any:
        errors.append(in_another_thread(partial(change_without_waiting, acme, deliverables.delete, blog.pk)))
        errors.append(
            in_another_thread(
                partial(change_without_waiting, acme, deliverables.change, blog.pk, {"status": "paused"})
            )
        )
        return create(*args)

    monkeypatch.setattr(starting, "_create", meanwhile)

    started = deliverables.start_new_periods(acme.pk, today=MAY)

    assert len(started) == 1
    assert ["lock timeout" in str(error) for error in errors] == [True, True]
