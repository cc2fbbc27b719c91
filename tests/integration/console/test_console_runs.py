"""The pages of pipeline runs: lists, pictures, cancellation, and replays with other input."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from activities import outputs
from activities.models import ActivityRun
from agents.contracts import Accepted
from console.content_security import POLICY_WITH_SCRIPTS
from pipelines import submission, versions
from pipelines.diagram import RULES
from pipelines.models import PipelineRun, StepRun
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.console_user import Person
from tests.flows import Flow, answer_by_step, step
from tests.forms import forms_of
from tests.page_queries import MOST, statements
from tests.questions import Questions

LIST = "/runs/"

#: Two steps in a row; nobody has to approve anything.
NOTE = {
    "key": "note",
    "name": "Note",
    "steps": [
        {"id": "research", "name": "Research", "agent_role": "qa"},
        {"id": "write", "name": "Write", "agent_role": "dev", "depends_on": ["research"]},
    ],
}


def start_note(questions: Questions, **fields: Any) -> PipelineRun:
    if not questions.__dict__.get("note"):
        versions.save(questions.tenant.pk, NOTE, actor="test")
        questions.__dict__["note"] = True
    return submission.start_run(
        questions.tenant.pk, "note", submission.NewRun(**fields), actor="token:planner"
    )


def status_of(run: PipelineRun) -> str:
    with tenant_scope(run.tenant_id):
        run.refresh_from_db()
    return run.status


def test_runs_are_listed_with_their_progress(questions: Questions, ann: Person) -> None:
    done = start_note(questions, name="Bees")
    questions.engine.drain()
    running = start_note(questions, name="Wasps")

    text = visible_text(ann.get(LIST))

    assert text.index("Wasps") < text.index("Bees")
    assert "completed 2 of 2 \u2013 \u2013 planner (token)" in text
    assert "running 0 of 2" in text
    assert "Wasps" not in visible_text(ann.get(f"{LIST}?status=completed"))
    assert "No runs match." in visible_text(ann.get(f"{LIST}?pipeline=other"))
    assert ann.browser.get(f"{LIST}?status=odd").status_code == 404
    assert {status_of(done), status_of(running)} == {"completed", "running"}


def test_the_picture_shows_progress_and_links_activities(questions: Questions, ann: Person) -> None:
    run = start_note(questions)
    before = ann.get(f"{LIST}{run.pk}/").content.decode()
    questions.engine.drain()

    answer = ann.get(f"{LIST}{run.pk}/")
    page = answer.content.decode()

    assert (before.count('class="good"'), page.count('class="good"')) == (0, 2)
    links = re.findall(r'<a href="(/activities/[^"]+)"><g', page)
    assert [ann.browser.get(each.replace("&amp;", "&")).status_code for each in links] == [200, 200]
    assert answer["Content-Security-Policy"] == POLICY_WITH_SCRIPTS
    assert "<style" not in page
    assert "style=" not in page


def test_steps_show_their_roles_before_they_start(questions: Questions, ann: Person) -> None:
    run = start_note(questions)

    steps = ann.get(f"{LIST}{run.pk}/").context["detail"].steps

    assert [(step.row.run.status, step.who) for step in steps] == [("active", "qa"), ("pending", "dev")]


def test_the_style_sheet_contains_the_rules_of_pictures() -> None:
    from pathlib import Path

    from django.conf import settings

    sheet = Path(settings.BASE_DIR) / "console/static/console/picture.css"

    assert RULES in sheet.read_text(encoding="utf-8").replace("\n", "")


def test_the_pages_need_few_statements_for_any_number_of_runs(questions: Questions, ann: Person) -> None:
    run = start_note(questions)
    few = len(statements(lambda: ann.get(LIST)))
    for _ in range(4):
        start_note(questions)
    questions.engine.drain()

    many, one = statements(lambda: ann.get(LIST)), statements(lambda: ann.get(f"{LIST}{run.pk}/"))

    assert abs(len(many) - few) <= 1, "open items are read only while a run is active"
    assert (len(many) <= MOST, len(one) <= MOST) == (True, True), (len(many), len(one))


def test_an_operator_cancels_a_run_once(questions: Questions, ann: Person) -> None:
    run = start_note(questions)
    form = forms_of(ann.get(f"{LIST}{run.pk}/"))["operate"]

    answer = form.send(ann.browser)

    assert "The run was cancelled." in visible_text(ann.get(answer["Location"]))
    assert status_of(run) == "cancelled"
    page = ann.get(f"{LIST}{run.pk}/")
    assert "operate" not in forms_of(page)
    assert "The pipeline run was cancelled." in visible_text(page)


def test_a_run_is_replayed_from_a_step_with_other_input(questions: Questions, ann: Person) -> None:
    run = start_note(questions)
    questions.engine.drain()
    outputs.copy_waiting()
    form = forms_of(ann.get(f"{LIST}{run.pk}/replay/?step=write"))["again"]
    assert "Research: done" in str(form.fields["content"])

    answer = form.send(ann.browser, content="Bees sleep.", data="")
    again = PipelineRun(pk=answer["Location"].split("/")[2])
    questions.engine.drain()

    assert questions.engine.agent.calls[-1].input["content"] == "Bees sleep."
    with tenant_scope(questions.tenant.pk):
        replay = PipelineRun.objects.get(pk=again.pk)
        assert (replay.replay_of, replay.replay_from, replay.status) == (run.pk, "write", "completed")
    assert "Replayed from write" in visible_text(ann.get(f"{LIST}{run.pk}/"))


def test_a_form_sent_twice_replays_once(questions: Questions, ann: Person) -> None:
    run = start_note(questions)
    questions.engine.drain()
    form = forms_of(ann.get(f"{LIST}{run.pk}/replay/?step=write"))["again"]

    places = {form.send(ann.browser, content="Bees sleep.", data="")["Location"] for _ in range(2)}

    assert len(places) == 1
    with tenant_scope(questions.tenant.pk):
        assert PipelineRun.objects.filter(replay_of=run.pk).count() == 1


def test_unchanged_input_is_not_stored_again(questions: Questions, ann: Person) -> None:
    run = start_note(questions)
    questions.engine.drain()
    outputs.copy_waiting()
    form = forms_of(ann.get(f"{LIST}{run.pk}/replay/?step=write"))["again"]
    # A browser drops the line end after the tag, and sends the others as CRLF.
    as_sent = {
        name: form.fields[name][0].removeprefix("\n").replace("\n", "\r\n") for name in ("content", "data")
    }

    answer = form.send(ann.browser, **as_sent)

    with tenant_scope(questions.tenant.pk):
        assert PipelineRun.objects.get(pk=answer["Location"].split("/")[2]).replay_input is None


def test_invalid_replays_are_refused(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    run = start_note(questions)
    questions.engine.drain()
    form = forms_of(ann.get(f"{LIST}{run.pk}/replay/?step=write"))["again"]

    refused = form.send(ann.browser, content="x", data="{no json")

    assert refused.status_code == 400
    assert "The data is not JSON" in visible_text(refused)
    assert "{no json" in refused.content.decode(), "what was written is not lost"
    deep = form.send(ann.browser, content="x", data="[" * 50_000)
    assert deep.status_code == 400
    assert "The data is not JSON" in visible_text(deep)
    assert ann.browser.get(f"{LIST}{run.pk}/replay/?step=none").status_code == 404
    assert person("vic", role="viewer").browser.get(f"{LIST}{run.pk}/replay/?step=write").status_code == 404


def test_nothing_of_another_tenant_is_shown(
    questions: Questions, ann: Person, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    run = start_note(questions, name="Secret bees")
    eve = person("eve", other_tenant)

    assert "Secret bees" not in visible_text(eve.get(LIST))
    for address in (f"{LIST}{run.pk}/", f"{LIST}{run.pk}/replay/?step=write"):
        assert eve.browser.get(address).status_code == 404
        assert eve.browser.post(address).status_code in (403, 404)
    assert status_of(run) == "running"


def test_waiting_branches_are_distinguished_from_running_ones(questions: Questions, ann: Person) -> None:
    questions.engine.serve(questions.tenant, max_concurrency=1)
    each = step("write", "plan", for_each="steps.plan.data.topics")
    flow = Flow(questions.engine, questions.tenant, step("plan"), each)
    plan = answer_by_step({"plan": {"topics": ["bees", "hives", "honey"]}})
    questions.engine.agent.behaviour = lambda request: (
        Accepted() if request.pipeline_step == "write" else plan(request)
    )
    questions.engine.drain()

    page = ann.get(f"{LIST}{flow.id}/")

    assert "0 done, 1 running, 2 waiting, 0 failed of 3" in visible_text(page)
    picture = str(page.context["detail"].picture)
    assert "1 running" in picture.lower()
    assert "2 queued" in picture.lower()


#: A step whose work people approve.
APPROVED = {
    "key": "approved",
    "name": "Approved",
    "steps": [{"id": "write", "name": "Write", "agent_role": "dev", "requires_approval": True}],
}


def test_runs_are_searched_by_subject(questions: Questions, ann: Person) -> None:
    start_note(questions, name="Bees in the city")
    start_note(questions, name="", params={"topic": "Wasps & honey"})

    assert "Wasps" not in visible_text(ann.get(f"{LIST}?q=bees"))
    by_parameter = visible_text(ann.get(f"{LIST}?q=wasps+%26+HONEY"))
    assert ("Wasps &amp; honey" in by_parameter, "Bees" in by_parameter) == (True, False)
    assert "No runs match." in visible_text(ann.get(f"{LIST}?q=beetles%25"))


def test_a_label_filters_the_list(questions: Questions, ann: Person) -> None:
    bees = start_note(questions, name="Bees", labels={"client": "acme & sons"})
    start_note(questions, name="Wasps", labels={"client": "other"})
    page = ann.get(LIST).content.decode()
    address = re.search(r'href="([^"]*label=client%3Aacme[^"]*)"', page)
    assert address

    narrowed = visible_text(ann.get(address[1].replace("&amp;", "&")))

    assert "Filtered by the label client:acme &amp; sons" in narrowed
    assert ("Bees" in narrowed, "Wasps" in narrowed) == (True, False)
    assert "client:acme &amp; sons" in visible_text(ann.get(f"{LIST}{bees.pk}/"))
    assert "No runs match." in visible_text(ann.get(f"{LIST}?label=client:nobody"))


def test_the_list_shows_who_a_run_waits_for_and_its_cost(questions: Questions, ann: Person) -> None:
    versions.save(questions.tenant.pk, APPROVED, actor="test")
    run = submission.start_run(
        questions.tenant.pk, "approved", submission.NewRun(name="Bees"), actor="token:planner"
    )
    assert "running 0 of 1 dev" in visible_text(ann.get(LIST))
    questions.engine.drain()
    with tenant_scope(questions.tenant.pk):
        ActivityRun.objects.filter(activity__pipeline_run_id=run.pk).update(usage={"cost_usd": "0.25"})

    text = visible_text(ann.get(LIST))

    assert "people:" in text
    assert "0 of 1 dev" not in text
    assert "$0.25" in text
    assert "$0.25" in visible_text(ann.get(f"{LIST}{run.pk}/"))


def test_the_page_of_a_run_shows_time_by_step_and_history(questions: Questions, ann: Person) -> None:
    versions.save(questions.tenant.pk, APPROVED, actor="test")
    new_run = submission.NewRun(params={"topic": "Bees"})
    run = submission.start_run(questions.tenant.pk, "approved", new_run, actor="token:planner")
    questions.engine.drain()

    page = ann.get(f"{LIST}{run.pk}/")
    markup = page.content.decode()
    chart = markup[markup.index('class="gantt"') : markup.index("<h2>Steps")]

    lanes = {name for name in ("of-waits", "of-agent", "of-people") if name in chart}
    assert lanes == {"of-waits", "of-agent", "of-people"}
    assert ">Write<" in chart
    assert re.search(r"Write .* finished and requested approval", visible_text(page))
    assert "&quot;topic&quot;: &quot;Bees&quot;" in markup
    assert f"/texts/?tenant={questions.tenant.slug}" in markup


def test_selected_runs_are_cancelled_and_ended_ones_skipped(questions: Questions, ann: Person) -> None:
    ended = start_note(questions, name="Ended")
    questions.engine.drain()
    first, second, spared = (start_note(questions, name=name) for name in ("First", "Second", "Spared"))
    form = forms_of(ann.get(LIST))["many"]

    answer = ann.browser.post(
        form.action,
        {**form.fields, "action": "cancel", "run": [str(each.pk) for each in (ended, first, second)]},
    )

    text = visible_text(ann.get(answer["Location"]))
    assert "2 runs cancelled." in text
    assert "1 skipped" in text
    assert [status_of(each) for each in (ended, first, second, spared)] == [
        "completed", "cancelled", "cancelled", "running",
    ]  # fmt: skip


def test_selected_runs_are_replayed_from_the_failed_step(questions: Questions, ann: Person) -> None:
    run, fine = start_note(questions, name="Bees"), start_note(questions, name="Wasps")
    with tenant_scope(questions.tenant.pk):
        StepRun.objects.filter(run_id=run.pk, step="write").update(status="failed", unsettled_branches=0)
        StepRun.objects.filter(run_id=run.pk, step="research").update(status="done")
        PipelineRun.objects.filter(pk=run.pk).update(status="failed", finished_at=run.started_at)
    form = forms_of(ann.get(LIST))["many"]

    answer = ann.browser.post(
        form.action, {**form.fields, "action": "replay", "run": [str(run.pk), str(fine.pk)]}
    )

    text = visible_text(ann.get(answer["Location"]))
    assert "1 run replayed from the failed step." in text
    assert "1 skipped: No step of the run has failed." in text
    with tenant_scope(questions.tenant.pk):
        assert PipelineRun.objects.get(replay_of=run.pk).replay_from == "write"


def test_a_replay_starts_at_the_first_failed_step(questions: Questions, ann: Person) -> None:
    run = start_note(questions, name="Bees")
    with tenant_scope(questions.tenant.pk):
        steps = StepRun.objects.filter(run_id=run.pk, step__in=("research", "write"))
        steps.update(status="failed", unsettled_branches=0)
        PipelineRun.objects.filter(pk=run.pk).update(status="failed", finished_at=run.started_at)
    form = forms_of(ann.get(LIST))["many"]

    ann.browser.post(form.action, {**form.fields, "action": "replay", "run": str(run.pk)})

    with tenant_scope(questions.tenant.pk):
        assert PipelineRun.objects.get(replay_of=run.pk).replay_from == "research"


def test_a_viewer_cannot_act_on_selected_runs(questions: Questions, person: Callable[..., Person]) -> None:
    run = start_note(questions)
    eve = person("eve", role="viewer")

    assert "many" not in forms_of(eve.get(LIST))
    some = next(form for form in forms_of(eve.get(LIST)).values() if "csrfmiddlewaretoken" in form.fields)
    token = some.fields["csrfmiddlewaretoken"]
    sent = {"action": "cancel", "run": str(run.pk), "csrfmiddlewaretoken": token}
    answer = eve.browser.post(LIST, sent)

    assert answer.status_code == 404
    assert status_of(run) == "running"
