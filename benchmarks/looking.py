"""The pages of the console, asked for by a member of one of fifty tenants that have 100,000 activities together."""

from __future__ import annotations

import http.client
import statistics
import time
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from benchmarks import crowd
from benchmarks.serving import web
from console import navigation
from tenants import registration
from tenants.context import tenant_scope
from tenants.models import Membership, Tenant

Figures = dict[str, float]
TENANTS, ACTIVITIES, VISITS = 50, 100_000, 50


def pages(folder: Path, scale: float) -> Figures:
    """Every page of the navigation, and one of an activity, until the last byte is there."""
    tenants = [registration.register(f"crowd-{number}-{uuid4().hex[:6]}") for number in range(TENANTS)]
    crowd.fill(tenants, int(ACTIVITIES * scale) // TENANTS)
    cookie, tenant = _member(tenants[TENANTS // 2])
    with web(folder) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        taken = {words: _visits(connection, address, cookie) for words, address in _addresses(tenant).items()}
    all_of_them = sorted(seconds for each in taken.values() for seconds in each)
    crowd.clear()
    figures = {f"{words} p95 ms": _percentile(sorted(each), 0.95) * 1000 for words, each in taken.items()}
    return {
        "all p50 ms": statistics.median(all_of_them) * 1000,
        "all p95 ms": _percentile(all_of_them, 0.95) * 1000,
        **figures,
    }


ALL = {"pages": pages}


def _member(tenant: Tenant) -> tuple[str, Tenant]:
    user = User.objects.create_user(f"looks-{tenant.slug}")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role="admin")
    browser = Client()
    browser.force_login(user)
    return f"{settings.SESSION_COOKIE_NAME}={browser.cookies[settings.SESSION_COOKIE_NAME].value}", tenant


def _addresses(tenant: Tenant) -> dict[str, str]:
    from activities.models import Activity

    entries = [entry for group in navigation.groups("home") for entry in group.entries]
    with tenant_scope(tenant.pk):
        newest = Activity.objects.for_tenant(tenant.pk).latest("created_at")
    return {
        **{entry.page.words: entry.address for entry in entries},
        "One activity": f"/activities/{newest.pk}/",
    }


def _visits(connection: http.client.HTTPConnection, address: str, cookie: str) -> list[float]:
    """Seconds of each visit. The first ones make connections and prepare statements, and do not count."""
    taken = []
    for _ in range(VISITS + 5):
        began = time.perf_counter()
        connection.request("GET", address, headers={"Cookie": cookie})
        answer = connection.getresponse()
        text = answer.read()
        taken.append(time.perf_counter() - began)
        assert answer.status == 200, (address, answer.status, text[:300])
    return taken[5:]


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
