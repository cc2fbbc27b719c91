"""A month begins: every active deliverable gets its period and its planner the work, once."""

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
from tests.engine import Engine, at_once, elsewhere
from tests.integration.periods.months import MAY, PLAN, answering, count, figures, impatiently, save

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_month_gives_every_active_deliverable_a_period_and_its_planner_the_work(
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
        asked = Activity.objects.get(deliverable_id=blog.pk)
        wake = Wake.objects.get(activity=asked)
    period = next(p for p in started if p.deliverable_id == blog.pk)
    assert (asked.agent_role, asked.pk, wake.reason) == (
        "activity-planner",
        period.planner_activity_id,
        "scheduled",
    )
    assert asked.dedup_key == f"{acme.pk}:{period.pk}:scheduled"


def test_the_planner_is_told_what_it_may_plan_with_and_how_the_last_month_went(
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

    told = [call.params for call in engine.agent.calls if call.agent_role == "activity-planner"]
    assert told[0]["last_period"] is None
    assert told[1]["last_period"] == {
        "starts_on": "2026-04-01", "ends_on": "2026-04-30", "status": "completed", "target": None, "planned": 2,
            "completed": 2, "failed": 0,
        "cancelled": 0, "at_risk": False, "at_risk_reason": "",
    }  # fmt: skip
    assert told[1]["deliverable"] == {
        "key": "blog", "name": "Blog", "description": "On bees.", "params": {"tone": "calm"},
    }  # fmt: skip
    assert told[1]["pipelines"] == [
        {"key": "flow", "name": "Flow", "description": "Writes.",
         "params": {"type": "object", "properties": {"city": {"type": "string", "default": "Oslo"}}}}
    ]  # fmt: skip
    assert told[1]["plan_schema"]["required"] == ["items"]


def test_starting_a_month_again_starts_nothing(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    again_ = deliverables.start_new_periods(acme.pk, today=date(2026, 5, 31))
    engine.drain()
    afterwards = deliverables.start_new_periods(acme.pk, today=MAY)

    assert (again_, afterwards) == ([], [])
    assert count(acme, Activity, agent_role="activity-planner") == 1
    assert figures(acme, may) == ("completed", 2, 2, 0, 0)


def test_ten_who_start_a_month_at_once_start_it_once(engine: Engine, acme: Tenant) -> None:
    for number in range(5):
        deliverables.create(acme.pk, {"key": f"d{number}", "name": f"D{number}", "pipelines": ["flow"]})

    outcomes = at_once(*[partial(deliverables.start_new_periods, acme.pk, today=MAY)] * 10)

    assert sorted(len(started) for started in outcomes) == [0] * 9 + [5]
    assert count(acme, DeliverablePeriod) == 5
    assert count(acme, Activity, agent_role="activity-planner") == 5


def test_starting_by_hand_and_by_the_job_at_once_starts_it_once(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    by_hand = partial(deliverables.start_period, acme.pk, blog.pk, today=MAY, actor="user:ann")

    outcomes = at_once(by_hand, partial(deliverables.start_new_periods, acme.pk, today=MAY), by_hand)

    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert count(acme, DeliverablePeriod) == count(acme, Activity) == 1


def test_a_start_that_dies_half_way_leaves_nothing_and_is_repeated(
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


def test_a_start_looks_neither_at_other_tenants_nor_at_those_switched_off(
    engine: Engine, acme: Tenant, blog: Deliverable, other_tenant: Tenant, make_tenant: Any
) -> None:
    asleep = make_tenant("asleep", is_active=False)
    deliverables.create(asleep.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})
    deliverables.create(other_tenant.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})

    started = {each.slug: deliverables.start_new_periods(each.pk, today=MAY) for each in (acme, asleep)}

    assert {slug: len(found) for slug, found in started.items()} == {"acme": 1, "asleep": 0}
    assert count(other_tenant, DeliverablePeriod) == 0


def test_starting_by_hand_what_is_paused_is_refused_unless_it_has_begun(
    engine: Engine, acme: Tenant, blog: Deliverable, may: DeliverablePeriod
) -> None:
    deliverables.change(acme.pk, blog.pk, {"status": "paused"})
    start = partial(deliverables.start_period, acme.pk, blog.pk, actor="user:ann")

    period, is_new = start(today=date(2026, 5, 20))

    assert (period.pk, is_new) == (may.pk, False)
    with pytest.raises(DeliverableNotActive, match="is paused"):
        start(today=date(2026, 6, 1))


def test_deleting_a_deliverable_while_its_month_starts_loses_neither(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    outcomes = at_once(
        partial(deliverables.start_new_periods, acme.pk, today=MAY),
        partial(deliverables.delete, acme.pk, blog.pk),
    )

    errors = [type(outcome).__name__ for outcome in outcomes if isinstance(outcome, Exception)]
    assert errors in ([], ["DeliverableInUse"])
    assert count(acme, DeliverablePeriod) == count(acme, Deliverable) == len(errors)


def test_what_gets_its_month_can_be_neither_paused_nor_deleted_in_between(
    engine: Engine, acme: Tenant, blog: Deliverable, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, tried = starting._create, []

    def meanwhile(*args: Any) -> Any:
        tried.append(elsewhere(partial(impatiently, acme, deliverables.delete, blog.pk)))
        tried.append(
            elsewhere(partial(impatiently, acme, deliverables.change, blog.pk, {"status": "paused"}))
        )
        return create(*args)

    monkeypatch.setattr(starting, "_create", meanwhile)

    started = deliverables.start_new_periods(acme.pk, today=MAY)

    assert len(started) == 1
    assert ["lock timeout" in str(error) for error in tried] == [True, True]
