"""Similar failures are one item of the inbox, and items name the subject of their run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from console.overview import overview, tenants_overview
from pipelines import submission, versions
from pipelines.subjects import LONGEST, subject_of
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.console_user import INBOX, Person
from tests.forms import forms_of
from tests.page_queries import MOST
from tests.questions import ARTICLE, Questions

QueriesOf = Callable[[Person, str], list[str]]


def listed(page: Any) -> list[tuple[str, int]]:
    return [(row.name, row.alike) for row in page.context["inbox"].rows]


def counts(page: Any) -> dict[str, int]:
    return {tab.words: tab.count for tab in page.context["inbox"].tabs}


def test_similar_failures_are_one_item_with_their_count(questions: Questions, ann: Person) -> None:
    oldest = questions.escalation("Row 1 is gone.")
    questions.escalation("Row 2 is gone.")
    questions.escalation("The disk is full.")

    page = ann.get()

    assert listed(page) == [("Failed: Audit", 2), ("Failed: Audit", 1)]
    assert page.context["inbox"].rows[0].id == oldest.pk
    assert counts(page) == {"All": 2, "Escalations": 2}
    assert "2 similar" in visible_text(page)
    fingerprint = oldest.metadata["fingerprint"]
    assert f"/dead-letters/{fingerprint}/" in ann.look(oldest).content.decode(), (
        "where all of them are dealt with"
    )


def test_the_overviews_count_the_items_of_the_inbox(
    questions: Questions, ann: Person, other_tenant: Tenant
) -> None:
    questions.escalation("Row 1 is gone.")
    questions.escalation("Row 2 is gone.")
    questions.escalation("The disk is full.")
    questions.task(name="Call them")

    page = overview(questions.tenant.pk)
    row, _ = tenants_overview([questions.tenant, other_tenant])

    assert counts(ann.get())["All"] == 3
    assert {each.kind: each.items for each in page.people} == {"escalation": 2, "task": 1}
    assert page.asked == row.asked == 3


def test_the_next_failure_represents_the_group_after_an_answer(questions: Questions, ann: Person) -> None:
    first = questions.escalation("Row 1 is gone.")
    second = questions.escalation("Row 2 is gone.")

    ann.answer(first, "complete", notes="seen")

    assert [row.id for row in ann.get().context["inbox"].rows] == [second.pk]
    assert listed(ann.get()) == [("Failed: Audit", 1)]


def test_similar_failures_are_snoozed_and_return_together(questions: Questions, ann: Person) -> None:
    first = questions.escalation("Row 1 is gone.")
    questions.escalation("Row 2 is gone.")
    other = questions.escalation("The disk is full.")

    forms_of(ann.look(first))["put-aside"].send(ann.browser, ("aside", "hour"))

    assert [row.id for row in ann.get().context["inbox"].rows] == [other.pk]
    assert counts(ann.get()) == {"All": 1, "Escalations": 1, "Snoozed": 1}
    assert listed(ann.get(f"{INBOX}?aside=yes")) == [("Failed: Audit", 2)]
    questions.escalation("Row 3 is gone.")
    assert counts(ann.get())["All"] == 2, "a new failure is not snoozed"

    forms_of(ann.get(f"{INBOX}?aside=yes"))["back"].send(ann.browser, ("item", str(first.pk)))

    assert counts(ann.get()) == {"All": 2, "Escalations": 2}
    assert listed(ann.get())[0] == ("Failed: Audit", 3)


def test_items_of_other_kinds_are_never_grouped(questions: Questions, ann: Person) -> None:
    questions.task(name="Call them")
    questions.task(name="Call them")

    assert listed(ann.get()) == [("Call them", 1), ("Call them", 1)]


def test_grouped_failures_need_no_more_statements(
    questions: Questions, ann: Person, queries_of: QueriesOf
) -> None:
    questions.escalation("Row 1 is gone.")
    one = len(queries_of(ann, INBOX))
    for row in range(2, 6):
        questions.escalation(f"Row {row} is gone.")

    many = queries_of(ann, INBOX)

    assert len(many) == one <= MOST


def test_an_item_of_a_run_shows_the_subject_of_the_run(questions: Questions, ann: Person) -> None:
    versions.save(questions.tenant.pk, ARTICLE, actor="test")
    run = submission.NewRun(params={"topic": "Bees in the city"})
    submission.start_run(questions.tenant.pk, "article", run, actor="token:planner")
    questions.engine.drain()

    (row,) = ann.get().context["inbox"].rows

    assert row.about == "Bees in the city"
    assert "Bees in the city" in visible_text(ann.get())
    assert "Bees in the city" in visible_text(ann.get("/runs/"))


@pytest.mark.parametrize(
    ("name", "params", "subject"),
    [
        ("May", {"title": "Bees"}, "May"),
        ("", {"a": "first", "title": "Bees"}, "Bees"),
        ("", {"a": 7, "b": "  two\n words "}, "two words"),
        ("", {"a": "x" * (LONGEST + 1)}, ""),
        ("", {"title": {"of": "it"}}, ""),
        ("", None, ""),
    ],
    ids=["its name", "a telling parameter", "a short text", "too long", "no text", "no parameters"],
)
def test_the_subject_of_a_run_comes_from_its_name_or_params(name: str, params: Any, subject: str) -> None:
    assert subject_of(name, params) == subject
