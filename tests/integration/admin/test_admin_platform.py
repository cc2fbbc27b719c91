"""Settings of the platform, of tenants and of roles in the admin, and the system jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from activities.maintenance import Leader, job_records
from activities.models import SystemJob
from agents import scheduler_settings
from agents.models import AgentConfig
from agents.scheduler_settings import KEYS
from tenants import pausing
from tenants.context import system_scope, tenant_scope
from tenants.models import Role, Tenant
from tenants.principals import Principal
from tests.browsing import list_url, page_url, visible_text
from tests.cases import in_one_test
from tests.engine import Engine
from tests.forms import forms_of
from tests.scheduling import make_schedule, reload

PAGE = "/admin/agents/platformconfig/scheduler/change/"


@pytest.fixture(autouse=True)
def _empty_cache(database: None) -> Any:
    scheduler_settings.forget()
    yield
    scheduler_settings.forget()


def form_at(root: Client, page: str, name: str) -> Any:
    """The form of a page, which is sent to the address of the page."""
    form = forms_of(root.get(page))[name]
    form.action = page
    return form


def form(root: Client) -> Any:
    assert root.get(reverse("admin:agents_platformconfig_changelist"))["Location"] == PAGE
    return form_at(root, PAGE, "platformconfig_form")


@in_one_test("name", ["Mars/Base", "../../etc/passwd", "utc", "localtime"])
def test_an_unknown_time_zone_of_a_tenant_is_an_error_at_its_field(
    root: Client, tenant: Tenant, name: str
) -> None:
    form = next(form for form in forms_of(root.get(page_url(tenant))).values() if "timezone" in form.fields)
    form.action = page_url(tenant)

    answer = form.send(root, ("_save", ""), timezone=name)

    assert answer.status_code == 200
    assert list(answer.context["adminform"].form.errors) == ["timezone"]
    assert f'value="{name}"' in answer.content.decode()
    assert form.send(root, ("_save", ""), timezone="Asia/Kathmandu").status_code == 302


def test_saving_an_open_form_does_not_undo_that_a_tenant_was_paused(root: Client, tenant: Tenant) -> None:
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    opened = form_at(root, page, "tenant_form")
    boss = Principal(tenant_id=tenant.pk, tenant="acme", role=Role.ADMIN, actor="user:boss")
    pausing.switch(boss, paused=True)

    assert opened.send(root, name="Acme & Co").status_code == 302

    with tenant_scope(tenant.pk):
        tenant.refresh_from_db()
    assert (tenant.name, tenant.paused) == ("Acme & Co", True)


def test_saving_an_open_form_does_not_undo_that_a_role_was_paused(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    with tenant_scope(tenant.pk):
        config = AgentConfig.objects.get(agent_id="qa")
    page = reverse("admin:agents_agentconfig_change", args=[config.pk])
    opened = form_at(root, page, "agentconfig_form")
    with tenant_scope(tenant.pk):
        AgentConfig.objects.update(paused=True, version=config.version + 1)

    refused = opened.send(root, model="other")

    assert "since you opened it" in visible_text(refused)
    with tenant_scope(tenant.pk):
        config.refresh_from_db()
        assert (config.paused, config.model) == (True, "")
    again = form_at(root, page, "agentconfig_form")
    assert again.send(root, model="other", paused="on").status_code == 302
    with tenant_scope(tenant.pk):
        config.refresh_from_db()
        assert (config.paused, config.model) == (True, "other")


def settings_of_qa(root: Client) -> tuple[AgentConfig, Any]:
    with system_scope():
        config = AgentConfig.objects.get(agent_id="qa")
    page = reverse("admin:agents_agentconfig_change", args=[config.pk])
    return config, form_at(root, page, "agentconfig_form")


def test_may_hold_is_set_in_the_form_of_a_role_and_cleared_by_emptying_the_field(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    pipeline = uuid4()
    for entered, stored in (
        (f'{{"roles": ["seo"], "pipelines": ["{str(pipeline).upper()}"]}}', {"roles": ["seo"], "pipelines": [str(pipeline)]}),
        ("", {}),
        ("null", {}),
    ):  # fmt: skip
        config, opened = settings_of_qa(root)
        assert opened.send(root, may_hold=entered).status_code == 302
        with system_scope():
            config.refresh_from_db()
        assert config.may_hold == stored


def test_a_tenant_can_be_paused_and_resumed_in_its_form(root: Client, tenant: Tenant) -> None:
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    for sent, paused in (({"paused": "on"}, True), ({}, False)):
        opened = form_at(root, page, "tenant_form")
        opened.fields.pop("paused", None)
        opened.fields |= {"paused": ["on"]} if sent else {}
        opened.send(root)
        with tenant_scope(tenant.pk):
            tenant.refresh_from_db()
        assert tenant.paused is paused


@pytest.mark.parametrize("switch", ["paused", "is_active"])
def test_times_that_pass_before_the_form_is_saved_are_missed(
    root: Client, tenant: Tenant, switch: str
) -> None:
    schedule = make_schedule(tenant)
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    missed = []

    for is_stopped in (True, False, False):
        tenant_form = forms_of(root.get(page))["tenant_form"]
        tenant_form.action = page
        switches = {
            "is_active": not (is_stopped and switch == "is_active"),
            "paused": is_stopped and switch == "paused",
        }
        tenant_form.fields = {
            name: value for name, value in tenant_form.fields.items() if name not in switches
        }
        tenant_form.fields |= {name: ["on"] for name, is_on in switches.items() if is_on}
        assert tenant_form.send(root).status_code == 302
        missed.append(reload(schedule).missed_until)

    assert missed[0] is None
    assert missed[1] is not None
    assert missed[2] == missed[1], "saving without a pause changes nothing"


def test_every_setting_of_the_scheduler_has_a_field_that_shows_its_default(root: Client) -> None:
    settings_form = form(root)
    page = root.get(PAGE).content.decode()

    for key in KEYS:
        assert key.attribute in settings_form.fields or f'name="{key.attribute}"' in page, key.path
        assert key.path in page
    assert "Default: America/New_York." in page
    assert "Default: 300000." in page
    assert "Default: email, slack." in page


def test_saved_settings_take_effect_and_are_recorded_with_their_author(root: Client) -> None:
    saved = form(root).send(
        root,
        timezone="Europe/Rome",
        keep_alive="false",
        batch_size="5",
        backoff="linear",
        notification_channels=["slack"],
    )

    assert saved.status_code == 302, saved.content
    now = scheduler_settings.current()
    assert (now.timezone, now.keep_alive, now.batch_size, now.backoff) == ("Europe/Rome", False, 5, "linear")
    assert now.notification_channels == ("slack",)
    assert now.explicit == {"timezone", "keep_alive", "batch_size", "backoff", "notification_channels"}
    assert scheduler_settings.row().updated_by == "user:root"
    entry = LogEntry.objects.get()
    assert (entry.user.username, "batch_size" in entry.change_message.lower()) == ("root", True)

    assert form(root).send(root, batch_size="", notification_channels=["none"]).status_code == 302
    now = scheduler_settings.current()
    assert (now.batch_size, now.notification_channels, now.backoff) == (10, (), "linear")
    assert form(root).send(root).status_code == 302
    assert scheduler_settings.current().notification_channels == ()


def test_errors_are_shown_at_their_fields_and_nothing_is_saved(root: Client) -> None:
    refused = form(root).send(root, timezone="Mars", max_sockets="0", check_interval_ms="1")

    page = refused.content.decode()
    assert refused.status_code == 200
    for error in ("unknown time zone", "from 1 to 10,000", "from 1,000 to"):
        assert error in page
    assert scheduler_settings.row().value == {}


def test_a_form_that_is_older_than_the_last_change_is_refused(root: Client) -> None:
    stale = form(root)
    scheduler_settings.save({"enabled": False}, actor="somebody")

    refused = stale.send(root, batch_size="5")

    assert b"Somebody else has changed the settings meanwhile" in refused.content
    assert scheduler_settings.row().value == {"enabled": False}


def test_the_row_of_settings_cannot_be_added_or_deleted(root: Client) -> None:
    form(root)

    assert root.get("/admin/agents/platformconfig/add/").status_code == 403
    assert root.post("/admin/agents/platformconfig/scheduler/delete/", {"post": "yes"}).status_code == 403


def test_system_jobs_are_listed_with_their_state(root: Client) -> None:
    assert Leader().campaign()
    report = job_records.JobReport(
        "delays", "activities.outbox", 1.0, 5.0, finished=0.0, duration=0.250049, lag=0.00014
    )
    jobs = {
        "ok": report,
        "late": replace(report, name="outputs", finished=40.0),
        "failing": replace(report, name="deadlines", failures=3, error="LockNotAvailable"),
        "waiting: OperationalError": replace(report, name="rates", error="OperationalError"),
    }
    job_records.write_jobs(1, list(jobs.values()))

    page = visible_text(root.get(list_url(SystemJob))).replace("&nbsp;", " ")

    for state, job in jobs.items():
        assert f"{job.name} {state} 1 s" in page
    assert "0.25 s 0 s" in page
    assert "activities.outbox" in page
