"""Updates of an open inbox page: only the named parts, and the outcome of items that it showed."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db import connections
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext

from activities.human_tasks import decisions, human_work
from tenants.context import APP
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.console_user import INBOX, Person, success_notice
from tests.questions import Questions

LIST = "total kinds rows around"
SIGNED_IN = ('FROM "django_session"', 'FROM "auth_user"')  # Django's lookup of the user


def refreshed(by: Person, address: str, parts: str = LIST) -> HttpResponse:
    answer = by.browser.get(address, headers={"X-Live": parts})
    assert answer.status_code == 200
    return answer


@pytest.fixture
def many(questions: Questions) -> list[object]:
    return [questions.gate(name=f"Text {number}") for number in range(4)]


def test_refreshing_the_list_does_not_read_the_item(
    many: list[object], questions: Questions, ann: Person
) -> None:
    gate = questions.gate("# Bees that fly far", name="One")
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
    queries = [each["sql"] for each in part.captured_queries if " FROM " in each["sql"]]
    queries = [sql for sql in queries if not any(table in sql for table in SIGNED_IN)]
    assert len(queries) <= 6, queries
    assert len(part.captured_queries) < len(whole.captured_queries)


def test_refreshing_an_item_reads_its_verdict(questions: Questions, ann: Person) -> None:
    gate = questions.gate("# Bees", name="One")
    decisions.approve(questions.tenant.pk, gate.pk, actor="user:bob")

    page = visible_text(refreshed(ann, f"{INBOX}{gate.pk}/", "asked verdict"))

    assert "Approved by bob" in page
    assert "Bees" in page


def test_a_notice_is_shown_on_the_next_page_and_not_in_a_refresh(questions: Questions, ann: Person) -> None:
    gate = questions.gate(name="One")
    answer = ann.answer(gate, "approve")

    refreshed(ann, INBOX)
    refreshed(ann, "/activities/", "rows")
    other = refreshed(ann, f"{INBOX}{questions.gate().pk}/", "asked")

    assert "Approved: Approve: One" not in visible_text(other)
    assert success_notice(answer, ann) == "Approved: Approve: One"


def test_closed_items_report_their_outcome_and_actor(
    many: list[object], questions: Questions, ann: Person
) -> None:
    gate, rejected, task, open_one = (
        questions.gate(name="<b>One</b>"),
        questions.gate(name="Two"),
        questions.task("Call"),
        questions.gate(name="Open"),
    )
    decisions.approve(questions.tenant.pk, gate.pk, actor="user:bob")
    decisions.reject(questions.tenant.pk, rejected.pk, actor="token:robot", notes="No.")
    human_work.complete(questions.tenant.pk, task.pk, actor="user:<i>eve</i>")
    named = "&id=".join(str(each.pk) for each in (task, gate, rejected, open_one))

    with CaptureQueriesContext(connections[APP]) as queries:
        answer = ann.get(f"{INBOX}gone/?tenant=acme&id={named}&id={uuid4()}")

    assert visible_text(answer) == (
        "Completed by &lt;i&gt;eve&lt;/i&gt; : Call Approved by bob : Approve: &lt;b&gt;One&lt;/b&gt;"
        " Changes requested by robot (token) : Approve: Two"
    )
    assert sum("activities_activity" in each["sql"] for each in queries.captured_queries) == 2


def test_outcomes_of_another_tenants_items_are_not_reported(
    questions: Questions, ann: Person, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    gate = questions.gate(name="One")
    decisions.approve(questions.tenant.pk, gate.pk, actor="user:bob")
    stranger = person("eve", other_tenant)

    assert visible_text(stranger.get(f"{INBOX}gone/?id={gate.pk}")) == ""
    assert stranger.browser.get(f"{INBOX}gone/?tenant=acme&id={gate.pk}").status_code == 404
    assert ann.browser.get(f"{INBOX}gone/?id=x").status_code == 404
