"""An activity's output, its timeline, and the reason why it waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pymongo.errors
import pytest
import redis

from activities import outputs
from activities import transitions as activity_transitions
from activities.admission import limits
from activities.models import Activity
from activities.states import LinkKind
from activities.submission import NewActivity, submit
from agents.contracts import Accepted, Completed, Output, Usage
from agents.exceptions import InputUnavailable, PermanentAgentError, RetryableAgentError
from agents.models import Agent, AgentConfig
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.redis import client as redis_client
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ACTIVITIES = "/api/v1/activities/"


def detail(activity_id: UUID, part: str) -> str:
    return f"{ACTIVITIES}{activity_id}/{part}/"


# Output


def test_an_output_is_read_first_from_the_spool_and_later_from_the_store(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output("# Bees", {"words": 2}, "text/html"))
    (activity_id,) = engine.submit(acme)
    engine.drain()
    client = api("viewer")

    spooled = client.get(detail(activity_id, "output"))
    outputs.copy_waiting()
    stored = client.get(detail(activity_id, "output"))

    assert spooled.status_code == stored.status_code == 200
    body = spooled.json()
    assert {name: body[name] for name in ("content", "data", "content_type")} == {
        "content": "# Bees", "data": {"words": 2}, "content_type": "text/html",
    }  # fmt: skip
    assert body["id"] == str(engine.get(acme, activity_id).output_ref)
    assert {**stored.json(), "created_at": None} == {**body, "created_at": None}
    assert stored["ETag"] == spooled["ETag"] == f'"{body["id"]}"'


def test_without_an_output_the_answer_is_404_and_says_so(api: Any, engine: Engine, acme: Tenant) -> None:
    (waiting_one,) = engine.submit(acme)

    problem(api().get(detail(waiting_one, "output")), 404, "no_output")


def test_outputs_that_left_the_spool_are_503_while_the_store_is_away(
    api: Any, engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    (activity_id,) = engine.submit(acme)
    engine.drain()
    outputs.copy_waiting()

    def fail() -> Any:
        raise pymongo.errors.ServerSelectionTimeoutError("away")

    monkeypatch.setattr(outputs, "collection", fail)

    problem(api().get(detail(activity_id, "output")), 503, "output_unavailable")


# History


def test_the_timeline_joins_transitions_wakes_and_runs_in_the_order_of_time(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Completed(Output("x"), Usage(input_tokens=3))
    (activity_id,) = engine.submit(acme)
    engine.drain()

    moments = api("viewer").get(detail(activity_id, "timeline")).json()["results"]

    assert [moment["at"] for moment in moments] == sorted(moment["at"] for moment in moments)
    transitions = [(m["verb"], m["source"], m["target"]) for m in moments if m["kind"] == "transition"]
    assert transitions == [
        ("submit", None, "created"), ("claim", "created", "assigned"), ("start", "assigned", "in_progress"),
        ("complete", "in_progress", "done"),
    ]  # fmt: skip
    (wake,) = (moment for moment in moments if moment["kind"] == "wake")
    (run,) = (moment for moment in moments if moment["kind"] == "run")
    assert (wake["reason"], wake["state"], wake["run"]) == ("new_task", "consumed", run["id"])
    assert (run["status"], run["usage"]["input_tokens"]) == ("completed", 3)


def test_a_timeline_is_paged_both_ways(api: Any, engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    engine.drain()
    client = api()
    everything = client.get(detail(activity_id, "timeline")).json()
    assert everything["next"] is everything["previous"] is None

    first = client.get(f"{detail(activity_id, 'timeline')}?limit=2").json()
    second = client.get(first["next"]).json()
    third = client.get(second["next"]).json()
    previous = client.get(third["previous"]).json()

    pages = [first["results"], second["results"], third["results"]]
    assert [moment for page in pages for moment in page] == everything["results"][: sum(map(len, pages))]
    assert (previous["results"], first["previous"], len(third["results"])) == (second["results"], None, 2)


@in_one_test("query", ["limit=0", "cursor=x", "kind=run"])
def test_a_timeline_takes_no_other_parameters(api: Any, engine: Engine, acme: Tenant, query: str) -> None:
    (one,) = engine.submit(acme)

    problem(api().get(f"{detail(one, 'timeline')}?{query}"), 400, "validation_failed")


# Wait reasons


@pytest.fixture
def why(api: Any) -> Callable[[UUID], dict[str, Any]]:
    client = None

    def get_reason(activity_id: UUID) -> dict[str, Any]:
        nonlocal client
        client = client or api("viewer")
        answer = client.get(detail(activity_id, "why"))
        assert answer.status_code == 200
        return dict(answer.json())

    return get_reason


def test_a_role_without_a_worker_is_the_wait_reason(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    (one,) = engine.submit(acme, "ba")

    reason = why(one)

    assert set(reason) == {"code", "detail", "holder", "since", "position", "estimate_seconds"}
    assert (reason["code"], reason["position"]) == ("no_worker", 1)
    assert reason["since"]


@pytest.mark.parametrize(
    ("capped", "code", "holder"),
    [
        ({"config": {"max_concurrency": 1}}, "tenant_cap", "1 of 1 running for qa of this tenant"),
        ({"tenant": {"max_concurrency": 1}}, "tenant_cap", "1 of 1 running for all roles of this tenant"),
        ({"agent": {"max_concurrency": 1}}, "role_cap", "1 of 1 running for qa over all tenants"),
        ({"group": "site-1"}, "group_cap", "1 of 1 running for qa in the group site-1"),
        # If several are reached, the narrowest is named.
        (
            {"group": "site-1", "config": {"max_concurrency": 1}, "agent": {"max_concurrency": 1}},
            "group_cap",
            "1 of 1 running for qa in the group site-1",
        ),
        (
            {
                "config": {"max_concurrency": 1},
                "tenant": {"max_concurrency": 1},
                "agent": {"max_concurrency": 1},
            },
            "tenant_cap",
            "1 of 1 running for qa of this tenant",
        ),
        (
            {"tenant": {"max_concurrency": 1}, "agent": {"max_concurrency": 1}},
            "tenant_cap",
            "1 of 1 running for all roles of this tenant",
        ),
    ],
)
def test_the_limit_that_holds_work_back_is_named_with_its_use(
    engine: Engine,
    acme: Tenant,
    why: Callable[[UUID], dict[str, Any]],
    capped: dict[str, Any],
    code: str,
    holder: str,
    restore_the_agent: None,
) -> None:
    with tenant_scope(acme.pk):
        AgentConfig.objects.filter(agent_id="qa").update(**capped.get("config", {"max_concurrency": 50}))
        Tenant.objects.filter(pk=acme.pk).update(**capped.get("tenant", {"weight": 1}))
    Agent.objects.filter(role="qa").update(**capped.get("agent", {"paused": False}))
    limits.refresh()

    first, second, third = engine.submit(acme, "qa", 3, group_key=capped.get("group"))

    assert why(first)["code"] == "queued"
    reason = why(third)
    assert (reason["code"], reason["holder"], reason["position"]) == (code, holder, 2)
    subject = holder.removeprefix("1 of 1 running for ")
    assert reason["detail"] == f"The limit of concurrent runs is reached for {subject}."
    assert reason["estimate_seconds"] > why(second)["estimate_seconds"]


@pytest.fixture
def restore_the_agent(database: None) -> Any:
    yield
    Agent.objects.filter(role="qa").update(max_concurrency=None, paused=False, enabled=True)


@pytest.mark.parametrize("whose", ["config", "tenant", "agent"])
def test_a_pause_is_the_wait_reason_and_says_what_is_paused(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]], whose: str, restore_the_agent: None
) -> None:
    with tenant_scope(acme.pk):
        AgentConfig.objects.filter(agent_id="qa").update(paused=whose == "config")
        Tenant.objects.filter(pk=acme.pk).update(paused=whose == "tenant")
    Agent.objects.filter(role="qa").update(paused=whose == "agent")
    (one,) = engine.submit(acme)

    reason = why(one)

    assert reason["code"] == "paused"
    assert (
        reason["holder"]
        == {"config": "The role qa", "tenant": "The tenant", "agent": "The role qa for all tenants"}[whose]
    )


@pytest.mark.parametrize("whose", ["config", "agent"])
def test_work_of_a_disabled_role_is_not_called_paused_because_resuming_does_not_help(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]], whose: str, restore_the_agent: None
) -> None:
    with tenant_scope(acme.pk):
        AgentConfig.objects.filter(agent_id="qa").update(enabled=whose != "config")
    Agent.objects.filter(role="qa").update(enabled=whose != "agent")
    (one,) = engine.submit(acme)

    reason = why(one)

    whom = {"config": "The role qa", "agent": "The role qa for all tenants"}[whose]
    assert (reason["code"], reason["holder"]) == ("paused", whom)
    assert reason["detail"] == f"{whom} is disabled; nothing new starts."


def test_work_of_a_role_that_was_deleted_is_not_said_to_start_soon(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    """The work of an inactive tenant does not keep its role from being deleted."""
    (one,) = engine.submit(acme)
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=one).update(agent_role="deleted-role")

    reason = why(one)

    assert (reason["code"], reason["detail"]) == (
        "paused",
        "The role deleted-role is deleted; nothing new starts.",
    )


def test_a_future_start_time_is_the_wait_reason(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    (one,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(hours=1))

    reason = why(one)

    assert reason["code"] == "not_before"
    assert 3500 < reason["estimate_seconds"] <= 3600


def test_the_delay_before_another_attempt_is_the_wait_reason(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    def unavailable(request: object) -> Completed:
        raise RetryableAgentError("down")

    engine.agent.behaviour = unavailable
    (one,) = engine.submit(acme, retry={"base_seconds": 100, "jitter": 0})
    engine.deliver()

    reason = why(one)

    assert (reason["code"], "Attempt 1 of 3 failed" in reason["detail"]) == ("retry_delay", True)
    assert 90 < reason["estimate_seconds"] <= 100


def test_a_run_that_used_up_no_attempt_is_not_called_a_failed_attempt(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    def unavailable(request: object) -> Completed:
        raise InputUnavailable("no input", retry_after=100)

    engine.agent.behaviour = unavailable
    (one,) = engine.submit(acme)
    engine.deliver()

    reason = why(one)

    assert reason["code"] == "retry_delay"
    assert reason["detail"].startswith("The last run ended without using up an attempt; the next begins at 2")


@pytest.mark.parametrize("is_retry", [False, True])
def test_a_pause_is_added_to_a_date_and_leaves_no_estimate(
    engine: Engine, acme: Tenant, api: Any, why: Callable[[UUID], dict[str, Any]], is_retry: bool
) -> None:
    def unavailable(request: object) -> Completed:
        raise RetryableAgentError("down")

    engine.agent.behaviour = unavailable
    later = {} if is_retry else {"not_before": datetime.now(UTC) + timedelta(hours=1)}
    (one,) = engine.submit(acme, retry={"base_seconds": 100, "jitter": 0}, **later)
    engine.deliver()
    before = why(one)
    with tenant_scope(acme.pk):
        AgentConfig.objects.filter(agent_id="qa").update(paused=True)

    reason = why(one)
    listed = api("viewer").get(f"/api/v1/activities/{one}/").json()["waiting_for"]

    assert before["estimate_seconds"] > 90
    assert reason == before | {
        "detail": f"{before['detail']} In addition, the role qa is paused.",
        "estimate_seconds": None,
    }
    assert (listed["code"], listed["detail"]) == (reason["code"], reason["detail"])


def test_a_person_is_named_with_the_time_that_they_have(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    due = datetime(2031, 5, 1, 12, tzinfo=UTC)
    with tenant_scope(acme.pk):
        (task,) = submit([NewActivity(name="Read it", human_role="editor", due_at=due)], actor="test")

    reason = why(task.id)

    assert (reason["code"], reason["holder"]) == ("human", "editor, due 2031-05-01T12:00:00Z")


def test_what_waits_behind_a_gate_waits_for_its_reviewer(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    (one,) = engine.submit(acme, requires_approval=True)
    engine.drain()

    reason = why(one)

    assert (reason["code"], reason["holder"]) == ("human", "reviewer")


def test_a_subtask_is_the_wait_reason(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    (parent,) = engine.submit(acme)
    engine.drain()
    with tenant_scope(acme.pk):
        submit(
            [NewActivity(name="Look it up", agent_role="ba", parent_id=parent, link_kind=LinkKind.SUBTASK)],
            actor="test",
        )
        activity_transitions.apply(parent, "await_subtask", actor="test")

    reason = why(parent)

    assert (reason["code"], reason["holder"]) == ("dependency", "Look it up (created)")


def test_running_and_ended_activities_wait_for_nothing(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    engine.agent.behaviour = lambda request: Accepted() if request.params else Completed(Output())
    running, activity_id = engine.submit(acme, params={"later": True}), engine.submit(acme)
    engine.drain()

    reasons = [why(running[0]), why(activity_id[0])]

    assert [(reason["code"], reason["detail"], reason["since"]) for reason in reasons] == [
        (None, "It is running.", None), (None, "It is done.", None),
    ]  # fmt: skip


def test_a_failed_activity_says_that_it_can_be_retried(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    def broken(request: object) -> Completed:
        raise PermanentAgentError("no")

    engine.agent.behaviour = broken
    (one,) = engine.submit(acme)
    engine.drain()

    assert why(one) == {
        "code": None, "detail": "It has failed. An operator can retry it.", "holder": None, "since": None, "position": None,
        "estimate_seconds": None,
    }  # fmt: skip


def test_without_an_answer_from_redis_the_wait_reason_is_less_exact_and_no_error(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = engine.submit(acme, "ba")

    def silent(activity_id: UUID) -> Any:
        raise redis.TimeoutError("no answer")

    monkeypatch.setattr("activities.admission.inspect", silent)

    reason = why(one)

    assert reason["code"] == "queued"
    assert "Redis does not answer" in reason["detail"]


def test_an_emptied_redis_is_no_error_either(
    engine: Engine, acme: Tenant, why: Callable[[UUID], dict[str, Any]]
) -> None:
    (one,) = engine.submit(acme, "ba")
    redis_client().flushdb()

    assert why(one)["code"] == "queued"
