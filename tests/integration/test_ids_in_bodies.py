"""An id in a body must name something of the tenant; one of another tenant is answered as one of nobody."""

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
def served(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> None:
    for each in (tenant, other_tenant):
        engine.serve(each)
        definition = {"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]}
        versions.save(each.pk, definition, actor="test")


def a_deliverable(client: Any) -> str:
    made = client.post(f"{API}deliverables/", {"key": "blog", "name": "Blog", "pipelines": ["flow"]})
    assert made.status_code == 201, made.json()
    return str(made.json()["id"])


def an_activity(client: Any) -> str:
    return str(client.post(f"{API}activities/", ACTIVITY).json()["id"])


def a_pipeline(client: Any) -> str:
    return str(client.get(f"{API}pipelines/flow/").json()["id"])


NAMED = {
    "activity": (a_deliverable, "post", "activities/", lambda pk: {**ACTIVITY, "deliverable": pk}, "deliverable"),
    "activities": (a_deliverable, "post", "activities/", lambda pk: [ACTIVITY, {**ACTIVITY, "deliverable": pk}], "[1].deliverable"),
    "run": (a_deliverable, "post", "pipelines/flow/runs/", lambda pk: {"deliverable": pk}, "deliverable"),
    "budget": (a_deliverable, "post", "budgets/", lambda pk: {**BUDGET, "deliverable": pk}, "deliverable"),
    "budget of an activity": (an_activity, "post", "budgets/", lambda pk: {**BUDGET, "activity": pk}, "activity"),
    "grant": (a_deliverable, "put", "agent-configs/qa/", lambda pk: {"may_hold": {"deliverables": [pk]}}, "may_hold.deliverables[0]"),
    "grant of a pipeline": (
        a_pipeline, "put", "agent-configs/qa/", lambda pk: {"may_hold": {"pipelines": [pk]}}, "may_hold.pipelines[0]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_an_unknown_id_is_a_400_that_names_it_and_a_foreign_one_is_the_same(
    api: Any, tenant: Tenant, other_tenant: Tenant, case: str
) -> None:
    make, method, address, body, path = NAMED[case]
    client, foreign = api("admin"), make(api("admin", tenant=other_tenant))

    def sent(named: str) -> Any:
        return getattr(client, method)(f"{API}{address}", body(named), format="json")

    answers = [problem(sent(named), 400, "validation_failed") for named in (str(uuid4()), foreign)]

    assert answers[0]["errors"] == answers[1]["errors"]
    assert [fault["path"] for fault in answers[0]["errors"]] == [path]
    assert "of this tenant" in answers[0]["errors"][0]["message"]
    assert sent(make(client)).status_code in (200, 201)


def test_a_grant_whose_deliverable_was_deleted_is_saved_again(api: Any, tenant: Tenant) -> None:
    client = api("admin")
    pk = a_deliverable(client)
    body = {"may_hold": {"deliverables": [pk]}}
    assert client.put(f"{API}agent-configs/qa/", body).status_code == 200
    assert client.delete(f"{API}deliverables/{pk}/").status_code == 204

    assert client.put(f"{API}agent-configs/qa/", {**body, "max_concurrency": 3}).status_code == 200
    problem(
        client.put(f"{API}agent-configs/dev/", {"may_hold": {"deliverables": [pk]}}), 400, "validation_failed"
    )


def test_a_budget_whose_deliverable_was_deleted_is_changed(api: Any, tenant: Tenant) -> None:
    client = api("admin")
    pk = a_deliverable(client)
    budget = client.post(f"{API}budgets/", {**BUDGET, "deliverable": pk}).json()
    assert client.delete(f"{API}deliverables/{pk}/").status_code == 204

    changed = client.put(budget["link"], {"name": "y", "cap": 2, "deliverable": pk})

    assert (changed.status_code, UUID(changed.json()["deliverable"])) == (200, UUID(pk))
