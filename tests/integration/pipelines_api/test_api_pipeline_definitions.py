"""Pipelines and templates over the API: created, changed in versions, and refused with every error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from pipelines.expressions import syntax
from pipelines.models import Pipeline, PipelineVersion
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.engine import Engine, simultaneously
from tests.integration.pipelines_api.definitions import EXAMPLE, PIPELINES, TEMPLATES, definition, paths

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_created_pipeline_is_returned_with_its_definition_and_versions(api: Any, acme: Tenant) -> None:
    response = api("admin").post(PIPELINES, definition(description="Two steps", params={"city": "Oslo"}))

    pipeline = response.json()
    assert response.status_code == 201
    assert (pipeline["key"], pipeline["name"], pipeline["version"], pipeline["enabled"]) == (
        "flow",
        "Flow",
        1,
        True,
    )
    assert [(step["id"], step["depends_on"]) for step in pipeline["definition"]["steps"]] == [
        ("a", []),
        ("b", ["a"]),
    ]
    assert [(version["version"], version["created_by"]) for version in pipeline["versions"]] == [
        (1, "token:admin of acme")
    ]
    assert (response["Location"], version_of(response)) == (f"{PIPELINES}flow/", "1")
    assert api("viewer").get(response["Location"]).json() == pipeline
    assert api("viewer").put(response["Location"], definition(name="Newer")).status_code == 403
    changed = api("admin", name="another").put(response["Location"], definition(name="Newer")).json()
    assert (changed["id"], changed["created_by"]) == (pipeline["id"], "token:admin of acme")
    assert UUID(pipeline["id"])


def test_creating_an_existing_pipeline_is_409_and_makes_no_version(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(PIPELINES, definition())

    problem(client.post(PIPELINES, definition(name="Other")), 409, "already_exists")

    assert client.get(f"{PIPELINES}flow/").json()["version"] == 1
    assert client.get(f"{PIPELINES}flow/").json()["name"] == "Flow"


def test_a_definition_may_switch_its_pipeline_off_and_on_for_all_versions(api: Any, acme: Tenant) -> None:
    client = api()

    states = [
        client.put(f"{PIPELINES}flow/", definition(**enabled)).json()["enabled"]
        for enabled in ({"enabled": False}, {}, {"enabled": True}, {"enabled": None})
    ]

    assert states == [False, False, True, True]
    pipeline = client.get(f"{PIPELINES}flow/").json()
    assert "enabled" not in pipeline["definition"]
    assert len({version["digest"] for version in pipeline["versions"]}) == 1
    refused = client.put(f"{PIPELINES}flow/", definition(name="", enabled="no"))
    assert paths(refused, "invalid_definition") == {"name", "enabled"}


def test_a_put_creates_the_pipeline_or_a_new_version(api: Any, acme: Tenant) -> None:
    client = api()

    first = client.put(f"{PIPELINES}flow/", definition())
    second = client.put(f"{PIPELINES}flow/", {"name": "Better", "steps": definition()["steps"][:1]})

    assert (first.status_code, first.json()["version"], version_of(first)) == (201, 1, "1")
    assert (second.status_code, second.json()["version"], version_of(second)) == (200, 2, "2")
    assert [version["version"] for version in second.json()["versions"]] == [2, 1]
    assert (second.json()["name"], len(second.json()["definition"]["steps"])) == ("Better", 1)


def test_a_put_with_another_key_than_its_address_is_refused(api: Any, acme: Tenant) -> None:
    assert paths(api().put(f"{PIPELINES}flow/", definition("other"))) == {"key"}
    assert api().get(f"{PIPELINES}flow/").status_code == 404
    both = api().put(f"{PIPELINES}flow/", definition("other", name=""))
    assert {error["path"] for error in both.json()["errors"]} == {"key", "name"}


@pytest.mark.parametrize("condition", ['"1"', "*", '"7", "1"'])
def test_a_put_on_the_current_version_succeeds(api: Any, acme: Tenant, condition: str) -> None:
    client = api()
    client.post(PIPELINES, definition())

    assert (
        client.put(f"{PIPELINES}flow/", definition(), headers={"If-Match": condition}).json()["version"] == 2
    )


@in_one_test(("key", "condition"), [("flow", '"2"'), ("flow", 'W/"1"'), ("none", '"1"'), ("none", "*")])
def test_a_put_on_another_version_is_412_and_changes_nothing(
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


def test_one_of_several_concurrent_changes_of_a_version_succeeds(api: Any, acme: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(4)]
    clients[0].post(PIPELINES, definition())

    answers = simultaneously(
        *[
            lambda c=client: c.put(f"{PIPELINES}flow/", definition(), headers={"If-Match": '"1"'})
            for client in clients
        ]
    )

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]


@in_one_test(
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
@in_one_test("method", ["post", "put"])
def test_every_error_of_a_definition_is_shown_with_its_path(
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


def test_definitions_are_accepted_as_json_only(api: Any, acme: Tenant) -> None:
    answer = api().generic("PUT", f"{PIPELINES}flow/", EXAMPLE.read_bytes(), content_type="application/yaml")

    assert answer.status_code == 415


def test_pipelines_are_listed_by_key_without_their_definitions(api: Any, acme: Tenant) -> None:
    client = api()
    for key in ("b", "a"):
        client.post(PIPELINES, definition(key))

    rows = client.get(PIPELINES).json()["results"]

    assert [pipeline["key"] for pipeline in rows] == ["a", "b"]
    assert "definition" not in rows[0]
    assert [
        pipeline["key"] for pipeline in client.get(f"{PIPELINES}?search=b&enabled=true").json()["results"]
    ] == ["b"]


def test_a_template_can_be_created_used_and_changed(api: Any, engine: Engine, acme: Tenant) -> None:
    client = api("admin")
    response = client.post(
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
    changed = client.put(response["Location"], {"name": "Write", "agent_role": "dev"})
    run = client.post(f"{PIPELINES}flow/runs/").json()

    assert (response.status_code, response["Location"]) == (201, f"{TEMPLATES}write/")
    assert response.json().keys() == {
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


def test_a_step_with_its_template_must_be_complete_and_all_errors_are_found_at_once(
    api: Any, acme: Tenant
) -> None:
    client = api("admin")
    for key, members in {
        "nobody": {},
        "task": {"human_role": "editor"},
        "gate": {"human_role": "editor", "is_approval_gate": True},
        "item": {"agent_role": "qa", "params": {"item": 1}},
        "approved": {"agent_role": "qa", "requires_approval": True},
    }.items():
        assert client.post(TEMPLATES, {"key": key, "name": key, **members}).status_code == 201
    steps = [
        {"id": "a", "agent_role": "none"},
        {"id": "b", "template": "nobody"},
        {"id": "c", "template": "task", "quorum": 2, "due_seconds": 60, "on_timeout": "approve"},
        {"id": "d", "template": "gate", "agent_role": "qa"},
        {"id": "e", "template": "item", "for_each": "params.list"},
        {"id": "f", "template": "approved", "on_timeout": "approve"},
        {"id": "g", "template": "gate", "params": 1, "depends_on": None},
        {"id": "h", "template": ["gate"]},
        {"id": "i", "template": "no-such"},
        "j",
    ]

    refused = client.post(PIPELINES, {"key": "flow", "name": "Flow", "params": {"list": []}, "steps": steps})

    assert paths(refused, "invalid_definition") == {
        "steps[0].agent_role", "steps[1].agent_role", "steps[2].quorum", "steps[2].on_timeout", "steps[3].is_approval_gate",
        "steps[4].params.item", "steps[5].on_timeout", "steps[6].params", "steps[6].depends_on", "steps[7].template",
        "steps[8].template", "steps[9]",
    }  # fmt: skip


def test_steps_that_are_too_large_with_their_templates_are_refused(api: Any, acme: Tenant) -> None:
    client = api("admin")
    large = {"key": "large", "name": "Large", "agent_role": "qa", "params": {"text": "x" * 100_000}}
    assert client.post(TEMPLATES, large).status_code == 201

    answers = [
        client.put(
            f"{PIPELINES}flow/",
            {"name": "Flow", "steps": [{"id": f"s{n}", "template": "large"} for n in range(count)]},
        )
        for count in (2, 100)
    ]

    assert answers[0].status_code == 201
    (error,) = problem(answers[1], 400, "invalid_definition")["errors"]
    assert (error["path"], "8,388,608 bytes" in error["message"]) == ("steps", True)


def test_a_template_with_an_existing_key_is_409(api: Any, acme: Tenant) -> None:
    client = api()
    client.post(TEMPLATES, {"key": "write", "name": "Write", "agent_role": "qa"})

    problem(
        client.post(TEMPLATES, {"key": "write", "name": "Else", "agent_role": "qa"}), 409, "already_exists"
    )


def test_the_body_of_a_change_may_contain_the_key_of_the_address(api: Any, acme: Tenant) -> None:
    client = api("admin")
    body = {"key": "write", "name": "Write", "agent_role": "qa"}
    client.post(TEMPLATES, body)

    for key in ("write", None):
        changed = client.put(f"{TEMPLATES}write/", {**body, "key": key, "name": "Better"})
        assert (changed.status_code, changed.json()["name"]) == (200, "Better"), changed.content
    refused = client.put(f"{TEMPLATES}write/", {**body, "key": "read", "name": ""})
    assert paths(refused) == {"key", "name"}
    assert client.put(f"{PIPELINES}brief/", {**definition(), "key": None}).status_code == 201


def test_a_template_with_an_old_version_is_not_replaced(api: Any, acme: Tenant) -> None:
    client = api()
    old_version = client.post(TEMPLATES, {"key": "write", "name": "Write", "agent_role": "qa"})["ETag"]
    changed = client.put(
        f"{TEMPLATES}write/", {"name": "Better", "agent_role": "qa"}, headers={"If-Match": old_version}
    )

    assert changed.status_code == 200
    problem(
        client.put(f"{TEMPLATES}write/", {"name": "Worse"}, headers={"If-Match": old_version}),
        412,
        "precondition_failed",
    )
    assert client.get(f"{TEMPLATES}write/")["ETag"] == changed["ETag"]


@in_one_test(
    ("body", "path"),
    [
        ({"name": ""}, "name"), ({"key": "No Key"}, "key"), ({"key": None}, "key"), ({"agent_role": "none"}, "agent_role"),
        ({"agent_role": "qa", "human_role": "editor"}, "human_role"), ({"agent_role": "qa", "is_approval_gate": True}, "is_approval_gate"),
        ({"human_role": "editor", "requires_approval": True}, "requires_approval"), ({"params": 1}, "params"),
        ({"retry": {"max_attempts": 99}}, "retry.max_attempts"), ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"colour": "red"}, "colour"),
    ],
)  # fmt: skip
def test_an_invalid_template_is_refused_with_its_path(api: Any, acme: Tenant, body: Any, path: str) -> None:
    assert path in paths(api().post(TEMPLATES, {"key": "write", "name": "Write", **body}))


def test_conditions_that_are_too_long_together_are_refused_before_parsing(
    api: Any, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_to_parse(text: str) -> Any:
        raise AssertionError(f"parsed: {text}")

    monkeypatch.setattr(syntax, "_parser", lambda: SimpleNamespace(parse=refuse_to_parse))
    steps = [
        {
            "id": f"s{number}",
            "agent_role": "qa",
            "when": f'params.a{number} == "x" and len(params.b) > {number}',
        }
        for number in range(1_500)
    ]

    refused = api("admin").put(f"{PIPELINES}flow/", {"name": "Heavy", "steps": steps})

    (fault,) = problem(refused, 400, "invalid_definition")["errors"]
    assert fault["path"] == "steps"
    assert "22,500 tokens" in fault["message"]


def test_each_distinct_condition_is_parsed_once_and_outside_a_transaction(
    api: Any, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser, parsed = syntax._parser(), list[tuple[str, bool]]()

    def note(text: str) -> Any:
        parsed.append((text, connections[APP].in_atomic_block))
        return parser.parse(text)

    monkeypatch.setattr(syntax, "_parser", lambda: SimpleNamespace(parse=note))
    texts = [f"params.once_{number} == {number}" for number in range(150)]
    steps = [{"id": f"s{number}", "agent_role": "qa", "when": texts[number % 150]} for number in range(1_500)]

    response = api("admin").put(f"{PIPELINES}flow/", {"name": "Many", "steps": steps})

    assert response.status_code == 201
    assert sorted(parsed) == sorted((text, False) for text in texts)
