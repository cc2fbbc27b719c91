"""A reviewer edits the text at a gate and approves the edited text in one step, without scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activities import outputs
from activities.exceptions import OutputUnavailable
from activities.human_tasks import human_work
from activities.maintenance import invariants
from activities.models import Activity, OutputSpool
from agents.contracts import Completed, Output
from console.inbox import actions
from tenants.context import tenant_scope
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import Person, refusal_notice, success_notice
from tests.engine import simultaneously
from tests.forms import forms_of
from tests.questions import Questions

MINE = "# Bees\n\nBees fly very far."
EDITED = "approve_edited"


def text_of(questions: Questions, reference: object) -> str | None:
    output = outputs.read(questions.tenant.pk, reference)  # type: ignore[arg-type]
    return output.content if output else None


def spooled(questions: Questions) -> int:
    """Return the number of outputs in the spool."""
    with tenant_scope(questions.tenant.pk):
        return int(OutputSpool.objects.count())


def test_the_next_step_gets_the_edited_text_and_the_original_data(questions: Questions, ann: Person) -> None:
    gate = questions.gate_of_step(
        lambda request: Completed(Output(content="# Bees\n\nThey fly.", data={"words": 3}))
    )
    outputs.copy_waiting()

    message = success_notice(
        ann.answer(gate, EDITED, edited="# Bees\r\n\r\nThey fly <far>.\r\n", notes="One word."), ann
    )

    assert message == "Approved as edited: Approve: Write"
    questions.engine.drain()
    call = questions.engine.agent.calls[-1]
    assert (call.input["content"], call.input["data"]) == ("# Bees\n\nThey fly <far>.", {"words": 3})
    now = questions.get(gate.pk)
    assert (now.decided_by, now.reviewer_notes) == ("user:ann", "One word.")
    assert questions.get(gate.parent_id).output_ref == now.output_ref
    assert invariants.check() == []


def test_the_page_shows_who_edited_the_text_and_the_difference(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    own = gate.input_ref
    success_notice(ann.answer(gate, EDITED, edited=MINE), ann)

    page_text = visible_text(page := ann.look(gate))

    assert "Approved as edited by ann" in page_text
    assert "Edited by ann before approval" in page_text
    assert "<ins>very </ins>" in page.content.decode() or "<ins> very</ins>" in page.content.decode()
    assert "ann approved as edited" in page_text
    assert "Result of qa" in page_text, "the agent's own text"
    assert "Approved text" in page_text
    assert text_of(questions, own) == "# Bees\n\nBees fly far."
    assert "Edited and approved by ann" in visible_text(ann.get(f"/activities/{gate.parent_id}/texts/"))


@pytest.mark.parametrize("action", ["approve", EDITED])
def test_an_unchanged_text_is_approved_without_an_edit(
    action: str, questions: Questions, ann: Person
) -> None:
    gate = questions.gate(content='\n  # Bees\r\n\r\n<b> & "bees"\n\n')

    assert success_notice(ann.answer(gate, action), ann).startswith("Approved: ")

    assert questions.get(gate.pk).output_ref is None
    assert questions.get(gate.parent_id).output_ref == gate.input_ref


def test_an_edited_text_is_kept_when_plain_approve_is_pressed(questions: Questions, ann: Person) -> None:
    gate = questions.gate()

    answer = ann.answer(gate, "approve", edited=MINE)

    assert refusal_notice(answer, 400).startswith("You have edited the text")
    assert "Bees fly very far." in answer.content.decode(), "it is still in the form"
    assert questions.get(gate.pk).status == "created"


@pytest.fixture
def gate(questions: Questions) -> Activity:
    return questions.gate()


@in_one_test(
    ("text", "message"),
    [
        ("", "text is empty"),
        (" \r\n ", "text is empty"),
        ("x" * (actions.MOST_CHARACTERS + 1), "longer than 200000"),
    ],
    ids=["empty", "blank", "too long"],
)
def test_empty_and_too_long_texts_are_refused(
    text: str, message: str, questions: Questions, ann: Person, gate: Activity
) -> None:
    assert message in refusal_notice(ann.answer(gate, EDITED, edited=text), 400)

    assert (questions.get(gate.pk).status, spooled(questions)) == ("created", 1)


def test_requesting_changes_ignores_an_edited_text(questions: Questions, ann: Person) -> None:
    gate = questions.gate()

    assert success_notice(ann.answer(gate, "reject", notes="Shorter.", edited=MINE), ann).startswith(
        "Changes requested"
    )

    assert questions.get(gate.parent_id).output_ref == gate.input_ref


def test_an_edit_of_an_item_claimed_meanwhile_is_refused_and_kept(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    form = ann.form(gate)
    human_work.take_up(questions.tenant.pk, gate.pk, actor="user:bob")

    answer = form.send(ann.browser, ("action", EDITED), edited=MINE)

    assert refusal_notice(answer, 409).startswith("Claimed by bob")
    assert "Bees fly very far." in answer.content.decode()
    assert (questions.get(gate.pk).status, spooled(questions)) == ("in_progress", 1)


def test_one_of_two_concurrent_edits_counts(questions: Questions, person: Callable[..., Person]) -> None:
    gate = questions.gate()
    forms = [(each, each.form(gate)) for each in (person("ann"), person("bob"))]

    answers = simultaneously(
        *(
            lambda who=who, form=form: form.send(
                who.browser, ("action", EDITED), edited=f"By {who.user.username}."
            )
            for who, form in forms
        )
    )

    assert sorted(answer.status_code for answer in answers) == [302, 409]
    now = questions.get(gate.pk)
    assert text_of(questions, now.output_ref) == f"By {now.decided_by.partition(':')[2]}."
    assert spooled(questions) == 2
    assert invariants.check() == []


def test_the_next_round_can_be_edited(questions: Questions, ann: Person) -> None:
    gate = questions.next_round(questions.gate(), "Shorter.", "Bees fly.")

    success_notice(ann.answer(gate, EDITED, edited="Bees fly high."), ann)

    assert text_of(questions, questions.get(gate.parent_id).output_ref) == "Bees fly high."
    page_text = visible_text(ann.look(gate))
    assert "Round 1: changes requested by ann" in page_text
    assert "Edited by ann before approval" in page_text


def test_an_item_with_a_quorum_cannot_be_edited(questions: Questions, ann: Person) -> None:
    gate = questions.gate(decision_rules={"quorum": 2})

    page = ann.look(gate)

    assert "Several people vote on this, so the text cannot be edited" in visible_text(page)
    assert 'name="edited"' not in page.content.decode()


@in_one_test(
    "output",
    [
        Output(data={"a": 1}),
        Output(content="x" * (actions.MOST_CHARACTERS + 1)),
        Output(content="{}", content_type="application/json"),
    ],
    ids=["no text", "too long", "no words"],
)
def test_outputs_without_a_short_text_cannot_be_edited(
    output: Output, questions: Questions, ann: Person
) -> None:
    gate = questions.gate_of_step(lambda request: Completed(output))

    assert 'name="edited"' not in ann.look(gate).content.decode()


@in_one_test("kind", ["review", "approval", "task", "blocker", "escalation"])
def test_items_of_other_kinds_cannot_be_edited(kind: str, questions: Questions, ann: Person) -> None:
    assert 'name="edited"' not in ann.look(getattr(questions, kind)()).content.decode()


def test_a_viewer_cannot_edit(questions: Questions, person: Callable[..., Person]) -> None:
    assert 'name="edited"' not in person("vic", role="viewer").look(questions.gate()).content.decode()


def test_an_unreadable_result_is_not_approved_with_an_edit(
    questions: Questions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = questions.gate()
    form = ann.form(gate)

    def unavailable(*which: object) -> None:
        raise OutputUnavailable("away")

    monkeypatch.setattr(outputs, "read", unavailable)

    answer = form.send(ann.browser, ("action", EDITED), edited=MINE)

    assert "does not answer" in refusal_notice(answer, 503)
    assert forms_of(answer)["answer"].fields["edited"] == [f"\n{MINE}"], "nothing of it is lost"
    assert questions.get(gate.pk).status == "created"
