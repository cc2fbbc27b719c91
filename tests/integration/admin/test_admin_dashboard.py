"""The start page of the admin shows the state of what the reader may see. It links to the console, whose pages link back."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from agents.models import Agent
from pipelines.models import PipelineRun, Schedule
from tenants import break_glass
from tenants.context import ADMIN, APP, SYSTEM, tenant_scope
from tenants.models import Membership, Tenant
from tests.browsing import page_url, visible_text
from tests.engine import Engine
from tests.scheduling import make_schedule
from tests.superusers import browser_of

START = "/admin/"
MOST_QUERIES = 12


@pytest.fixture
def schedules(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> tuple[Schedule, Schedule]:
    """A schedule in each tenant, and two activities each of a role without workers."""
    for owner in (tenant, other_tenant):
        engine.submit(owner, "blog-writer", count=2)
    return make_schedule(tenant, "lion report"), make_schedule(other_tenant, "zebra report")


@pytest.fixture
def staff(schedules: tuple[Schedule, Schedule], tenant: Tenant) -> Client:
    """A staff member with a membership in one tenant."""
    user = User.objects.create_user("mia", password="a long password", is_staff=True)
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role="admin")
    return browser_of(user)


@pytest.fixture
def superuser(schedules: tuple[Schedule, Schedule]) -> Client:
    """A superuser without memberships and without break-glass access."""
    return browser_of(User.objects.create_superuser("eve", "eve@example.com", "a long password"))


def test_a_member_sees_work_and_schedules_of_their_tenants_only(staff: Client) -> None:
    text = visible_text(staff.get(START))

    assert "No worker serves blog-writer (2 waiting)." in text
    assert "lion report" in text
    assert "zebra" not in text
    assert "globex" not in text
    assert "breaker" not in text  # because providers belong to the platform


def test_a_superuser_sees_counts_and_with_break_glass_access_the_rows_of_a_tenant(superuser: Client) -> None:
    text = visible_text(superuser.get(START))

    assert "No worker serves blog-writer (4 waiting)." in text
    assert "0 breakers open" in text
    assert "lion" not in text
    assert "zebra" not in text
    assert "No schedule of the tenants that you see is due." in text

    break_glass.open_for(User.objects.get(username="eve"), "globex", "Their report is late, they say.")
    text = visible_text(superuser.get(START))

    assert "zebra report" in text
    assert "lion" not in text


def test_the_start_page_links_to_the_console(schedules: tuple[Schedule, Schedule], root: Client) -> None:
    page = root.get(START).content.decode()
    links = {
        link.replace("&amp;", "&") for link in re.findall(r'href="(/(?!admin/|static/|api/)[^"]*)"', page)
    }

    assert {
        "/",
        "/inbox/",
        "/queues/",
        "/dead-letters/",
        "/schedules/",
        "/activities/?q=status:running",
    } <= links
    assert f"/schedules/{schedules[1].pk}/?tenant=globex" in links
    assert [link for link in links if root.get(link).status_code != 200] == []


def test_the_start_page_needs_few_queries(root: Client, schedules: tuple[Schedule, Schedule]) -> None:
    root.get(START)
    with (
        CaptureQueriesContext(connections[APP]) as own,
        CaptureQueriesContext(connections[SYSTEM]) as wide,
        CaptureQueriesContext(connections[ADMIN]) as seen,
    ):
        root.get(START)

    queries = [query["sql"] for query in (*own, *wide, *seen) if " FROM " in query["sql"]]
    assert len(queries) <= MOST_QUERIES, queries


def test_a_row_and_its_page_in_the_console_link_to_each_other(
    run: PipelineRun, tenant: Tenant, root: Client
) -> None:
    with tenant_scope(tenant.pk):
        step = run.steps.exclude(activity_id=None).get(step="write")
        activity = Activity.objects.get(pk=step.activity_id)
    schedule = make_schedule(tenant, "daily")
    rows = {
        f"/activities/{activity.pk}/": activity,
        f"/runs/{run.pk}/": run,
        f"/schedules/{schedule.pk}/": schedule,
        "/agents/qa/": Agent.objects.get(role="qa"),
    }

    for address, row in rows.items():
        query = "" if isinstance(row, Agent) else f"?tenant={tenant.slug}"
        assert f'href="{address}{query}"' in root.get(page_url(row)).content.decode(), address
        assert f'href="{page_url(row)}"' in root.get(f"{address}?tenant={tenant.slug}").content.decode(), (
            address
        )
    assert f'href="/?tenant={tenant.slug}"' in root.get(page_url(tenant)).content.decode()


def test_the_console_links_to_the_admin_only_for_those_who_may_enter_it(
    tenant: Tenant, staff: Client
) -> None:
    with tenant_scope(tenant.pk):
        schedule = Schedule.objects.get(name="lion report")
    user = User.objects.create_user("ann", password="a long password")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role="operator")

    assert "/admin/" not in browser_of(user).get(f"/schedules/{schedule.pk}/").content.decode()
    assert page_url(schedule) in staff.get(f"/schedules/{schedule.pk}/").content.decode()
    # The registry belongs to the platform.
    assert "/admin/agents/" not in staff.get("/agents/qa/").content.decode()
