"""Every answer restricts what a browser may do with it, reading changes nothing, and changes need a token that other sites lack."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connections
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from console.content_security import ADMIN_POLICY, NO_PAGE
from orchestrator import api_document
from orchestrator.api_document import SWAGGER_POLICY
from tenants.context import SYSTEM
from tenants.models import Tenant
from tests.api_objects import ApiObjects
from tests.browsing import list_url
from tests.integration.test_api_openapi import schema
from tests.superusers import browser_of, create_superuser

pytestmark = pytest.mark.long

#: Directives that the policy of every page contains.
REQUIRED = {"default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'"}
#: Tables that a read may write: the last use of a token, refused requests in the audit trail, the one row of settings, which the first
#: read creates with the defaults, and heartbeats of workers.
WRITTEN_BY_READS = {
    "tenants_apitoken",
    "tenants_auditentry",
    "agents_platformconfig",
    "activities_workerprocess",
}


def kind(answer: HttpResponse) -> str:
    return answer.get("Content-Type", "").partition(";")[0]


def policy(answer: HttpResponse) -> dict[str, list[str]]:
    parts = [part.split() for part in answer["Content-Security-Policy"].split(";")]
    return {name: sources for name, *sources in parts}


def unsafe_permissions(answer: HttpResponse) -> list[str]:
    """Return what a browser would be allowed to do with this answer but should not."""
    directives = policy(answer)
    problems = [] if answer.get("X-Content-Type-Options") == "nosniff" else ["content types may be sniffed"]
    if directives.get("default-src") != ["'none'"] or (
        directives.get("frame-ancestors") != ["'none'"] and "sandbox" not in directives
    ):
        problems.append("no default-src or frame-ancestors")
    if kind(answer) == "text/html":
        # Errors before any view have only the policy, which also forbids framing.
        problems += (
            [] if answer.get("X-Frame-Options") == "DENY" or answer.status_code == 400 else ["may be framed"]
        )
        problems += (
            [] if answer.get("Referrer-Policy") == "same-origin" else ["sends referrers to other sites"]
        )
        problems += [each for each in REQUIRED if each not in answer["Content-Security-Policy"].split("; ")]
        problems += ["inline scripts"] if "'unsafe-inline'" in directives.get("script-src", ()) else []
        sources = {source for each in directives.values() for source in each}
        problems += sorted(sources - {"'self'", "'none'", "data:", "'unsafe-inline'", "'unsafe-eval'"})
        problems += ["scripts from data URLs"] if "data:" in directives.get("script-src", ()) else []
    elif "script-src" in directives or "connect-src" in directives:
        problems.append("allows more than it needs")
    return problems


def plain_addresses() -> list[str]:
    """Return every address of the site without parameters."""

    def below(patterns: list[Any], prefix: str) -> list[str]:
        addresses = []
        for each in patterns:
            address = prefix + str(each.pattern).removeprefix("^").replace("/?$", "/").removesuffix(
                "$"
            ).replace("\\Z", "")
            if any(mark in address for mark in "<(?["):
                continue
            addresses += below(each.url_patterns, address) if isinstance(each, URLResolver) else [address]
            assert isinstance(each, URLPattern | URLResolver)
        return addresses

    return below(get_resolver().url_patterns, "/")


def digests() -> dict[str, str]:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        names = [name for (name,) in cursor.fetchall()]
        digest_of = {}
        for name in names:
            cursor.execute(
                f"SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM \"{name}\" t"
            )
            (digest_of[name],) = cursor.fetchone()
    return digest_of


def test_reading_everything_or_sending_no_token_changes_nothing_and_every_answer_is_contained(
    api_objects: ApiObjects, tenant: Tenant, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists of the admin are searched, and all of them and the pages for new rows can be opened. Then a signed-in person sends forms
    without the token against forgery.
    """
    document, client, root = schema(), api("admin", platform=True), browser_of(create_superuser())
    monkeypatch.setattr(api_document, "_generate", lambda: document)  # takes a second
    root.get("/")
    before, wrong_answers, kinds = digests(), {}, set()
    search = {"q": f"{tenant.slug} {api_objects.parameters['pipeline-runs/']['id']}"}
    request = root.get("/admin/").wsgi_request
    lists, searched, new = set(), set(), {}
    for model, model_admin in admin.site._registry.items():
        lists.add(list_url(model))
        new[f"{list_url(model)}add/"] = 200 if model_admin.has_add_permission(request) else 403
        if model_admin.search_fields:
            searched.add(list_url(model))
    statuses = {}

    def look(who: Any, address: str, query: dict[str, str] | None = None) -> None:
        answer = who.get(address, query)
        statuses[address] = answer.status_code
        kinds.add((kind(answer), answer.status_code))
        assert answer.status_code < 500, (address, answer.status_code)
        if wrong := unsafe_permissions(answer):
            wrong_answers[address] = wrong
        answer.close()

    for path, methods in document["paths"].items():
        if "get" not in methods or path == "/api/v1/events/":
            continue
        look(client, api_objects.address(path))
    addresses = plain_addresses()
    assert len(addresses) > 100
    assert lists | new.keys() <= {*addresses}
    for address in addresses:
        look(root, address, search if address in searched else None)

    assert wrong_answers == {}
    assert {address: statuses[address] for address in lists if statuses[address] not in (200, 302)} == {}
    assert {address: statuses[address] for address in new} == new
    assert len(searched) > 20
    assert {("text/html", 200), ("application/json", 200), ("application/problem+json", 404)} <= kinds

    root.handler.enforce_csrf_checks = True
    accepted = {
        address for address in addresses if 200 <= root.post(address, {"action": "x"}).status_code < 400
    }
    by_session = root.post(
        "/api/v1/activities/",
        {"name": "x", "agent_role": "qa"},
        "application/json",
        headers={"X-Tenant": tenant.slug},
    )

    assert accepted == set()
    assert (by_session.status_code, by_session.json()["code"]) == (403, "csrf_failed")
    after = digests()
    assert {name for name in before if before[name] != after[name]} <= WRITTEN_BY_READS


