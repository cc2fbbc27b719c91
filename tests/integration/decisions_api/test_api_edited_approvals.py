"""Approving a gate with an edited output over the API: later steps use it, and the agent's own output is kept."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities import outputs
from activities.human_tasks import decisions
from activities.maintenance import invariants
from activities.models import Activity, ActivityEvent, OutputSpool
from pipelines import submission, versions
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine, simultaneously
from tests.integration.decisions_api.questions import ACTIVITIES, address_of, create_task, gates, submit_gated

pytestmark = pytest.mark.usefixtures("one_at_a_time")

EDITED = {"content": "Bees fly very far.", "data": {"checked": True}}
WRITE = {"id": "write", "name": "Write", "agent_role": "dev"}
PUBLISH = {"id": "publish", "name": "Publish", "agent_role": "seo"}


def start_pipeline(engine: Engine, acme: Tenant, *steps: dict[str, Any]) -> None:
    versions.save(acme.pk, {"key": "article", "name": "Article", "steps": list(steps)}, actor="test")
    submission.start_run(acme.pk, "article", submission.NewRun(), actor="test")
    engine.drain()


def read(acme: Tenant, reference: Any) -> tuple[str | None, Any]:
    output = outputs.read(acme.pk, UUID(str(reference)))
    assert output
    return output.content, output.data


def test_the_next_step_receives_the_edited_output(api: Any, engine: Engine, acme: Tenant) -> None:
    start_pipeline(engine, acme, {**WRITE, "requires_approval": True}, {**PUBLISH, "depends_on": ["write"]})
    client = api("reviewer", name="Ann")
    (gate,) = gates(client)

    approved = client.post(address_of(gate["id"], "approve"), {"notes": "One word.", "output": EDITED})

    assert (approved.status_code, approved.json()["decided_by"]) == (200, "token:Ann")
    engine.drain()
    call = engine.agent.calls[-1]
    assert (call.name, call.input["content"], call.input["data"]) == ("Publish", *EDITED.values())
    assert client.get(address_of(gate["parent"], "output")).json()["content"] == EDITED["content"]
    assert invariants.check() == []


def test_the_next_step_receives_the_output_edited_at_a_separate_gate(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    sign = {"id": "sign", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]}
    start_pipeline(engine, acme, WRITE, sign, {**PUBLISH, "depends_on": ["sign"]})
    client = api("reviewer")
    (gate,) = gates(client)

    client.post(address_of(gate["id"], "approve"), {"output": {"content": "Mine."}})

    engine.drain()
    assert engine.agent.calls[-1].input["content"] == "Mine."
    (write,) = client.get(f"{ACTIVITIES}?step=write").json()["results"]
    assert read(acme, write["output_ref"])[0] == "Write: done", "the output of the earlier step stays"
    assert invariants.check() == []


def test_the_original_output_and_the_editor_are_recorded(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer", name="Ann")
    (gate,) = gates(client)
    own = gate["input_ref"]

    client.post(address_of(waiting, "approve"), {"output": EDITED})

    activity, decided = client.get(address_of(waiting)).json(), client.get(address_of(gate["id"])).json()
    assert activity["output_ref"] == decided["output_ref"] != own == decided["input_ref"]
    assert read(acme, own) == ("work 0: done", {"round": 1})
    with tenant_scope(acme.pk):
        events = ActivityEvent.objects.filter(verb__in=("approve", "approve_gate"))
        recorded = [(event.actor, event.detail["edited"]) for event in events]
    assert recorded == [("token:Ann", {"from": own, "to": activity["output_ref"]})] * 2
    (entry,) = api("admin").get("/api/v1/audit/?operation=POST%20/activities/{id}/approve/").json()["results"]
    assert entry["changes"]["output_ref"] == [own, activity["output_ref"]]


def test_an_approval_without_an_output_changes_no_output(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer")
    (gate,) = gates(client)

    client.post(address_of(gate["id"], "approve"), {"notes": "good", "output": None})

    assert client.get(address_of(waiting)).json()["output_ref"] == gate["input_ref"]
    assert client.get(address_of(gate["id"])).json()["output_ref"] is None
    with tenant_scope(acme.pk):
        details = list(ActivityEvent.objects.filter(verb="approve_gate").values_list("detail", flat=True))
    assert details == [{"notes": "good", "chosen_option": None}]


@pytest.mark.parametrize(
    "output",
    [{}, {"content": ""}, {"content": " \n"}, {"data": None}],
    ids=["nothing", "empty", "blank", "null"],
)
def test_an_empty_edited_output_is_refused(
    api: Any, engine: Engine, acme: Tenant, output: dict[str, Any]
) -> None:
    (waiting,) = submit_gated(engine, acme)

    refused = problem(
        api("reviewer").post(address_of(waiting, "approve"), {"output": output}), 400, "validation_failed"
    )

    assert refused["errors"] == [{"path": "output", "message": "needs content or data"}]
    assert engine.status(acme, waiting) == "awaiting_approval"
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 1, "the agent's own output"


def test_an_edit_that_comes_too_late_is_answered_with_the_decision_even_if_it_is_empty(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = submit_gated(engine, acme)
    api("reviewer").post(address_of(waiting, "approve"), {})

    late = api("reviewer").post(address_of(waiting, "approve"), {"output": {}})

    problem(late, 409, "already_decided")


@in_one_test(
    ("body", "path"),
    [
        ({"output": "text"}, "output"),
        ({"output": {"content": 5}}, "output.content"),
        ({"output": {"text": "x"}}, "output.text"),
    ],
    ids=["not an object", "not a text", "unknown field"],
)
def test_a_malformed_edited_output_is_refused_with_its_path(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any], path: str
) -> None:
    (waiting,) = submit_gated(engine, acme)

    refused = problem(api("reviewer").post(address_of(waiting, "approve"), body), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == [path]


@pytest.mark.parametrize("action", ["approve", "complete"])
def test_a_person_may_give_as_large_an_output_as_an_agent_and_no_larger_one(
    api: Any, engine: Engine, acme: Tenant, settings: Any, action: str
) -> None:
    settings.ORCHESTRATOR_MAX_BODY_BYTES = 500
    settings.ORCHESTRATOR_MAX_OUTPUT_BYTES = 1000
    item = submit_gated(engine, acme)[0] if action == "approve" else UUID(create_task(api("operator")))
    status = engine.status(acme, item)

    # `data` counts, too, as `null` here.
    problem(
        api("reviewer").post(address_of(item, action), {"output": {"content": "x" * 997}}),
        413,
        "output_too_large",
    )
    assert engine.status(acme, item) == status
    given = api("reviewer").post(address_of(item, action), {"output": {"content": "x" * 996}})

    assert given.status_code == 200
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.get(pk=given.json()["output_ref"]).content == "x" * 996


def test_an_output_cannot_be_edited_where_several_people_decide(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = engine.submit(acme, "qa", requires_approval=True, decision_rules={"quorum": 2})
    engine.drain()

    refused = problem(
        api("reviewer", person="ann").post(address_of(waiting, "approve"), {"output": EDITED}),
        400,
        "validation_failed",
    )

    assert "several people decide" in refused["errors"][0]["message"]
    assert engine.status(acme, waiting) == "awaiting_approval"


def test_a_question_without_a_result_takes_no_edited_output(api: Any, acme: Tenant) -> None:
    client = api("operator")
    question = create_task(client, is_approval_gate=True)

    refused = problem(
        client.post(address_of(question, "approve"), {"output": EDITED}), 400, "validation_failed"
    )

    assert "no single result" in refused["errors"][0]["message"]
    assert client.get(address_of(question)).json()["status"] == "created"


def test_one_of_a_concurrent_edit_and_plain_approval_counts(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)
    ann_client, bob_client = api("reviewer", name="Ann"), api("reviewer", name="Bob")

    answers = simultaneously(
        lambda: ann_client.post(address_of(waiting, "approve"), {"output": EDITED}),
        lambda: bob_client.post(address_of(waiting, "approve"), {}),
    )

    assert sorted(answer.status_code for answer in answers) == [200, 409]
    activity = engine.get(acme, waiting)
    edited = activity.decided_by == "token:Ann"
    assert (read(acme, activity.output_ref) == tuple(EDITED.values())) is edited
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 1 + edited
    assert invariants.check() == []


def test_an_edit_with_an_old_version_is_refused_and_not_stored(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer")
    (gate,) = gates(client)
    tag = client.get(address_of(gate["id"]))["ETag"]
    client.post(address_of(gate["id"], "start"))

    late = client.post(address_of(gate["id"], "approve"), {"output": EDITED}, headers={"If-Match": tag})

    assert late.status_code == 412
    assert engine.status(acme, waiting) == "awaiting_approval"
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 1


def test_a_repeated_edit_with_its_idempotency_key_happens_once(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer")

    answers = [
        client.post(address_of(waiting, "approve"), {"output": EDITED}, headers={"Idempotency-Key": "once"})
        for _ in range(2)
    ]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["output_ref"] == answers[1].json()["output_ref"]
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 2


def test_the_output_of_a_revision_can_be_edited(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)
    client = api("reviewer")
    client.post(address_of(waiting, "reject"), {"notes": "Shorter."})
    engine.drain()
    (gate,) = gates(client)

    assert client.post(address_of(gate["id"], "approve"), {"output": EDITED}).status_code == 200

    assert read(acme, client.get(address_of(gate["parent"])).json()["output_ref"]) == tuple(EDITED.values())
    assert invariants.check() == []


def test_an_unapproved_output_still_violates_an_invariant(engine: Engine, acme: Tenant) -> None:
    (waiting,) = submit_gated(engine, acme)
    decisions.approve(acme.pk, waiting, actor="user:ann", output=EDITED)
    with tenant_scope(acme.pk):
        Activity.objects.filter(link_kind="gate").update(output_ref=None)

    assert [violation.invariant for violation in invariants.check()] == ["I05"]
