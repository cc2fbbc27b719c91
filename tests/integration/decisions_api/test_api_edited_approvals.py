"""Over the API a gate is approved with an edited output: what follows works with it, and the agent's own stays on record."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities import outputs
from activities.human_tasks import approvals
from activities.maintenance import invariants
from activities.models import Activity, ActivityEvent, OutputSpool
from pipelines import submission, versions
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.integration.decisions_api.questions import ACTIVITIES, a_task, gated, gates, of
from tests.integration.test_api_access import problem

pytestmark = pytest.mark.usefixtures("one_at_a_time")

EDITED = {"content": "Bees fly very far.", "data": {"checked": True}}
WRITE = {"id": "write", "name": "Write", "agent_role": "dev"}
PUBLISH = {"id": "publish", "name": "Publish", "agent_role": "seo"}


def started(engine: Engine, acme: Tenant, *steps: dict[str, Any]) -> None:
    versions.save(acme.pk, {"key": "article", "name": "Article", "steps": list(steps)}, actor="test")
    submission.start_run(acme.pk, "article", submission.NewRun(), actor="test")
    engine.drain()


def read(acme: Tenant, reference: Any) -> tuple[str | None, Any]:
    found = outputs.read(acme.pk, UUID(str(reference)))
    assert found
    return found.content, found.data


def test_the_next_step_works_with_the_edited_output_of_a_step_with_an_approval(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    started(engine, acme, {**WRITE, "requires_approval": True}, {**PUBLISH, "depends_on": ["write"]})
    client = api("reviewer", name="Ann")
    (gate,) = gates(client)

    approved = client.post(of(gate["id"], "approve"), {"notes": "One word.", "output": EDITED})

    assert (approved.status_code, approved.json()["decided_by"]) == (200, "token:Ann")
    engine.drain()
    call = engine.agent.calls[-1]
    assert (call.name, call.input["content"], call.input["data"]) == ("Publish", *EDITED.values())
    assert client.get(of(gate["parent"], "output")).json()["content"] == EDITED["content"]
    assert invariants.check() == []


def test_the_next_step_works_with_what_was_edited_at_a_gate_of_its_own(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    sign = {"id": "sign", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]}
    started(engine, acme, WRITE, sign, {**PUBLISH, "depends_on": ["sign"]})
    client = api("reviewer")
    (gate,) = gates(client)

    client.post(of(gate["id"], "approve"), {"output": {"content": "Mine."}})

    engine.drain()
    assert engine.agent.calls[-1].input["content"] == "Mine."
    (write,) = client.get(f"{ACTIVITIES}?step=write").json()["results"]
    assert read(acme, write["output_ref"])[0] == "Write: done", "the step before has made what it has made"
    assert invariants.check() == []


def test_the_agents_own_output_and_who_edited_it_stay_on_record(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer", name="Ann")
    (gate,) = gates(client)
    own = gate["input_ref"]

    client.post(of(waiting, "approve"), {"output": EDITED})

    now, decided = client.get(of(waiting)).json(), client.get(of(gate["id"])).json()
    assert now["output_ref"] == decided["output_ref"] != own == decided["input_ref"]
    assert read(acme, own) == ("work 0: done", {"round": 1})
    with tenant_scope(acme.pk):
        events = ActivityEvent.objects.filter(verb__in=("approve", "approve_gate"))
        kept = [(event.actor, event.detail["edited"]) for event in events]
    assert kept == [("token:Ann", {"from": own, "to": now["output_ref"]})] * 2
    (entry,) = api("admin").get("/api/v1/audit/?operation=POST%20/activities/{id}/approve/").json()["results"]
    assert entry["changes"]["output_ref"] == [own, now["output_ref"]]


def test_without_an_output_an_approval_is_as_it_was(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer")
    (gate,) = gates(client)

    client.post(of(gate["id"], "approve"), {"notes": "good", "output": None})

    assert client.get(of(waiting)).json()["output_ref"] == gate["input_ref"]
    assert client.get(of(gate["id"])).json()["output_ref"] is None
    with tenant_scope(acme.pk):
        details = list(ActivityEvent.objects.filter(verb="approve_gate").values_list("detail", flat=True))
    assert details == [{"notes": "good", "chosen_option": None}]


@pytest.mark.parametrize(
    "output",
    [{}, {"content": ""}, {"content": " \n"}, {"data": None}],
    ids=["nothing", "empty", "blank", "null"],
)
def test_an_empty_output_is_refused_and_nothing_is_done(
    api: Any, engine: Engine, acme: Tenant, output: dict[str, Any]
) -> None:
    (waiting,) = gated(engine, acme)

    refused = problem(
        api("reviewer").post(of(waiting, "approve"), {"output": output}), 400, "validation_failed"
    )

    assert refused["errors"] == [{"path": "output", "message": "needs content or data"}]
    assert engine.status(acme, waiting) == "awaiting_approval"
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 1, "the agent's own"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"output": "text"}, "output"),
        ({"output": {"content": 5}}, "output.content"),
        ({"output": {"text": "x"}}, "output.text"),
    ],
    ids=["no object", "no text", "no such member"],
)
def test_an_output_is_read_by_the_letter(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any], path: str
) -> None:
    (waiting,) = gated(engine, acme)

    refused = problem(api("reviewer").post(of(waiting, "approve"), body), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == [path]


def test_an_output_is_as_long_as_a_body_may_be_and_no_longer(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_BODY_BYTES = 1000
    (waiting,) = gated(engine, acme)

    problem(
        api("reviewer").post(of(waiting, "approve"), {"output": {"content": "x" * 1000}}),
        413,
        "body_too_large",
    )

    assert engine.status(acme, waiting) == "awaiting_approval"


def test_where_several_decide_nobody_edits(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = engine.submit(acme, "qa", requires_approval=True, decision_rules={"quorum": 2})
    engine.drain()

    refused = problem(
        api("reviewer", person="ann").post(of(waiting, "approve"), {"output": EDITED}),
        400,
        "validation_failed",
    )

    assert "several people decide" in refused["errors"][0]["message"]
    assert engine.status(acme, waiting) == "awaiting_approval"


def test_what_asks_about_no_result_has_none_to_edit(api: Any, acme: Tenant) -> None:
    client = api("operator")
    question = a_task(client, is_approval_gate=True)

    refused = problem(client.post(of(question, "approve"), {"output": EDITED}), 400, "validation_failed")

    assert "no single result" in refused["errors"][0]["message"]
    assert client.get(of(question)).json()["status"] == "created"


def test_of_an_edit_and_a_plain_approval_at_once_one_counts_as_a_whole(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = gated(engine, acme)
    edits, plain = api("reviewer", name="Ann"), api("reviewer", name="Bob")

    answers = at_once(
        lambda: edits.post(of(waiting, "approve"), {"output": EDITED}),
        lambda: plain.post(of(waiting, "approve"), {}),
    )

    assert sorted(answer.status_code for answer in answers) == [200, 409]
    now = engine.get(acme, waiting)
    edited = now.decided_by == "token:Ann"
    assert (read(acme, now.output_ref) == tuple(EDITED.values())) is edited
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 1 + edited
    assert invariants.check() == []


def test_an_edit_of_what_has_changed_since_is_refused_and_nothing_is_kept(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer")
    (gate,) = gates(client)
    tag = client.get(of(gate["id"]))["ETag"]
    client.post(of(gate["id"], "start"))

    late = client.post(of(gate["id"], "approve"), {"output": EDITED}, headers={"If-Match": tag})

    assert late.status_code == 412
    assert engine.status(acme, waiting) == "awaiting_approval"
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 1


def test_a_repeated_edit_with_its_key_is_done_once(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer")

    answers = [
        client.post(of(waiting, "approve"), {"output": EDITED}, headers={"Idempotency-Key": "once"})
        for _ in range(2)
    ]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["output_ref"] == answers[1].json()["output_ref"]
    with tenant_scope(acme.pk):
        assert OutputSpool.objects.count() == 2


def test_a_round_that_was_sent_back_may_be_edited_when_it_comes_again(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (waiting,) = gated(engine, acme)
    client = api("reviewer")
    client.post(of(waiting, "reject"), {"notes": "Shorter."})
    engine.drain()
    (gate,) = gates(client)

    assert client.post(of(gate["id"], "approve"), {"output": EDITED}).status_code == 200

    assert read(acme, client.get(of(gate["parent"])).json()["output_ref"]) == tuple(EDITED.values())
    assert invariants.check() == []


def test_an_output_that_nobody_has_approved_is_still_found_out(engine: Engine, acme: Tenant) -> None:
    (waiting,) = gated(engine, acme)
    approvals.approve(acme.pk, waiting, actor="user:ann", output=EDITED)
    with tenant_scope(acme.pk):
        Activity.objects.filter(link_kind="gate").update(output_ref=None)

    assert [violation.invariant for violation in invariants.check()] == ["I05"]
