"""The pages of activities: search, details, actions on one activity, and bulk actions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from activities import bulk_jobs, cancellation, outputs, reassignment, selectors, wait_reasons
from activities.models import Activity, BulkJob, Wake
from activities.submission import NewActivity, submit
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import RetryableAgentError
from agents.models import AgentConfig
from console.activities.listing import PAGE
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import Person, send_form
from tests.forms import Form, forms_of
from tests.page_queries import MOST, statements
from tests.questions import Questions

LIST, MANY = "/activities/", "/activities/bulk/"


def names(answer: Any) -> list[str]:
    """Return the names of the listed activities, in order."""
    return re.findall(r'<th scope="row"><a [^>]*><bdi>(.*?)</bdi>', answer.content.decode())


def submit_work(tenant: Tenant, *items: NewActivity) -> list[UUID]:
    with tenant_scope(tenant.pk):
        return [one.id for one in submit(list(items), actor="token:planner")]


def work(name: str, role: str = "strategy-writer", **fields: Any) -> NewActivity:
    return NewActivity(name=name, agent_role=role, **fields)


# Texts


def test_every_attempt_shows_its_prompt_even_a_failed_one(questions: Questions, ann: Person) -> None:
    def fails_twice(request: AgentRequest) -> AgentResult:
        if len(questions.engine.agent.calls) < 3:
            raise RetryableAgentError("down")
        return Completed(Output(content="Bees sleep."))

    questions.engine.serve(questions.tenant)
    questions.engine.agent.behaviour = fails_twice
    (one,) = questions.engine.submit(questions.tenant, params={"about": "honey"})
    texts = f"{LIST}{one}/texts/"

    questions.engine.drain()
    assert "honey" in visible_text(ann.get(texts)), "while it waits for its next attempt"
    for _ in range(2):
        questions.engine.make_due(questions.tenant)
        questions.engine.drain()

    runs = questions.engine.runs(questions.tenant, one)
    assert [run.status for run in runs] == ["failed", "failed", "completed"]
    for run in runs:
        assert "honey" in visible_text(ann.get(f"{texts}?run={run.pk}"))


def test_deleted_wakes_of_a_run_are_reported(questions: Questions, ann: Person) -> None:
    questions.engine.serve(questions.tenant)
    (one,) = questions.engine.submit(questions.tenant)
    questions.engine.drain()
    with tenant_scope(questions.tenant.pk):
        Wake.objects.filter(activity_id=one).delete()

    assert "The wakes of this run are no longer stored." in visible_text(ann.get(f"{LIST}{one}/texts/"))


# The list


def test_a_query_lists_matches_newest_first(questions: Questions, ann: Person) -> None:
    questions.escalation("No page.")
    submit_work(questions.tenant, work("Bees", priority=1), work("Wasps", "blog-writer"), work("Ants"))

    def search(query: str) -> list[str]:
        return names(ann.get(f"{LIST}?q={query}"))

    assert search("")[:3] == ["Ants", "Wasps", "Bees"]
    assert search("role:strategy-writer") == ["Ants", "Bees"]
    assert search("role:strategy-writer+priority:urgent") == ["Bees"]
    assert search("status:needs_review") == ["Audit"]
    assert search("for:agents+-status:ended") == ["Ants", "Wasps", "Bees"]
    assert search("age:%3E1h") == []
    assert search('name:"as"+age:%3C1h') == ["Wasps"]
    assert search("wake:new_task+-status:created") == ["Audit"]


def test_a_query_searches_params_metadata_and_errors(
    questions: Questions, ann: Person, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_work(
        questions.tenant,
        work("Bees", params={"order": 4711}),
        work("Wasps", metadata={"ticket": "ABC-7"}),
        work("Ants"),
    )
    submit_work(other_tenant, work("Theirs", params={"order": 4711}, metadata={"ticket": "ABC-7"}))
    questions.escalation("No page.")

    def search(query: str) -> list[str]:
        return names(ann.get(f"{LIST}?q={query}"))

    assert search("4711") == search("params:4711") == ["Bees"]
    assert search("metadata:abc-7") == ["Wasps"]
    assert search("error:%22no+page%22") == ["Audit"]
    assert search("params:abc-7") == []
    assert search("-params:order+-error:page") == ["Ants", "Wasps"]
    monkeypatch.setattr(selectors, "SEARCHED", 1)
    assert search("4711") == [], "three newer ones, of which a search looks at the newest"


def test_each_activity_says_why_it_waits(questions: Questions, ann: Person) -> None:
    questions.blocker()
    submit_work(questions.tenant, work("Bees"))

    text = visible_text(ann.get(f"{LIST}?q=status:open"))

    assert "It waits until a person resolves the blocker." in text
    assert "It is ready and will start when its turn comes." in text


def test_a_fault_in_a_query_is_marked_at_its_place(questions: Questions, ann: Person) -> None:
    submit_work(questions.tenant, work("Bees"))

    answer = ann.browser.get(f"{LIST}?q=status:open+roel:<b>")

    assert answer.status_code == 400
    assert "Unknown field roel. Did you mean role? At character 13:" in visible_text(answer)
    assert "<mark>roel:&lt;b&gt;</mark>" in answer.content.decode()
    assert names(answer) == []


def test_the_next_page_continues_after_the_last_row(questions: Questions, ann: Person) -> None:
    submit_work(questions.tenant, *(work(f"Part {number}") for number in range(PAGE + 3)))

    first = ann.get(f"{LIST}?q=role:strategy-writer")
    older = re.search(r'rel="next" href="([^"]+)"', first.content.decode())
    assert older
    second = ann.get(older[1].replace("&amp;", "&"))

    assert len(names(first)) == PAGE
    assert {*names(first), *names(second)} == {f"Part {number}" for number in range(PAGE + 3)}
    assert len(names(second)) == 3
    assert 'rel="next"' not in second.content.decode()
    assert names(ann.get(f"{LIST}?after=nonsense")) == names(ann.get(LIST)), "no place is the first page"


def test_nothing_of_another_tenant_is_shown(questions: Questions, other_tenant: Tenant, ann: Person) -> None:
    (theirs,) = submit_work(other_tenant, work("Their secret"))

    assert "Their secret" not in visible_text(ann.get(LIST))
    for address in (f"{LIST}{theirs}/", f"{LIST}{theirs}/texts/", f"{LIST}?tenant={other_tenant.slug}"):
        assert ann.browser.get(address).status_code == 404
    assert ann.browser.get(f"{LIST}?q=parent:{theirs}").status_code == 200


def test_the_pages_need_few_statements_for_any_number_of_activities(
    questions: Questions, ann: Person
) -> None:
    gate = questions.gate_of_step()
    one = questions.get(gate.parent_id)
    addresses = (LIST, f"{LIST}{one.pk}/", f"{MANY}?q=status:open")
    few = [statements(lambda at=each: ann.get(at)) for each in addresses]

    questions.next_round(gate, "Shorter.", "Short.")
    questions.blocker(), questions.review(), questions.escalation()
    submit_work(questions.tenant, *(work(f"Part {number}") for number in range(20)))
    many = [statements(lambda at=each: ann.get(at)) for each in addresses]

    assert [len(each) <= MOST for each in (*few, *many)] == [True] * 6, [len(each) for each in (*few, *many)]


# One activity


def test_the_page_shows_time_attempts_and_wait_reason(questions: Questions, ann: Person) -> None:
    gate = questions.gate(name="Bees")
    questions.next_round(gate, "Shorter, please.", "Short.")
    revision = questions.get(questions.newest(link_kind="gate").parent_id)

    answer = ann.get(f"{LIST}{revision.pk}/")
    text = visible_text(answer)

    assert "It waits for a decision about the result." in text
    assert "Answer it in the inbox" in text
    assert "rejection" in text
    assert "Waits for an approval" in text
    assert answer.content.count(b'class="stretch"') == 3
    assert "style=" not in answer.content.decode()


def test_the_page_of_waiting_work_leads_to_the_question_of_whoever_has_it_now(
    questions: Questions, ann: Person
) -> None:
    blocker = questions.blocker()
    resolution = reassignment.reassign(
        questions.tenant.pk, blocker.pk, actor="user:bob", reason="Away.", human_role="lead"
    )
    approval = questions.approval()
    held = questions.get_linked(approval)[0]

    for work_id, question in ((blocker.parent_id, resolution), (held, approval)):
        assert f'href="/inbox/{question.pk}/' in ann.get(f"{LIST}{work_id}/").content.decode()


def test_prompt_and_output_are_shown_and_escaped(questions: Questions, ann: Person) -> None:
    gate = questions.gate("# Bees\n\n<script>alert(1)</script> **fly**", name="On <b>bees</b>")
    outputs.copy_waiting()

    page = ann.get(f"{LIST}{gate.parent_id}/texts/").content.decode()

    assert "# On &lt;b&gt;bees&lt;/b&gt;" in page, "what the agent was told"
    assert "<strong>fly</strong>" in page
    assert "<script>alert" not in page


def test_data_is_folded_below_a_text_and_open_without_one(questions: Questions, ann: Person) -> None:
    def texts_with(output: Output) -> str:
        questions.engine.agent.behaviour = lambda request: Completed(output)
        (one,) = questions.engine.submit(questions.tenant)
        questions.engine.drain()
        return ann.get(f"{LIST}{one}/texts/").content.decode()

    questions.engine.serve(questions.tenant)

    assert '"data-of-output"><summary>' in texts_with(Output(content="Bees", data={"bees": 3}))
    assert '"data-of-output" open><summary>' in texts_with(Output(data={"bees": 3}))


def test_an_operator_cancels_and_retries(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    failed = questions.get(questions.escalation().parent_id)
    (waiting,) = submit_work(questions.tenant, work("Bees"))

    def press(who: Person, activity_id: UUID, action: str) -> Any:
        form = forms_of(who.get(f"{LIST}{activity_id}/"))["operate"]
        return form.send(who.browser, ("action", action))

    assert press(ann, failed.pk, "retry").status_code == 302
    assert press(ann, waiting, "cancel").status_code == 302

    assert (questions.get(failed.pk).status, questions.get(waiting).status) == ("created", "cancelled")
    viewer = person("vic", role="viewer")
    assert "operate" not in forms_of(viewer.get(f"{LIST}{failed.pk}/"))


def test_an_operator_runs_paused_work_with_a_reason(questions: Questions, ann: Person) -> None:
    with tenant_scope(questions.tenant.pk):
        AgentConfig.objects.update_or_create(
            tenant_id=questions.tenant.pk, agent_id="strategy-writer", defaults={"paused": True}
        )
    (waiting,) = submit_work(questions.tenant, work("Bees"))
    form = forms_of(ann.get(f"{LIST}{waiting}/"))["run-now"]

    assert form.send(ann.browser, ("action", "run-now"), reason="").status_code == 400
    answer = form.send(ann.browser, ("action", "run-now"), reason="The client is on the phone.")

    assert answer.status_code == 302
    assert "The activity runs before all other work" in visible_text(ann.get(answer["Location"]))
    activity = questions.get(waiting)
    assert (activity.status, activity.run_now_at is not None) == ("created", True)


def test_an_activity_that_changed_since_the_page_loaded_is_not_acted_on(
    questions: Questions, ann: Person
) -> None:
    failed = questions.get(questions.escalation().parent_id)
    form = forms_of(ann.get(f"{LIST}{failed.pk}/"))["operate"]
    form.send(ann.browser, ("action", "retry"))

    answer = form.send(ann.browser, ("action", "cancel"))

    assert answer.status_code == 409
    assert "The activity has changed since you loaded the page." in visible_text(answer)
    assert questions.get(failed.pk).status == "created"


def test_work_is_reassigned_to_another_role_with_a_reason(questions: Questions, ann: Person) -> None:
    (activity_id,) = submit_work(questions.tenant, work("Bees"))
    form = forms_of(ann.get(f"{LIST}{activity_id}/"))["hand-on"]

    refused = form.send(ann.browser, ("action", "reassign"), agent_role="qa", reason=" ")
    answer = form.send(ann.browser, ("action", "reassign"), agent_role="qa", reason="She knows bees.")

    assert refused.status_code == 400
    assert questions.get(activity_id).status == "reassigned"
    successor = questions.get(UUID(answer["Location"].split("/")[2]))
    assert (successor.agent_role, successor.parent_id) == ("qa", activity_id)


@pytest.mark.parametrize(
    ("fields", "may_be_agents"), [({}, True), ({"is_approval_gate": True}, False)], ids=("task", "gate")
)
def test_a_persons_item_is_reassigned_to_other_people_and_a_decision_only_to_people(
    fields: dict[str, Any],
    may_be_agents: bool,
    questions: Questions,
    ann: Person,
    person: Callable[..., Person],
) -> None:
    person("bea", human_roles=["lawyer"])
    item = questions.task(**fields)
    page = ann.get(f"{LIST}{item.pk}/")
    form = forms_of(page)["hand-on"]
    assert ("agent_role" in form.fields) == may_be_agents
    assert '<option value="lawyer">' in page.content.decode()

    refused = form.send(ann.browser, ("action", "reassign"), reason="She is away.")
    answer = form.send(ann.browser, ("action", "reassign"), human_role="lawyer", reason="She is away.")

    assert "Choose the role of an agent, or enter a human role." in visible_text(refused)
    assert forms_of(refused)["hand-on"].fields["reason"] == ["She is away."]
    assert questions.get(UUID(answer["Location"].split("/")[2])).human_role == "lawyer"


def test_many_activities_are_reassigned_to_people(questions: Questions, ann: Person) -> None:
    tasks = [questions.task(name) for name in ("one", "two")]

    forms_of(ann.get(f"{MANY}?q=role:editor"))["many"].send(
        ann.browser, action="reassign", human_role="lawyer", reason="They are away."
    )
    bulk_jobs.work()

    assert {questions.get(task.pk).status for task in tasks} == {"reassigned"}
    assert questions.newest().human_role == "lawyer"


# Many at a time


def test_a_bulk_action_is_counted_performed_and_reported(questions: Questions, ann: Person) -> None:
    ids = submit_work(questions.tenant, *(work(f"Part {number}") for number in range(3)))
    page = ann.get(f"{MANY}?q=role:strategy-writer")
    assert "3 activities match" in visible_text(page)

    answer = forms_of(page)["many"].send(ann.browser, action="cancel", reason="Not now.")
    assert answer.status_code == 302
    assert "0 of 3" in visible_text(ann.get(answer["Location"]))
    bulk_jobs.work()

    assert {questions.get(one).status for one in ids} == {"cancelled"}
    text = visible_text(ann.get(answer["Location"]))
    assert "3 of 3 3 done 0 skipped 0 failed" in text
    assert "Not now." in text
    assert "Stop" not in text


def test_a_bulk_action_is_refused_when_the_number_of_matches_changed(
    questions: Questions, ann: Person
) -> None:
    submit_work(questions.tenant, work("Bees"))
    form = forms_of(ann.get(f"{MANY}?q=role:strategy-writer"))["many"]
    submit_work(questions.tenant, work("Wasps"))

    answer = form.send(ann.browser, action="cancel")

    assert answer.status_code == 409
    assert "The filter now matches 2 activities, not 1." in visible_text(answer)
    with tenant_scope(questions.tenant.pk):
        assert not BulkJob.objects.exists()
        assert set(Activity.objects.values_list("status", flat=True)) == {"created"}


def test_a_bulk_action_is_refused_when_other_activities_match(questions: Questions, ann: Person) -> None:
    bees, _ = submit_work(questions.tenant, work("Bees"), work("Wasps"))
    form = forms_of(ann.get(f"{MANY}?q=role:strategy-writer+status:created"))["many"]
    with tenant_scope(questions.tenant.pk):
        cancellation.cancel(questions.tenant.pk, bees, actor="user:bob")
    submit_work(questions.tenant, work("Ants"))

    answer = form.send(ann.browser, action="cancel")

    assert answer.status_code == 409
    assert "the same number of activities, but different ones" in visible_text(answer)
    with tenant_scope(questions.tenant.pk):
        assert not BulkJob.objects.exists()
    assert forms_of(answer)["many"].send(ann.browser, action="cancel").status_code == 302


@in_one_test(
    ("sent", "message"),
    [
        ({}, "Choose an action."),
        ({"action": "priority"}, "Choose a priority."),
        (
            {"action": "reassign", "agent_role": "nobody"},
            "Choose the role of an agent, or enter a human role.",
        ),
        ({"action": "reassign", "agent_role": "qa"}, "Enter a reason for the new assignee."),
    ],
    ids=("nothing", "no priority", "no such role", "no reason"),
)
def test_missing_fields_of_a_bulk_action_are_reported(
    sent: dict[str, str], message: str, questions: Questions, ann: Person
) -> None:
    submit_work(questions.tenant, work("Bees"))
    form = forms_of(ann.get(f"{MANY}?q=role:strategy-writer"))["many"]

    answer = form.send(ann.browser, **sent)

    assert (answer.status_code, message in visible_text(answer)) == (400, True)


def test_only_its_tenant_sees_and_stops_a_bulk_job(
    questions: Questions, ann: Person, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    submit_work(questions.tenant, work("Bees"))
    response = forms_of(ann.get(f"{MANY}?q=role:strategy-writer"))["many"].send(ann.browser, action="cancel")
    job = response["Location"].partition("?")[0]
    stranger = person("eve", other_tenant)

    assert stranger.browser.get(job).status_code == 404
    assert forms_of(ann.get(job))["stop"].send(ann.browser).status_code == 302

    assert "cancelled" in visible_text(ann.get(job))


def test_bulk_actions_need_a_query_and_the_operator_role(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    submit_work(questions.tenant, work("Bees"))

    assert ann.browser.get(MANY).status_code == 302
    assert ann.browser.get(f"{MANY}?q=colour:red")["Location"].endswith("q=colour%3Ared")
    assert person("vic", role="reviewer").browser.get(f"{MANY}?q=role:qa").status_code == 404


def test_text_of_agents_is_escaped_on_every_page(questions: Questions, ann: Person) -> None:
    questions.engine.agent.behaviour = lambda request: Completed(
        Output(content="<img src=x>", data={"a": "<b>"})
    )
    submit_work(questions.tenant, work("<i>Bees</i>", "qa", description="<u>"))
    questions.engine.drain()
    with tenant_scope(questions.tenant.pk):
        one = Activity.objects.get(name="<i>Bees</i>")

    for address in (LIST, f"{LIST}{one.pk}/", f"{LIST}{one.pk}/texts/", f"{MANY}?q=role:qa"):
        page = ann.get(address).content.decode()
        assert not re.search(r"<(?:i|u|b)>(?:Bees|<)|<img src=x", page), address


# What is listed, and why something waits


def test_escalations_are_listed_only_when_searched_for(questions: Questions, ann: Person) -> None:
    failed = questions.escalation()
    escalations = names(ann.get(f"{LIST}?q=kind:escalation"))

    listed = names(ann.get(LIST))

    assert escalations == [failed.name]
    assert failed.name not in listed
    assert listed, "the failed work itself is there"
    assert failed.name not in names(ann.get(f"{LIST}?q=status:open"))
    assert failed.name in names(ann.get(f"{LIST}?q=for:people"))
    assert failed.name in names(ann.get(f"{LIST}?q=Failed"))


def test_the_page_shows_the_wait_reason_and_position(questions: Questions, ann: Person) -> None:
    questions.engine.submit(questions.tenant, "site-auditor")
    (second,) = questions.engine.submit(questions.tenant, "site-auditor")
    why = wait_reasons.why(questions.tenant.pk, second)

    page = visible_text(ann.get(f"{LIST}{second}/"))

    assert (why.code, why.position) == ("no_worker", 2)
    assert why.detail in page
    assert "Position 2 in its queue" in page


def test_texts_loaded_later_do_not_change_the_page_title(questions: Questions, ann: Person) -> None:
    (one,) = questions.engine.submit(questions.tenant)

    loaded = re.findall(r"<[^>]*hx-trigger=\"load\"[^>]*>", ann.get(f"{LIST}{one}/").content.decode())

    assert loaded
    assert all("ignoreTitle:true" in each for each in loaded)


# Work submitted by hand


def new_form(who: Person) -> Form:
    return forms_of(who.get(f"{LIST}new/"))["new"]


def only(tenant: Tenant) -> Activity:
    with tenant_scope(tenant.pk):
        return Activity.objects.get()


def test_an_operator_submits_work_for_an_agent(questions: Questions, ann: Person) -> None:
    filled = {
        "name": "Audit the shop", "who": "agent:qa", "description": "All of it.", "content": "The shop.", "params": '{"depth": 2}',
        "priority": "urgent", "requires_approval": "on",
    }  # fmt: skip

    answer = new_form(ann).send(ann.browser, **filled)

    made = only(questions.tenant)
    assert "The activity was submitted." in visible_text(ann.get(answer["Location"]))
    assert (made.name, made.agent_role, made.human_role, made.description) == (
        "Audit the shop",
        "qa",
        None,
        "All of it.",
    )
    assert (made.params, made.priority, made.requires_approval) == ({"depth": 2}, 1, True)
    assert made.input == {"content": "The shop."}
    with tenant_scope(questions.tenant.pk):
        assert made.events.order_by("seq")[0].actor == "user:ann"


def test_an_operator_submits_work_for_people(questions: Questions, ann: Person) -> None:
    filled = {
        "name": "Publish?",
        "who": "person",
        "human_role": "editor",
        "is_approval_gate": "on",
        "params": "{left over",
    }

    new_form(ann).send(ann.browser, **filled)

    made = only(questions.tenant)
    assert (made.human_role, made.agent_role, made.is_approval_gate, made.params) == (
        "editor",
        None,
        True,
        {},
    )


def test_faults_of_new_work_are_shown_at_their_fields(questions: Questions, ann: Person) -> None:
    def faults(**filled: str) -> set[str]:
        answer = new_form(ann).send(ann.browser, **filled)
        assert answer.status_code == 400, visible_text(answer)
        return set(answer.context["form"].errors)

    assert faults(name="", who="agent:qa") == {"name"}
    assert faults(name="x", who="agent:nobody") == {"who"}
    assert faults(name="x", who="person") == {"human_role"}
    assert faults(name="x", who="agent:qa", params="{broken") == {"params"}
    with tenant_scope(questions.tenant.pk):
        assert not Activity.objects.exists()


def test_a_form_sent_twice_submits_one_activity(questions: Questions, ann: Person) -> None:
    form = new_form(ann)
    form.send(ann.browser, name="Audit", who="agent:qa")

    form.send(ann.browser, name="Audit", who="agent:qa")

    assert only(questions.tenant).name == "Audit"


def test_a_viewer_cannot_submit_work(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    vic = person("vic", role="viewer")

    assert "New activity" not in visible_text(vic.get(LIST))
    assert vic.browser.get(f"{LIST}new/").status_code == 404
    assert send_form(vic, new_form(ann), name="Mine").status_code == 404
