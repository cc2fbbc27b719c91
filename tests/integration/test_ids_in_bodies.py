"""Ids in bodies must belong to the tenant; ids of another tenant get the same answer as unknown ones."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from pipelines import versions
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine

API = "/api/v1/"
ACTIVITY = {"name": "x", "agent_role": "qa"}
BUDGET = {"name": "x", "cap": 1}


@pytest.fixture(autouse=True)
def both_tenants(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> None:
    for each in (tenant, other_tenant):
        engine.serve(each)
        definition = {"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]}
        versions.save(each.pk, definition, actor="test")


def create_deliverable(client: Any) -> str:
    answer = client.post(f"{API}deliverables/", {"key": "blog", "name": "Blog", "pipelines": ["flow"]})
    assert answer.status_code == 201, answer.json()
    return str(answer.json()["id"])


def create_activity(client: Any) -> str:
    return str(client.post(f"{API}activities/", ACTIVITY).json()["id"])


def pipeline_of(client: Any) -> str:
    return str(client.get(f"{API}pipelines/flow/").json()["id"])


CASES = {
    "budget of an activity": (create_activity, "post", "budgets/", lambda pk: {**BUDGET, "activity": pk}, "activity"),
    "grant": (create_deliverable, "put", "agent-configs/qa/", lambda pk: {"may_hold": {"deliverables": [pk]}}, "may_hold.deliverables[0]"),
    "grant of a pipeline": (
        pipeline_of, "put", "agent-configs/qa/", lambda pk: {"may_hold": {"pipelines": [pk]}}, "may_hold.pipelines[0]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_unknown_ids_and_ids_of_another_tenant_are_refused_with_the_same_error(
    api: Any, tenant: Tenant, other_tenant: Tenant, case: str
) -> None:
    make, method, address, body, path = CASES[case]
    client, foreign = api("admin"), make(api("admin", tenant=other_tenant))

    def send(identifier: str) -> Any:
        return getattr(client, method)(f"{API}{address}", body(identifier), format="json")

    answers = [problem(send(identifier), 400, "validation_failed") for identifier in (str(uuid4()), foreign)]

    assert answers[0]["errors"] == answers[1]["errors"]
    assert [fault["path"] for fault in answers[0]["errors"]] == [path]
    assert "of this tenant" in answers[0]["errors"][0]["message"]
    assert send(make(client)).status_code in (200, 201)


def test_a_grant_with_a_deleted_deliverable_can_be_saved_again_but_not_added(
    api: Any, tenant: Tenant
) -> None:
    client = api("admin")
    pk = create_deliverable(client)
    body = {"may_hold": {"deliverables": [pk]}}
    assert client.put(f"{API}agent-configs/qa/", body).status_code == 200
    assert client.delete(f"{API}deliverables/{pk}/").status_code == 204

    assert client.put(f"{API}agent-configs/qa/", {**body, "max_concurrency": 3}).status_code == 200
    problem(
        client.put(f"{API}agent-configs/dev/", {"may_hold": {"deliverables": [pk]}}), 400, "validation_failed"
    )


def test_a_budget_of_a_deleted_deliverable_can_be_changed(api: Any, tenant: Tenant) -> None:
    client = api("admin")
    pk = create_deliverable(client)
    budget = client.post(f"{API}budgets/", {**BUDGET, "deliverable": pk}).json()
    assert client.delete(f"{API}deliverables/{pk}/").status_code == 204

    changed = client.put(budget["link"], {"name": "y", "cap": 2, "deliverable": pk})

    assert (changed.status_code, UUID(changed.json()["deliverable"])) == (200, UUID(pk))
