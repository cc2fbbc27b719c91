"""The pulse on the overview: ended runs by hour, cost of today and use of budgets, for one tenant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from activities.models import ActivityRun
from console.overview import pulse_of
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.console_user import Person
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.spending import complete_at_cost, make_budget


def test_runs_are_counted_in_the_hour_in_which_they_ended(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    for each in (tenant, other_tenant):
        engine.serve(each)
        engine.submit(each, "qa", count=3)
    engine.drain()
    submit_failing(engine, tenant, "dev")
    with tenant_scope(tenant.pk):
        early = ActivityRun.objects.filter(activity__agent_role="qa").order_by("pk")[0]
        ActivityRun.objects.filter(pk=early.pk).update(ended_at=datetime.now(UTC) - timedelta(hours=2))

    pulse = pulse_of(tenant.pk)

    assert pulse is not None
    assert (pulse.total, pulse.failed, len(pulse.ended)) == (4, 1, 24)
    assert pulse.ended[-3] + pulse.ended[-4] >= 1


def test_the_overview_shows_throughput_and_spend_against_budgets(
    engine: Engine, tenant: Tenant, ann: Person
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = complete_at_cost("0.25")
    engine.submit(tenant, "qa", count=2)
    engine.drain()
    make_budget(tenant, "1.00", name="March")

    page = ann.get("/")

    text = visible_text(page)
    assert "2 in 24 hours" in text
    assert "$0.50 today" in text
    assert "March 50% $0.50" in text
    assert page.context["pulse"].today == Decimal("0.5")
    assert "Runs that ended in each of the last 24 hours: 0, 0" in page.content.decode()


def test_the_overview_of_a_superuser_has_no_pulse(engine: Engine, root: Person) -> None:
    assert "Throughput" not in visible_text(root.get("/"))


def test_each_figure_needs_one_query(
    engine: Engine, tenant: Tenant, queries_of: Callable[..., list[str]], ann: Person
) -> None:
    queries = queries_of(ann, "/")

    assert sum("activities_activityrun" in sql and "ended_at" in sql for sql in queries) == 1
    assert sum("tenants_budget" in sql for sql in queries) == 1
