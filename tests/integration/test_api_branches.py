"""Conditions and branches of steps in the API."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from pipelines import selectors
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.flows import BROKEN, Flow, step

pytestmark = pytest.mark.usefixtures("one_at_a_time")

RUNS, PIPELINES = "/api/v1/pipeline-runs/", "/api/v1/pipelines/"
STEPS = (
    step("plan"),
    step("write", "plan", for_each="steps.plan.data"),
    step("check", "write", when="steps.write.status == 'failed'", on_upstream_failure="continue"),
    step("count", "write", when="steps.write.data + 1 > 2", on_upstream_failure="continue"),
)


@pytest.fixture
def flow(engine: Engine, acme: Tenant) -> Flow:
    return Flow(engine, acme, *STEPS)


def steps_of_run(api: Any, flow: Flow) -> dict[str, Any]:
    steps = api("viewer").get(f"{RUNS}{flow.id}/").json()["steps"]
    assert [each["branch"] for each in steps] == [0] * len(STEPS)
    return {each["step"]: each for each in steps}


def test_a_run_contains_the_branches_of_its_steps_with_their_items_and_counts(api: Any, flow: Flow) -> None:
    flow.drain(
        plan=["bees", {"name": "hives"}, 3],
        write=lambda request: BROKEN if request.params["item"] == 3 else 1,
    )

    write = steps_of_run(api, flow)["write"]

    assert (write["status"], write["activity"]) == ("failed", None)
    assert write["branch_counts"] == {"total": 3, "done": 2, "failed": 1, "active": 0}
    assert [(each["branch"], each["item"], each["status"], each["round"]) for each in write["branches"]] == [
        (1, "bees", "done", 1),
        (2, {"name": "hives"}, "done", 1),
        (3, 3, "failed", 1),
    ]
    activity = flow.activity(step="write", branch=1)
    assert write["branches"][0]["activity"] == str(activity.pk)
    assert write["branches"][0]["activity_status"] == "done"
    assert api("viewer").get(write["branches"][0]["link"]).json()["branch"] == 1


def test_a_run_says_why_steps_were_skipped_and_which_expressions_failed(api: Any, flow: Flow) -> None:
    flow.drain(plan=["bees"], write=1)

    steps = steps_of_run(api, flow)

    assert (steps["check"]["status"], steps["check"]["reason"]) == ("skipped", "condition")
    assert steps["check"]["reason_detail"] == "its condition is false"
    assert (steps["plan"]["reason"], steps["plan"]["error"], steps["plan"]["branches"]) == (None, None, [])
    assert steps["count"]["error"]["code"] == "expression_error"
    assert steps["count"]["waits_until"] is None


def test_branches_are_counted_and_only_the_first_are_listed(
    api: Any, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors, "MOST_BRANCHES", 5)
    flow.drain(plan=list(range(20)), write=1)

    write = steps_of_run(api, flow)["write"]
    listed = api("viewer").get(RUNS).json()["results"][0]["steps"][1]
    rest = (
        api("viewer")
        .get(f"/api/v1/activities/?pipeline_run={flow.id}&step=write&branch=20")
        .json()["results"]
    )

    assert ([each["item"] for each in write["branches"]], write["branch_counts"]["total"]) == (
        [0, 1, 2, 3, 4],
        20,
    )
    assert (listed["branches"], listed["branch_counts"]["done"]) == ([], 20)
    assert [each["params"]["item"] for each in rest] == [19]


def test_the_picture_of_a_run_counts_its_branches(api: Any, flow: Flow) -> None:
    flow.deliver(3, plan=[1, 2, 3], write=1)

    svg = api("viewer").get(f"{RUNS}{flow.id}/picture/", headers={"Accept": "image/svg+xml"}).content.decode()

    assert "2 of 3" in "".join(ElementTree.fromstring(svg).itertext())  # the rendered diagram


def test_a_bad_expression_is_a_400_with_its_path(api: Any, acme: Tenant) -> None:
    steps = [step("a"), step("b", "a", when="steps.a.data.__class__.x and"), step("c", "b", for_each="1")]

    answer = api("admin").post(PIPELINES, {"key": "bad", "name": "Bad", "steps": steps})

    errors = problem(answer, 400, "invalid_definition")["errors"]
    assert [error["path"] for error in errors] == ["steps[1].when", "steps[2].for_each"]


def test_a_run_parameter_may_not_have_the_name_of_an_item_parameter(
    api: Any, acme: Tenant, flow: Flow
) -> None:
    answer = api("operator").post(f"{PIPELINES}flow/runs/", {"params": {"item": 1, "item_index": 0}})

    errors = problem(answer, 400, "reserved_params")["errors"]
    assert [error["path"] for error in errors] == ["params.item", "params.item_index"]
