"""A reviewer edits the text that a gate asks about, and approves the edited one in the same step. No scripts are needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activities import outputs
from activities.exceptions import OutputUnavailable
from activities.human_tasks import human_work
from activities.maintenance import invariants
from activities.models import OutputSpool
from agents.contracts import Completed, Output
from console.inbox import actions
from tenants.context import tenant_scope
from tests.browsing import words
from tests.console_user import Person, done, refused
from tests.engine import at_once
from tests.forms import forms_of
from tests.questions import Questions

MINE = "# Bees\n\nBees fly very far."
EDITED = "approve_edited"


def text_of(asked: Questions, reference: object) -> str | None:
    found = outputs.read(asked.tenant.pk, reference)  # type: ignore[arg-type]
    return found.content if found else None


def kept(asked: Questions) -> int:
    """How many outputs there are that have not left the spool."""
    with tenant_scope(asked.tenant.pk):
        return int(OutputSpool.objects.count())


def test_the_next_step_works_with_the_edited_text_and_the_rest_of_the_result(
    asked: Questions, ann: Person
) -> None:
    gate = asked.gate_of_step(
        lambda request: Completed(Output(content="# Bees\n\nThey fly.", data={"words": 3}))
    )
    outputs.copy_waiting()

    said = done(ann.answer(gate, EDITED, edited="# Bees\r\n\r\nThey fly <far>.\r\n", notes="One word."), ann)

    assert said == "Approved as edited: Approve: Write"
    asked.engine.drain()
    call = asked.engine.agent.calls[-1]
    assert (call.input["content"], call.input["data"]) == ("# Bees\n\nThey fly <far>.", {"words": 3})
    now = asked.get(gate.pk)
    assert (now.decided_by, now.reviewer_notes) == ("user:ann", "One word.")
    assert asked.get(gate.parent_id).output_ref == now.output_ref
    assert invariants.check() == []


def test_afterwards_the_page_shows_who_edited_the_text_and_how_it_differs_from_the_agents(
    asked: Questions, ann: Person
) -> None:
    gate = asked.gate()
    own = gate.input_ref
    done(ann.answer(gate, EDITED, edited=MINE), ann)

    shown = words(page := ann.look(gate))

    assert "Approved as edited by ann" in shown
    assert "Edited by ann before approval" in shown
    assert "<ins>very </ins>" in page.content.decode() or "<ins> very</ins>" in page.content.decode()
    assert "ann approved as edited" in shown
    assert "Result of qa" in shown, "the agent's own text"
    assert "Approved text" in shown
    assert text_of(asked, own) == "# Bees\n\nBees fly far."
    assert "Edited and approved by ann" in words(ann.get(f"/activities/{gate.parent_id}/texts/"))


@pytest.mark.parametrize("deed", ["approve", EDITED])
def test_a_text_that_nobody_has_changed_is_approved_as_it_is(
    deed: str, asked: Questions, ann: Person
) -> None:
    gate = asked.gate(content='\n  # Bees\r\n\r\n<b> & "bees"\n\n')

    assert done(ann.answer(gate, deed), ann).startswith("Approved: ")

    assert asked.get(gate.pk).output_ref is None
    assert asked.get(gate.parent_id).output_ref == gate.input_ref


def test_an_edited_text_is_not_lost_to_the_wrong_button(asked: Questions, ann: Person) -> None:
    gate = asked.gate()

    answer = ann.answer(gate, "approve", edited=MINE)

    assert refused(answer, 400).startswith("You have edited the text")
    assert "Bees fly very far." in answer.content.decode(), "it is still in the form"
    assert asked.get(gate.pk).status == "created"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "text is empty"),
        (" \r\n ", "text is empty"),
        ("x" * (actions.MOST_CHARACTERS + 1), "longer than 200000"),
    ],
    ids=["empty", "blank", "too long"],
)
def test_an_empty_text_and_one_that_is_too_long_are_refused(
    text: str, said: str, asked: Questions, ann: Person
) -> None:
    gate = asked.gate()

    assert said in refused(ann.answer(gate, EDITED, edited=text), 400)

    assert (asked.get(gate.pk).status, kept(asked)) == ("created", 1)


def test_a_text_that_is_sent_back_needs_no_editing(asked: Questions, ann: Person) -> None:
    gate = asked.gate()

    assert done(ann.answer(gate, "reject", notes="Shorter.", edited=MINE), ann).startswith(
        "Changes requested"
    )

    assert asked.get(gate.parent_id).output_ref == gate.input_ref


def test_an_edit_of_what_somebody_else_has_taken_up_meanwhile_is_refused_and_stays_in_the_form(
    asked: Questions, ann: Person
) -> None:
    gate = asked.gate()
    form = ann.form(gate)
    human_work.take_up(asked.tenant.pk, gate.pk, actor="user:bob")

    answer = form.send(ann.browser, ("deed", EDITED), edited=MINE)

    assert refused(answer, 409).startswith("Claimed by bob")
    assert "Bees fly very far." in answer.content.decode()
    assert (asked.get(gate.pk).status, kept(asked)) == ("in_progress", 1)


def test_of_two_people_who_edit_at_once_one_counts(asked: Questions, person: Callable[..., Person]) -> None:
    gate = asked.gate()
    forms = [(each, each.form(gate)) for each in (person("ann"), person("bob"))]

    answers = at_once(
        *(
            lambda who=who, form=form: form.send(
                who.browser, ("deed", EDITED), edited=f"By {who.user.username}."
            )
            for who, form in forms
        )
    )

    assert sorted(answer.status_code for answer in answers) == [302, 409]
    now = asked.get(gate.pk)
    assert text_of(asked, now.output_ref) == f"By {now.decided_by.partition(':')[2]}."
    assert kept(asked) == 2
    assert invariants.check() == []


def test_a_round_that_was_sent_back_is_edited_when_it_comes_again(asked: Questions, ann: Person) -> None:
    gate = asked.next_round(asked.gate(), "Shorter.", "Bees fly.")

    done(ann.answer(gate, EDITED, edited="Bees fly high."), ann)

    assert text_of(asked, asked.get(gate.parent_id).output_ref) == "Bees fly high."
    shown = words(ann.look(gate))
    assert "Round 1: changes requested by ann" in shown
    assert "Edited by ann before approval" in shown


def test_where_several_decide_the_page_says_why_nobody_can_edit(asked: Questions, ann: Person) -> None:
    gate = asked.gate(decision_rules={"quorum": 2})

    page = ann.look(gate)

    assert "Several people vote on this, so the text cannot be edited" in words(page)
    assert 'name="edited"' not in page.content.decode()


@pytest.mark.parametrize(
    "output",
    [
        Output(data={"a": 1}),
        Output(content="x" * (actions.MOST_CHARACTERS + 1)),
        Output(content="{}", content_type="application/json"),
    ],
    ids=["no text", "too long", "no words"],
)
def test_what_is_no_text_or_too_long_is_not_offered_to_be_edited(
    output: Output, asked: Questions, ann: Person
) -> None:
    gate = asked.gate_of_step(lambda request: Completed(output))

    assert 'name="edited"' not in ann.look(gate).content.decode()


@pytest.mark.parametrize("kind", ["review", "approval", "task", "blocker", "escalation"])
def test_other_questions_offer_nothing_to_edit(kind: str, asked: Questions, ann: Person) -> None:
    assert 'name="edited"' not in ann.look(getattr(asked, kind)()).content.decode()


def test_who_may_only_look_is_offered_nothing_to_edit(
    asked: Questions, person: Callable[..., Person]
) -> None:
    assert 'name="edited"' not in person("vic", role="viewer").look(asked.gate()).content.decode()


def test_a_result_that_cannot_be_read_is_not_approved_in_part(
    asked: Questions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asked.gate()
    form = ann.form(gate)

    def away(*which: object) -> None:
        raise OutputUnavailable("away")

    monkeypatch.setattr(outputs, "read", away)

    answer = form.send(ann.browser, ("deed", EDITED), edited=MINE)

    assert "does not answer" in refused(answer, 503)
    assert forms_of(answer)["answer"].fields["edited"] == [f"\n{MINE}"], "nothing of it is lost"
    assert asked.get(gate.pk).status == "created"
