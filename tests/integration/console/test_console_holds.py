"""What holds work stands in the headline, with its cause and number, and "all is well" only where nothing waits for anybody."""

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
from tests.failed_work import failed
from tests.spending import capped

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ROLE = "qa"


def needs(tenant: Tenant) -> list[str]:
    return [need.words for need in overview(tenant.pk).needs]


def state_of(tenant: Tenant, role: str = ROLE) -> str:
    found = {row.role: row.state for row in queues(tenant.pk).rows}
    one = one_queue(tenant.pk, role)
    assert one is not None
    assert found[role] == one.row.state
    return found[role]


def test_nothing_to_do_is_well(engine: Engine, acme: Tenant) -> None:
    assert (overview(acme.pk).sentence, overview(acme.pk).status) == ("All is well.", "ready")


def test_work_that_waits_for_money_is_named_with_its_budget(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    capped(acme, cap="0.10", estimate="0.30", name="Google Ads", period="total")
    engine.submit(acme, ROLE, count=3)
    engine.drain()

    found = overview(acme.pk)

    assert (found.status, found.sentence) == ("needed", "1 thing needs attention.")
    assert needs(acme) == ["3 activities wait for the budget Google Ads. Raise it."]
    assert state_of(acme) == "held: budget"
    assert {row.state for row in found.queues if row.standing.role == ROLE} == {"held: budget"}
    assert needs(other_tenant) == [], "another tenant's money is nobody else's matter"


def test_a_budget_with_a_period_says_until_when_one_may_wait(engine: Engine, acme: Tenant) -> None:
    capped(acme, cap="0.10", estimate="0.30", name="Daily", period="day")
    engine.submit(acme, ROLE)
    engine.drain()

    (said,) = needs(acme)

    assert said.startswith("1 activity waits for the budget Daily. Raise it, or wait until ")


@pytest.mark.parametrize("what", ["tenant", "role", "provider"])
def test_work_behind_a_pause_is_named_with_who_paused_it(engine: Engine, acme: Tenant, what: str) -> None:
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

    (said,) = needs(acme)

    who = {"tenant": "the tenant", "role": f"the role {ROLE}", "provider": "the provider anthropic"}[what]
    assert said == f"2 activities wait because {who} is paused or disabled. Resume it."
    assert state_of(acme) == "paused"
    assert wait_reasons.why(acme.pk, first).code == "paused", "the headline and the answer for one agree"


def test_work_that_a_provider_refuses_is_named_with_the_provider(engine: Engine, acme: Tenant) -> None:
    def refuse(request: object) -> None:
        raise AgentRateLimited("Too many requests", retry_after=3_600)

    engine.agent.behaviour = refuse
    (first,) = engine.submit(acme, ROLE)
    engine.drain()

    (said,) = needs(acme)

    assert said.startswith("1 activity waits for ")
    assert "accepts no requests for now. The next attempt is at" in said
    assert state_of(acme) == "held: provider"
    assert wait_reasons.why(acme.pk, first).code == "provider_limit"


def test_work_that_waits_for_its_date_or_its_turn_needs_nobody(engine: Engine, acme: Tenant) -> None:
    engine.submit(acme, ROLE, count=2)

    assert needs(acme) == []


def test_work_that_failed_for_good_is_no_good_news(engine: Engine, acme: Tenant) -> None:
    failed(engine, acme, count=2)
    dead_letters.handle_waiting()

    found = overview(acme.pk)

    assert found.status != "ready"
    assert "2 activities failed permanently. Retry or cancel." in needs(acme)


def test_questions_for_people_are_said_in_the_headline(engine: Engine, acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        submit([NewActivity(name="decide", human_role="editor", is_approval_gate=True)], actor="test")

    (said,) = needs(acme)

    assert said.startswith("1 item waits for people, the oldest for ")
