"""The page that compares all tenants of a member."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from tenants.context import tenant_scope
from tenants.models import Membership, Tenant, UsageEntry
from tests.browsing import visible_text
from tests.console_user import Person
from tests.engine import Engine
from tests.page_queries import MOST
from tests.questions import Questions

TENANTS = "/tenants/"


@pytest.fixture
def third(make_tenant: Callable[..., Tenant]) -> Tenant:
    return make_tenant("initech")


def record_usage(tenant: Tenant, dollars: str, day: datetime) -> None:
    with tenant_scope(tenant.pk):
        UsageEntry.objects.create(
            tenant=tenant,
            day=day.date(),
            agent_role="qa",
            activity_id=uuid4(),
            run_id=uuid4(),
            dollars=Decimal(dollars),
        )


def figures(page: Any) -> dict[str, tuple[int, int, int, Decimal]]:
    return {row.tenant.slug: (row.asked, row.failed, row.blocked, row.spent) for row in page.context["rows"]}


def test_each_tenant_has_its_figures_and_urgent_ones_come_first(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, third: Tenant, person: Callable[..., Person]
) -> None:
    now = datetime.now(UTC)
    Questions(engine, other_tenant).escalation()
    Questions(engine, third).blocker()
    record_usage(tenant, "1.25", now)
    record_usage(other_tenant, "2.50", now)
    record_usage(other_tenant, "9", datetime(2020, 1, 31, tzinfo=UTC))

    page = person("bo", tenant, other_tenant).get(TENANTS)

    assert figures(page) == {"globex": (1, 1, 0, Decimal("2.5")), "acme": (0, 0, 0, Decimal("1.25"))}
    assert list(figures(page)) == ["globex", "acme"], "what failed comes first"
    assert "initech" not in page.content.decode(), "a tenant of others"
    text = visible_text(page)
    assert "1 of 2 needs attention." in text
    assert "$3.75 this month" in text
    assert '/inbox/?tenant=globex"' in page.content.decode()


def test_the_page_needs_the_same_queries_for_any_number_of_tenants(
    tenant: Tenant,
    other_tenant: Tenant,
    third: Tenant,
    person: Callable[..., Person],
    queries_of: Callable[..., list[str]],
) -> None:
    two, three = person("two", tenant, other_tenant), person("three", tenant, other_tenant, third)

    count = len(queries_of(two, TENANTS))

    assert count == len(queries_of(three, TENANTS)) <= MOST - 1


def test_a_member_of_one_tenant_is_sent_to_its_overview(ann: Person, person: Callable[..., Person]) -> None:
    assert ann.browser.get(TENANTS)["Location"] == "/"
    assert "All my tenants" not in visible_text(ann.get("/"))


def test_the_menu_links_the_page_and_back(
    tenant: Tenant, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    bo = person("bo", tenant, other_tenant)

    assert 'href="/tenants/"' in bo.get(f"/inbox/?tenant={tenant.slug}").content.decode()
    assert f'href="/?tenant={other_tenant.slug}"' in bo.get(TENANTS).content.decode()


def test_a_tenant_is_not_listed_after_leaving_it(
    tenant: Tenant, other_tenant: Tenant, third: Tenant, person: Callable[..., Person]
) -> None:
    bo = person("bo", tenant, other_tenant, third)
    with tenant_scope(third.pk):
        Membership.objects.all().delete()

    assert list(figures(bo.get(TENANTS))) == ["acme", "globex"]
