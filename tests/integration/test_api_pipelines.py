"""Templates, pipelines and runs over the API, and from a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test.utils import CaptureQueriesContext

from agents.contracts import Completed
from agents.exceptions import PermanentAgentError
from pipelines.models import Pipeline, PipelineRun, PipelineVersion
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.integration.test_api_door import problem

pytestmark = pytest.mark.usefixtures("one_at_a_time")

TEMPLATES, PIPELINES, RUNS = "/api/v1/templates/", "/api/v1/pipelines/", "/api/v1/pipeline-runs/"
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines" / "content-brief.yaml"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant


def definition(key: str = "flow", **members: Any) -> dict[str, Any]:
    steps = [{"id": "a", "agent_role": "qa", "name": "First"}, {"id": "b", "agent_role": "qa"}]
    return {"key": key, "name": "Flow", "steps": steps, **members}


def paths(response: Any, code: str = "validation_failed") -> set[str]:
    return {fault["path"] for fault in problem(response, 400, code)["errors"]}


# Pipelines


def test_a_pipeline_is_made_and_shown_with_its_definition_and_versions(api: Any, acme: Tenant) -> None:
    made = api("admin").post(PIPELINES, definition(description="Two steps", params={"city": "Oslo"}))

    shown = made.json()
    assert made.status_code == 201
    assert (shown["key"], shown["name"], shown["version"], shown["enabled"]) == ("flow", "Flow", 1, True)
    assert [(step["id"], step["depends_on"]) for step in shown["definition"]["steps"]] == [
        ("a", []),
        ("b", ["a"]),
    ]
    assert [(version["version"], version["created_by"]) for version in shown["versions"]] == [
        (1, "token:admin of acme")
    ]
    assert (made["Location"], made["ETag"]) == (f"{PIPELINES}flow/", '"1"')
    assert api("viewer").get(made["Location"]).json() == shown


def test_making_the_same_pipeline_twice_is_409_and_makes_no_version(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())

    problem(client.post(PIPELINES, definition(name="Other")), 409, "already_exists")

    assert client.get(f"{PIPELINES}flow/").json()["version"] == 1
    assert client.get(f"{PIPELINES}flow/").json()["name"] == "Flow"


def test_a_put_makes_a_new_version_and_the_first_one_makes_the_pipeline(api: Any, acme: Tenant) -> None:
    client = api()

    first = client.put(f"{PIPELINES}flow/", definition())
    second = client.put(f"{PIPELINES}flow/", {"name": "Better", "steps": definition()["steps"][:1]})

    assert (first.status_code, first.json()["version"], first["ETag"]) == (201, 1, '"1"')
    assert (second.status_code, second.json()["version"], second["ETag"]) == (200, 2, '"2"')
    assert [version["version"] for version in second.json()["versions"]] == [2, 1]
    assert (second.json()["name"], len(second.json()["definition"]["steps"])) == ("Better", 1)


def test_a_put_with_another_key_than_its_address_is_refused(api: Any, acme: Tenant) -> None:
    assert paths(api().put(f"{PIPELINES}flow/", definition("other"))) == {"key"}


@pytest.mark.parametrize("condition", ['"1"', "*", '"7", "1"'])
def test_a_put_on_the_version_that_was_read_is_made(api: Any, acme: Tenant, condition: str) -> None:
    client = api()
    client.post(PIPELINES, definition())

    assert (
        client.put(f"{PIPELINES}flow/", definition(), headers={"If-Match": condition}).json()["version"] == 2
    )


@pytest.mark.parametrize(
    ("key", "condition"), [("flow", '"2"'), ("flow", 'W/"1"'), ("none", '"1"'), ("none", "*")]
)
def test_a_put_on_anything_else_is_412_and_makes_nothing(
    api: Any, acme: Tenant, key: str, condition: str
) -> None:
    client = api()
    client.post(PIPELINES, definition())

    problem(
        client.put(f"{PIPELINES}{key}/", definition(key), headers={"If-Match": condition}),
        412,
        "precondition_failed",
    )

    with tenant_scope(acme.pk):
        assert PipelineVersion.objects.count() == 1


def test_of_several_who_change_the_same_version_at_once_one_wins(api: Any, acme: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(4)]
    clients[0].post(PIPELINES, definition())

    answers = at_once(
        *[
            lambda c=client: c.put(f"{PIPELINES}flow/", definition(), headers={"If-Match": '"1"'})
            for client in clients
        ]
    )

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ({"steps": []}, "steps"), ({"steps": "a"}, "steps"), ({"name": ""}, "name"), ({"key": "Not A Key"}, "key"),
        ({"colour": 1}, "colour"),
        ({"steps": [{"id": "a", "agent_role": "no-such"}]}, "steps[0].agent_role"),
        ({"steps": [{"id": "a", "template": "no-such"}]}, "steps[0].template"),
        ({"steps": [{"id": "a", "agent_role": "qa", "depends_on": ["z"]}]}, "steps[0].depends_on[0]"),
        ({"steps": [{"id": "a", "agent_role": "qa", "depends_on": ["b"]}, {"id": "b", "agent_role": "qa"}]}, "steps[0].depends_on"),
        ({"steps": [{"id": "a", "agent_role": "qa", "when": "1 <"}]}, "steps[0].when"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["post", "put"])
def test_every_fault_of_a_definition_is_named_by_its_path(
    api: Any, acme: Tenant, method: str, broken: Any, path: str
) -> None:
    client, body = api(), definition(**broken)
    address = PIPELINES if method == "post" else f"{PIPELINES}{body['key']}/".replace(" ", "%20")

    assert path in paths(getattr(client, method)(address, body), "invalid_definition")
    with tenant_scope(acme.pk):
        assert not Pipeline.objects.filter().exists()


def test_a_repeated_key_in_a_definition_is_refused(api: Any, acme: Tenant) -> None:
    raw = b'{"key": "flow", "name": "a", "name": "b", "steps": [{"id": "a", "agent_role": "qa"}]}'

    problem(api().generic("POST", PIPELINES, raw, content_type="application/json"), 400, "invalid_json")


def test_definitions_come_as_json_alone(api: Any, acme: Tenant) -> None:
    answer = api().generic("PUT", f"{PIPELINES}flow/", EXAMPLE.read_bytes(), content_type="application/yaml")

    assert answer.status_code == 415


def test_pipelines_are_listed_by_key_without_their_definitions(api: Any, acme: Tenant) -> None:
    client = api()
    for key in ("b", "a"):
        client.post(PIPELINES, definition(key))

    found = client.get(PIPELINES).json()["results"]

    assert [pipeline["key"] for pipeline in found] == ["a", "b"]
    assert "definition" not in found[0]
    assert [
        pipeline["key"] for pipeline in client.get(f"{PIPELINES}?search=b&enabled=true").json()["results"]
    ] == ["b"]


# Runs


def test_a_started_run_is_shown_with_its_steps(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api("operator")
    api("admin").post(PIPELINES, definition(params={"city": "Oslo"}))
    given = {
        "params": {"topic": "bees"},
        "priority": "gated",
        "input": {"content": "begin"},
        "deliverable": str(uuid4()),
    }

    started = client.post(f"{PIPELINES}flow/runs/", given)

    run = started.json()
    assert started.status_code == 201
    assert started["Location"] == f"{RUNS}{run['id']}/"
    assert (run["pipeline"], run["version"], run["status"], run["priority"]) == ("flow", 1, "running", 5)
    assert (run["params"], run["deliverable"]) == ({"city": "Oslo", "topic": "bees"}, given["deliverable"])
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


def test_a_run_keeps_the_version_that_it_began_with(api: Any, engine: Engine, acme: Tenant) -> None:
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


def test_starting_what_is_not_there_is_404_and_what_is_switched_off_409(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())
    with tenant_scope(acme.pk):
        Pipeline.objects.filter(key="flow").update(enabled=False)

    problem(client.post(f"{PIPELINES}none/runs/"), 404, "not_found")
    problem(client.post(f"{PIPELINES}flow/runs/"), 409, "pipeline_disabled")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"params": []}, "params"), ({"priority": 0}, "priority"), ({"priority": "soon"}, "priority"),
        ({"deliverable": "x"}, "deliverable"),
        ({"input": "text"}, "input"), ({"input": {"txt": "x"}}, "input.txt"), ({"parms": {}}, "parms"),
    ],
)  # fmt: skip
def test_what_a_run_may_not_be_given_is_named_by_its_path(
    api: Any, acme: Tenant, body: Any, path: str
) -> None:
    client = api()
    client.post(PIPELINES, definition())

    assert path in paths(client.post(f"{PIPELINES}flow/runs/", body))


def test_a_repeated_start_under_one_idempotency_key_starts_one_run(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())

    first, again = (
        client.post(f"{PIPELINES}flow/runs/", {}, headers={"Idempotency-Key": "k"}).json() for _ in range(2)
    )

    assert first == again
    assert len(client.get(RUNS).json()["results"]) == 1


def test_runs_are_listed_newest_first_and_narrowed_as_asked(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition("one"))
    client.post(PIPELINES, definition("two"))
    done = client.post(f"{PIPELINES}one/runs/").json()["id"]
    engine.drain()
    going = client.post(f"{PIPELINES}two/runs/").json()["id"]

    def found(**query: Any) -> list[str]:
        return [run["id"] for run in client.get(RUNS, query).json()["results"]]

    assert found() == [going, done]
    assert found(pipeline="one") == found(status="completed") == [done]
    assert found(status="running") == found(version="1", pipeline="two") == [going]
    problem(client.get(f"{RUNS}?status=odd"), 400, "validation_failed")
    problem(client.get(f"{RUNS}?colour=red"), 400, "validation_failed")


def test_a_page_of_runs_costs_the_same_whatever_is_on_it(api: Any, acme: Tenant) -> None:
    client = api()

    def statements() -> int:
        with CaptureQueriesContext(connections[APP]) as captured:
            client.get(RUNS)
        return len(captured)

    client.post(PIPELINES, definition("p0"))
    client.post(f"{PIPELINES}p0/runs/")
    statements()
    few = statements()
    for number in range(1, 6):
        client.post(PIPELINES, definition(f"p{number}"))
        client.post(f"{PIPELINES}p{number}/runs/")

    assert statements() == few <= 6


def test_a_cancelled_run_is_cancelled_with_all_that_is_under_way(
    api: Any, engine: Engine, acme: Tenant
) -> None:
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


def test_what_has_ended_is_not_cancelled(api: Any, engine: Engine, acme: Tenant) -> None:
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
    seen = client.get(run["link"])["ETag"]
    engine.deliver()

    problem(client.post(f"{run['link']}cancel/", {}, headers={"If-Match": seen}), 412, "precondition_failed")

    now = client.get(run["link"])["ETag"]
    assert client.post(f"{run['link']}cancel/", {}, headers={"If-Match": now}).status_code == 200


def test_a_run_is_drawn_as_a_picture_that_fetches_and_runs_nothing(
    api: Any, engine: Engine, acme: Tenant
) -> None:
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


def test_a_picture_that_there_is_not_is_a_problem_even_to_who_accepts_pictures_alone(
    api: Any, acme: Tenant
) -> None:
    problem(api().get(f"{RUNS}{uuid4()}/picture/", headers={"Accept": "image/svg+xml"}), 404, "not_found")


# Templates


def test_a_template_is_made_used_and_changed(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api("admin")
    made = client.post(
        TEMPLATES,
        {
            "key": "write",
            "name": "Write",
            "agent_role": "qa",
            "description": "Well.",
            "params": {"tone": "dry"},
        },
    )
    client.post(PIPELINES, {"key": "flow", "name": "Flow", "steps": [{"id": "a", "template": "write"}]})
    changed = client.put(made["Location"], {"name": "Write", "agent_role": "dev"})
    run = client.post(f"{PIPELINES}flow/runs/").json()

    assert (made.status_code, made["Location"]) == (201, f"{TEMPLATES}write/")
    assert made.json().keys() == {
        "key", "name", "description", "agent_role", "human_role", "requires_approval", "is_approval_gate", "params", "retry",
        "timeout_seconds", "created_at",
    }  # fmt: skip
    assert (changed.status_code, changed.json()["agent_role"], changed.json()["params"]) == (200, "dev", {})
    activity = client.get(run["steps"][0]["link"]).json()
    assert (activity["agent_role"], activity["description"], activity["params"]) == (
        "qa",
        "Well.",
        {"tone": "dry"},
    )
    assert [template["key"] for template in api("viewer").get(TEMPLATES).json()["results"]] == ["write"]


def test_a_template_of_a_key_that_is_taken_is_409(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(TEMPLATES, {"key": "write", "name": "Write", "agent_role": "qa"})

    problem(
        client.post(TEMPLATES, {"key": "write", "name": "Else", "agent_role": "qa"}), 409, "already_exists"
    )


def test_a_template_that_has_changed_since_it_was_read_is_not_replaced(api: Any, acme: Tenant) -> None:
    client = api()
    seen = client.post(TEMPLATES, {"key": "write", "name": "Write", "agent_role": "qa"})["ETag"]
    now = client.put(f"{TEMPLATES}write/", {"name": "Better", "agent_role": "qa"}, headers={"If-Match": seen})

    assert now.status_code == 200
    problem(
        client.put(f"{TEMPLATES}write/", {"name": "Worse"}, headers={"If-Match": seen}),
        412,
        "precondition_failed",
    )
    assert client.get(f"{TEMPLATES}write/")["ETag"] == now["ETag"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": ""}, "name"), ({"key": "No Key"}, "key"), ({"key": None}, "key"), ({"agent_role": "none"}, "agent_role"),
        ({"agent_role": "qa", "human_role": "editor"}, "human_role"), ({"agent_role": "qa", "is_approval_gate": True}, "is_approval_gate"),
        ({"human_role": "editor", "requires_approval": True}, "requires_approval"), ({"params": 1}, "params"),
        ({"retry": {"max_attempts": 99}}, "retry.max_attempts"), ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"colour": "red"}, "colour"),
    ],
)  # fmt: skip
def test_a_template_that_could_not_work_is_refused_by_path(
    api: Any, acme: Tenant, body: Any, path: str
) -> None:
    assert path in paths(api().post(TEMPLATES, {"key": "write", "name": "Write", **body}))


# Tenants and rights


def test_what_belongs_to_another_tenant_is_not_there(api: Any, acme: Tenant, other_tenant: Tenant) -> None:
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


def test_each_change_needs_its_role(api: Any, acme: Tenant) -> None:
    def needed(role: str, method: str, address: str) -> str:
        return str(problem(getattr(api(role), method)(address, {}), 403, "forbidden")["required_role"])

    assert needed("operator", "post", PIPELINES) == needed("operator", "put", f"{PIPELINES}flow/") == "admin"
    assert needed("operator", "post", TEMPLATES) == needed("operator", "put", f"{TEMPLATES}x/") == "admin"
    assert (
        needed("reviewer", "post", f"{PIPELINES}flow/runs/")
        == needed("reviewer", "post", f"{RUNS}{uuid4()}/cancel/")
        == "operator"
    )


# From a file


def load(*arguments: str) -> str:
    out = io.StringIO()
    call_command("load_pipeline", *arguments, stdout=out)
    return out.getvalue()


def test_a_pipeline_file_is_loaded_as_a_new_version(acme: Tenant) -> None:
    assert load(str(EXAMPLE), "--tenant", "acme") == "pipeline content-brief version 1\n"
    assert load(str(EXAMPLE)) == "pipeline content-brief version 2\n"
    with tenant_scope(acme.pk):
        assert set(PipelineVersion.objects.values_list("created_by", flat=True)) == {"command:load_pipeline"}


def test_with_several_tenants_one_must_be_named(acme: Tenant, other_tenant: Tenant) -> None:
    with pytest.raises(CommandError, match="acme, globex"):
        load(str(EXAMPLE))
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        load(str(EXAMPLE), "--tenant", "nobody")
    assert load(str(EXAMPLE), "--tenant", "globex").startswith("pipeline content-brief")


def test_every_fault_of_a_file_has_a_line_of_its_own(acme: Tenant, tmp_path: Path) -> None:
    file, complaints = tmp_path / "broken.yaml", io.StringIO()
    file.write_text(
        "key: flow\nname: Flow\nsteps:\n  - id: a\n    agent_role: none\n  - id: a\n    agent_role: qa\n    colour: red\n"
    )

    with pytest.raises(SystemExit) as ended:
        call_command("load_pipeline", str(file), stderr=complaints)

    assert ended.value.code == 1
    assert [line.partition(":")[0] for line in complaints.getvalue().splitlines()] == [
        "steps[0].agent_role",
        "steps[1].colour",
        "steps[1].id",
    ]
    with tenant_scope(acme.pk):
        assert not PipelineRun.objects.filter().exists()


@pytest.mark.parametrize(("content", "complaint"), [(None, "cannot be read"), (b"\xff\xfe\xff", "not UTF-8")])
def test_a_file_that_cannot_be_read_is_named(
    acme: Tenant, tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "flow.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(CommandError, match=complaint):
        load(str(file))


def test_a_file_that_is_no_yaml_says_where(acme: Tenant, tmp_path: Path) -> None:
    file, complaints = tmp_path / "flow.yaml", io.StringIO()
    file.write_text("key: [")

    with pytest.raises(SystemExit):
        call_command("load_pipeline", str(file), stderr=complaints)

    assert "line 2" in complaints.getvalue()
