"""The audit page: for admins, with filters, changed fields, and an export as a file."""

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
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import Person
from tests.engine import Engine
from tests.forms import forms_of

AUDIT = "/audit/"


@pytest.fixture
def trail(engine: Engine, tenant: Tenant, ann: Person, boss: Person) -> None:
    """Two entries: `ann` has paused a role, and `boss` has made a budget."""
    forms_of(ann.get("/queues/qa/"))["switch"].send(ann.browser, ("action", "pause"))
    forms_of(boss.get("/settings/budgets/"))["new"].send(boss.browser, name="March", cap="5")


def operations(page: object) -> list[str]:
    return [entry.row.operation for entry in page.context["entries"]]  # type: ignore[attr-defined]


def test_the_newest_entry_comes_first_with_actor_and_operation(trail: None, boss: Person) -> None:
    page = boss.get(AUDIT)

    assert operations(page) == ["POST /budgets/", "POST /queues/{role}/pause/"]
    assert "ann user from 127.0.0.1" in visible_text(page)


@in_one_test(
    ("query", "expected"),
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
def test_the_trail_is_filtered(query: str, expected: list[str], trail: None, boss: Person) -> None:
    assert operations(boss.get(f"{AUDIT}?{query}")) == expected


def test_an_invalid_day_is_reported(trail: None, boss: Person) -> None:
    assert "Enter days as YYYY-MM-DD." in visible_text(boss.get(f"{AUDIT}?since=yesterday"))


def test_changed_fields_are_shown_before_and_after(trail: None, tenant: Tenant, boss: Person) -> None:
    with tenant_scope(tenant.pk):
        budget = AuditEntry.objects.for_tenant(tenant).get(object_kind="budgets").object_id
    place = f"/settings/budgets/{budget}/"
    forms_of(boss.get(place))["change"].send(boss.browser, ("action", "save"), cap="8")

    page = boss.get(f"{AUDIT}?object={budget}")

    (change,) = [each for each in page.context["entries"][0].changes if each.name == "cap"]
    assert (change.before, change.after) == ("5", "8")
    assert "<del><bdi>5</bdi></del>" in page.content.decode()


def test_the_next_page_continues_after_the_previous_one(
    trail: None, boss: Person, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(audit, "PAGE", 1)
    first = boss.get(AUDIT)
    second = boss.get(f"{AUDIT}?{first.context['older']}")

    assert operations(first) + operations(second) == ["POST /budgets/", "POST /queues/{role}/pause/"]
    assert second.context["older"] == ""


def test_the_file_holds_the_filtered_entries(trail: None, boss: Person) -> None:
    rows = list(csv.reader(io.StringIO(boss.get(f"{AUDIT}export/?actor=ann").content.decode())))

    assert len(rows) == 2
    assert rows[1][4] == "POST /queues/{role}/pause/"


def test_the_file_holds_the_entries_of_all_pages(
    trail: None, boss: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PAGE", 1)
    second = boss.get(f"{AUDIT}?{boss.get(AUDIT).context['older']}")
    (link,) = re.findall(r'href="([^"]*export[^"]*)"', second.content.decode())

    rows = list(csv.reader(io.StringIO(boss.get(unescape(link)).content.decode())))

    assert len(rows) == 3


@in_one_test(("until", "expected"), [("9999-12-31", 2), ("0001-01-01", 0)])
def test_the_first_and_last_possible_day_can_be_searched(
    until: str, expected: int, trail: None, boss: Person
) -> None:
    assert len(operations(boss.get(f"{AUDIT}?until={until}"))) == expected


@in_one_test("address", [AUDIT, f"{AUDIT}export/"])
def test_only_admins_see_the_trail(address: str, trail: None, ann: Person) -> None:
    answer = ann.browser.get(address)

    assert answer.status_code == 403
    assert "Only admins of acme can see this page. Your role is operator." in visible_text(answer)
    assert "POST /budgets/" not in visible_text(answer)


def test_the_trail_of_another_tenant_is_not_shown(
    trail: None, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    otto = person("otto", other_tenant, role="admin")

    assert operations(otto.get(AUDIT)) == []
    assert otto.browser.get(f"{AUDIT}?tenant=acme").status_code == 404


def test_the_page_needs_few_queries(trail: None, boss: Person, queries_of: Callable[..., list[str]]) -> None:
    queries = queries_of(boss, f"{AUDIT}?operation=pause")

    assert len(queries) <= 12, queries
