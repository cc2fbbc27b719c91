"""The first page of the console: the state in one sentence with its reasons, for people who may see it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client

from activities.submission import NewActivity, submit
from console.labels import in_words
from console.overview import overview
from tenants.context import tenant_scope
from tenants.models import Membership, Tenant
from tests.engine import Engine
from tests.superusers import create_superuser

PASSWORD = "correct horse battery"


@pytest.fixture
def member(tenant: Tenant) -> Client:
    """Return the browser of a signed-in member of the tenant."""
    return _signed_in("mia", tenant)


@pytest.fixture
def superuser(database: None) -> Client:
    browser = Client()
    browser.force_login(create_superuser())
    return browser


def _signed_in(name: str, *tenants: Tenant) -> Client:
    user = User.objects.create_user(name, password=PASSWORD)
    for tenant in tenants:
        with tenant_scope(tenant.pk):
            Membership.objects.create(tenant=tenant, user=user)
    browser = Client()
    browser.force_login(user)
    return browser


def _text(browser: Client, address: str = "/") -> str:
    answer = browser.get(address)
    assert answer.status_code == 200
    return " ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split())


def test_an_anonymous_visitor_signs_in_and_returns_to_the_page(database: None, client: Client) -> None:
    User.objects.create_user("mia", password=PASSWORD)

    answer = client.get("/?tenant=acme", follow=True)
    assert answer.redirect_chain == [("/login/?next=/%3Ftenant%3Dacme", 302)]

    answer = client.post("/login/", {"username": "mia", "password": PASSWORD, "next": "/?tenant=acme"})
    assert (answer.status_code, answer["Location"]) == (302, "/?tenant=acme")


def test_a_wrong_password_is_refused_with_a_message_that_does_not_repeat_it(
    database: None, client: Client
) -> None:
    answer = client.post("/login/", {"username": "mia", "password": "guessed-secret"})

    assert answer.status_code == 200
    assert b"correct username and password" in answer.content
    assert b"guessed-secret" not in answer.content


def test_signing_in_never_redirects_to_another_site(database: None, client: Client) -> None:
    User.objects.create_user("mia", password=PASSWORD)

    answer = client.post(
        "/login/", {"username": "mia", "password": PASSWORD, "next": "https://evil.example/"}
    )

    assert answer["Location"] == "/"


def test_signing_out_is_a_post(member: Client) -> None:
    assert member.get("/logout/").status_code == 405
    assert member.post("/logout/").status_code == 302
    assert member.get("/").status_code == 302


@pytest.mark.parametrize("address", ["/", "/login/"])
def test_pages_load_nothing_from_other_sites(address: str, superuser: Client, client: Client) -> None:
    answer = (superuser if address == "/" else client).get(address)

    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    loaded = re.findall(
        r'(?:src|href)="([^"]+)"', re.sub(r"<a .*?</a>", "", answer.content.decode(), flags=re.DOTALL)
    )
    assert loaded
    assert all(each.startswith("/static/") for each in loaded)
    assert all("src=" in tag for tag in re.findall(r"<script\b[^>]*>", answer.content.decode()))
    assert b"style=" not in answer.content


def test_style_sheets_load_nothing_from_other_sites() -> None:
    folder = Path(django_settings.BASE_DIR) / "console" / "static" / "console"

    for sheet in folder.glob("*.css"):
        assert "url(" not in sheet.read_text(encoding="utf-8")
        assert "@import" not in sheet.read_text(encoding="utf-8")


def test_a_member_sees_only_the_work_of_their_tenant(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, member: Client
) -> None:
    engine.submit(tenant, "blog-writer", count=2)
    engine.submit(other_tenant, "blog-writer", count=5)
    engine.submit(other_tenant, "strategy-writer")

    text = _text(member)

    assert "blog-writer (2 waiting)" in text
    assert "strategy-writer (1 waiting)" not in text
    assert other_tenant.slug not in text


def test_a_member_cannot_select_another_tenant(other_tenant: Tenant, member: Client) -> None:
    assert member.get(f"/?tenant={other_tenant.slug}").status_code == 404
    assert member.get("/?tenant=there-is-none").status_code == 404


def test_a_member_of_several_tenants_chooses_one(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    engine.submit(other_tenant, "blog-writer", count=5)
    both = _signed_in("bo", tenant, other_tenant)

    assert "blog-writer (5 waiting)" not in _text(both)
    assert "blog-writer (5 waiting)" in _text(both, f"/?tenant={other_tenant.slug}")


def test_the_last_viewed_tenant_is_shown_by_default(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    first, second = sorted((tenant, other_tenant), key=lambda one: one.slug)
    both = _signed_in("bo", tenant, other_tenant)

    assert both.get("/inbox/").context["acting"].tenant == first.slug
    both.get(f"/inbox/?tenant={second.slug}")
    assert both.get("/inbox/").context["acting"].tenant == second.slug
    assert both.get("/").context["acting"].tenant == second.slug
    both.get(f"/?tenant={first.slug}")
    assert both.get("/queues/").context["acting"].tenant == first.slug


def test_the_cookie_of_the_last_viewed_tenant_gives_no_access(tenant: Tenant, other_tenant: Tenant) -> None:
    browser = _signed_in("mia", tenant)
    browser.cookies["orchestrator_tenant"] = other_tenant.slug

    assert browser.get("/inbox/").context["acting"].tenant == tenant.slug


def test_a_user_without_a_tenant_is_told_so(database: None) -> None:
    assert "You are not a member of any tenant." in _text(_signed_in("nobody"))


def test_a_superuser_sees_the_work_of_all_tenants_or_of_one(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, superuser: Client
) -> None:
    engine.submit(tenant, "blog-writer", count=2)
    engine.submit(other_tenant, "blog-writer", count=5)

    assert "blog-writer (7 waiting)" in _text(superuser)
    assert "blog-writer (5 waiting)" in _text(superuser, f"/?tenant={other_tenant.slug}")


def test_the_first_page_says_that_all_is_well_when_it_is(engine: Engine, superuser: Client) -> None:
    text = _text(superuser)

    assert "All is well." in text
    assert "The inbox is empty." in text
    assert "postgresql ok" in text


def test_work_of_a_role_without_workers_is_a_reason(
    engine: Engine, tenant: Tenant, superuser: Client
) -> None:
    engine.submit(tenant, "blog-writer", count=3)

    text = _text(superuser)

    assert "Degraded. No worker serves blog-writer (3 waiting)." in text


def test_many_roles_without_workers_form_one_reason(engine: Engine, tenant: Tenant) -> None:
    for role in (
        "blog-writer",
        "strategy-writer",
        "site-auditor",
        "report-writer",
        "email-writer",
        "ba",
        "architect",
    ):
        engine.submit(tenant, role)

    (reason,) = overview(None).reasons

    assert reason.endswith("and 2 other roles.")


def test_items_that_wait_for_people_are_counted_by_kind(
    engine: Engine, tenant: Tenant, member: Client
) -> None:
    with tenant_scope(tenant.pk):
        submit(
            [
                NewActivity(name="decide", human_role="editor", is_approval_gate=True),
                NewActivity(name="call the customer", human_role="sales"),
                NewActivity(name="write to the customer", human_role="sales"),
            ],
            actor="test",
        )

    text = _text(member)

    assert "approvals 1" in text
    assert "tasks 2" in text


def test_the_first_page_says_what_is_known_when_postgresql_is_away(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    from console import overview as page

    def fail(**_: bool) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(page, "stats_of_queues", fail)

    assert overview(None).sentence == "Unavailable."


def test_the_menu_marks_the_current_page(member: Client) -> None:
    marked = re.findall(r'<a href="([^"]*)" aria-current="page"', member.get("/runs/").content.decode())

    assert marked == ["/runs/?tenant=acme"]


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    ("known", "leads_to"),
    [
        ("/admin/scheduler/schedules", "/admin/pipelines/schedule/"),
        ("/admin/scheduler/pipelines", "/admin/pipelines/pipeline/"),
    ],
)
def test_old_addresses_redirect_to_the_lists_of_the_admin(
    known: str, leads_to: str, slash: str, superuser: Client
) -> None:
    answer = superuser.get(known + slash)

    assert answer.status_code == 302
    assert answer["Location"] == leads_to


@pytest.mark.parametrize("known", ["/admin/scheduler/schedules", "/admin/scheduler/pipelines/"])
def test_old_addresses_give_nobody_else_access_to_the_admin(known: str, member: Client) -> None:
    assert member.get(known, follow=True).status_code == 403
    stranger = Client().get(known, follow=True)
    assert stranger.redirect_chain[-1][0].startswith("/admin/login/")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (0.9, "now"),
        (8, "8 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3601, "1 h"),
        (7500, "2 h 5 min"),
        (90061, "1 d 1 h"),
    ],
)
def test_durations_are_written_in_two_units(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
