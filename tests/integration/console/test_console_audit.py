"""The page of the audit trail: for admins, narrowed as they like, with what was before and after; and the same as a file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from html import unescape

import pytest

from console import audit
from tenants.context import tenant_scope
from tenants.models import AuditEntry, Tenant
from tests.browsing import words
from tests.cases import in_one_test
from tests.console_user import Person
from tests.engine import Engine
from tests.forms import forms_of

AUDIT = "/audit/"


@pytest.fixture
def boss(person: Callable[..., Person]) -> Person:
    """An admin of `acme`."""
    return person("boss", role="admin")


@pytest.fixture
def trail(engine: Engine, tenant: Tenant, ann: Person, boss: Person) -> None:
    """Two entries: `ann` has paused a role, and `boss` has made a budget."""
    forms_of(ann.get("/queues/qa/"))["switch"].send(ann.browser, ("deed", "pause"))
    forms_of(boss.get("/settings/budgets/"))["new"].send(boss.browser, name="March", cap="5")


def operations(page: object) -> list[str]:
    return [entry.row.operation for entry in page.context["trail"].entries]  # type: ignore[attr-defined]


def test_the_newest_entry_stands_first_with_who_and_what(trail: None, boss: Person) -> None:
    page = boss.get(AUDIT)

    assert operations(page) == ["POST /budgets/", "POST /queues/{role}/pause/"]
    assert "ann user from 127.0.0.1" in words(page)


@in_one_test(
    ("query", "found"),
    [
        ("actor=ann", ["POST /queues/{role}/pause/"]),
        ("operation=pause", ["POST /queues/{role}/pause/"]),
        ("kind=budgets", ["POST /budgets/"]),
        ("object=qa", ["POST /queues/{role}/pause/"]),
        ("outcome=refused", []),
        ("until=2020-01-01", []),
        ("since=2020-01-01", ["POST /budgets/", "POST /queues/{role}/pause/"]),
    ],
)
def test_the_trail_is_narrowed(query: str, found: list[str], trail: None, boss: Person) -> None:
    assert operations(boss.get(f"{AUDIT}?{query}")) == found


def test_a_day_that_is_none_is_told_of(trail: None, boss: Person) -> None:
    assert "Enter days as YYYY-MM-DD." in words(boss.get(f"{AUDIT}?since=yesterday"))


def test_before_and_after_are_shown_field_by_field(trail: None, tenant: Tenant, boss: Person) -> None:
    with tenant_scope(tenant.pk):
        budget = AuditEntry.objects.for_tenant(tenant).get(object_kind="budgets").object_id
    place = f"/settings/budgets/{budget}/"
    forms_of(boss.get(place))["change"].send(boss.browser, ("deed", "save"), cap="8")

    page = boss.get(f"{AUDIT}?object={budget}")

    (change,) = [each for each in page.context["trail"].entries[0].changes if each.name == "cap"]
    assert (change.before, change.after) == ("5", "8")
    assert "<del><bdi>5</bdi></del>" in page.content.decode()


def test_pages_go_on_where_the_one_before_ended(
    trail: None, boss: Person, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(audit, "PAGE", 1)
    first = boss.get(AUDIT)
    second = boss.get(f"{AUDIT}?{first.context['trail'].older}")

    assert operations(first) + operations(second) == ["POST /budgets/", "POST /queues/{role}/pause/"]
    assert second.context["trail"].older == ""


def test_the_file_holds_what_is_sought(trail: None, boss: Person) -> None:
    rows = list(csv.reader(io.StringIO(boss.get(f"{AUDIT}export/?actor=ann").content.decode())))

    assert len(rows) == 2
    assert rows[1][4] == "POST /queues/{role}/pause/"


def test_the_file_holds_everything_from_whichever_page_it_is_asked(
    trail: None, boss: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE", 1)
    second = boss.get(f"{AUDIT}?{boss.get(AUDIT).context['trail'].older}")
    (link,) = re.findall(r'href="([^"]*export[^"]*)"', second.content.decode())

    rows = list(csv.reader(io.StringIO(boss.get(unescape(link)).content.decode())))

    assert len(rows) == 3


@pytest.mark.parametrize(("until", "found"), [("9999-12-31", 2), ("0001-01-01", 0)])
def test_the_first_and_the_last_day_that_there_are_can_be_sought(
    until: str, found: int, trail: None, boss: Person
) -> None:
    assert len(operations(boss.get(f"{AUDIT}?until={until}"))) == found


@pytest.mark.parametrize("address", [AUDIT, f"{AUDIT}export/"])
def test_only_admins_see_it(address: str, trail: None, ann: Person) -> None:
    answer = ann.browser.get(address)

    assert answer.status_code == 403
    assert "Only admins of acme can see this page. Your role is operator." in words(answer)
    assert "POST /budgets/" not in words(answer)


def test_others_trails_are_not_there(
    trail: None, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    otto = person("otto", other_tenant, role="admin")

    assert operations(otto.get(AUDIT)) == []
    assert otto.browser.get(f"{AUDIT}?tenant=acme").status_code == 404


def test_the_page_costs_few_queries(
    trail: None, boss: Person, asked_queries: Callable[..., list[str]]
) -> None:
    asked = asked_queries(boss, f"{AUDIT}?operation=pause")

    assert len(asked) <= 12, asked
