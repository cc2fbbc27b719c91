"""Saved views: listed on their page, private or shared, and managed by their owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from django.db import connections
from django.http import HttpResponse

from tenants import members, saved_views
from tenants.context import APP, tenant_scope
from tenants.members import principal_of
from tenants.models import AuditEntry, Membership, Tenant
from tenants.models.access import SavedView
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import Person, refusal_notice, send_form
from tests.engine import simultaneously
from tests.forms import Form, forms_of
from tests.questions import Questions

QUERY = "/activities/?tenant=acme&q=status%3Afailed+role%3Aseo"


def save(who: Person, address: str = QUERY, name: str = "Failed SEO", **fields: Any) -> HttpResponse:
    """Save the view at an address by the form of its page."""
    return forms_of(who.get(address))["keep-view"].send(who.browser, ("action", "keep"), name=name, **fields)


def act_on(who: Person, verb: str, view: SavedView, **fields: Any) -> HttpResponse:
    return forms_of(who.get("/views/"))[f"view-{view.pk}"].send(
        who.browser, ("action", f"{verb}:{view.pk}"), **fields
    )


def views_of(tenant: Tenant) -> list[SavedView]:
    with tenant_scope(tenant.pk):
        return list(SavedView.objects.for_tenant(tenant).order_by("pk"))


def test_a_saved_view_is_listed_on_its_page_only(tenant: Tenant, ann: Person) -> None:
    answer = save(ann, f"{QUERY}&after=x:y")

    (view,) = views_of(tenant)
    assert (view.page, view.name, view.query) == ("activities", "Failed SEO", "q=status%3Afailed+role%3Aseo")
    assert parse_qs(urlsplit(answer["Location"]).query) == {
        "tenant": ["acme"],
        "q": ["status:failed role:seo"],
    }
    page = ann.get(answer["Location"]).content.decode()
    assert "Saved as “Failed SEO”." in page
    assert 'aria-current="true"><bdi>Failed SEO</bdi>' in page
    assert "Save this view" not in page, "it is saved already"
    assert "Failed SEO" in visible_text(ann.get("/activities/"))
    assert "Failed SEO" not in visible_text(ann.get("/runs/"))


def test_an_invalid_query_cannot_be_saved(tenant: Tenant, ann: Person) -> None:
    page = ann.browser.get("/activities/?tenant=acme&q=status%3Anothing")

    assert page.status_code == 400
    assert "keep-view" not in forms_of(page)


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("/inbox/?kind=gate&search=bees&page=1", "kind=gate&search=bees"),
        ("/runs/?status=failed&tenant=acme", "status=failed"),
        ("/runs/?q=bees&label=client:acme", "q=bees&label=client%3Aacme"),
        ("/dead-letters/?role=qa&state=all", "role=qa&state=all"),
    ],
    ids=["inbox", "runs", "runs by text and label", "dead-letters"],
)
def test_views_are_saved_on_every_page_with_filters(
    address: str, kept: str, tenant: Tenant, ann: Person
) -> None:
    answer = save(ann, address)

    assert views_of(tenant)[0].query == kept
    assert "Failed SEO" in visible_text(ann.get(answer["Location"]))


def test_a_page_without_filters_cannot_be_saved(tenant: Tenant, ann: Person) -> None:
    for address in ("/inbox/", "/activities/", "/runs/?status=", "/dead-letters/"):
        assert "Save this view" not in visible_text(ann.get(address)), address


def test_private_views_are_not_shown_to_others(
    tenant: Tenant, other_tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    save(ann)
    bob, eve = person("bob"), person("eve", other_tenant)
    (view,) = views_of(tenant)

    assert "Failed SEO" not in visible_text(bob.get("/activities/"))
    assert "Failed SEO" not in visible_text(eve.get("/views/"))
    for somebody in (bob, eve):
        answer = send_form(somebody, Form("/views/", "post"), action=f"delete:{view.pk}")
        assert refusal_notice(answer, 404) == "There is no such view any more."
    assert len(views_of(tenant)) == 1


def test_a_view_is_renamed_and_deleted_and_can_be_saved_again(tenant: Tenant, ann: Person) -> None:
    save(ann)
    (view,) = views_of(tenant)

    answer = act_on(ann, "rename", view, name="  All\tthat failed ")
    assert "Renamed to “All that failed”." in visible_text(ann.get(answer["Location"]))
    answer = act_on(ann, "delete", view)

    page = visible_text(ann.get(answer["Location"]))
    assert "“All that failed” was deleted. You can save it again here." in page
    assert "Save this view" in page
    assert views_of(tenant) == []
    with tenant_scope(tenant.pk):
        assert not AuditEntry.objects.filter(operation__startswith="saved_view").exists(), "it was hers alone"


def test_admins_share_and_manage_shared_views(tenant: Tenant, ann: Person, boss: Person) -> None:
    save(boss, name="Ours", shared="yes")
    save(boss, "/activities/?q=status:done", name="Mine")
    _, mine = views_of(tenant)
    act_on(boss, "share", mine)

    assert "Ours shared" in (page := visible_text(ann.get("/activities/")))
    assert "Mine shared" in page
    assert forms_of(ann.get("/views/")).keys().isdisjoint(f"view-{view.pk}" for view in views_of(tenant))
    act_on(boss, "rename", mine, name="Done")
    act_on(boss, "delete", mine)
    with tenant_scope(tenant.pk):
        trail = AuditEntry.objects.filter(operation__startswith="saved_view").order_by("number")
        entries = list(trail.values_list("operation", "actor_name", "object_kind"))
    assert entries == [
        (f"saved_view.{verb}", "boss", "saved-views") for verb in ("shared", "shared", "renamed", "deleted")
    ]


def test_only_admins_share_and_manage_shared_views(tenant: Tenant, ann: Person, boss: Person) -> None:
    save(boss, name="Ours", shared="yes")
    save(ann, "/activities/?q=status:done", name="Mine")
    ours, mine = views_of(tenant)

    form = Form(
        "/views/", "post", {"name": ["New"], "page": ["runs"], "query": ["status=failed"], "shared": ["yes"]}
    )
    for sent in ("keep", f"share:{mine.pk}", f"delete:{ours.pk}", f"rename:{ours.pk}"):
        assert "needs the role admin" in refusal_notice(send_form(ann, form, action=sent), 403)
    assert [(view.name, view.is_shared) for view in views_of(tenant)] == [("Ours", True), ("Mine", False)]


@pytest.fixture
def saved(ann: Person) -> None:
    save(ann)


@in_one_test(
    ("fields", "status", "words_of_refusal"),
    [
        ({"name": "   "}, 400, "Give it a name."),
        ({"name": "x" * 61}, 400, "A name has at most 60 characters."),
        ({"name": "Failed SEO"}, 409, "There is a view “Failed SEO” of this page already."),
        ({"name": "New", "page": "settings"}, 400, "This action is not available on this page."),
        ({"name": "New", "query": "q=" + "x" * 1_100}, 400, "A query of more than 1000 characters"),
    ],
    ids=["no-name", "long-name", "taken", "no-such-page", "long-query"],
)
def test_an_invalid_view_is_refused_with_the_typed_text(
    fields: dict[str, str], status: int, words_of_refusal: str, tenant: Tenant, ann: Person, saved: None
) -> None:
    answer = save(ann, "/activities/?q=status:done", **fields)

    assert refusal_notice(answer, status).startswith(words_of_refusal)
    again = forms_of(answer)["again"]
    assert again.fields["name"] == [fields["name"]]
    assert len(views_of(tenant)) == 1


def test_the_number_of_views_is_limited_under_concurrency(
    tenant: Tenant, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_views, "MOST", 3)
    who = principal_of(ann.user)

    def keep(number: int) -> str:
        try:
            return saved_views.keep(who, page="runs", name=f"View {number}", query="status=failed").name
        except saved_views.TooManyViews:
            return ""

    kept = simultaneously(*(lambda number=number: keep(number) for number in range(6)))

    assert len([name for name in kept if name]) == len(views_of(tenant)) == 3
    assert "There are 3 already" in refusal_notice(save(ann), 409)


def test_private_views_end_with_the_membership_and_shared_ones_remain(
    tenant: Tenant, ann: Person, boss: Person
) -> None:
    save(ann, name="Hers")
    save(boss, name="Ours", shared="yes")
    with tenant_scope(tenant.pk):
        hers = Membership.objects.get(user=ann.user)

    members.end_membership(principal_of(boss.user), hers.pk)

    assert [view.name for view in views_of(tenant)] == ["Ours"]


def test_hostile_names_and_queries_are_escaped(tenant: Tenant, ann: Person) -> None:
    hostile = '"><script>alert(1)</script>'
    with tenant_scope(tenant.pk):
        owner = Membership.objects.get(user=ann.user)
        SavedView.objects.create(
            tenant=tenant, membership=owner, page="activities", name=hostile, query="q=a&x=//evil.example"
        )

    for address in ("/activities/", "/views/"):
        page = ann.get(address).content.decode()
        assert "<script>alert" not in page
        assert 'href="/activities/?tenant=acme&amp;q=a"' in page, "only what a view of the page can hold"


def test_superusers_cannot_save_views(
    questions: Questions, root: Person, person: Callable[..., Person]
) -> None:
    page = root.get(QUERY)
    assert "Save this view" not in visible_text(page)


def test_a_page_reads_its_views_with_one_query(tenant: Tenant, ann: Person) -> None:
    read: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *call: Any) -> Any:
        read.extend([sql] if " FROM " in sql else [])
        return execute(sql, *call)

    for number in range(3):
        save(ann, name=f"View {number}", address=f"/activities/?q=priority:{number + 1}")

    for address in ("/activities/", "/inbox/"):
        read.clear()
        with connections[APP].execute_wrapper(note):
            ann.get(address)
        assert sum("tenants_savedview" in sql for sql in read) == 1
        assert len(read) <= 13


def test_unknown_actions_and_ids_are_refused(tenant: Tenant, ann: Person) -> None:
    save(ann)
    (view,) = views_of(tenant)
    form = Form("/views/", "post")

    refusal_notice(send_form(ann, form, action=f"explode:{view.pk}"), 400)
    refusal_notice(send_form(ann, form, action=f"delete:{uuid4()}"), 404)
    assert send_form(ann, form, action="delete:x").status_code == 404
