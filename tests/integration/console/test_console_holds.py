"""The headline of the overview names what holds up work, with its cause and number."""

from __future__ import annotations

import pytest

from activities import dead_letters, wait_reasons
from activities.submission import NewActivity, submit
from agents import configuration
from agents.exceptions import AgentRateLimited
from agents.models import AgentConfig
from console.overview import overview
from console.queues import one_queue, queues
from tenants import pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind, Tenant
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.spending import complete_at_cost, make_budget

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ROLE = "qa"


def needs(tenant: Tenant) -> list[str]:
    return [need.words for need in overview(tenant.pk).needs]


def state_of(tenant: Tenant, role: str = ROLE) -> str:
    page = {row.role: row.state for row in queues(tenant.pk)[0]}
    one = one_queue(tenant.pk, role)["row"]
    assert one is not None
    assert page[role] == one.state
    return page[role]


def test_an_idle_tenant_is_well(engine: Engine, acme: Tenant) -> None:
    assert (overview(acme.pk).sentence, overview(acme.pk).status) == ("All is well.", "ready")


def test_work_held_by_a_budget_is_named_with_the_budget(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    make_budget(acme, cap="0.10", estimate="0.30", name="Google Ads", period="total")
    engine.submit(acme, ROLE, count=3)
    engine.drain()

    page = overview(acme.pk)

    assert (page.status, page.sentence) == ("needed", "1 thing needs attention.")
    assert needs(acme) == ["3 activities wait for the budget Google Ads. Raise it."]
    assert state_of(acme) == "held: budget"
    assert {row.state for row in page.queues if row.standing.role == ROLE} == {"held: budget"}
    assert needs(other_tenant) == [], "the budget of another tenant is not shown"


def test_work_held_by_a_periodic_budget_says_until_when(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, cap="0.50", estimate="0.30", name="Daily", period="day")
    engine.agent.behaviour = complete_at_cost("0.40")
    engine.submit(acme, ROLE, count=2)
    engine.drain()

    (need,) = needs(acme)

    assert need.startswith("1 activity waits for the budget Daily. Raise it, or wait until ")


def test_work_that_needs_more_than_the_whole_cap_does_not_wait_for_the_next_period(
    engine: Engine, acme: Tenant
) -> None:
    make_budget(acme, cap="0.10", estimate="0.30", name="Daily", period="day")
    engine.submit(acme, ROLE)
    engine.drain()

    assert needs(acme) == ["1 activity waits for the budget Daily. Raise it."]


@pytest.mark.parametrize("what", ["tenant", "role", "provider"])
def test_paused_work_is_named_with_the_paused_part(engine: Engine, acme: Tenant, what: str) -> None:
    with tenant_scope(acme.pk):
        if what == "tenant":
            Tenant.objects.filter(pk=acme.pk).update(paused=True)
        elif what == "role":
            AgentConfig.objects.filter(agent_id=ROLE).update(paused=True)
        else:
            AgentConfig.objects.filter(agent_id=ROLE).update(adapter="anthropic")
            pausing.switch_part(
                acme.pk, PauseKind.PROVIDER, "anthropic", name="anthropic", paused=True, actor="test"
            )
    configuration.forget()
    (first, *_) = engine.submit(acme, ROLE, count=2)

    (need,) = needs(acme)

    who = {"tenant": "the tenant", "role": f"the role {ROLE}", "provider": "the provider anthropic"}[what]
    assert need == f"2 activities wait because {who} is paused or disabled. Resume it."
    assert state_of(acme) == "paused"
    assert wait_reasons.why(acme.pk, first).code == "paused", "the headline and the answer for one agree"


def test_work_held_by_a_provider_is_named_with_the_next_attempt(engine: Engine, acme: Tenant) -> None:
    def refuse(request: object) -> None:
        raise AgentRateLimited("Too many requests", retry_after=3_600)

    engine.agent.behaviour = refuse
    (first,) = engine.submit(acme, ROLE)
    engine.drain()

    (need,) = needs(acme)

    assert need.startswith("1 activity waits for ")
    assert "accepts no requests for now. The next attempt is at" in need
    assert state_of(acme) == "held: provider"
    assert wait_reasons.why(acme.pk, first).code == "provider_limit"


def test_work_that_waits_for_its_turn_needs_no_attention(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, ROLE, count=2)

    assert needs(acme) == []


def test_permanently_failed_work_needs_attention(engine: Engine, acme: Tenant) -> None:
    submit_failing(engine, acme, count=2)
    dead_letters.handle_waiting()

    page = overview(acme.pk)

    assert page.status != "ready"
    assert "2 activities failed permanently. Retry or cancel." in needs(acme)


def test_items_for_people_are_named_in_the_headline(engine: Engine, acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        submit([NewActivity(name="decide", human_role="editor", is_approval_gate=True)], actor="test")

    (need,) = needs(acme)

    assert need.startswith("1 item waits for people, the oldest for ")
