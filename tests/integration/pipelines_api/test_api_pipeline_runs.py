"""Runs of pipelines over the API: start, lists, picture, cancellation, replay, and permissions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from agents.contracts import AgentRequest, Completed, Output, Usage
from agents.exceptions import PermanentAgentError
from pipelines.models import Pipeline
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.api_objects import create_deliverable
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.pipelines_api.definitions import PIPELINES, RUNS, TEMPLATES, definition, paths

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_started_run_is_returned_with_its_steps(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api("operator")
    api("admin").post(PIPELINES, definition(params={"city": "Oslo"}))
    body = {
        "params": {"topic": "bees"},
        "priority": "gated",
        "input": {"content": "begin"},
        "deliverable": create_deliverable(acme),
    }

    started = client.post(f"{PIPELINES}flow/runs/", body)

    run = started.json()
    assert started.status_code == 201
    assert started["Location"] == f"{RUNS}{run['id']}/"
    assert (run["pipeline"], run["version"], run["status"], run["priority"]) == ("flow", 1, "running", 5)
    assert (run["params"], run["deliverable"]) == ({"city": "Oslo", "topic": "bees"}, body["deliverable"])
    first, second = run["steps"]
    assert (first["step"], first["name"], first["status"], first["round"], first["needs"]) == (
        "a",
        "First",
        "active",
        1,
        [],
    )
    assert (second["step"], second["status"], second["activity"], second["needs"]) == (
        "b",
        "pending",
        None,
        ["a"],
    )
    assert client.get(f"/api/v1/activities/{first['activity']}/").json()["pipeline_run"] == run["id"]

    engine.drain()

    ended = client.get(started["Location"]).json()
    assert (ended["status"], bool(ended["finished_at"])) == ("completed", True)
    assert [(step["status"], step["activity_status"]) for step in ended["steps"]] == [("done", "done")] * 2


def test_a_run_keeps_the_version_that_it_started_with(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    run = client.post(f"{PIPELINES}flow/runs/").json()

    client.put(f"{PIPELINES}flow/", {"name": "Flow", "steps": [{"id": "z", "agent_role": "qa"}]})
    engine.drain()

    now = client.get(run["link"]).json()
    assert (now["version"], now["status"], [step["step"] for step in now["steps"]]) == (
        1,
        "completed",
        ["a", "b"],
    )
    assert client.post(f"{PIPELINES}flow/runs/").json()["version"] == 2


def test_with_if_match_only_the_version_that_was_read_starts(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    read = {"If-Match": client.get(f"{PIPELINES}flow/")["ETag"]}
    runs = f"{PIPELINES}flow/runs/"

    assert client.post(runs, {}, headers=read).json()["version"] == 1
    client.put(f"{PIPELINES}flow/", definition(name="Other"))
    problem(client.post(runs, {}, headers=read), 412, "precondition_failed")
    problem(client.post(f"{PIPELINES}missing/runs/", {}, headers=read), 404, "not_found")

    assert len(client.get(RUNS).json()["results"]) == 1


def test_starting_an_unknown_pipeline_is_404_and_a_disabled_one_409(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    with tenant_scope(acme.pk):
        Pipeline.objects.filter(key="flow").update(enabled=False)

    problem(client.post(f"{PIPELINES}none/runs/"), 404, "not_found")
    problem(client.post(f"{PIPELINES}flow/runs/"), 409, "pipeline_disabled")


@in_one_test(
    ("body", "path"),
    [
        ({"params": []}, "params"), ({"priority": 0}, "priority"), ({"priority": "soon"}, "priority"),
        ({"deliverable": "x"}, "deliverable"),
        ({"name": "two\nlines"}, "name"), ({"name": "x" * 201}, "name"), ({"labels": []}, "labels"),
        ({"labels": {"Client": "x"}}, "labels.Client"), ({"labels": {"client": 5}}, "labels.client"),
        ({"input": "text"}, "input"), ({"input": {"txt": "x"}}, "input.txt"), ({"parms": {}}, "parms"),
    ],
)  # fmt: skip
def test_invalid_fields_of_a_start_are_refused_with_their_path(
    api: Any, acme: Tenant, body: Any, path: str
) -> None:
    client = api()
    client.post(PIPELINES, definition())

    assert path in paths(client.post(f"{PIPELINES}flow/runs/", body))


def test_an_impossible_priority_is_reported_with_the_other_errors_of_a_start(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    broken = {"priority": 99, "input": "text", "labels": []}

    assert paths(client.post(f"{PIPELINES}flow/runs/", broken)) == broken.keys()


def test_a_repeated_start_with_its_idempotency_key_starts_one_run(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())

    first, again = (
        client.post(f"{PIPELINES}flow/runs/", {}, headers={"Idempotency-Key": "k"}).json() for _ in range(2)
    )

    assert first == again
    assert len(client.get(RUNS).json()["results"]) == 1


def test_runs_are_listed_newest_first_and_can_be_filtered(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition("one"))
    client.post(PIPELINES, definition("two"))
    done = client.post(f"{PIPELINES}one/runs/").json()["id"]
    engine.drain()
    running = client.post(f"{PIPELINES}two/runs/").json()["id"]

    def ids(**query: Any) -> list[str]:
        return [run["id"] for run in client.get(RUNS, query).json()["results"]]

    assert ids() == [running, done]
    assert ids(pipeline="one") == ids(status="completed") == [done]
    assert ids(status="running") == ids(version="1", pipeline="two") == [running]
    problem(client.get(f"{RUNS}?status=odd"), 400, "validation_failed")
    problem(client.get(f"{RUNS}?colour=red"), 400, "validation_failed")


def test_runs_have_names_and_labels_and_can_be_filtered_by_them(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api()
    client.post(PIPELINES, definition(subject="{{ topic }} for {{ client }}", params={"client": "Acme"}))

    def start(**body: Any) -> Any:
        return client.post(f"{PIPELINES}flow/runs/", body).json()

    bees = start(params={"topic": "Bees"}, labels={"client": "acme", "quarter": "q3"})
    named = start(params={"topic": "Wasps"}, name="All about wasps", labels={"client": "Other: one"})
    plain = start(params={"topic": "Ants"})

    def ids(**query: Any) -> list[str]:
        return [run["id"] for run in client.get(RUNS, query).json()["results"]]

    assert [run["name"] for run in (bees, named, plain)] == [
        "Bees for Acme",
        "All about wasps",
        "Ants for Acme",
    ]
    assert (bees["labels"], plain["labels"]) == ({"client": "acme", "quarter": "q3"}, {})
    assert ids(label="client:acme") == ids(label="quarter") == [bees["id"]]
    assert ids(label="client") == [named["id"], bees["id"]]
    assert ids(label="client:Other: one") == ids(search="ABOUT wasps") == [named["id"]]
    assert ids(label="client:nobody") == ids(search="wasps", label="quarter") == []
    problem(client.get(RUNS, {"search": "x" * 201}), 400, "validation_failed")


def test_a_run_shows_whom_it_waits_for_and_its_cost(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    steps = [{"id": "write", "agent_role": "qa", "requires_approval": True}]
    client.post(PIPELINES, {"key": "flow", "name": "Flow", "steps": steps})
    run = client.post(f"{PIPELINES}flow/runs/").json()
    assert (run["waits_for"], run["cost_usd"]) == (["qa"], "0")
    engine.agent.behaviour = lambda request: Completed(Output("Bees"), Usage(cost_usd=Decimal("0.25")))
    engine.drain()

    (listed,), single = client.get(RUNS).json()["results"], client.get(run["link"]).json()

    for each in (listed, single):
        assert (each["waits_for"], each["cost_usd"]) == (["people: reviewer"], "0.25")


def test_a_replay_keeps_name_and_labels(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    run = client.post(f"{PIPELINES}flow/runs/", {"name": "Bees", "labels": {"client": "acme"}}).json()
    engine.drain()

    again = client.post(f"{run['link']}replay/", {"from_step": "b"}).json()

    assert (again["name"], again["labels"]) == ("Bees", {"client": "acme"})


def test_a_bulk_action_handles_each_run_separately(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api("operator")
    api("admin").post(PIPELINES, definition())

    def start() -> str:
        return str(client.post(f"{PIPELINES}flow/runs/").json()["id"])

    def fail(request: AgentRequest) -> Completed:
        raise PermanentAgentError("no")

    def bulk(action: str, *ids: str) -> Any:
        return client.post(f"{RUNS}bulk/", {"action": action, "ids": list(ids)}).json()

    fine = start()
    engine.drain()
    engine.agent.behaviour = fail
    failed = start()
    engine.drain()
    running, unknown = start(), str(uuid4())

    cancelled = bulk("cancel", running, failed, unknown, running)
    replayed = bulk("replay", failed, fine, unknown)

    assert cancelled["done"] == [{"id": running, "run": running}]
    assert [(skipped["id"], skipped["code"]) for skipped in cancelled["left_alone"]] == [
        (failed, "run_ended"), (unknown, "not_found"),
    ]  # fmt: skip
    (done,) = replayed["done"]
    assert client.get(f"{RUNS}{done['run']}/").json()["replay_of"] == failed == done["id"]
    assert [(skipped["id"], skipped["code"]) for skipped in replayed["left_alone"]] == [
        (fine, "nothing_failed"), (unknown, "not_found"),
    ]  # fmt: skip


@in_one_test(
    ("body", "path"),
    [
        ({"action": "delete", "ids": [str(uuid4())]}, "action"), ({"action": "cancel", "ids": []}, "ids"),
        ({"action": "cancel"}, "ids"), ({"action": "cancel", "ids": ["x"]}, "ids[0]"),
        ({"action": "cancel", "ids": [str(uuid4()) for _ in range(51)]}, "ids"),
    ],
)  # fmt: skip
def test_an_invalid_bulk_action_is_refused_with_its_path(
    api: Any, acme: Tenant, body: Any, path: str
) -> None:
    assert path in paths(api("operator").post(f"{RUNS}bulk/", body))


def test_a_page_of_runs_takes_the_same_number_of_statements_whatever_is_on_it(api: Any, acme: Tenant) -> None:
    client = api()

    def statements() -> int:
        """Return the smallest number of several requests, because one of them refreshes a cache of one second."""
        counts = []
        for _ in range(4):
            with CaptureQueriesContext(connections[APP]) as captured:
                client.get(RUNS)
            counts.append(len(captured))
        return min(counts)

    client.post(PIPELINES, definition("p0"))
    client.post(f"{PIPELINES}p0/runs/")
    few = statements()
    for number in range(1, 6):
        client.post(PIPELINES, definition(f"p{number}"))
        client.post(f"{PIPELINES}p{number}/runs/")

    assert statements() == few <= 8


def test_cancelling_a_run_cancels_its_unfinished_activities(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api("operator")
    api().post(PIPELINES, definition())
    run = client.post(f"{PIPELINES}flow/runs/").json()

    cancelled = client.post(f"{run['link']}cancel/", {"reason": "not needed"})
    again = client.post(f"{run['link']}cancel/")

    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert again.status_code == 200
    activity = client.get(cancelled.json()["steps"][0]["link"]).json()
    assert (activity["status"], activity["cancel_reason"]) == ("cancelled", "not needed")
    engine.drain()
    assert engine.agent.calls == []


def test_an_ended_run_cannot_be_cancelled(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    run = client.post(f"{PIPELINES}flow/runs/").json()
    engine.drain()

    problem(client.post(f"{run['link']}cancel/"), 409, "run_ended")
    problem(client.post(f"{run['link']}cancel/", {"why": 1}), 400, "validation_failed")


def test_cancelling_honours_if_match(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    run = client.post(f"{PIPELINES}flow/runs/").json()
    old_version = client.get(run["link"])["ETag"]
    engine.deliver()

    problem(
        client.post(f"{run['link']}cancel/", {}, headers={"If-Match": old_version}),
        412,
        "precondition_failed",
    )

    now = client.get(run["link"])["ETag"]
    assert client.post(f"{run['link']}cancel/", {}, headers={"If-Match": now}).status_code == 200


def test_the_picture_of_a_run_loads_and_executes_nothing(api: Any, engine: Engine, acme: Tenant) -> None:
    def broken(request: Any) -> Completed:
        raise PermanentAgentError("no")

    engine.agent.behaviour = broken
    client = api()
    client.post(PIPELINES, definition(name="<Flow> & more"))
    run = client.post(f"{PIPELINES}flow/runs/").json()
    engine.drain()

    drawn = api("viewer").get(f"{run['link']}picture/", headers={"Accept": "image/svg+xml"})

    assert (drawn.status_code, drawn["Content-Type"]) == (200, "image/svg+xml")
    assert "default-src 'none'" in drawn["Content-Security-Policy"]
    text = drawn.content.decode()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "First" in text
    assert "Failed" in text
    assert "<script" not in text


def test_a_missing_picture_is_a_problem_even_for_clients_that_accept_pictures_only(
    api: Any, acme: Tenant
) -> None:
    problem(api().get(f"{RUNS}{uuid4()}/picture/", headers={"Accept": "image/svg+xml"}), 404, "not_found")


def test_objects_of_another_tenant_are_not_found(api: Any, acme: Tenant, other_tenant: Tenant) -> None:
    owner, stranger = api(tenant=acme), api(tenant=other_tenant)
    owner.post(PIPELINES, definition())
    owner.post(TEMPLATES, {"key": "write", "name": "Write", "agent_role": "qa"})
    run = owner.post(f"{PIPELINES}flow/runs/").json()

    for address in (f"{PIPELINES}flow/", f"{TEMPLATES}write/", run["link"], f"{run['link']}picture/"):
        problem(stranger.get(address), 404, "not_found")
    problem(stranger.post(f"{PIPELINES}flow/runs/"), 404, "not_found")
    problem(stranger.post(f"{run['link']}cancel/"), 404, "not_found")
    problem(stranger.put(f"{TEMPLATES}write/", {"name": "x"}), 404, "not_found")
    for address in (PIPELINES, TEMPLATES, RUNS):
        assert stranger.get(address).json()["results"] == []
    assert stranger.put(f"{PIPELINES}flow/", definition(name="Theirs")).status_code == 201
    assert owner.get(f"{PIPELINES}flow/").json()["name"] == "Flow"


def test_each_change_of_pipelines_needs_its_role(api: Any, acme: Tenant) -> None:
    def needed(role: str, method: str, address: str) -> str:
        return str(problem(getattr(api(role), method)(address, {}), 403, "forbidden")["required_role"])

    assert needed("operator", "post", PIPELINES) == needed("operator", "put", f"{PIPELINES}flow/") == "admin"
    assert needed("operator", "post", TEMPLATES) == needed("operator", "put", f"{TEMPLATES}x/") == "admin"
    assert (
        needed("reviewer", "post", f"{PIPELINES}flow/runs/")
        == needed("reviewer", "post", f"{RUNS}{uuid4()}/cancel/")
        == "operator"
    )
