"""Pages of tenants with long histories read by index, with a bounded number of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from activities.models import Activity
from benchmarks import sample_history
from console import navigation
from tenants.context import APP, SYSTEM, tenant_scope
from tenants.models import Membership, Tenant
from tests.engine import Engine
from tests.plans import recorded_statements, sequential_scans

pytestmark = pytest.mark.long

EACH = 3_000
READ_AT_MOST = 2_400  # rows of a sequential scan
STATEMENTS = 12
SIGNED_IN = ('FROM "django_session"', 'FROM "auth_user"')  # Django's lookup of the user


@pytest.fixture
def crowded(engine: Engine, tenant: Tenant, make_tenant: Callable[..., Tenant]) -> Iterator[Tenant]:
    sample_history.fill([tenant, make_tenant()], EACH)
    yield tenant
    sample_history.clear()


@pytest.fixture
def member(crowded: Tenant) -> Client:
    user = User.objects.create_user("mia")
    with tenant_scope(crowded.pk):
        Membership.objects.create(tenant=crowded, user=user, role="admin")
    browser = Client()
    browser.force_login(user)
    return browser


def test_no_page_scans_a_long_table_or_needs_more_than_twelve_statements(
    crowded: Tenant, member: Client
) -> None:
    with tenant_scope(crowded.pk):
        newest = Activity.objects.latest("created_at")
    pages = [page.address for listed in navigation.PAGES.values() for page in listed]
    pages += [
        f"/activities/{newest.pk}/",
        "/activities/?q=status:failed",
        "/activities/?q=age:<2h+status:done",
    ]
    long, many = [], []

    for page in pages:
        member.get(page)  # fill the caches
        with recorded_statements(APP, SYSTEM) as captured:
            assert member.get(page).status_code == 200, page
        queries = [
            each
            for each in captured
            if " FROM " in each[1] and not any(table in each[1] for table in SIGNED_IN)
        ]
        many += [(page, [sql for _, sql, _ in queries])] if len(queries) > STATEMENTS else []
        with tenant_scope(crowded.pk), connections[APP].cursor() as cursor:
            cursor.execute("SET LOCAL random_page_cost = 1.1")  # as is usual where no disk has to turn
            for alias, sql, params in queries:
                if sql.lstrip().startswith(("SELECT", "WITH")):
                    scanned = sequential_scans(alias, sql, params, more_than=READ_AT_MOST)
                    long += [(page, scanned, sql)] if scanned else []

    assert long == []
    assert many == []
