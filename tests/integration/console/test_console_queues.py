"""The pages of queues: waiting, running and held work of one tenant, with pause and resume."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activities.models import WorkerProcess
from agents.models import Agent, AgentConfig
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.models import AuditEntry, Pause, Plan, Tenant
from tests.browsing import visible_text
from tests.console_user import Person, refusal_notice, send_form
from tests.engine import Engine
from tests.forms import forms_of

QUEUES = "/queues/"


def test_each_role_shows_waiting_work_by_priority_band(
    engine: Engine, tenant: Tenant, ann: Person, other_tenant: Tenant
) -> None:
    engine.submit(tenant, "qa", count=3)
    engine.submit(tenant, "qa", count=2, priority=1)
    engine.submit(other_tenant, "qa", count=321)

    text = visible_text(ann.get(QUEUES))

    assert "qa 2 urgent 3 normal" in text
    assert "5 waiting" in text
    assert "321" not in text


def test_the_head_of_the_queue_is_in_the_order_of_admission(
    engine: Engine, tenant: Tenant, ann: Person
) -> None:
    engine.submit(tenant, "qa", priority=20, group_key="slow")
    engine.submit(tenant, "qa", priority=12)
    engine.submit(tenant, "qa", priority=11)
    engine.submit(tenant, "qa", priority=1)

    page = ann.get(f"{QUEUES}qa/")

    line = page.context["line"]
    assert [(waiter.place, waiter.priority) for waiter in line] == [(1, 1), (2, 11), (3, 12), (4, 20)]
    assert "group slow" in visible_text(page)
    assert "# Work Priority Waiting 1" in visible_text(page), "as other pages call it"


def test_delayed_work_is_not_in_the_queue(engine: Engine, tenant: Tenant, ann: Person) -> None:
    from datetime import UTC, datetime, timedelta

    engine.submit(tenant, "qa", not_before=datetime.now(UTC) + timedelta(hours=1))

    page = ann.get(f"{QUEUES}qa/")

    assert page.context["line"] == []
    assert "1 delayed" in visible_text(page)


def test_limits_name_their_source(engine: Engine, tenant: Tenant, ann: Person) -> None:
    assert "This tenant, this role 5 set by the registry" in visible_text(ann.get(f"{QUEUES}qa/"))

    with system_scope():
        plan = Plan.objects.create(key="small", name="Small", max_concurrency=6, roles={"qa": 3})
        Tenant.objects.filter(pk=tenant.pk).update(plan=plan)
    page = visible_text(ann.get(f"{QUEUES}qa/"))
    assert "This tenant, this role 3 set by the plan" in page
    assert "This tenant, all roles 6" in page

    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="qa", max_concurrency=2)

    assert "This tenant, this role 2 set by the tenant" in visible_text(ann.get(f"{QUEUES}qa/"))


def test_a_role_without_workers_says_so(engine: Engine, tenant: Tenant, ann: Person) -> None:
    engine.submit(tenant, "strategy-writer")

    assert "No worker serves this role" in visible_text(ann.get(f"{QUEUES}strategy-writer/"))
    assert "no worker" in visible_text(ann.get(QUEUES))


def test_an_operator_pauses_and_resumes_a_role(engine: Engine, tenant: Tenant, ann: Person) -> None:
    address = f"{QUEUES}qa/"

    answer = forms_of(ann.get(address))["switch"].send(ann.browser, ("action", "pause"))
    assert answer.status_code == 302
    page = ann.get(answer["Location"])
    assert "Paused: qa" in visible_text(page)
    assert "Paused for this tenant: no new work starts." in visible_text(page)
    with tenant_scope(tenant.pk):
        assert AgentConfig.objects.get(agent_id="qa").paused
        entry = AuditEntry.objects.for_tenant(tenant).order_by("-number")[0]
    assert (entry.operation, entry.object_id, entry.actor_name) == ("POST /queues/{role}/pause/", "qa", "ann")

    forms_of(page)["switch"].send(ann.browser, ("action", "resume"))
    with tenant_scope(tenant.pk):
        assert not AgentConfig.objects.get(agent_id="qa").paused


def test_an_operator_pauses_all_work_for_a_provider(engine: Engine, tenant: Tenant, ann: Person) -> None:
    address = f"{QUEUES}qa/"
    assert "provider" not in visible_text(ann.get(address)).lower()
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="qa", adapter="anthropic", model="some-model")

    page = ann.get(address)
    answer = forms_of(page)["switch"].send(ann.browser, ("action", "pause:anthropic"))

    page = ann.get(answer["Location"])
    assert "All work of this tenant for anthropic is paused" in visible_text(page)
    with tenant_scope(tenant.pk):
        assert Pause.objects.get().subject == "anthropic"
    forms_of(page)["switch"].send(ann.browser, ("action", "resume:anthropic"))
    with tenant_scope(tenant.pk):
        assert not Pause.objects.exists()
    assert send_form(ann, forms_of(ann.get(address))["switch"], action="pause:nobody").status_code == 400


def test_a_disabled_role_has_no_resume_button(engine: Engine, tenant: Tenant, ann: Person) -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant_id=tenant.pk, agent_id="qa", enabled=False)
    page = ann.get(f"{QUEUES}qa/")

    assert "This tenant has disabled the role" in visible_text(page)
    assert forms_of(page)["switch"].buttons == []
    assert "disabled" in visible_text(ann.get(QUEUES))


def test_a_role_paused_before_its_tenant_can_be_resumed(
    engine: Engine, tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    forms_of(ann.get(f"{QUEUES}qa/"))["switch"].send(ann.browser, ("action", "pause"))
    boss = person("boss", role="admin")
    forms_of(boss.get(QUEUES))["tenant-switch"].send(boss.browser, ("action", "pause"))

    page = ann.get(f"{QUEUES}qa/")

    assert "All work of this tenant is paused" in visible_text(page)
    assert forms_of(page)["switch"].buttons == [("action", "resume")]


def test_a_viewer_sees_no_button_and_is_refused(
    engine: Engine, tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    vic = person("vic", role="viewer")
    assert "switch" not in forms_of(vic.get(f"{QUEUES}qa/"))

    answer = send_form(vic, forms_of(ann.get(f"{QUEUES}qa/"))["switch"], action="pause")

    assert "This needs the role operator; you act as viewer." in refusal_notice(answer, 403)
    with tenant_scope(tenant.pk):
        assert not AgentConfig.objects.filter(agent_id="qa", paused=True).exists()


def test_only_an_admin_pauses_the_tenant(
    engine: Engine, tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    boss = person("boss", role="admin")
    form = forms_of(boss.get(QUEUES))["tenant-switch"]

    assert "needs the role admin" in refusal_notice(send_form(ann, form, action="pause"), 403)
    tenant.refresh_from_db(using=SYSTEM)
    assert not tenant.paused

    answer = form.send(boss.browser, ("action", "pause"))
    page = boss.get(answer["Location"])
    tenant.refresh_from_db(using=SYSTEM)
    assert tenant.paused
    assert "All work of this tenant is paused" in visible_text(page)
    with tenant_scope(tenant.pk):
        entries = AuditEntry.objects.for_tenant(tenant).filter(object_kind="tenants").order_by("number")
        assert list(entries.values_list("operation", "outcome", "actor_name")) == [
            ("tenant.paused", "refused", "ann"),
            ("tenant.paused", "done", "boss"),
        ]

    forms_of(page)["tenant-switch"].send(boss.browser, ("action", "resume"))
    tenant.refresh_from_db(using=SYSTEM)
    assert not tenant.paused


def test_queues_of_another_tenant_and_unknown_roles_are_not_found(
    engine: Engine, other_tenant: Tenant, ann: Person
) -> None:
    assert ann.browser.get(f"{QUEUES}?tenant={other_tenant.slug}").status_code == 404
    assert ann.browser.get(f"{QUEUES}no-such-role/").status_code == 404


def test_the_trail_names_the_break_glass_access_of_a_superuser(
    engine: Engine, tenant: Tenant, root: Person
) -> None:
    page = root.get(f"{QUEUES}qa/?tenant=acme")
    forms_of(page)["switch"].send(root.browser, ("action", "pause"))

    with tenant_scope(tenant.pk):
        entry = AuditEntry.objects.for_tenant(tenant).order_by("-number")[0]
    assert entry.operation == "POST /queues/{role}/pause/"
    assert entry.break_glass_id is not None


@pytest.mark.parametrize("address", [QUEUES, f"{QUEUES}qa/"])
def test_the_pages_need_few_queries_for_any_number_of_waiting_activities(
    address: str, engine: Engine, tenant: Tenant, ann: Person, queries_of: Callable[..., list[str]]
) -> None:
    few = queries_of(ann, address)
    with tenant_scope(tenant.pk):
        for agent in Agent.objects.exclude(role="qa")[:5]:
            AgentConfig.objects.create(tenant=tenant, agent=agent, adapter="openai", auth_sealed="")
    for role in ("qa", "dev", "seo"):
        engine.submit(tenant, role, count=20)

    many = queries_of(ann, address)

    assert len(many) <= 12, many
    assert len(many) <= len(few) + 2, many  # for the serving versions of models


def test_a_worker_that_serves_a_role_is_counted(engine: Engine, ann: Person) -> None:
    assert WorkerProcess.objects.filter(ended_at=None).count() == 1
    assert "1 worker" in visible_text(ann.get(f"{QUEUES}qa/"))
