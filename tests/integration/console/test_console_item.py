"""The page of an item: the request, the material to judge, the cost, and the effect of each answer."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from django.http import HttpResponse

from activities import cancellation, outputs, reassignment
from activities.decision_rules import Voter
from activities.exceptions import OutputUnavailable
from activities.human_tasks import decisions
from agents.contracts import AgentRequest, AgentResult, Completed, Output, Usage
from agents.exceptions import RetryableAgentError
from pipelines import submission, versions
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import INBOX, Person
from tests.questions import ARTICLE, Questions


def part(answer: HttpResponse, heading: str) -> str:
    """Return the text below a heading of the page."""
    article = re.search(r"<article>.*</article>", answer.content.decode(), re.DOTALL)
    assert article
    for section in re.split(r"(?=<h2)", article[0])[1:]:
        if heading in re.sub(r"<[^>]+>", "", section.partition("</h2>")[0]):
            return " ".join(re.sub(r"<[^>]+>", " ", section).split())
    raise AssertionError(f"no {heading} on the page")


def _priced(content: str = "# Bees", cost: str = "0.25", **fields: Any) -> Completed:
    usage = Usage(input_tokens=1000, output_tokens=500, cost_usd=Decimal(cost), model="m")
    return Completed(Output(content=content, **fields), usage=usage)


# The material to judge


def test_a_gate_shows_the_rendered_result_and_its_data(questions: Questions, ann: Person) -> None:
    questions.engine.agent.behaviour = lambda request: _priced("# Bees\n\nThey *fly*.", data={"words": 2})
    gate = questions.gate_of_step()

    page = ann.look(gate)

    assert "<h3>Bees</h3>" in page.content.decode()
    assert "<em>fly</em>" in page.content.decode()
    assert "{ &quot;words&quot;: 2 }" in part(page, "Result of dev")


def test_an_output_that_is_not_markdown_is_shown_verbatim(questions: Questions, ann: Person) -> None:
    questions.engine.agent.behaviour = lambda request: Completed(
        Output(content="# <b>no</b>", content_type="text/html")
    )
    gate = questions.gate_of_step()

    assert "# &lt;b&gt;no&lt;/b&gt;" in part(ann.look(gate), "Result of dev")


def test_an_output_in_mongodb_is_shown_and_an_unreadable_one_reported(
    questions: Questions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = questions.gate("Bees fly far.")
    while outputs.copy_waiting():
        pass
    assert "Bees fly far." in part(ann.look(gate), "Result of qa")

    def unavailable(*args: Any) -> Any:
        raise OutputUnavailable("away")

    monkeypatch.setattr(outputs, "read", unavailable)

    page = ann.look(gate)
    assert "The output store does not answer." in part(page, "Result of qa")
    assert 'value="approve"' in page.content.decode()


def test_a_review_shows_the_question_and_the_content(questions: Questions, ann: Person) -> None:
    page = ann.look(questions.review("Is the tone **right**?", "Dear *customer*"))

    assert "<strong>right</strong>" in page.content.decode()
    assert part(page, "Input").startswith("Input Dear customer")


def test_a_task_shows_description_input_and_params(questions: Questions, ann: Person) -> None:
    task = questions.task(
        description="Ask for *three* things.", params={"phone": "1234"}, input={"content": "The contract"}
    )

    page = ann.look(task)

    assert "<em>three</em>" in page.content.decode()
    assert "The contract" in part(page, "Input")
    assert "1234" in part(page, "Parameters")


def test_a_gate_that_joins_steps_shows_the_result_of_each(questions: Questions, ann: Person) -> None:
    steps = [
        {"id": "text", "agent_role": "qa"}, {"id": "photo", "agent_role": "dev", "depends_on": []},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["text", "photo"]},
    ]  # fmt: skip
    versions.save(questions.tenant.pk, {"key": "join", "name": "Join", "steps": steps}, actor="t")
    questions.engine.agent.behaviour = lambda request: Completed(Output(content=f"by {request.agent_role}"))
    submission.start_run(questions.tenant.pk, "join", submission.NewRun(), actor="t")
    questions.engine.drain()

    page = ann.look(questions.newest())

    assert "by qa" in part(page, "Result of text")
    assert "by dev" in part(page, "Result of photo")


def test_an_escalation_shows_the_error_and_the_number_of_runs(questions: Questions, ann: Person) -> None:
    page = ann.look(questions.escalation("The page is gone."))

    assert "The page is gone." in part(page, "What happened")
    assert "1 run, 1 failed" in visible_text(page)


# Rounds


def test_a_revision_shows_the_previous_notes_and_the_changes(questions: Questions, ann: Person) -> None:
    first = questions.gate("Bees fly far.\nThey sleep.\nThe end.")

    second = questions.next_round(
        first, "Where is the honey?", "Bees fly very far.\nThey sleep.\nHoney!\nThe end."
    )
    page = ann.look(second)

    page_text = part(page, "Round 1: changes requested by ann")
    assert "Where is the honey?" in page_text
    assert "2 lines added, 1 removed" in page_text
    assert "<ins>very </ins>" in page.content.decode()
    assert "added: Honey!" in page_text
    assert "removed: Bees fly" in page_text


def test_each_round_keeps_its_own_notes(questions: Questions, ann: Person) -> None:
    second = questions.next_round(questions.gate("one"), "first notes", "two")
    third = questions.next_round(second, "second notes", "three")

    assert "first notes" in part(ann.look(second), "Round 1: changes requested")
    assert "second notes" in part(ann.look(third), "Round 2: changes requested")


def test_a_round_without_changes_says_so(questions: Questions, ann: Person) -> None:
    second = questions.next_round(questions.gate("same"), "Do it better.", "same")

    assert "Nothing has changed since then." in part(ann.look(second), "Round 1: changes requested")


def test_a_step_rejected_by_a_later_gate_shows_its_notes(questions: Questions, ann: Person) -> None:
    steps = [
        {"id": "write", "name": "Write", "agent_role": "dev"},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]},
    ]
    versions.save(questions.tenant.pk, {"key": "later", "name": "Later", "steps": steps}, actor="t")
    questions.engine.agent.behaviour = lambda request: Completed(Output(content="first"))
    submission.start_run(questions.tenant.pk, "later", submission.NewRun(), actor="t")
    questions.engine.drain()
    gate = questions.newest()
    assert "Request changes: Write runs again with your notes." in visible_text(ann.look(gate))

    questions.engine.agent.behaviour = lambda request: Completed(Output(content="second"))
    decisions.reject(questions.tenant.pk, gate.pk, actor="user:ann", notes="Not yet.")
    questions.engine.drain()

    page = ann.look(questions.newest())
    assert "Not yet." in part(page, "Round 1: changes requested")
    assert "1 line added, 1 removed" in part(page, "Round 1: changes requested")


def test_changes_that_a_later_gate_requested_are_not_those_of_whoever_approved_the_work(
    questions: Questions, ann: Person
) -> None:
    gate = {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]}
    write = {"id": "write", "name": "Write", "agent_role": "dev", "requires_approval": True}
    versions.save(questions.tenant.pk, {"key": "later", "name": "Later", "steps": [write, gate]}, actor="t")
    submission.start_run(questions.tenant.pk, "later", submission.NewRun(), actor="t")
    questions.engine.drain()
    decisions.approve(questions.tenant.pk, questions.newest().pk, actor="user:bea", notes="Good.")
    decisions.reject(questions.tenant.pk, questions.newest().pk, actor="user:cid", notes="Not yet.")
    questions.engine.drain()

    assert "Not yet." in part(ann.look(questions.newest()), "Round 1: changes requested by cid")


@pytest.mark.parametrize(
    ("gate", "effect"),
    [
        ({}, "Write runs again with your notes."),
        ({"for_each": "[1, 2]"}, "This part of the step fails"),
    ],
)
def test_a_reassigned_gate_says_what_a_rejection_does(
    questions: Questions, ann: Person, gate: dict[str, Any], effect: str
) -> None:
    steps = [
        {"id": "write", "name": "Write", "agent_role": "dev"},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"], **gate},
    ]
    versions.save(questions.tenant.pk, {"key": "later", "name": "Later", "steps": steps}, actor="t")
    submission.start_run(questions.tenant.pk, "later", submission.NewRun(), actor="t")
    questions.engine.drain()
    opened = questions.newest()
    assert f"Request changes: {effect}" in visible_text(ann.look(opened))

    reassignment.reassign(questions.tenant.pk, opened.pk, actor="ann", reason="away", human_role="editor")

    assert f"Request changes: {effect}" in visible_text(ann.look(questions.newest()))


def test_cost_and_attempts_include_all_rounds(questions: Questions, ann: Person) -> None:
    questions.engine.agent.behaviour = lambda request: _priced(cost="0.25")
    first = questions.gate_of_step()
    decisions.reject(questions.tenant.pk, first.pk, actor="user:ann", notes="Again.")
    answers: list[AgentResult | Exception] = [RetryableAgentError("busy"), _priced(cost="1.5")]

    def stumble(request: AgentRequest) -> AgentResult:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    questions.engine.agent.behaviour = stumble
    questions.engine.drain()
    questions.engine.make_due(questions.tenant)
    questions.engine.drain()

    assert "3 runs, 1 failed, 3000 tokens, $1.75" in visible_text(
        ann.look(questions.newest(link_kind="gate"))
    )


# Effects of an answer


def test_a_gate_says_which_steps_start(questions: Questions, ann: Person) -> None:
    page_text = part(ann.look(questions.gate_of_step()), "What happens next")

    assert "Approve: The result is accepted; Publish starts." in page_text
    assert "Request changes: dev starts round 2 with your notes." in page_text


def test_a_gate_says_what_else_the_next_step_waits_for(questions: Questions, ann: Person) -> None:
    steps = [
        {"id": "text", "name": "Text", "agent_role": "qa", "requires_approval": True},
        {"id": "photo", "name": "Photo", "human_role": "photographer", "depends_on": []},
        {"id": "publish", "name": "Publish", "agent_role": "seo", "depends_on": ["text", "photo"]},
    ]
    versions.save(questions.tenant.pk, {"key": "join", "name": "Join", "steps": steps}, actor="t")
    submission.start_run(questions.tenant.pk, "join", submission.NewRun(), actor="t")
    questions.engine.drain()

    assert "Publish still waits for Photo." in part(
        ann.look(questions.newest(link_kind="gate")), "What happens next"
    )
    assert "Publish still waits for Text." in part(
        ann.look(questions.newest(name="Photo")), "What happens next"
    )


def test_the_last_round_says_that_no_other_follows(questions: Questions, ann: Person, settings: Any) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 1

    assert "The limit of rounds is reached" in part(ann.look(questions.gate()), "What happens next")


def test_an_approval_shows_linked_activities_options_votes_and_quorum(
    questions: Questions, ann: Person
) -> None:
    approval = questions.approval(linked=3, quorum=2, voters=3)
    bob = Voter("user:bob", identity="user:0")
    decisions.decide(
        questions.tenant.pk, approval.pk, "approve", by=bob, notes="Warm it is.", chosen_option="Warm"
    )

    page = ann.look(approval)

    assert "3 activities wake with your answer" in part(page, "What happens next")
    assert "awaiting review waits for this answer" in part(page, "Linked activities")
    assert part(page, "1 of 2 required approvals 3 voters").endswith("yes bob , Warm : Warm it is.")
    assert ann.form(approval).choices == {"option": ["Warm", "Sober"]}


def test_a_skipped_linked_activity_says_why(questions: Questions, ann: Person) -> None:
    approval = questions.approval(linked=2)
    page = questions.get_linked(approval)[0]
    cancellation.cancel(questions.tenant.pk, page, actor="user:ann")

    assert "cancelled skipped It was cancelled" in part(ann.look(approval), "Linked activities")


@in_one_test(
    ("kind", "page_text"),
    [
        ("review", "dev wakes with your answer and continues “Landing page”."),
        ("blocker", "dev wakes with your answer and continues “Landing page”."),
        ("subtask", "Complete: dev wakes with your result and continues “Landing page”."),
        ("task", "Complete: Nothing else waits for this."),
        ("escalation", "Retry: qa starts again with all its attempts."),
    ],
)
def test_each_kind_says_what_an_answer_leads_to(
    kind: str, page_text: str, questions: Questions, ann: Person
) -> None:
    assert page_text in part(ann.look(getattr(questions, kind)()), "What happens next")


def test_a_nonblocking_subtask_says_that_its_parent_does_not_wait(questions: Questions, ann: Person) -> None:
    assert "dev does not wait for it." in part(
        ann.look(questions.subtask(blocking=False)), "What happens next"
    )


def test_reassigned_work_can_be_completed_by_a_person(questions: Questions, ann: Person) -> None:
    (work,) = questions.engine.submit(questions.tenant, "qa")
    successor = reassignment.reassign(
        questions.tenant.pk, work, actor="user:ann", reason="Too hard.", human_role="editor"
    )

    page = ann.look(successor)

    assert "Too hard." in visible_text(page)
    assert 'value="complete"' in page.content.decode()


# Afterwards


def test_a_closed_item_shows_its_outcome_and_no_form(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    decisions.approve(questions.tenant.pk, gate.pk, actor="user:bob", notes="Good.")

    page = ann.look(gate)

    assert re.search(r"Approved by bob on \d+ \w+ \d{4}, \d\d:\d\d UTC\s?\. Good\.", visible_text(page))
    assert 'name="action"' not in page.content.decode()


def test_the_history_shows_who_did_what(questions: Questions, ann: Person) -> None:
    second = questions.next_round(questions.gate(name="Summary"), "Again.", "two")
    decisions.approve(questions.tenant.pk, second.pk, actor="token:ci", notes="At last.")

    page_text = visible_text(ann.look(second))

    assert "a worker finished and requested approval “Summary (revision)”" in page_text
    assert "ci (token) approved: At last." in page_text


def test_only_superusers_see_links_to_the_admin(questions: Questions, ann: Person, root: Person) -> None:
    gate = questions.gate()

    assert "/admin/activities/" not in ann.look(gate).content.decode()
    assert (
        f"/admin/activities/activity/{gate.parent_id}/change/"
        in root.look(gate, "?tenant=acme").content.decode()
    )
    assert root.browser.get(f"/admin/activities/activity/{gate.pk}/change/").status_code == 200


def test_an_answer_of_a_person_is_shown_with_its_result(questions: Questions, ann: Person) -> None:
    task = questions.task()
    ann.answer(task, "complete", output="The *photo* is there.", notes="Done at last.")

    page = ann.look(task)

    assert "<em>photo</em>" in page.content.decode()
    assert "Completed by ann" in visible_text(page)
    assert f"{INBOX}?" in page.content.decode()


def test_an_item_of_a_run_shows_the_subject_of_the_run(questions: Questions, ann: Person) -> None:
    versions.save(questions.tenant.pk, {**ARTICLE, "subject": "{{ topic }} & more"}, actor="test")
    new_run = submission.NewRun(params={"topic": "Bees"})
    submission.start_run(questions.tenant.pk, "article", new_run, actor="token:planner")
    questions.engine.drain()

    text = visible_text(ann.look(questions.newest(link_kind="gate")))

    assert "Approve: Write Bees &amp; more" in text
