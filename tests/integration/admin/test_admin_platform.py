"""The platform's settings of scheduling in the admin."""

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
from tests.browsing import list_of, words
from tests.engine import Engine
from tests.forms import forms_of
from tests.scheduling import again, make_schedule

PAGE = "/admin/agents/platformconfig/scheduler/change/"


@pytest.fixture(autouse=True)
def _forgotten(database: None) -> Any:
    scheduler_settings.forget()
    yield
    scheduler_settings.forget()


def form(root: Client) -> Any:
    assert PAGE.encode() in root.get(reverse("admin:agents_platformconfig_changelist")).content
    found = forms_of(root.get(PAGE))["platformconfig_form"]
    found.action = PAGE  # it is sent to where it came from
    return found


def test_a_tenant_that_is_paused_while_its_form_is_open_stays_so(root: Client, tenant: Tenant) -> None:
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    opened = forms_of(root.get(page))["tenant_form"]
    opened.action = page
    boss = Principal(tenant_id=tenant.pk, tenant="acme", role=Role.ADMIN, actor="user:boss")
    pausing.switch(boss, paused=True)

    assert opened.send(root, name="Acme & Co").status_code == 302

    with tenant_scope(tenant.pk):
        tenant.refresh_from_db()
    assert (tenant.name, tenant.paused) == ("Acme & Co", True)


def test_a_role_that_is_paused_while_its_settings_are_open_stays_so(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    with tenant_scope(tenant.pk):
        config = AgentConfig.objects.get(agent_id="qa")
    page = reverse("admin:agents_agentconfig_change", args=[config.pk])
    opened = forms_of(root.get(page))["agentconfig_form"]
    opened.action = page
    with tenant_scope(tenant.pk):
        AgentConfig.objects.update(paused=True, version=config.version + 1)

    refused = opened.send(root, model="other")

    assert "since you opened it" in words(refused)
    with tenant_scope(tenant.pk):
        config.refresh_from_db()
        assert (config.paused, config.model) == (True, "")
    again = forms_of(root.get(page))["agentconfig_form"]
    again.action = page
    assert again.send(root, model="other", paused="on").status_code == 302
    with tenant_scope(tenant.pk):
        config.refresh_from_db()
        assert (config.paused, config.model) == (True, "other")


def settings_of_qa(root: Client) -> tuple[AgentConfig, Any]:
    with system_scope():
        config = AgentConfig.objects.get(agent_id="qa")
    page = reverse("admin:agents_agentconfig_change", args=[config.pk])
    opened = forms_of(root.get(page))["agentconfig_form"]
    opened.action = page
    return config, opened


def test_what_a_role_may_hold_is_granted_in_its_form_and_taken_back_by_emptying_the_field(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    pipeline = uuid4()
    for typed, kept in (
        (f'{{"roles": ["seo"], "pipelines": ["{str(pipeline).upper()}"]}}', {"roles": ["seo"], "pipelines": [str(pipeline)]}),
        ("", {}),
        ("null", {}),
    ):  # fmt: skip
        config, opened = settings_of_qa(root)
        assert opened.send(root, may_hold=typed).status_code == 302
        with system_scope():
            config.refresh_from_db()
        assert config.may_hold == kept


def test_a_tenant_is_paused_and_let_go_on_in_its_form(root: Client, tenant: Tenant) -> None:
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    for sent, paused in (({"paused": "on"}, True), ({}, False)):
        opened = forms_of(root.get(page))["tenant_form"]
        opened.action = page
        opened.fields.pop("paused", None)
        opened.fields |= {"paused": ["on"]} if sent else {}
        opened.send(root)
        with tenant_scope(tenant.pk):
            tenant.refresh_from_db()
        assert tenant.paused is paused


@pytest.mark.parametrize("switch", ["paused", "is_active"])
def test_the_times_of_a_schedule_that_pass_until_the_form_is_saved_are_missed(
    root: Client, tenant: Tenant, switch: str
) -> None:
    schedule = make_schedule(tenant)
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    noted = []

    for is_stopped in (True, False, False):
        opened = forms_of(root.get(page))["tenant_form"]
        opened.action = page
        ticked = {
            "is_active": not (is_stopped and switch == "is_active"),
            "paused": is_stopped and switch == "paused",
        }
        opened.fields = {name: value for name, value in opened.fields.items() if name not in ticked}
        opened.fields |= {name: ["on"] for name, is_on in ticked.items() if is_on}
        assert opened.send(root).status_code == 302
        noted.append(again(schedule).missed_until)

    assert noted[0] is None
    assert noted[1] is not None
    assert noted[2] == noted[1], "it was not paused any more"


def test_there_is_a_field_for_every_key_with_its_default_beside_it(root: Client) -> None:
    shown = form(root)
    page = root.get(PAGE).content.decode()

    for key in KEYS:
        assert key.attribute in shown.fields or f'name="{key.attribute}"' in page, key.path
        assert key.path in page
    assert "Default: America/New_York." in page
    assert "Default: 300000." in page
    assert "Default: email, slack." in page


def test_what_is_saved_holds_and_who_saved_it_is_on_record(root: Client) -> None:
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


def test_faults_stand_beside_their_fields_and_nothing_is_saved(root: Client) -> None:
    refused = form(root).send(root, timezone="Mars", max_sockets="0", check_interval_ms="1")

    page = refused.content.decode()
    assert refused.status_code == 200
    for told in ("must be the name of a time zone", "from 1 to 10,000", "from 1,000 to"):
        assert told in page
    assert scheduler_settings.row().value == {}


def test_who_has_not_seen_the_last_change_is_asked_to_look_again(root: Client) -> None:
    old = form(root)
    scheduler_settings.save({"enabled": False}, actor="somebody")

    refused = old.send(root, batch_size="5")

    assert b"Somebody else has changed the settings meanwhile" in refused.content
    assert scheduler_settings.row().value == {"enabled": False}


def test_the_row_is_neither_added_nor_deleted(root: Client) -> None:
    form(root)

    assert root.get("/admin/agents/platformconfig/add/").status_code == 403
    assert root.post("/admin/agents/platformconfig/scheduler/delete/", {"post": "yes"}).status_code == 403


def test_the_jobs_of_upkeep_are_shown_with_what_fails_hangs_or_waits(root: Client) -> None:
    assert Leader().campaign()
    well = job_records.JobReport(
        "delays", "activities.outbox", 1.0, 5.0, finished=0.0, duration=0.25, lag=0.5
    )
    jobs = {
        "ok": well,
        "late": replace(well, name="outputs", finished=40.0),
        "failing": replace(well, name="deadlines", failures=3, error="LockNotAvailable"),
        "waiting: OperationalError": replace(well, name="rates", error="OperationalError"),
    }
    job_records.write_jobs(1, list(jobs.values()), all_of_them=True)

    page = words(root.get(list_of(SystemJob)))

    for state, job in jobs.items():
        assert f"{job.name} {state} 1.0" in page
    assert "0.25 0.5" in page
    assert "activities.outbox" in page
