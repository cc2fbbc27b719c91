"""Questions about failures that look alike are one item of the inbox, and items say what they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import submission, versions
from pipelines.subjects import LONGEST, subject_of
from tests.browsing import words
from tests.console_user import INBOX, Person
from tests.page_queries import MOST
from tests.questions import ARTICLE, Questions

Asked = Callable[[Person, str], list[str]]


def listed(page: Any) -> list[tuple[str, int]]:
    return [(row.name, row.alike) for row in page.context["inbox"].rows]


def counts(page: Any) -> dict[str, int]:
    return {tab.words: tab.count for tab in page.context["inbox"].tabs}


def test_failures_that_look_alike_are_one_item_with_their_number(asked: Questions, ann: Person) -> None:
    oldest = asked.escalation("Row 1 is gone.")
    asked.escalation("Row 2 is gone.")
    asked.escalation("The disk is full.")

    page = ann.get()

    assert listed(page) == [("Failed: Audit", 2), ("Failed: Audit", 1)]
    assert page.context["inbox"].rows[0].id == oldest.pk
    assert counts(page) == {"All": 2, "Escalations": 2}
    assert "2 similar" in words(page)
    fingerprint = oldest.metadata["fingerprint"]
    assert f"/dead-letters/{fingerprint}/" in ann.look(oldest).content.decode(), (
        "where all of them are dealt with"
    )


def test_the_next_one_stands_for_the_rest_when_the_first_is_answered(asked: Questions, ann: Person) -> None:
    first = asked.escalation("Row 1 is gone.")
    second = asked.escalation("Row 2 is gone.")

    ann.answer(first, "complete", notes="seen")

    assert [row.id for row in ann.get().context["inbox"].rows] == [second.pk]
    assert listed(ann.get()) == [("Failed: Audit", 1)]


def test_other_questions_stand_for_themselves_however_alike(asked: Questions, ann: Person) -> None:
    asked.task(name="Call them")
    asked.task(name="Call them")

    assert listed(ann.get()) == [("Call them", 1), ("Call them", 1)]


def test_many_alike_cost_no_more_statements(asked: Questions, ann: Person, asked_queries: Asked) -> None:
    asked.escalation("Row 1 is gone.")
    one = len(asked_queries(ann, INBOX))
    for row in range(2, 6):
        asked.escalation(f"Row {row} is gone.")

    many = asked_queries(ann, INBOX)

    assert len(many) == one <= MOST


def test_an_item_of_a_run_says_what_the_run_is_about(asked: Questions, ann: Person) -> None:
    versions.save(asked.tenant.pk, ARTICLE, actor="test")
    run = submission.NewRun(params={"topic": "Bees in the city"})
    submission.start_run(asked.tenant.pk, "article", run, actor="token:planner")
    asked.engine.drain()

    (row,) = ann.get().context["inbox"].rows

    assert row.about == "Bees in the city"
    assert "Bees in the city" in words(ann.get())
    assert "Bees in the city" in words(ann.get("/runs/"))


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
def test_what_a_run_is_about(name: str, params: Any, subject: str) -> None:
    assert subject_of(name, params) == subject
