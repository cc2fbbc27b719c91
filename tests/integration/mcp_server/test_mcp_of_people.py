"""A person's assistant reads, submits, and decides in two steps, with the rights of the person and in their tenant only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from activities.api.inbox import ItemSerializer
from activities.api.submissions import NewActivitySerializer
from activities.human_tasks import decisions
from activities.models import Activity, ActivityEvent
from orchestrator.mcp import api, people_tools
from orchestrator.mcp.tools import LONGEST_TEXT
from pipelines.api.pipelines import NewRunSerializer
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.models.audit import AuditEntry
from tests.cases import in_one_test
from tests.engine import Engine
from tests.flows import Flow, step
from tests.integration.mcp_server.assistants import Assistant, disagreements
from tests.questions import Questions
from tests.scheduling import make_schedule

Person = Callable[..., Assistant]


def status(item: Activity) -> str:
    with tenant_scope(item.tenant_id):
        return str(Activity.objects.get(pk=item.pk).status)


def show_decision(
    person: Assistant, item: Activity, decision: str = "approve", **more: Any
) -> dict[str, Any]:
    """Show a decision and return the arguments that confirm it."""
    answer = person.use("show_decision", id=str(item.pk), decision=decision, **more)
    return {"id": str(item.pk), "decision": decision, **more, "confirmation": answer["confirmation"]}


def test_a_person_has_none_of_the_tools_of_agents(person: Person, tenant: Tenant) -> None:
    tools = person().tools()

    assert {
        "inbox",
        "item",
        "show_decision",
        "confirm_decision",
        "why",
        "submit",
        "runs",
        "schedules",
        "spend",
    } <= set(tools)
    assert not {"complete", "report_blocker", "get_job"} & set(tools)
    changing = {name for name, tool in tools.items() if not tool.annotations.read_only_hint}
    assert changing == {"confirm_decision", "submit", "start_run"}


def test_the_schemas_of_what_a_person_submits_agree_with_the_api(person: Person, tenant: Tenant) -> None:
    tools = person().tools()

    for tool, receiver in (
        ("show_decision", ItemSerializer()),
        ("confirm_decision", ItemSerializer()),
        ("submit", NewActivitySerializer()),
        ("start_run", NewRunSerializer()),
    ):
        assert list(disagreements(tools[tool].input_schema, receiver)) == [], tool


def test_an_item_of_the_inbox_contains_what_is_to_be_decided(person: Person, questions: Questions) -> None:
    gate = questions.gate("# Bees\n\nBees fly far.")
    review = questions.review("Is the tone right?", "Dear *customer*")

    rows = {row["id"]: row for row in person().use("inbox")["results"]}
    of_gate = person().use("item", id=str(gate.pk))
    of_review = person().use("item", id=str(review.pk))

    assert (rows[str(gate.pk)]["kind"], rows[str(review.pk)]["kind"]) == ("gate", "review")
    assert of_gate["to_look_at"]["content"] == "# Bees\n\nBees fly far."
    assert of_gate["subject"]["agent_role"] == "qa"
    assert (of_review["item"]["description"], of_review["to_look_at"]["content"]) == (
        "Is the tone right?",
        "Dear *customer*",
    )


def test_an_approval_contains_its_options_and_links(person: Person, questions: Questions) -> None:
    item = questions.approval(options=("Warm", "Sober"), linked=2)

    about = person().use("item", id=str(item.pk))["approval"]

    assert (about["options"], len(about["links"])) == (["Warm", "Sober"], 2)


def test_pages_of_the_inbox_follow_one_another(person: Person, questions: Questions) -> None:
    items = {str(questions.task(f"Call {number}").pk) for number in range(3)}

    first = person().use("inbox", limit=2)
    second = person().use("inbox", limit=2, cursor=first["next_cursor"])

    assert {row["id"] for page in (first, second) for row in page["results"]} == items
    assert second["next_cursor"] is None


def test_a_decision_takes_effect_when_it_is_confirmed(person: Person, questions: Questions) -> None:
    gate = questions.gate()
    anna = person("reviewer")

    confirmed = show_decision(anna, gate, "approve", notes="Fine.")
    before = status(gate)
    answer = anna.use("confirm_decision", **confirmed)

    assert (before, status(gate), answer["status"]) == ("created", "approved", "approved")


def test_a_rejection_needs_notes_which_reach_the_agent(
    person: Person, questions: Questions, engine: Engine
) -> None:
    gate = questions.gate()
    anna = person("reviewer")

    without = anna.use_refused("confirm_decision", **show_decision(anna, gate, "reject"))
    anna.use("confirm_decision", **show_decision(anna, gate, "reject", notes="Less honey."))
    engine.drain()

    assert [fault["path"] for fault in without["errors"]] == ["items[0].notes"]
    assert engine.agent.calls[-1].wakes[-1]["reviewer_notes"] == "Less honey."


@pytest.mark.parametrize(
    ("kind", "decision", "after"),
    [("blocker", "resolve", "done"), ("task", "complete", "done"), ("review", "approve", "approved")],
)
def test_blockers_tasks_and_reviews_have_their_own_decisions(
    person: Person, questions: Questions, kind: str, decision: str, after: str
) -> None:
    item = getattr(questions, kind)()

    anna = person()
    anna.use("confirm_decision", **show_decision(anna, item, decision, notes="Done."))

    assert status(item) == after


def test_a_decision_about_an_item_that_changed_is_refused(
    person: Person, questions: Questions, tenant: Tenant
) -> None:
    gate = questions.gate()
    anna = person("reviewer")
    confirmed = show_decision(anna, gate)
    with tenant_scope(tenant.pk):
        Activity.objects.filter(pk=gate.pk).update(version=gate.version + 1)

    refused = anna.use_refused("confirm_decision", **confirmed)

    assert refused["status"] == 412
    assert (
        "The item has changed since it was shown. Nothing was decided. Call show_decision again."
        in refused["text"]
    )
    assert status(gate) == "created"


def test_a_decision_that_somebody_else_made_first_is_refused(
    person: Person, questions: Questions, tenant: Tenant
) -> None:
    gate = questions.gate()
    anna = person("reviewer")
    confirmed = show_decision(anna, gate)
    decisions.reject(tenant.pk, gate.pk, actor="user:ben", notes="No.")

    refused = anna.use_refused("confirm_decision", **confirmed)

    assert refused["status"] in (409, 412)
    assert status(gate) == "rejected"


@pytest.mark.parametrize(
    "other",
    [{"decision": "reject"}, {"notes": "Something else."}, {"chosen_option": "Warm"}, {"id": None}],
    ids=["decision", "notes", "option", "item"],
)
def test_a_confirmation_is_valid_for_its_decision_and_item_only(
    person: Person, questions: Questions, other: dict[str, Any]
) -> None:
    gate, another = questions.gate(), questions.gate(name="Another")
    anna = person("reviewer")
    confirmed = {**show_decision(anna, gate, notes="Fine."), **other}
    confirmed["id"] = confirmed["id"] or str(another.pk)

    refused = anna.use_refused("confirm_decision", **confirmed)

    assert refused["code"] == "not_confirmed"
    assert (status(gate), status(another)) == ("created", "created")


def test_a_confirmation_is_valid_for_its_person_only(person: Person, questions: Questions) -> None:
    gate = questions.gate()
    confirmed = show_decision(person("reviewer"), gate)

    refused = person("reviewer").use_refused("confirm_decision", **confirmed)

    assert (refused["code"], status(gate)) == ("not_confirmed", "created")


@in_one_test(
    "confirmation",
    ["yes", "1-000000000000-" + 32 * "0", 100 * "9", "1-0-0", "\u0661-000000000000-" + 32 * "0"],
)
def test_a_forged_confirmation_is_refused(person: Person, questions: Questions, confirmation: str) -> None:
    gate = questions.gate()

    refused = person().use_refused(
        "confirm_decision", id=str(gate.pk), decision="approve", confirmation=confirmation
    )

    assert (refused["code"], status(gate)) == ("not_confirmed", "created")


def test_a_repeated_or_concurrent_confirmation_decides_once(
    person: Person, questions: Questions, tenant: Tenant
) -> None:
    gate = questions.gate()
    anna = person("reviewer")
    confirmed = show_decision(anna, gate)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: anna.call("confirm_decision", **confirmed), range(2)))
    later = anna.use("confirm_decision", **confirmed)

    assert any(not result.is_error for result in results)
    assert (status(gate), later["status"]) == ("approved", "approved")
    with tenant_scope(tenant.pk):
        moves = ActivityEvent.objects.filter(activity_id=gate.pk, verb="approve_gate")
        assert moves.count() == 1


def test_a_viewer_cannot_decide(person: Person, questions: Questions) -> None:
    gate = questions.gate()
    viewer = person("viewer")

    refused = viewer.use_refused("confirm_decision", **show_decision(viewer, gate))

    assert (refused["status"], status(gate)) == (403, "created")
    assert "required role: reviewer" in refused["text"]


def test_objects_of_another_tenant_are_not_found(
    person: Person, questions: Questions, other_tenant: Tenant
) -> None:
    gate = questions.gate()
    stranger, mine = person("admin", other_tenant), person()
    confirmed = show_decision(mine, gate)

    refusals = [
        stranger.use_refused(tool, id=str(gate.pk), **more)
        for tool, more in (
            ("item", {}), ("why", {}), ("activity", {}), ("output", {}), ("input", {}), ("show_decision", {"decision": "approve"}),
        )
    ]  # fmt: skip

    assert {refused["status"] for refused in refusals} == {404}
    assert stranger.use_refused("confirm_decision", **confirmed)["code"] == "not_confirmed"
    assert stranger.use("inbox")["results"] == []
    assert status(gate) == "created"


def test_the_work_of_an_agent_cannot_be_decided(person: Person, questions: Questions) -> None:
    gate = questions.gate()

    refused = person().use_refused("show_decision", id=str(gate.parent_id), decision="approve")

    assert refused["code"] == "not_an_item"


def test_a_wrong_token_is_refused_without_repeating_it(site: str, tenant: Tenant) -> None:
    secret = "orc_" + 43 * "x"

    refused = Assistant(api.access_of_person(site, secret)).use_refused("inbox")

    assert refused["status"] == 401
    assert secret not in json.dumps(refused)


def test_a_repeated_submission_with_its_key_creates_one_activity(
    person: Person, tenant: Tenant, engine: Engine
) -> None:
    anna = person("operator")
    arguments = {
        "name": "Count the bees",
        "agent_role": "qa",
        "params": {"hive": 3},
        "idempotency_key": "hive-3",
    }

    first, again = anna.use("submit", **arguments), anna.use("submit", **arguments)

    assert first["id"] == again["id"]
    assert anna.use("why", id=first["id"])["code"]
    assert anna.use("activity", id=first["id"])["params"] == {"hive": 3}


def test_errors_of_a_submission_have_their_path(person: Person, tenant: Tenant) -> None:
    anna = person("operator")

    by_api = anna.use_refused("submit", name="x", agent_role="no-such-role")
    by_schema = anna.use_refused("submit", name="", agent_role=3, when="now")

    assert "agent_role" in {fault["path"] for fault in by_api["errors"]}
    assert {"name", "agent_role", ""} == {fault["path"] for fault in by_schema["errors"]}


def test_a_long_output_is_read_in_pieces(person: Person, questions: Questions) -> None:
    long = "".join(f"{number:09d}\n" for number in range(LONGEST_TEXT // 10 + 700))
    gate = questions.gate(long)

    first = person().use("input", id=str(gate.pk))
    # As a client sends it whose language has only one kind of number.
    rest = person().use("output", id=str(gate.parent_id), offset=float(first["next_offset"]))

    assert first["content"] + rest["content"] == long
    assert (first["characters"], rest["next_offset"]) == (len(long), None)


def test_runs_can_be_started_listed_and_read(person: Person, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    Flow(engine, tenant, step("a"), step("b", "a"))
    anna = person("operator")

    started = anna.use("start_run", pipeline="flow", idempotency_key="once")
    again = anna.use("start_run", pipeline="flow", idempotency_key="once")

    assert started["id"] == again["id"]
    assert started["id"] in {
        row["id"] for row in anna.use("runs", pipeline="flow", status="running")["results"]
    }
    assert [each["step"] for each in anna.use("run", id=started["id"])["steps"]] == ["a", "b"]
    named = anna.use("start_run", pipeline="flow", name="Bees", labels={"client": "acme"})
    for filters in ({"label": "client:acme"}, {"search": "bees"}):
        (run,) = anna.use("runs", **filters)["results"]
        assert (run["id"], run["name"], run["labels"]) == (named["id"], "Bees", {"client": "acme"})
        assert (run["waits_for"], run["cost_usd"]) == (["qa"], "0")
    assert [row["key"] for row in anna.use("pipelines")["results"]] == ["flow"]


def test_schedules_and_spending_can_be_read(person: Person, engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant, cron="30 6 * * 1-5", timezone="Europe/Berlin")
    anna = person()

    rows = anna.use("schedules")["results"]
    one = anna.use("schedule", id=str(schedule.pk), count=3)
    spent = anna.use("spend", group_by=["role", "day"], **{"from": "2026-01-01"})

    assert [row["id"] for row in rows] == [str(schedule.pk)]
    assert len(one["preview"]["fires_at"]) == 3
    assert (spent["usage"]["group_by"], spent["budgets"]) == (["role", "day"], [])
    assert {row["role"] for row in anna.use("agents", limit=200)["results"]} >= {"qa", "dev"}


def test_actions_are_in_the_audit_trail_under_the_persons_token(person: Person, tenant: Tenant) -> None:
    person("operator").use("submit", name="Count the bees", agent_role="qa")

    with tenant_scope(tenant.pk):
        rows = set(AuditEntry.objects.values_list("operation", "actor_kind", "actor_name", "outcome"))

    assert rows == {("POST /activities/", "token", "operator of acme", "done")}


def test_a_confirmation_is_valid_in_its_process_only(
    person: Person, questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = questions.gate()
    anna = person("reviewer")
    confirmed = show_decision(anna, gate)
    monkeypatch.setattr(people_tools, "_KEY", b"another process")

    refused = anna.use_refused("confirm_decision", **confirmed)

    assert (refused["code"], status(gate)) == ("not_confirmed", "created")


@in_one_test(
    "hostile", ["../usage", "x" * 5_000, "\x00", "' or 1=1", "01890a5d-ac96-774b-bcce-b302099a8057/../"]
)
def test_an_id_cannot_change_the_address(person: Person, tenant: Tenant, hostile: str) -> None:
    refused = person().use_refused("activity", id=hostile)

    assert refused["code"] == "invalid_arguments"


@in_one_test(
    ("tool", "arguments"),
    [
        ("start_run", {"pipeline": "two\n"}),
        ("runs", {"pipeline": "two\n"}),
        ("submit", {"name": "x", "agent_role": "qa", "idempotency_key": "k\n"}),
    ],
)
def test_a_key_cannot_end_with_a_line_break(
    person: Person, tenant: Tenant, tool: str, arguments: dict[str, str]
) -> None:
    assert person().use_refused(tool, **arguments)["code"] == "invalid_arguments"


@in_one_test("cursor", ["nonsense", "&limit=1", "%00"])
def test_an_invalid_cursor_is_refused(person: Person, tenant: Tenant, cursor: str) -> None:
    assert person().use_refused("inbox", cursor=cursor)["status"] == 400


def test_ids_may_be_in_upper_case(person: Person, questions: Questions) -> None:
    gate = questions.gate()
    anna = person()

    confirmed = show_decision(anna, gate)
    confirmed["id"] = str(UUID(confirmed["id"])).upper()
    anna.use("confirm_decision", **confirmed)

    assert status(gate) == "approved"
    assert re.fullmatch(r"\d+-[0-9a-f]{12}-[0-9a-f]{32}", confirmed["confirmation"])
