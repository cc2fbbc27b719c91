"""What a page of the inbox fetches again: the parts that it names and no more, and what has become of what it showed before."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db import connections
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext

from activities.human_tasks import approvals, human_work
from tenants.context import APP
from tenants.models import Tenant
from tests.browsing import words
from tests.console_user import INBOX, Person, done
from tests.questions import Questions

LIST = "total kinds rows around"
SIGNED_IN = ('FROM "django_session"', 'FROM "auth_user"')  # Django asks who it is


def refreshed(by: Person, address: str, parts: str = LIST) -> HttpResponse:
    answer = by.browser.get(address, headers={"X-Live": parts})
    assert answer.status_code == 200
    return answer


@pytest.fixture
def many(asked: Questions) -> list[object]:
    return [asked.gate(name=f"Text {number}") for number in range(4)]


def test_the_list_alone_is_read_where_it_alone_is_wanted(
    many: list[object], asked: Questions, ann: Person
) -> None:
    gate = asked.gate("# Bees that fly far", name="One")
    address = f"{INBOX}{gate.pk}/"

    with CaptureQueriesContext(connections[APP]) as whole:
        ann.get(address)
    with CaptureQueriesContext(connections[APP]) as part:
        answer = refreshed(ann, address)

    page = answer.content.decode()
    assert f'id="open-{gate.pk}"' in page
    assert page.count('aria-current="true"') == 2, "the row of the open item, and the tab"
    assert "Bees that fly far" not in page
    assert "<nav class=" in page
    assert "<html" not in page
    asking = [each["sql"] for each in part.captured_queries if " FROM " in each["sql"]]
    asking = [sql for sql in asking if not any(table in sql for table in SIGNED_IN)]
    assert len(asking) <= 6, asking
    assert len(part.captured_queries) < len(whole.captured_queries)


def test_the_item_is_read_as_well_where_it_is_wanted(asked: Questions, ann: Person) -> None:
    gate = asked.gate("# Bees", name="One")
    approvals.approve(asked.tenant.pk, gate.pk, actor="user:bob")

    page = words(refreshed(ann, f"{INBOX}{gate.pk}/", "asked verdict"))

    assert "Approved by bob" in page
    assert "Bees" in page


def test_what_was_done_is_told_to_who_looks_and_not_to_a_page_that_follows(
    asked: Questions, ann: Person
) -> None:
    gate = asked.gate(name="One")
    answer = ann.answer(gate, "approve")

    refreshed(ann, INBOX)
    refreshed(ann, "/activities/", "rows")
    other = refreshed(ann, f"{INBOX}{asked.gate().pk}/", "asked")

    assert "Approved: Approve: One" not in words(other)
    assert done(answer, ann) == "Approved: Approve: One"


def test_items_that_are_over_say_what_came_of_them_and_who_did_it(
    many: list[object], asked: Questions, ann: Person
) -> None:
    gate, sent_back, task, open_one = (
        asked.gate(name="<b>One</b>"),
        asked.gate(name="Two"),
        asked.task("Call"),
        asked.gate(name="Open"),
    )
    approvals.approve(asked.tenant.pk, gate.pk, actor="user:bob")
    approvals.reject(asked.tenant.pk, sent_back.pk, actor="token:robot", notes="No.")
    human_work.complete(asked.tenant.pk, task.pk, actor="user:<i>eve</i>")
    named = "&id=".join(str(each.pk) for each in (task, gate, sent_back, open_one))

    with CaptureQueriesContext(connections[APP]) as asking:
        answer = ann.get(f"{INBOX}gone/?tenant=acme&id={named}&id={uuid4()}")

    assert words(answer) == (
        "Completed by &lt;i&gt;eve&lt;/i&gt; : Call Approved by bob : Approve: &lt;b&gt;One&lt;/b&gt;"
        " Changes requested by robot (token) : Approve: Two"
    )
    assert sum("activities_activity" in each["sql"] for each in asking.captured_queries) == 2


def test_nobody_learns_what_became_of_another_tenants_items(
    asked: Questions, ann: Person, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    gate = asked.gate(name="One")
    approvals.approve(asked.tenant.pk, gate.pk, actor="user:bob")
    stranger = person("eve", other_tenant)

    assert words(stranger.get(f"{INBOX}gone/?id={gate.pk}")) == ""
    assert stranger.browser.get(f"{INBOX}gone/?tenant=acme&id={gate.pk}").status_code == 404
    assert ann.browser.get(f"{INBOX}gone/?id=x").status_code == 404
