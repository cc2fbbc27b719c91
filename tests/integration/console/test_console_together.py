"""Approving many items together, each with a result of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

from activities.human_tasks import approvals
from activities.states import Status
from tests.cases import in_one_test
from tests.console_user import Person, notice, refused, sent_by
from tests.engine import at_once
from tests.forms import Form, forms_of
from tests.questions import Questions


def _together(by: Person) -> Form:
    return forms_of(by.get())["together"]


def test_chosen_items_are_approved_together_each_with_its_result(asked: Questions, ann: Person) -> None:
    gates = [asked.gate(name=f"Summary {number}") for number in range(3)]
    review = asked.review()
    form = _together(ann)
    assert len(form.choices["chosen"]) == 4
    approvals.reject(asked.tenant.pk, gates[1].pk, actor="user:bob", notes="No.")

    answer = form.send(ann.browser, chosen=form.choices["chosen"])

    said = notice(answer)
    assert answer.status_code == 200
    assert said.count("Approved: ") == 3
    assert re.search(r"Not done: Approve: Summary 1 Changes requested by bob .* Nothing was done\.", said)
    assert [asked.get(item.pk).status for item in (*gates, review)] == [
        "approved",
        "rejected",
        "approved",
        "approved",
    ]


def test_only_what_needs_no_other_word_can_be_approved_together(
    asked: Questions, person: Callable[..., Person]
) -> None:
    eva = person("eva", role="reviewer", human_roles=["editor"])
    asked.approval(), asked.task(), asked.blocker(), asked.escalation(), asked.review(human_role="legal")

    assert "together" not in forms_of(eva.get())
    plain = asked.approval(options=())
    assert _together(eva).choices["chosen"] == [f"{plain.pk}:{plain.version}"]


def test_what_cannot_be_approved_so_says_why_and_hinders_no_other(asked: Questions, ann: Person) -> None:
    gate, optional, task = asked.gate(), asked.approval(), asked.task()
    chosen = [f"{item.pk}:{item.version}" for item in (optional, task, gate)] + [f"{uuid4()}:1"]

    said = notice(sent_by(ann, _together(ann), chosen=chosen))

    assert f"Not done: {optional.name} Choose one of the options: Warm, Sober." in said
    assert f"Not done: {task.name} This action is not available for this item." in said
    assert "This item does not exist." in said
    assert asked.get(gate.pk).status == "approved"
    assert asked.get(task.pk).status == asked.get(optional.pk).status == "created"


@in_one_test("chosen", [[], ["x"], ["x:1"], [f"{uuid4()}"], [f"{uuid4()}:x"], [f"{uuid4()}:1"] * 101])
def test_a_choice_that_is_none_is_refused(chosen: list[str], asked: Questions, ann: Person) -> None:
    asked.gate()

    refused(sent_by(ann, _together(ann), chosen=chosen), 400)


def test_two_people_approve_the_same_items_in_opposite_order_at_once(
    asked: Questions, person: Callable[..., Person]
) -> None:
    gates = [asked.gate_of_step() for _ in range(5)]
    people_ = [person("bo"), person("cy")]
    forms = [_together(each) for each in people_]
    orders = [forms[0].choices["chosen"], forms[1].choices["chosen"][::-1]]

    answers = at_once(*(lambda i=i: forms[i].send(people_[i].browser, chosen=orders[i]) for i in range(2)))

    assert [answer.status_code for answer in answers] == [200, 200]
    assert sum(notice(answer).count("Approved: ") for answer in answers) == 5
    assert {asked.get(gate.pk).status for gate in gates} == {Status.APPROVED}
