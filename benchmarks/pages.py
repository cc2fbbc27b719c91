"""Response times of the console's pages for a member of one of 50 tenants, which have 100,000 activities together."""

from __future__ import annotations

import http.client
import statistics
import time
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from activities.models import Activity
from benchmarks import environment, sample_history
from benchmarks.figures import Figures, percentile
from console import navigation
from tenants import registration
from tenants.context import tenant_scope
from tenants.models import Membership, Tenant

TENANTS, ACTIVITIES, VISITS = 50, 100_000, 50


def pages(folder: Path, scale: float) -> Figures:
    """Measure every page of the navigation, and the page of an activity, until the last byte has arrived."""
    tenants = [registration.register(f"sample-{number}-{uuid4().hex[:6]}") for number in range(TENANTS)]
    sample_history.fill(tenants, int(ACTIVITIES * scale) // TENANTS)
    tenant = tenants[TENANTS // 2]
    cookie = _sign_in_member(tenant)
    with environment.web(folder) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        visits = {page: _visit(connection, address, cookie) for page, address in _addresses(tenant).items()}
    all_visits = [seconds for each in visits.values() for seconds in each]
    sample_history.clear()
    figures = {f"{page} p95 ms": percentile(seconds, 95) * 1000 for page, seconds in visits.items()}
    return {
        "all p50 ms": statistics.median(all_visits) * 1000,
        "all p95 ms": percentile(all_visits, 95) * 1000,
        **figures,
    }


SCENARIOS = {"pages": pages}


def _sign_in_member(tenant: Tenant) -> str:
    """Create a member of the tenant. Returns the session cookie."""
    user = User.objects.create_user(f"member-{tenant.slug}")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role="admin")
    browser = Client()
    browser.force_login(user)
    return f"{settings.SESSION_COOKIE_NAME}={browser.cookies[settings.SESSION_COOKIE_NAME].value}"


def _addresses(tenant: Tenant) -> dict[str, str]:
    with tenant_scope(tenant.pk):
        newest = Activity.objects.for_tenant(tenant.pk).latest("created_at")
    return {
        **{page.words: page.address for pages in navigation.PAGES.values() for page in pages},
        "One activity": f"/activities/{newest.pk}/",
    }


def _visit(connection: http.client.HTTPConnection, address: str, cookie: str) -> list[float]:
    """Return the seconds of each visit. The first ones open connections and prepare statements, and do not count."""
    visits = []
    for _ in range(VISITS + 5):
        began = time.perf_counter()
        connection.request("GET", address, headers={"Cookie": cookie})
        answer = connection.getresponse()
        text = answer.read()
        visits.append(time.perf_counter() - began)
        assert answer.status == 200, (address, answer.status, text[:300])
    return visits[5:]