def test_errors_and_files_have_the_same_headers(
    tenant: Tenant, client: Client, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.raise_request_exception = False
    clerk = User.objects.create_user("nobody", password="a long password", is_staff=True)
    strict = Client(enforce_csrf_checks=True, raise_request_exception=False)
    answers = {
        "a missing page": (client.get("/nowhere"), 404),
        "a missing address of the API": (client.get("/api/v1/nowhere/"), 404),
        "no credential": (client.get("/api/v1/activities/"), 401),
        "a wrong method": (client.get("/logout/"), 405),
        "an unknown host": (client.get("/", headers={"host": "evil.example"}), 400),
        "a redirect": (client.get("/"), 302),
        "no CSRF token": (strict.post("/login/", {"username": "a", "password": "b"}), 403),
        "no permission": (browser_of(clerk).get("/admin/"), 403),
        "the login of the admin": (client.get("/admin/login/"), 200),
        "a style sheet": (client.get("/static/console/console.css"), 200),
        "a script": (client.get("/static/admin/js/core.js"), 200),
        "a picture": (client.get("/static/console/icon.svg"), 200),
        "a missing file": (client.get("/static/nothing.js"), 404),
        "the health": (client.get("/healthz"), 200),
    }
    monkeypatch.setattr("console.overview.overview", None)
    root = browser_of(create_superuser())
    root.raise_request_exception = False
    answers["an internal error"] = (root.get("/"), 500)

    assert {
        name: answer.status_code for name, (answer, status) in answers.items() if answer.status_code != status
    } == {}
    assert {
        name: wrong for name, (answer, _) in answers.items() if (wrong := unsafe_permissions(answer))
    } == {}
    for answer, _ in answers.values():
        answer.close()


def test_the_admin_may_run_our_script_files_and_no_inline_scripts(database: None) -> None:
    root = browser_of(create_superuser())

    assert root.get("/admin/")["Content-Security-Policy"] == ADMIN_POLICY
    assert root.get("/api/v1/docs/")["Content-Security-Policy"] == SWAGGER_POLICY
    assert root.get("/healthz")["Content-Security-Policy"] == NO_PAGE
    assert policy(root.get("/admin/"))["script-src"] == ["'self'", "'unsafe-eval'"]
    assert policy(root.get("/"))["script-src"] == ["'self'"]


def test_cookies_are_limited_to_this_site(database: None) -> None:
    User.objects.create_user("mia", password="a long password")
    client = Client()
    client.get("/login/")
    client.post("/login/", {"username": "mia", "password": "a long password"})

    session, token = client.cookies["sessionid"], client.cookies["csrftoken"]
    assert (session["httponly"], session["samesite"]) == (True, "Lax")
    assert token["samesite"] == "Lax"
    assert django_settings.SESSION_COOKIE_HTTPONLY
