"""The pages of agents: the serving version, recent runs of the tenant, and deployment by the platform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from activities.models import ActivityRun
from agents import deployments
from agents.exceptions import PermanentAgentError
from agents.models import Agent
from console import agents
from console.agents import RecentRuns
from tenants.context import tenant_scope
from tenants.identifiers import first_id_at, uuid7
from tenants.models import AuditEntry, Tenant
from tests.browsing import visible_text
from tests.console_user import Person, refusal_notice, send_form
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.forms import forms_of
from tests.registry import temporary_agent

AGENTS = "/agents/"


@pytest.fixture
def scribe(database: None) -> Iterator[Agent]:
    """An agent with two versions that were in production one after the other."""
    with temporary_agent(endpoint="https://scribe.example") as agent:
        deployments.deploy("scribe", "1.0.0", "production", actor="mia")
        deployments.deploy("scribe", "1.1.0", "production", actor="noa")
        yield agent


def test_each_role_shows_the_runs_of_its_tenant_only(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, ann: Person
) -> None:
    engine.serve(tenant)
    engine.serve(other_tenant)
    engine.submit(tenant, "qa", count=3)
    engine.drain()
    submit_failing(engine, tenant, "qa")
    engine.submit(other_tenant, "qa", count=5)
    engine.drain()

    row = next(row for row in ann.get(AGENTS).context["agents"] if row.agent.role == "qa")

    assert (row.runs.completed, row.runs.failed, row.runs.failure_percent) == (3, 1, "25%")
    assert row.runs.p50 is not None
    assert "25%" in visible_text(ann.get(AGENTS))


def test_percentiles_of_durations_count_only_completed_runs() -> None:
    runs = RecentRuns()
    for seconds in range(1, 101):
        runs.count("completed", float(seconds))
    runs.count("stalled", 1_000.0)

    assert (runs.p50, round(runs.p95 or 0), runs.failed) == (50.5, 95, 1)
    assert (RecentRuns().p50, RecentRuns().p95, RecentRuns().failure_rate) == (None, None, None)


def test_runs_older_than_a_day_are_not_counted(engine: Engine, tenant: Tenant, ann: Person) -> None:
    engine.serve(tenant)
    engine.submit(tenant, "qa")
    engine.drain()
    with tenant_scope(tenant.pk):
        run = ActivityRun.objects.get()
        older = first_id_at(run.started_at - timedelta(hours=25))
        assert first_id_at(run.started_at) <= uuid7()
        ActivityRun.objects.filter(pk=run.pk).update(id=older)

    row = next(row for row in ann.get(AGENTS).context["agents"] if row.agent.role == "qa")

    assert row.runs.ended == 0


def test_figures_limited_by_the_number_of_runs_say_since_when(
    engine: Engine, tenant: Tenant, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.agents.MOST", 2)
    engine.serve(tenant)
    engine.submit(tenant, "qa", count=3)
    engine.drain()
    with tenant_scope(tenant.pk):
        started = ActivityRun.objects.order_by("-pk")[1].started_at

    page = ann.get(AGENTS)

    assert page.context["since"] == started
    assert "too many to count a whole day" in visible_text(page)
    assert "2 runs since" in visible_text(ann.get(f"{AGENTS}qa/"))
    monkeypatch.setattr("console.agents.MOST", 3)
    assert "runs in the last 24 hours" in visible_text(ann.get(AGENTS))


def test_the_page_of_a_role_has_its_versions_newest_first(scribe: Agent, ann: Person) -> None:
    page = ann.get(f"{AGENTS}scribe/")

    history = page.context["history"]
    assert [each.version for each in history] == ["1.1.0", "1.0.0"]
    assert "by noa" in visible_text(page)
    assert "versions" in forms_of(page)
    assert forms_of(page)["versions"].buttons == [], "only the platform deploys"
    assert "scribe.example" not in page.content.decode(), "addresses are the platform's"


def test_a_superuser_rolls_back_and_promotes_with_audit_entries(
    scribe: Agent, tenant: Tenant, root: Person
) -> None:
    page = root.get(f"{AGENTS}scribe/?tenant=acme")

    answer = forms_of(page)["actions"].send(root.browser, ("action", "roll_back"))
    page = root.get(answer["Location"])
    assert page.context["row"].serves.version == "1.0.0"
    newest = page.context["history"][1]
    forms_of(page)["versions"].send(root.browser, ("action", f"promote:{newest.pk}"))

    serving = deployments.in_production("scribe")
    assert serving is not None
    assert serving.version == "1.1.0"
    with tenant_scope(tenant.pk):
        operations = (
            AuditEntry.objects.for_tenant(tenant).order_by("number").values_list("operation", flat=True)
        )
        assert [each for each in operations if "agents" in each] == [
            "POST /agents/{agent_role}/rollback/",
            "POST /agents/{agent_role}/deployments/{id}/promote/",
        ]


def test_a_form_of_an_older_state_cannot_roll_back_or_promote(
    scribe: Agent, tenant: Tenant, root: Person
) -> None:
    deployments.deploy("scribe", "1.2.0", "production", actor="pia")
    page = root.get(f"{AGENTS}scribe/?tenant=acme")
    forms = forms_of(page)
    first = page.context["history"][-1]
    forms["actions"].send(root.browser, ("action", "roll_back"))

    again = refusal_notice(forms["actions"].send(root.browser, ("action", "roll_back")), 409)
    promoted = refusal_notice(forms["versions"].send(root.browser, ("action", f"promote:{first.pk}")), 409)

    assert again == promoted
    assert again.startswith("The agent has changed since you loaded the page")
    serving = deployments.in_production("scribe")
    assert serving is not None
    assert serving.version == "1.1.0"


def test_the_serving_version_is_shown_after_many_staging_deployments(
    scribe: Agent, tenant: Tenant, root: Person
) -> None:
    for number in range(agents.MOST_DEPLOYMENTS):
        deployments.deploy("scribe", f"2.0.{number}", "staging", actor="noa")

    page = root.get(f"{AGENTS}scribe/?tenant=acme")

    assert page.context["row"].serves.version == "1.1.0"
    assert ("action", "roll_back") in forms_of(page)["actions"].buttons


def test_an_admin_of_a_tenant_cannot_deploy(
    scribe: Agent, root: Person, person: Callable[..., Person]
) -> None:
    boss = person("boss", role="admin")
    form = forms_of(root.get(f"{AGENTS}scribe/?tenant=acme"))["actions"]

    answer = send_form(boss, form, action="roll_back")

    assert "needs a token of a platform admin" in refusal_notice(answer, 403)
    serving = deployments.in_production("scribe")
    assert serving is not None
    assert serving.version == "1.1.0"


def test_a_rollback_without_an_earlier_version_is_refused(
    scribe: Agent, tenant: Tenant, root: Person
) -> None:
    address = f"{AGENTS}scribe/?tenant=acme"
    form = forms_of(root.get(address))["actions"]
    form.send(root.browser, ("action", "roll_back"))
    form.fields |= forms_of(root.get(address))["actions"].fields

    assert "was in production before" in refusal_notice(form.send(root.browser, ("action", "roll_back")), 409)
    assert root.browser.get(f"{AGENTS}no-such/?tenant=acme").status_code == 404


def test_failed_runs_are_shown_on_the_page(engine: Engine, tenant: Tenant, ann: Person) -> None:
    engine.serve(tenant)
    submit_failing(engine, tenant, "dev", 2, error=PermanentAgentError("No.", code="no"))

    assert "100% failed" in visible_text(ann.get(f"{AGENTS}dev/"))


@pytest.mark.parametrize("address", [AGENTS, f"{AGENTS}qa/"])
def test_the_pages_need_few_queries_for_all_roles(
    address: str, engine: Engine, ann: Person, queries_of: Callable[..., list[str]]
) -> None:
    queries = queries_of(ann, address)

    assert len(queries) <= 12, queries
