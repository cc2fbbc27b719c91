"""An item's page: what is asked, what there is to judge, what it has cost, and what each answer would lead to."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from django.http import HttpResponse

from activities import cancellation, outputs, reassignment
from activities.decision_rules import Voter
from activities.exceptions import OutputUnavailable
from activities.human_tasks import approvals
from agents.contracts import AgentRequest, AgentResult, Completed, Output, Usage
from agents.exceptions import RetryableAgentError
from pipelines import submission, versions
from tests.browsing import words
from tests.console_user import INBOX, Person
from tests.questions import ARTICLE, Questions


def part(answer: HttpResponse, heading: str) -> str:
    """What stands below a heading of the page."""
    article = re.search(r"<article>.*</article>", answer.content.decode(), re.DOTALL)
    assert article
    for section in re.split(r"(?=<h2)", article[0])[1:]:
        if heading in re.sub(r"<[^>]+>", "", section.partition("</h2>")[0]):
            return " ".join(re.sub(r"<[^>]+>", " ", section).split())
    raise AssertionError(f"no {heading} on the page")


def _priced(content: str = "# Bees", cost: str = "0.25", **fields: Any) -> Completed:
    usage = Usage(input_tokens=1000, output_tokens=500, cost_usd=Decimal(cost), model="m")
    return Completed(Output(content=content, **fields), usage=usage)


# What there is to judge


def test_a_gate_shows_the_result_as_it_reads_and_its_data(asked: Questions, ann: Person) -> None:
    asked.engine.agent.behaviour = lambda request: _priced("# Bees\n\nThey *fly*.", data={"words": 2})
    gate = asked.gate_of_step()

    page = ann.look(gate)

    assert "<h3>Bees</h3>" in page.content.decode()
    assert "<em>fly</em>" in page.content.decode()
    assert "{ &quot;words&quot;: 2 }" in part(page, "Result of dev")


def test_an_output_that_is_no_markdown_is_shown_letter_by_letter(asked: Questions, ann: Person) -> None:
    asked.engine.agent.behaviour = lambda request: Completed(
        Output(content="# <b>no</b>", content_type="text/html")
    )
    gate = asked.gate_of_step()

    assert "# &lt;b&gt;no&lt;/b&gt;" in part(ann.look(gate), "Result of dev")


def test_an_output_in_mongodb_is_shown_and_one_that_cannot_be_read_says_so(
    asked: Questions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asked.gate("Bees fly far.")
    while outputs.copy_waiting():
        pass
    assert "Bees fly far." in part(ann.look(gate), "Result of qa")

    def away(*args: Any) -> Any:
        raise OutputUnavailable("away")

    monkeypatch.setattr(outputs, "read", away)

    page = ann.look(gate)
    assert "The output store does not answer." in part(page, "Result of qa")
    assert 'value="approve"' in page.content.decode()


def test_a_review_shows_the_question_and_the_content(asked: Questions, ann: Person) -> None:
    page = ann.look(asked.review("Is the tone **right**?", "Dear *customer*"))

    assert "<strong>right</strong>" in page.content.decode()
    assert part(page, "Input").startswith("Input Dear customer")


def test_a_task_shows_what_is_to_be_done_with_what(asked: Questions, ann: Person) -> None:
    task = asked.task(
        description="Ask for *three* things.", params={"phone": "1234"}, input={"content": "The contract"}
    )

    page = ann.look(task)

    assert "<em>three</em>" in page.content.decode()
    assert "The contract" in part(page, "Input")
    assert "1234" in part(page, "Parameters")


def test_a_gate_that_joins_steps_shows_the_result_of_each(asked: Questions, ann: Person) -> None:
    steps = [
        {"id": "text", "agent_role": "qa"}, {"id": "photo", "agent_role": "dev", "depends_on": []},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["text", "photo"]},
    ]  # fmt: skip
    versions.save(asked.tenant.pk, {"key": "join", "name": "Join", "steps": steps}, actor="t")
    asked.engine.agent.behaviour = lambda request: Completed(Output(content=f"by {request.agent_role}"))
    submission.start_run(asked.tenant.pk, "join", submission.NewRun(), actor="t")
    asked.engine.drain()

    page = ann.look(asked.newest())

    assert "by qa" in part(page, "Result of text")
    assert "by dev" in part(page, "Result of photo")


def test_an_escalation_shows_the_error_and_what_it_has_cost(asked: Questions, ann: Person) -> None:
    page = ann.look(asked.escalation("The page is gone."))

    assert "The page is gone." in part(page, "What happened")
    assert "1 run, 1 failed" in words(page)


# Rounds


def test_a_revision_shows_the_notes_of_the_round_before_and_what_has_changed(
    asked: Questions, ann: Person
) -> None:
    first = asked.gate("Bees fly far.\nThey sleep.\nThe end.")

    second = asked.next_round(
        first, "Where is the honey?", "Bees fly very far.\nThey sleep.\nHoney!\nThe end."
    )
    page = ann.look(second)

    said = part(page, "Round 1: changes requested by ann")
    assert "Where is the honey?" in said
    assert "2 lines added, 1 removed" in said
    assert "<ins>very </ins>" in page.content.decode()
    assert "added: Honey!" in said
    assert "removed: Bees fly" in said


def test_each_round_keeps_the_notes_that_it_was_sent_back_with(asked: Questions, ann: Person) -> None:
    second = asked.next_round(asked.gate("one"), "first notes", "two")
    third = asked.next_round(second, "second notes", "three")

    assert "first notes" in part(ann.look(second), "Round 1: changes requested")
    assert "second notes" in part(ann.look(third), "Round 2: changes requested")


def test_a_round_that_changed_nothing_says_so(asked: Questions, ann: Person) -> None:
    second = asked.next_round(asked.gate("same"), "Do it better.", "same")

    assert "Nothing has changed since then." in part(ann.look(second), "Round 1: changes requested")


def test_a_step_that_a_later_gate_sent_back_shows_the_notes_of_that_gate(
    asked: Questions, ann: Person
) -> None:
    steps = [
        {"id": "write", "name": "Write", "agent_role": "dev"},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]},
    ]
    versions.save(asked.tenant.pk, {"key": "later", "name": "Later", "steps": steps}, actor="t")
    asked.engine.agent.behaviour = lambda request: Completed(Output(content="first"))
    submission.start_run(asked.tenant.pk, "later", submission.NewRun(), actor="t")
    asked.engine.drain()
    gate = asked.newest()
    assert "Request changes: Write runs again with your notes." in words(ann.look(gate))

    asked.engine.agent.behaviour = lambda request: Completed(Output(content="second"))
    approvals.reject(asked.tenant.pk, gate.pk, actor="user:ann", notes="Not yet.")
    asked.engine.drain()

    page = ann.look(asked.newest())
    assert "Not yet." in part(page, "Round 1: changes requested")
    assert "1 line added, 1 removed" in part(page, "Round 1: changes requested")


def test_cost_and_attempts_are_those_of_all_rounds(asked: Questions, ann: Person) -> None:
    asked.engine.agent.behaviour = lambda request: _priced(cost="0.25")
    first = asked.gate_of_step()
    approvals.reject(asked.tenant.pk, first.pk, actor="user:ann", notes="Again.")
    answers: list[AgentResult | Exception] = [RetryableAgentError("busy"), _priced(cost="1.5")]

    def stumble(request: AgentRequest) -> AgentResult:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    asked.engine.agent.behaviour = stumble
    asked.engine.drain()
    asked.engine.make_due(asked.tenant)
    asked.engine.drain()

    assert "3 runs, 1 failed, 3000 tokens, $1.75" in words(ann.look(asked.newest(link_kind="gate")))


# What an answer leads to


def test_a_gate_says_which_steps_start(asked: Questions, ann: Person) -> None:
    said = part(ann.look(asked.gate_of_step()), "What happens next")

    assert "Approve: The result is accepted; Publish starts." in said
    assert "Request changes: dev starts round 2 with your notes." in said


def test_a_gate_says_what_else_the_next_step_waits_for(asked: Questions, ann: Person) -> None:
    steps = [
        {"id": "text", "name": "Text", "agent_role": "qa", "requires_approval": True},
        {"id": "photo", "name": "Photo", "human_role": "photographer", "depends_on": []},
        {"id": "publish", "name": "Publish", "agent_role": "seo", "depends_on": ["text", "photo"]},
    ]
    versions.save(asked.tenant.pk, {"key": "join", "name": "Join", "steps": steps}, actor="t")
    submission.start_run(asked.tenant.pk, "join", submission.NewRun(), actor="t")
    asked.engine.drain()

    assert "Publish still waits for Photo." in part(
        ann.look(asked.newest(link_kind="gate")), "What happens next"
    )
    assert "Publish still waits for Text." in part(ann.look(asked.newest(name="Photo")), "What happens next")


def test_the_last_round_says_that_none_follows(asked: Questions, ann: Person, settings: Any) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 1

    assert "The limit of rounds is reached" in part(ann.look(asked.gate()), "What happens next")


def test_an_approval_says_what_waits_for_it_with_options_votes_and_quorum(
    asked: Questions, ann: Person
) -> None:
    approval = asked.approval(linked=3, quorum=2, voters=3)
    bob = Voter("user:bob", identity="user:0")
    approvals.decide(
        asked.tenant.pk, approval.pk, "approve", by=bob, notes="Warm it is.", chosen_option="Warm"
    )

    page = ann.look(approval)

    assert "3 activities wake with your answer" in part(page, "What happens next")
    assert "awaiting review waits for this answer" in part(page, "Linked activities")
    assert part(page, "1 of 2 required approvals 3 voters").endswith("yes bob , Warm : Warm it is.")
    assert ann.form(approval).choices == {"option": ["Warm", "Sober"]}


def test_what_an_approval_skipped_says_why(asked: Questions, ann: Person) -> None:
    approval = asked.approval(linked=2)
    page = asked.get_linked(approval)[0]
    cancellation.cancel(asked.tenant.pk, page, actor="user:ann")

    assert "cancelled skipped It was cancelled" in part(ann.look(approval), "Linked activities")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("review", "dev wakes with your answer and continues “Landing page”."),
        ("blocker", "dev wakes with your answer and continues “Landing page”."),
        ("subtask", "Complete: dev wakes with your result and continues “Landing page”."),
        ("task", "Complete: Nothing else waits for this."),
        ("escalation", "Retry: qa starts again with all its attempts."),
    ],
)
def test_each_kind_says_what_follows(kind: str, said: str, asked: Questions, ann: Person) -> None:
    assert said in part(ann.look(getattr(asked, kind)()), "What happens next")


def test_a_subtask_that_nobody_waits_for_says_so(asked: Questions, ann: Person) -> None:
    assert "dev does not wait for it." in part(ann.look(asked.subtask(blocking=False)), "What happens next")


def test_a_person_who_takes_over_an_agents_work_decides_it_or_does_it(asked: Questions, ann: Person) -> None:
    (work,) = asked.engine.submit(asked.tenant, "qa")
    heir = reassignment.reassign(
        asked.tenant.pk, work, actor="user:ann", reason="Too hard.", human_role="editor"
    )

    page = ann.look(heir)

    assert "Too hard." in words(page)
    assert 'value="complete"' in page.content.decode()


# Afterwards


def test_an_item_that_is_over_says_how_and_asks_for_nothing(asked: Questions, ann: Person) -> None:
    gate = asked.gate()
    approvals.approve(asked.tenant.pk, gate.pk, actor="user:bob", notes="Good.")

    page = ann.look(gate)

    assert re.search(r"Approved by bob on \d+ \w+ \d{4}, \d\d:\d\d UTC\s?\. Good\.", words(page))
    assert 'name="deed"' not in page.content.decode()


def test_the_history_tells_who_did_what(asked: Questions, ann: Person) -> None:
    second = asked.next_round(asked.gate(name="Summary"), "Again.", "two")
    approvals.approve(asked.tenant.pk, second.pk, actor="token:ci", notes="At last.")

    said = words(ann.look(second))

    assert "a worker finished and requested approval “Summary (revision)”" in said
    assert "ci (token) approved: At last." in said


def test_only_superusers_are_led_into_the_admin(asked: Questions, ann: Person, root: Person) -> None:
    gate = asked.gate()

    assert "/admin/activities/" not in ann.look(gate).content.decode()
    assert (
        f"/admin/activities/activity/{gate.parent_id}/change/"
        in root.look(gate, "?tenant=acme").content.decode()
    )
    assert root.browser.get(f"/admin/activities/activity/{gate.pk}/change/").status_code == 200


def test_the_answer_of_a_person_is_shown_with_what_they_handed_in(asked: Questions, ann: Person) -> None:
    task = asked.task()
    ann.answer(task, "complete", output="The *photo* is there.", notes="Done at last.")

    page = ann.look(task)

    assert "<em>photo</em>" in page.content.decode()
    assert "Completed by ann" in words(page)
    assert f"{INBOX}?" in page.content.decode()


def test_an_item_of_a_run_says_what_the_run_is_about(asked: Questions, ann: Person) -> None:
    versions.save(asked.tenant.pk, {**ARTICLE, "subject": "{{ topic }} & more"}, actor="test")
    given = submission.NewRun(params={"topic": "Bees"})
    submission.start_run(asked.tenant.pk, "article", given, actor="token:planner")
    asked.engine.drain()

    text = words(ann.look(asked.newest(link_kind="gate")))

    assert "Approve: Write Bees &amp; more" in text
