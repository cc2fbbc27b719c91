"""The OpenAPI schema of the whole API is complete, valid and true, and its pages need no network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema_rs
import pytest
from drf_spectacular import validation
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.renderers import OpenApiJsonRenderer
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from rest_framework.test import APIClient

from activities.models import BulkJob
from orchestrator import api_document
from pipelines.models import ScheduleExecution
from pipelines.schedules import editing
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.models.events import WebhookEndpoint
from tests import servers
from tests.answers import problem
from tests.engine import Engine
from tests.integration.permission_table import permissions
from tests.tickers import body

pytestmark = pytest.mark.usefixtures("database")

DOCUMENT = "urn:openapi"
PROBLEM = "application/problem+json"
CALLBACKS = "/api/v1/agent-runs/"


@cache
def schema() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(servers.made_once("openapi.json", _document))
    return document


def _document() -> str:
    """Generate the schema. `manage.py spectacular` is slower, because it reads all sources to name the line of each warning."""
    GENERATOR_STATS.reset()
    api_document._generate.cache_clear()
    document = api_document._render_as.__wrapped__(OpenApiJsonRenderer.media_type)
    assert not GENERATOR_STATS
    return document.decode()


@cache
def parts() -> Registry[Any]:
    """Return the registry that resolves references in the schema, built once."""
    return Registry().with_resource(DOCUMENT, Resource(schema(), DRAFT202012)).crawl()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for address, methods in schema()["paths"].items():
        for method, operation in methods.items():
            yield method, address, operation


def with_unknown_ids(address: str) -> str:
    """Return the address with ids that do not exist."""
    kinds = {"role": "qa", "agent_role": "qa", "key": "flow", "tool": "report_blocker"}
    return re.sub(r"\{(\w+)\}", lambda match: kinds.get(match[1], str(uuid4())), address)


def errors_of(answer: Any, address: str, method: str = "get") -> list[str]:
    """Return how the answer differs from the schema of this operation."""
    promised = schema()["paths"][address][method]["responses"][str(answer.status_code)]["content"]
    kind = answer["Content-Type"].partition(";")[0]
    resolved = _absolute(promised[kind]["schema"])
    return [
        error.message for error in Draft202012Validator(resolved, registry=parts()).iter_errors(answer.json())
    ]


def _absolute(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: f"{DOCUMENT}{value}" if key == "$ref" else _absolute(value) for key, value in part.items()
        }
    return [_absolute(item) for item in part] if isinstance(part, list) else part


def test_the_schema_is_valid_and_made_without_a_warning() -> None:
    """Check the same as `manage.py spectacular --validate`, with a validator that takes a hundredth of the time."""
    rules = json.loads((Path(validation.__file__).parent / "openapi_3_1_schema.json").read_text())

    errors = list(jsonschema_rs.validator_for(rules).iter_errors(schema()))

    assert [(error.message, error.instance_path) for error in errors] == []
    assert schema()["openapi"].startswith("3.1")
    assert len(list(operations())) > 40


def test_every_operation_documents_its_purpose_answers_and_errors() -> None:
    for method, address, operation in operations():
        assert operation["summary"], (method, address)
        assert operation["tags"], (method, address)
        refusals = {
            status
            for status, answer in operation["responses"].items()
            if PROBLEM in answer.get("content", {})
        }
        assert {"401", "403", "429"} <= refusals, (method, address)
        assert any(status.startswith("2") for status in operation["responses"]), (method, address)
        if "{" in address and (method, address) != ("put", "/api/v1/pipelines/{key}/"):
            assert "404" in refusals, (method, address)


def test_every_post_of_people_and_programs_takes_an_idempotency_key() -> None:
    without = {
        address
        for method, address, operation in operations()
        if method == "post"
        and "Idempotency-Key" not in {parameter["name"] for parameter in operation.get("parameters", ())}
    }

    assert {address for address in without if not address.startswith(CALLBACKS)} == set()


def test_operation_names_are_unique() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]

    assert len(names) == len(set(names))


def test_every_operation_needs_a_credential(tenant: Tenant) -> None:
    client = APIClient()

    for method, address, _ in operations():
        problem(getattr(client, method)(with_unknown_ids(address)), 401, "not_authenticated")


def test_every_missing_object_is_a_404_without_details(api: Any, tenant: Tenant, engine: Engine) -> None:
    client = api("admin")

    for method, address, operation in operations():
        if (
            method == "get"
            and re.search(r"\{(id|activity_id|run_id|key)\}", address)
            and not address.startswith(CALLBACKS)
        ):
            body = problem(client.get(with_unknown_ids(address)), 404, "not_found")
            assert body["detail"] == "Not found.", operation["operationId"]


def an_execution(tenant: Tenant) -> ScheduleExecution:
    schedule = editing.create(tenant.pk, body(), actor="test")
    with tenant_scope(tenant.pk):
        return ScheduleExecution.objects.create(
            tenant=tenant, schedule=schedule, schedule_name=schedule.name, definition={}
        )


def test_every_list_has_links_and_respects_limit(api: Any, tenant: Tenant, engine: Engine) -> None:
    viewer, admin = api("viewer"), api("admin")
    activity = api().post("/api/v1/activities/", {"name": "x", "agent_role": "qa"}).json()["id"]
    execution = an_execution(tenant)
    with tenant_scope(tenant.pk):
        webhook = WebhookEndpoint.objects.create(tenant=tenant, url="https://example.com/")
        job = BulkJob.objects.create(tenant=tenant, action="cancel", created_by="test")
    api().post("/api/v1/datasets/", {"name": "ticker", "fields": {"id": "string"}, "rows": [{"id": "AAPL"}]})
    api().post("/api/v1/mailboxes/box/items/", {"kind": "message", "text": "x"})
    lists = [
        (address, operation)
        for method, address, operation in operations()
        if method == "get" and operation["operationId"].endswith("_list")
    ]

    assert len(lists) >= 11
    for address, _ in lists:
        path_of = (
            address.replace("{activity_id}", activity)
            .replace("{agent_role}", "qa")
            .replace("{name}", "ticker")
            .replace("{key}", "box")
        )
        path_of = path_of.replace("{schedule_id}", str(execution.schedule_id))
        path_of = path_of.replace("{job_id}", str(job.pk))
        path_of = path_of.replace("{execution_id}", str(execution.pk)).replace(
            "{webhook_id}", str(webhook.pk)
        )
        client = viewer if permissions()["GET", address.removeprefix("/api/v1")] == "viewer" else admin
        page = client.get(f"{path_of}?limit=1")
        assert page.json().keys() == {"next", "previous", "results"}, address
        assert len(page.json()["results"]) <= 1, address
        assert errors_of(page, address) == [], address
        problem(client.get(f"{path_of}?no_such_filter=1"), 400, "validation_failed")


def test_answers_match_the_schema(api: Any, tenant: Tenant, engine: Engine) -> None:
    engine.serve(tenant)
    client = api("admin")
    client.post("/api/v1/templates/", {"key": "t", "name": "T", "agent_role": "qa"})
    created = client.post(
        "/api/v1/pipelines/",
        {"key": "p", "name": "P", "steps": [{"id": "a", "agent_role": "qa", "requires_approval": True}]},
    )
    run = client.post("/api/v1/pipelines/p/runs/")
    engine.drain()
    activity = run.json()["steps"][0]["activity"]
    gate = client.get("/api/v1/inbox/").json()["results"][0]["id"]
    base = {"id": activity, "activity_id": activity, "key": "p", "role": "qa"}

    def address_of(address: str, **ids: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: {**base, **ids}[match[1]], address)

    answers = [
        (created, "/api/v1/pipelines/", "post"), (run, "/api/v1/pipelines/{key}/runs/", "post"),
        *((client.get(address_of(address)), address, "get") for address in (
            "/api/v1/activities/{id}/", "/api/v1/activities/{activity_id}/output/", "/api/v1/activities/{activity_id}/runs/",
            "/api/v1/activities/{activity_id}/timeline/", "/api/v1/activities/{activity_id}/why/", "/api/v1/inbox/", "/api/v1/queues/",
            "/api/v1/workers/", "/api/v1/agents/", "/api/v1/agents/{role}/", "/api/v1/agent-configs/", "/api/v1/agent-configs/{role}/",
            "/api/v1/pipelines/", "/api/v1/pipelines/{key}/", "/api/v1/pipeline-runs/", "/api/v1/templates/",
        )),
        (client.get(address_of("/api/v1/pipeline-runs/{id}/", id=run.json()["id"])), "/api/v1/pipeline-runs/{id}/", "get"),
        (client.post("/api/v1/datasets/", {"name": "t", "fields": {"id": "string"}, "rows": [{"id": "x"}]}), "/api/v1/datasets/", "post"),
        (client.get("/api/v1/datasets/t/"), "/api/v1/datasets/{name}/", "get"),
        (client.get("/api/v1/datasets/t/rows/"), "/api/v1/datasets/{name}/rows/", "get"),
        (client.post("/api/v1/datasets/t/rows/", {"rows": [{"id": "y"}]}), "/api/v1/datasets/{name}/rows/", "post"),
        (client.get("/api/v1/templates/t/"), "/api/v1/templates/{key}/", "get"),
        (client.post("/api/v1/inbox/decide/", {"items": [{"id": gate, "decision": "approved"}] * 2}), "/api/v1/inbox/decide/", "post"),
        (client.post(address_of("/api/v1/activities/{id}/approve/")), "/api/v1/activities/{id}/approve/", "post"),
        (client.post("/api/v1/activities/", {}), "/api/v1/activities/", "post"),
        (client.post("/api/v1/activities/", {"name": "x", "agent_role": "qa"}), "/api/v1/activities/", "post"),
        (client.post("/api/v1/activities/", [{"name": "x", "agent_role": "qa"}]), "/api/v1/activities/", "post"),
        (client.post("/api/v1/queues/qa/pause/"), "/api/v1/queues/{role}/pause/", "post"),
        (client.put("/api/v1/agent-configs/qa/", {"auth": {"type": "bearer", "token": "t"}}), "/api/v1/agent-configs/{role}/", "put"),
    ]  # fmt: skip

    assert {
        (address, method): errors_of(answer, address, method)
        for answer, address, method in answers
        if errors_of(answer, address, method)
    } == {}


def test_the_schema_and_its_page_are_public_and_need_no_other_host(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_document, "_generate", schema)  # takes a second
    client = APIClient()

    document, page = client.get("/api/v1/schema/"), client.get("/api/v1/docs/")
    script = client.get("/api/v1/docs/?script")

    policy = page["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "<style" not in page.content.decode()
    assert re.findall(r"<script(?! src=)", page.content.decode()) == []
    assert document.status_code == page.status_code == script.status_code == 200
    assert b"Submit one activity" in document.content
    assert client.get("/api/v1/schema/?format=json").json()["info"]["title"] == "Orchestrator API"
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.content.decode())
    assert sources
    assert not [source for source in sources if source.startswith(("http:", "https:", "//"))]
    style = client.get(next(source for source in sources if source.endswith(".css")))
    assert b".swagger-ui" in b"".join(style.streaming_content)
    style.close()
    assert client.get("/api/v1/docs/redoc/").status_code == 404


def test_the_schema_is_built_once_however_often_it_is_requested(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("_generate", "_render_as"):
        monkeypatch.setattr(api_document, function, cache(getattr(api_document, function).__wrapped__))
    documents = []

    class Generator:
        def get_schema(self, **options: Any) -> Any:
            documents.append(options)
            return schema()

    monkeypatch.setattr(api_document.SchemaView, "generator_class", Generator)

    answers = [
        APIClient().get("/api/v1/schema/", {"format": "json", "lang": word}) for word in ("en", "de", "")
    ]
    as_yaml = APIClient().get("/api/v1/schema/")

    assert len(documents) == 1
    assert b"Submit one activity" in as_yaml.content
    assert answers[0].json() == answers[2].json() == schema()


def test_an_unknown_address_reads_like_a_missing_object(tenant: Tenant) -> None:
    problem(APIClient().get("/api/v1/no-such-thing/"), 404, "not_found")
    problem(APIClient().post("/api/v1/activities"), 404, "not_found")
