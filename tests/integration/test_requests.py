"""Requests to agents: runs with several wakes, and outputs from the spool and from MongoDB."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections

from activities import outbox, outputs
from agents.contracts import Accepted, AgentRequest, Completed, Output
from agents.payload import job_of
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def make_output(engine: Engine, tenant: Tenant, content: str | None, data: Any = None) -> str:
    """Let the agent produce an output; return its reference."""
    engine.agent.behaviour = lambda request: Completed(Output(content, data))
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    return str(engine.get(tenant, activity_id).output_ref)


def request_with_wakes(
    engine: Engine, tenant: Tenant, *reasons: tuple[str, dict[str, Any]], **fields: Any
) -> AgentRequest:
    """Record these wakes for a new activity before it runs; return the request to its agent."""
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant, **fields)
    with tenant_scope(tenant.pk):
        for reason, payload in reasons:
            outbox.record(engine.get(tenant, activity_id), reason, payload=payload)
    engine.drain()
    return engine.agent.calls[-1]


@pytest.mark.parametrize("copied", [False, True], ids=["in the spool", "in MongoDB"])
def test_the_prompt_contains_every_wake_with_its_output(engine: Engine, acme: Tenant, copied: bool) -> None:
    rejected_output, drawing = (
        make_output(engine, acme, "Bees are insects."),
        make_output(engine, acme, None, {"file": "hive.svg"}),
    )
    if copied:
        outputs.copy_waiting()

    request = request_with_wakes(
        engine,
        acme,
        ("rejection", {"rejection_ref": rejected_output, "reviewer_notes": "Too short."}),
        (
            "subtask_completed",
            {"subtask_name": "Draw", "subtask_outcome": "done", "subtask_output_ref": drawing},
        ),
        (
            "unblocked",
            {"blocker_message": "No ink.", "blocker_resolution": "Bought some.", "blocker_outcome": "done"},
        ),
    )

    assert [wake["reason"] for wake in request.wakes] == [
        "new_task",
        "rejection",
        "subtask_completed",
        "unblocked",
    ]
    assert request.wake_reason == "unblocked"
    expected = [
        "Start from the beginning",
        "Bees are insects.",
        "Too short.",
        "Draw",
        "hive.svg",
        "No ink.",
        "Bought some.",
        "Continue where you stopped",
    ]
    places = [request.prompt.index(words) for words in expected]
    assert places == sorted(places)
    later = AgentClient(request).get_job().json()
    assert without_marker(later["prompt"]) == without_marker(request.prompt)


def without_marker(text: str) -> str:
    marker = text.partition(">>")[0].rpartition(" ")[2]
    return text.replace(marker, "")


def test_members_of_the_job_come_from_the_newest_wake_that_has_them(engine: Engine, acme: Tenant) -> None:
    request = request_with_wakes(
        engine,
        acme,
        ("rejection", {"rejection_ref": str(uuid4()), "reviewer_notes": "Shorter."}),
        ("review_feedback", {"review_approved": False, "reviewer_feedback": "No.", "chosen_option": "red"}),
        ("review_approved", {"review_approved": True, "reviewer_feedback": "Yes.", "chosen_option": None}),
    )

    job = job_of(request)

    assert (job["review_approved"], job["reviewer_feedback"], job["chosen_option"]) == (True, "Yes.", "red")
    assert (job["wake_reason"], job["reviewer_notes"], job["blocker_resolution"]) == (
        "review_approved",
        "Shorter.",
        None,
    )
    assert AgentClient(request).get_job().json()["wakes"] == list(job["wakes"])


@pytest.mark.parametrize("reference", ["0192f5c8-7d2e-7b11-9c1a-6f0e2b5d4a33", "None", "", None, 7])
def test_a_run_starts_although_an_output_of_its_wake_is_no_longer_stored(
    engine: Engine, acme: Tenant, reference: Any
) -> None:
    request = request_with_wakes(
        engine, acme, ("rejection", {"rejection_ref": reference, "reviewer_notes": "Shorter."})
    )

    assert "The output itself is no longer stored." in request.prompt
    assert "Shorter." in request.prompt


def test_an_activity_is_claimed_and_started_in_one_statement_unless_a_wake_has_an_output(
    engine: Engine, acme: Tenant
) -> None:
    payload = {
        "subtask_name": "Draw",
        "subtask_outcome": "failed",
        "subtask_output_ref": None,
        "subtask_error": "No ink.",
    }
    statements: list[str] = []

    def record(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(record):
        request_with_wakes(engine, acme, ("subtask_completed", payload))
        separate_starts = [
            sql for sql in statements if sql.startswith("-- Starts a claimed activity whose input")
        ]
        request_with_wakes(
            engine, acme, ("subtask_completed", {**payload, "subtask_output_ref": str(uuid4())})
        )

    assert separate_starts == []
    assert [sql for sql in statements if sql.startswith("-- Starts a claimed activity whose input")]


def test_an_output_of_another_tenant_is_not_in_the_prompt(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    theirs = make_output(engine, other_tenant, "Their secret.")

    request = request_with_wakes(
        engine, acme, ("rejection", {"rejection_ref": theirs, "reviewer_notes": "Shorter."})
    )

    assert "Their secret." not in request.prompt
    assert "no longer stored" in request.prompt


def test_a_missing_input_fails_the_activity_and_is_named(engine: Engine, acme: Tenant) -> None:
    missing = uuid4()
    (activity_id,) = engine.submit(acme, input_ref=missing)
    engine.drain()

    failed = engine.get(acme, activity_id)
    assert (failed.status, failed.error["code"]) == ("failed", "input_missing")
    assert str(missing) in failed.error["message"]


def test_the_prompt_contains_the_output_of_each_referenced_step(engine: Engine, acme: Tenant) -> None:
    refs = {
        "keywords": make_output(engine, acme, None, ["bees"]),
        "brief": make_output(engine, acme, "1. Why a roof"),
    }

    request = request_with_wakes(engine, acme, input={"refs": refs})

    assert "## Data of the step keywords" in request.prompt
    assert "## Output of the step brief" in request.prompt
    received: Any = request.input
    assert {step: UUID(output["ref"]) for step, output in received["steps"].items()} == {
        step: UUID(reference) for step, reference in refs.items()
    }
