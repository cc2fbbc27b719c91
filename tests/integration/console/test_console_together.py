"""Approving many items together, each with its own result."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

from activities.human_tasks import decisions
from activities.states import Status
from tests.cases import in_one_test
from tests.console_user import Person, notice, refusal_notice, send_form, trail_of
from tests.engine import simultaneously
from tests.forms import Form, forms_of
from tests.questions import Questions


def _bulk_form(by: Person) -> Form:
    return forms_of(by.get())["together"]


def test_chosen_items_are_approved_together_each_with_its_result(questions: Questions, ann: Person) -> None:
    gates = [questions.gate(name=f"Summary {number}") for number in range(3)]
    review = questions.review()
    form = _bulk_form(ann)
    assert len(form.choices["chosen"]) == 4
    decisions.reject(questions.tenant.pk, gates[1].pk, actor="user:bob", notes="No.")

    answer = form.send(ann.browser, chosen=form.choices["chosen"])

    message = notice(answer)
    assert answer.status_code == 200
    assert message.count("Approved: ") == 3
    assert re.search(r"Not done: Approve: Summary 1 Changes requested by bob .* Nothing was done\.", message)
    assert [questions.get(item.pk).status for item in (*gates, review)] == [
        "approved",
        "rejected",
        "approved",
        "approved",
    ]
    recorded = [entry for entry in trail_of(questions.tenant) if entry.operation == "inbox.approve"]
    assert {entry.object_id for entry in recorded} == {str(item.pk) for item in (gates[0], gates[2], review)}


def test_only_decisions_without_options_can_be_approved_together(
    questions: Questions, person: Callable[..., Person]
) -> None:
    eva = person("eva", role="reviewer", human_roles=["editor"])
    (
        questions.approval(),
        questions.task(),
        questions.blocker(),
        questions.escalation(),
        questions.review(human_role="legal"),
    )

    assert "together" not in forms_of(eva.get())
    plain = questions.approval(options=())
    assert _bulk_form(eva).choices["chosen"] == [f"{plain.pk}:{plain.version}"]


def test_an_item_that_cannot_be_approved_does_not_stop_the_others(questions: Questions, ann: Person) -> None:
    gate, optional, task = questions.gate(), questions.approval(), questions.task()
    chosen = [f"{item.pk}:{item.version}" for item in (optional, task, gate)] + [f"{uuid4()}:1"]

    message = notice(send_form(ann, _bulk_form(ann), chosen=chosen))

    assert f"Not done: {optional.name} Choose one of the options: Warm, Sober." in message
    assert f"Not done: {task.name} This action is not available for this item." in message
    assert "This item does not exist." in message
    assert questions.get(gate.pk).status == "approved"
    assert questions.get(task.pk).status == questions.get(optional.pk).status == "created"


@in_one_test("chosen", [[], ["x"], ["x:1"], [f"{uuid4()}"], [f"{uuid4()}:x"], [f"{uuid4()}:1"] * 101])
def test_an_invalid_selection_is_refused(chosen: list[str], questions: Questions, ann: Person) -> None:
    questions.gate()

    refusal_notice(send_form(ann, _bulk_form(ann), chosen=chosen), 400)


def test_two_people_approve_the_same_items_in_opposite_order_at_once(
    questions: Questions, person: Callable[..., Person]
) -> None:
    gates = [questions.gate_of_step() for _ in range(5)]
    people_ = [person("bo"), person("cy")]
    forms = [_bulk_form(each) for each in people_]
    orders = [forms[0].choices["chosen"], forms[1].choices["chosen"][::-1]]

    answers = simultaneously(
        *(lambda i=i: forms[i].send(people_[i].browser, chosen=orders[i]) for i in range(2))
    )

    assert [answer.status_code for answer in answers] == [200, 200]
    assert sum(notice(answer).count("Approved: ") for answer in answers) == 5
    assert {questions.get(gate.pk).status for gate in gates} == {Status.APPROVED}
