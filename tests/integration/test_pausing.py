"""Pauses of roles, pipelines, schedules, providers and tenants, and single activities that a person starts in spite of them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import redis
from django.db import connections

from activities import relay, wait_reasons
from activities.admission import limits, rebuilding, scripts
from activities.models import Activity
from activities.rescheduling import HELD_BY_PROVIDERS
from agents import configuration
from agents.contracts import Accepted, Completed, Output
from agents.exceptions import AgentRateLimited, RetryableAgentError
from agents.models import Agent, AgentConfig
from pipelines import versions
from pipelines.models import Schedule
from pipelines.schedules import editing, firing
from tenants import pausing
from tenants.context import tenant_scope
from tenants.models import Pause, Tenant
from tenants.redis import client as redis_client
from tests.answers import problem
from tests.engine import Engine, eventually, somebody_waits_for_a_lock
from tests.integration.test_rescheduling import SLOW, names_of_calls, offer_and_run_all, raise_error
from tests.open_questions import DIRECTION
from tests.spending import broken_invariants, complete_at_cost, make_budget

pytestmark = pytest.mark.usefixtures("one_at_a_time")

API = "/api/v1"
ACTIVITIES = f"{API}/activities/"
EVERY_HOUR = {"name": "hourly", "repeat": "repeating", "cron": "0 * * * *", "timezone": "UTC"}


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, max_concurrency=2)
    versions.save(
        tenant.pk,
        {
            "key": "brief",
            "name": "Brief",
            "steps": [
                {"id": "one", "agent_role": "qa"},
                {"id": "two", "agent_role": "qa", "depends_on": ["one"]},
            ],
        },
        actor="test",
    )
    return tenant


@pytest.fixture
def client(api: Any, acme: Tenant) -> Any:
    return api("admin")


def post(client: Any, address: str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = client.post(f"{API}{address}", body)
    assert answer.status_code == status, answer.content
    relay.flush()
    limits.refresh()
    relay.grant_waiting()  # as the leader does
    return dict(answer.json())


def start_run(client: Any) -> str:
    return str(post(client, "/pipelines/brief/runs/", 201)["id"])


def activity_of(acme: Tenant, **which: Any) -> Activity:
    with tenant_scope(acme.pk):
        return Activity.objects.filter(**which).latest("created_at")


def why(client: Any, activity_id: UUID | str) -> tuple[str | None, str | None]:
    reason = client.get(f"{ACTIVITIES}{activity_id}/why/").json()
    return reason["code"], reason["holder"]


def make_hourly_schedule(acme: Tenant, client: Any, **fields: Any) -> Schedule:
    created = post(client, "/schedules/", 201, **{**EVERY_HOUR, **fields})
    with tenant_scope(acme.pk):
        return Schedule.objects.get(pk=created["id"])


def test_a_paused_pipeline_starts_no_work_and_running_work_ends(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    start_run(client)
    engine.drain()
    running = activity_of(acme, step="one")

    assert post(client, "/pipelines/brief/pause/") == {"kind": "pipeline", "name": "brief", "paused": True}
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    start_run(client)
    offer_and_run_all(engine)
    waiting = activity_of(acme, step="one")
    (other,) = engine.submit(acme)
    engine.drain()

    assert (engine.status(acme, running.pk), engine.status(acme, waiting.pk)) == ("in_progress", "created")
    assert why(client, waiting.pk) == ("paused", "The pipeline brief")
    reply = client.get(f"{ACTIVITIES}{waiting.pk}/").json()["waiting_for"]
    assert (reply["code"], reply["holder"]) == ("paused", "The pipeline brief")
    assert engine.status(acme, other) == "done"
    assert client.get(f"{API}/pipelines/brief/").json()["paused"] is True
    assert [one["paused"] for one in client.get(f"{API}/pipelines/").json()["results"]] == [True]
    assert broken_invariants() == []

    post(client, "/pipelines/brief/resume/")
    engine.drain()
    assert engine.status(acme, waiting.pk) == "done"
    assert names_of_calls(engine)[-2:] == ["one", "two"]
    assert client.get(f"{API}/pipelines/brief/").json()["paused"] is False


@pytest.mark.parametrize("address", ["/queues/qa/", "/pipelines/brief/", "/tenant/"])
def test_a_pause_and_its_end_take_effect_at_once(
    client: Any, engine: Engine, acme: Tenant, address: str
) -> None:
    assert client.post(f"{API}{address}pause/").status_code == 200
    assert client.post(f"{API}/pipelines/brief/runs/", {}).status_code == 201
    engine.drain()
    assert names_of_calls(engine) == []

    assert client.post(f"{API}{address}resume/").status_code == 200
    engine.drain()
    assert names_of_calls(engine) == ["one", "two"]


def test_limits_that_were_read_before_a_pause_do_not_end_it(
    client: Any, engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pauses = scripts.run, [f"{API}/queues/qa/pause/"]

    def pause_before_limits(name: str, *arguments: Any) -> Any:
        if name == "limits" and pauses:
            assert client.post(pauses.pop()).status_code == 200
        return run(name, *arguments)

    monkeypatch.setattr(scripts, "run", pause_before_limits)
    limits.refresh()  # as a worker that starts, or a slow leader

    engine.submit(acme)
    engine.drain()
    assert names_of_calls(engine) == []


def test_a_pause_is_stored_while_redis_is_away(
    client: Any, engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "refresh", lambda: raise_error(redis.ConnectionError()))

    assert client.post(f"{API}/pipelines/brief/pause/").json()["paused"] is True
    assert client.get(f"{API}/pipelines/brief/").json()["paused"] is True


def test_a_pause_survives_a_wiped_redis(client: Any, engine: Engine, acme: Tenant) -> None:
    post(client, "/pipelines/brief/pause/")
    start_run(client)
    start_run(client)
    waiting = activity_of(acme, step="one")
    redis_client().flushdb()

    rebuilding.rebuild()
    offer_and_run_all(engine)
    assert names_of_calls(engine) == []

    post(client, f"/activities/{waiting.pk}/run-now/", reason="The client waits.")
    redis_client().flushdb()
    rebuilding.rebuild()
    relay.grant_waiting()
    engine.drain()
    assert (names_of_calls(engine), engine.status(acme, waiting.pk)) == (["one"], "done")


def test_a_paused_schedule_does_not_fire_and_its_work_waits(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    schedule = make_hourly_schedule(acme, client, target_type="agent", agent_role="qa", catch_up="latest")
    with tenant_scope(acme.pk):
        (waiting,) = engine.submit(
            acme, schedule_id=schedule.pk, not_before=datetime.now(UTC) + timedelta(days=9)
        )

    answer = post(client, f"/schedules/{schedule.pk}/pause/")
    client.patch(f"{ACTIVITIES}{waiting}/", {"not_before": None})
    relay.flush()
    later = datetime.now(UTC) + timedelta(hours=3)
    assert firing.fire_due(later) == []
    engine.drain()

    assert answer == {"kind": "schedule", "name": "hourly", "id": str(schedule.pk), "paused": True}
    assert why(client, waiting) == ("paused", "The schedule hourly")
    assert client.get(f"{API}/schedules/{schedule.pk}/").json()["paused"] is True
    assert client.patch(f"{API}/schedules/{schedule.pk}/", {"priority": 9}).json()["paused"] is True
    assert names_of_calls(engine) == []

    post(client, f"/schedules/{schedule.pk}/resume/")
    assert len(firing.fire_due(later)) == 1  # the latest of those that were missed
    engine.drain()
    assert engine.status(acme, waiting) == "done"


def test_a_pause_of_a_schedule_that_is_being_deleted_does_not_hold_its_work_for_ever(
    client: Any, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make_hourly_schedule(acme, client, target_type="agent", agent_role="qa")
    switch_part = pausing.switch_part

    def delete_first(*arguments: Any, **named: Any) -> bool:
        monkeypatch.undo()
        deletion.append(pool.submit(editing.delete, acme.pk, schedule.pk, actor="test"))
        eventually(lambda: deletion[0].done() or somebody_waits_for_a_lock())
        return switch_part(*arguments, **named)

    deletion: list[Future[None]] = []
    monkeypatch.setattr(pausing, "switch_part", delete_first)
    with ThreadPoolExecutor(1, initializer=connections.close_all) as pool:
        client.post(f"{API}/schedules/{schedule.pk}/pause/", {}, format="json")
        deletion[0].result()
        pool.submit(connections.close_all).result()

    with tenant_scope(acme.pk):
        assert not Schedule.objects.filter(pk=schedule.pk).exists()
        assert not Pause.objects.exists()


def test_a_paused_provider_pauses_every_role_that_uses_it(
    client: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    with tenant_scope(acme.pk):
        AgentConfig.objects.filter(agent_id="qa").update(adapter="anthropic")
        AgentConfig.objects.filter(agent_id="seo").update(adapter="batch")
    with tenant_scope(other_tenant.pk):
        AgentConfig.objects.filter(agent_id="qa").update(adapter="anthropic")
    configuration.forget()

    post(client, "/providers/anthropic/pause/")
    (qa,), (seo,), (dev,) = (engine.submit(acme, role) for role in ("qa", "seo", "dev"))
    assert [why(client, one) for one in (qa, seo)] == [("paused", "The provider anthropic")] * 2
    (elsewhere,) = engine.submit(other_tenant)
    assert wait_reasons.why(other_tenant.pk, elsewhere).code == "queued"
    queues = {one["role"]: one["paused"] for one in client.get(f"{API}/queues/?limit=200").json()["results"]}
    assert (queues["qa"], queues["seo"], queues["dev"]) == (True, True, False)
    engine.drain()
    assert engine.status(acme, dev) == "done"

    post(client, "/providers/anthropic/resume/")
    assert why(client, qa)[0] == "queued"
    problem(client.post(f"{API}/providers/nobody/pause/"), 404, "not_found")


def test_a_paused_tenant_starts_no_work(api: Any, client: Any, engine: Engine, acme: Tenant) -> None:
    problem(api("operator").post(f"{API}/tenant/pause/"), 403, "forbidden")
    answer = post(client, "/tenant/pause/")
    (waiting,) = engine.submit(acme)
    engine.drain()

    assert answer == {"kind": "tenant", "name": acme.slug, "paused": True}
    assert why(client, waiting) == ("paused", "The tenant")
    trail = client.get(f"{API}/audit/?limit=20").json()["results"]
    assert [entry["operation"] for entry in trail if entry["object"]["kind"] == "tenants"] == [
        "tenant.paused"
    ]

    post(client, "/tenant/resume/")
    engine.drain()
    assert engine.status(acme, waiting) == "done"


@pytest.mark.parametrize(
    "address", ["/pipelines/brief", "/queues/qa", "/providers/anthropic", "/schedules/{}", "/tenant"]
)
def test_pausing_is_idempotent_audited_and_limited_to_the_tenant(
    api: Any, client: Any, engine: Engine, acme: Tenant, other_tenant: Tenant, address: str
) -> None:
    schedule = make_hourly_schedule(acme, client, target_type="agent", agent_role="qa")
    address = address.format(schedule.pk)
    key = {"Idempotency-Key": "one"}

    answers = [client.post(f"{API}{address}/pause/", {}, headers=key) for _ in range(2)]
    answers.append(client.post(f"{API}{address}/pause/"))

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[1]["Idempotency-Replayed"] == "true"
    assert {answer.json()["paused"] for answer in answers} == {True}
    problem(client.post(f"{API}{address}/pause/", {"reason": "x"}), 400, "validation_failed")
    problem(api("reviewer").post(f"{API}{address}/pause/"), 403, "forbidden")
    operations = [entry["operation"] for entry in client.get(f"{API}/audit/?limit=50").json()["results"]]
    assert any("paus" in operation for operation in operations)
    if "brief" in address or "schedules" in address:
        problem(api("admin", tenant=other_tenant).post(f"{API}{address}/pause/"), 404, "not_found")
    client.post(f"{API}{address}/resume/")


@pytest.mark.parametrize(
    ("address", "read_at"),
    [("/queues/qa", "/agent-configs/qa"), ("/providers/anthropic", ""), ("/tenant", ""), ("/pipelines/brief", "/pipelines/brief")],
)  # fmt: skip
def test_a_pause_based_on_an_old_version_is_refused(client: Any, address: str, read_at: str) -> None:
    def switch(action: str, tag: str) -> Any:
        return client.post(f"{API}{address}/{action}/", headers={"If-Match": tag})

    problem(switch("pause", '"old"'), 412, "precondition_failed")
    current = client.get(f"{API}{read_at}/") if read_at else client.post(f"{API}{address}/resume/")
    tag = current["ETag"]
    paused = switch("pause", tag)
    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    if "brief" not in address:  # a pause makes no new version of a pipeline
        problem(switch("resume", tag), 412, "precondition_failed")
    assert switch("resume", "*").status_code == 200


def pause(client: Any, acme: Tenant, what: str) -> None:
    address = {"role": "/queues/qa", "pipeline": "/pipelines/brief", "tenant": "/tenant"}[what]
    post(client, f"{address}/pause/")


@pytest.mark.parametrize("what", ["role", "pipeline", "tenant"])
def test_run_now_starts_one_activity_in_spite_of_a_pause(
    api: Any, client: Any, engine: Engine, acme: Tenant, what: str
) -> None:
    pause(client, acme, what)
    start_run(client)
    first = activity_of(acme, step="one")
    start_run(client)

    reply = post(api("operator"), f"/activities/{first.pk}/run-now/", reason="The client waits.")
    engine.drain()

    assert (reply["id"], (reply["waiting_for"] or {}).get("code")) in [
        (str(first.pk), None),
        (str(first.pk), "queued"),
    ]
    assert (names_of_calls(engine), engine.status(acme, first.pk)) == (["one"], "done")
    moment = [
        one
        for one in client.get(f"{ACTIVITIES}{first.pk}/timeline/?limit=99").json()["results"]
        if one.get("verb") == "run_now"
    ]
    assert moment[0]["detail"]["reason"] == "The client waits."
    entries = client.get(f"{API}/audit/?limit=50").json()["results"]
    entry = next(one for one in entries if one["operation"] == "POST /activities/{activity_id}/run-now/")
    assert entry["object"]["id"] == str(first.pk)
    assert broken_invariants() == []


def test_run_now_ignores_pauses_of_provider_and_schedule(client: Any, engine: Engine, acme: Tenant) -> None:
    schedule = make_hourly_schedule(acme, client, target_type="agent", agent_role="qa")
    post(client, f"/schedules/{schedule.pk}/pause/")
    (work,) = engine.submit(acme, schedule_id=schedule.pk)
    post(client, f"/activities/{work}/run-now/", reason="x")
    engine.drain()
    assert engine.status(acme, work) == "done"

    with tenant_scope(acme.pk):
        AgentConfig.objects.filter(agent_id="dev").update(adapter="anthropic")
    post(client, "/providers/anthropic/pause/")
    (work,) = engine.submit(acme, "dev")
    assert engine.messages() == 0
    post(client, f"/activities/{work}/run-now/", reason="x")
    assert engine.messages() == 1


def test_run_now_applies_to_one_attempt(client: Any, engine: Engine, acme: Tenant) -> None:
    pause(client, acme, "role")
    engine.agent.behaviour = lambda request: raise_error(RetryableAgentError("busy"))
    (work,) = engine.submit(acme, retry={**SLOW, "base_seconds": 0.0})
    post(client, f"/activities/{work}/run-now/", reason="x")

    offer_and_run_all(engine)
    offer_and_run_all(engine)

    assert (len(names_of_calls(engine)), engine.get(acme, work).run_now_at) == (1, None)
    engine.make_due(acme)
    assert why(client, work)[0] == "paused"


def test_run_now_does_not_ignore_a_pause_by_the_platform(client: Any, engine: Engine, acme: Tenant) -> None:
    Agent.objects.filter(role="qa").update(paused=True)
    try:
        limits.refresh()
        (work,) = engine.submit(acme)
        reply = post(client, f"/activities/{work}/run-now/", reason="x")
        engine.drain()
        assert reply["waiting_for"]["code"] == "paused"
        assert reply["waiting_for"]["holder"] == "The role qa for all tenants"
        assert names_of_calls(engine) == []
    finally:
        Agent.objects.filter(role="qa").update(paused=False)
        limits.refresh()


def test_run_now_waits_for_a_cap_and_is_served_first(client: Any, engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    running = engine.submit(acme, count=2)
    engine.drain()
    engine.agent.calls.clear()
    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    pause(client, acme, "role")
    first, urgent, chosen = (engine.submit(acme, priority=priority)[0] for priority in (10, 1, 20))

    reply = post(client, f"/activities/{chosen}/run-now/", reason="x")
    assert (reply["waiting_for"]["code"], engine.messages()) == ("tenant_cap", 0)
    client.post(f"{ACTIVITIES}{running[0]}/cancel/")
    engine.drain()

    assert [engine.status(acme, one) for one in (first, urgent, chosen)] == ["created", "created", "done"]


def test_run_now_ignores_dates_and_retry_delays_but_not_a_limit_of_the_provider(
    client: Any, engine: Engine, acme: Tenant
) -> None:
    (work,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(days=1), retry=SLOW)
    engine.agent.behaviour = lambda request: raise_error(RetryableAgentError("busy"))
    reply = post(client, f"/activities/{work}/run-now/", reason="x")
    engine.drain()
    assert (reply["not_before"], len(names_of_calls(engine)), why(client, work)[0]) == (
        None,
        1,
        "retry_delay",
    )

    post(client, f"/activities/{work}/run-now/", reason="x")
    engine.drain()
    assert len(names_of_calls(engine)) == 2

    engine.agent.behaviour = lambda request: raise_error(AgentRateLimited("slow down", retry_after=500.0))
    post(client, f"/activities/{work}/run-now/", reason="x")
    engine.drain()
    reply = post(client, f"/activities/{work}/run-now/", reason="x")
    offer_and_run_all(engine)
    assert (reply["waiting_for"]["code"], len(names_of_calls(engine))) == ("provider_limit", 3)


@pytest.mark.parametrize("retry_time", ["over", "to come"])
def test_run_now_waits_until_the_time_that_the_provider_named_and_no_longer(
    client: Any, engine: Engine, acme: Tenant, retry_time: str
) -> None:
    seconds = 0.0 if retry_time == "over" else 500.0
    engine.agent.behaviour = lambda request: raise_error(AgentRateLimited("slow down", retry_after=seconds))
    (work,) = engine.submit(acme)
    engine.drain()
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert client.patch(f"{ACTIVITIES}{work}/", {"not_before": tomorrow}).status_code == 200

    engine.agent.behaviour = lambda request: Completed(Output(content="done"))
    post(client, f"/activities/{work}/run-now/", reason="x")
    offer_and_run_all(engine)

    if retry_time == "over":
        assert engine.status(acme, work) == "done"
    else:
        assert why(client, work)[0] == "provider_limit"
        estimate = client.get(f"{ACTIVITIES}{work}/why/").json()["estimate_seconds"]
        assert 300 < estimate <= 500


def test_run_now_refuses_held_human_and_ended_work_and_waits_for_the_budget(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    (held,) = engine.submit(acme)
    post(client, "/approvals/", 201, **DIRECTION, activity_ids=[str(held)])
    refused = client.post(f"{ACTIVITIES}{held}/run-now/", {"reason": "x"})
    assert "awaiting_review" in problem(refused, 409, "still_held")["detail"]

    task = post(client, "/activities/", 201, name="Write", human_role="editor")
    problem(client.post(f"{ACTIVITIES}{task['id']}/run-now/", {"reason": "x"}), 409, "transition_refused")
    (ended,) = engine.submit(acme, "dev")
    engine.drain()
    problem(client.post(f"{ACTIVITIES}{ended}/run-now/", {"reason": "x"}), 409, "transition_refused")
    problem(client.post(f"{ACTIVITIES}{ended}/run-now/", {}), 400, "validation_failed")
    problem(client.post(f"{ACTIVITIES}{ended}/run-now/", {"reason": " "}), 400, "validation_failed")
    problem(api("reviewer").post(f"{ACTIVITIES}{ended}/run-now/", {"reason": "x"}), 403, "forbidden")

    make_budget(acme, "0.10")
    engine.agent.behaviour = complete_at_cost("0.25")
    (over_budget,) = engine.submit(acme, "seo")
    engine.drain()
    reply = post(client, f"/activities/{over_budget}/run-now/", reason="x")
    offer_and_run_all(engine)
    assert (reply["waiting_for"]["code"], engine.status(acme, over_budget)) == ("budget", "created")


def test_run_now_based_on_an_old_version_is_refused(client: Any, engine: Engine, acme: Tenant) -> None:
    pause(client, acme, "role")
    (work,) = engine.submit(acme)
    address = f"{ACTIVITIES}{work}/"
    etag = client.get(address)["ETag"]
    client.patch(address, {"priority": 3})

    refused = client.post(f"{address}run-now/", {"reason": "x"}, headers={"If-Match": etag})
    problem(refused, 412, "precondition_failed")
    engine.drain()
    assert names_of_calls(engine) == []


def test_paused_work_does_not_reserve_its_files(client: Any, engine: Engine, acme: Tenant) -> None:
    start_run(client)
    pipeline = activity_of(acme, step="one").pipeline_id
    post(client, "/pipelines/brief/pause/")
    (waiting,) = engine.submit(acme, files=["src/**"], pipeline_id=pipeline)
    (other,) = engine.submit(acme, files=["src/a.py"])
    engine.drain()

    assert (engine.status(acme, waiting), engine.status(acme, other)) == ("created", "done")


def test_wait_reasons_and_run_now_treat_the_same_errors_as_limits_of_providers() -> None:
    assert set(wait_reasons._HELD_BACK) == HELD_BY_PROVIDERS
