"""The records of runs and mailbox items, and messages to workers, which contain only ids."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import redis
from django.conf import settings
from rest_framework.test import APIClient

from activities.mailboxes import producer
from activities.mailboxes.producer import NewItem
from activities.maintenance import system_jobs
from activities.models import Activity
from activities.retry_delays import RetryPolicy
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError, RetryableAgentError
from agents.governor.limits import TIERS, Profile
from agents.routing import queue_of
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")

BOX = "/api/v1/mailboxes/session-1/"


def test_a_run_lists_its_activity_wake_reason_outcome_session_and_worker(
    engine: Engine, acme: Tenant, api: Any
) -> None:
    def answer_or_fail(request: AgentRequest) -> AgentResult:
        if request.params:
            raise PermanentAgentError("No.", code="refused_it")
        return Completed(Output(content="done"), session_id="s-1")

    engine.agent.behaviour = answer_or_fail
    (successful,), (failing,) = engine.submit(acme), engine.submit(acme, params={"fail": True})
    engine.drain()

    client = api("viewer")
    (good,), (bad,) = (
        client.get(f"/api/v1/activities/{one}/runs/").json()["results"] for one in (successful, failing)
    )
    assert (good["activity"], good["wake_reason"], good["status"], good["session_id"], good["error"]) == (
        str(successful), "new_task", "completed", "s-1", None,
    )  # fmt: skip
    assert (bad["activity"], bad["status"], bad["error"]["code"]) == (str(failing), "failed", "refused_it")
    assert good["worker"] == bad["worker"] == str(engine.lease.worker_id)
    for run in (good, bad):
        assert run["id"]
        assert run["started_at"] < run["ended_at"]
        assert client.get(f"/api/v1/activities/{run['activity']}/").json()["id"] == run["activity"]


def post(client: APIClient, **body: Any) -> dict[str, Any]:
    answer = client.post(f"{BOX}items/", {"kind": "message", **body}, format="json")
    assert answer.status_code == 201, answer.content
    item: dict[str, Any] = answer.json()
    return item


def test_an_item_has_the_documented_defaults_and_shows_its_status(acme: Tenant, api: Any) -> None:
    client = api("operator")

    item = post(client, text="hello", client_message_id="m-1")

    assert (item["kind"], item["source"], item["priority"], item["max_attempts"], item["attempts"]) == (
        "message",
        "user",
        5,
        3,
        0,
    )
    assert (item["status"], item["client_message_id"], item["error"]) == ("pending", "m-1", None)
    assert (item["claimed_at"], item["done_at"], item["run"]) == (None, None, None)
    assert item["created_at"]
    batch = client.post(f"{BOX}take/", {"consumer": "c1"}, format="json").json()
    (taken,) = client.get(f"{BOX}items/").json()["results"]
    assert (taken["status"], taken["attempts"], taken["batch"]) == ("claimed", 1, batch["batch_id"])
    client.post(
        f"{BOX}batches/{batch['batch_id']}/failed/",
        {"error": {"message": "no"}, "retryable": False},
        format="json",
    )
    (failed,) = client.get(f"{BOX}items/").json()["results"]
    assert (failed["status"], failed["error"]["message"]) == ("failed", "no")


@pytest.mark.parametrize("source", ["user", "system", "hook"])
@pytest.mark.parametrize("kind", ["message", "approval_result", "overlay_action", "task_notification"])
def test_items_of_every_kind_and_source_are_returned_unchanged(
    acme: Tenant, api: Any, kind: str, source: str
) -> None:
    client = api("operator")

    post(client, kind=kind, source=source, content={"button": "publish"})
    batch = client.post(f"{BOX}take/", {"consumer": "c1", "window_ms": 0}, format="json").json()

    (item,) = batch["items"]
    assert (item["kind"], item["source"], item["content"]) == (kind, source, {"button": "publish"})


def test_a_batch_has_at_most_ten_messages(acme: Tenant, api: Any) -> None:
    client = api("operator")
    for number in range(11):
        post(client, text=f"{number}")

    sizes = [
        len(client.post(f"{BOX}take/", {"consumer": "c1", "window_ms": 0}, format="json").json()["items"])
        for _ in range(2)
    ]

    assert sizes == [10, 1]


def test_an_item_for_an_agent_shows_the_attempts_of_its_activity(
    engine: Engine, acme: Tenant, api: Any, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0

    def fail(request: AgentRequest) -> AgentResult:
        raise RetryableAgentError("down", code="down")

    engine.agent.behaviour = fail
    with tenant_scope(acme.pk):
        producer.post(acme.pk, "session-1", NewItem(text="hello", agent_role="qa"), actor="user:test")
    engine.make_due(acme)
    engine.drain()
    engine.make_due(acme)
    engine.drain()

    (item,) = api("viewer").get(f"{BOX}items/").json()["results"]
    with tenant_scope(acme.pk):
        assert (item["attempts"], Activity.objects.get(pk=item["activity"]).attempts) == (2, 2)


def test_a_message_to_a_worker_contains_only_ids_and_the_run_uses_the_current_row(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, params={"brief": "x" * 100_000}, description="long " * 1_000)
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as broker:
        (raw,) = broker.lrange(queue_of("qa"), 0, -1)

    envelope = json.loads(raw)
    _, arguments, _ = json.loads(base64.b64decode(envelope["body"]))
    assert set(arguments) == {"tenant", "activity", "grant", "role"}
    assert (arguments["activity"], arguments["role"], len(raw) < 2_000) == (str(activity_id), "qa", True)
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=activity_id).update(params={"brief": "another"})
    engine.drain()
    (request,) = engine.agent.calls
    assert request.params == {"brief": "another"}
    assert (request.tenant_id, request.activity_id, request.agent_role, request.attempt) == (
        acme.pk,
        activity_id,
        "qa",
        1,
    )


def test_redis_is_one_server_of_version_seven_or_newer(engine: Engine) -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        info: Any = client.info()

    assert int(info["redis_version"].split(".")[0]) >= 7
    assert info["cluster_enabled"] == 0


def test_the_documented_tiers_of_providers_exist() -> None:
    assert {
        name: (tier.requests_per_minute, tier.input_tokens_per_minute, tier.tokens_per_day)
        for name, tier in TIERS.items()
    } == {
        "free": (5, 40_000, 300_000),
        "build": (50, 100_000, 5_000_000),
        "scale": (1_000, 2_000_000, 100_000_000),
    }


def test_calls_to_a_provider_begin_with_two_slots_and_its_last_tenth_is_for_urgent_ones() -> None:
    assert {(tier.first_slots, tier.low_share) for tier in (Profile(), *TIERS.values())} == {(2, 0.1)}


def test_a_retry_policy_can_start_at_thirty_seconds_and_double(engine: Engine, acme: Tenant) -> None:
    policy = RetryPolicy.of({"max_attempts": 3, "base_seconds": 30, "multiplier": 2, "jitter": 0})
    assert [policy.delay(failures).total_seconds() for failures in (1, 2)] == [30, 60]

    def fail(request: AgentRequest) -> AgentResult:
        raise RetryableAgentError("down", code="down")

    engine.agent.behaviour = fail
    (activity_id,) = engine.submit(
        acme, retry={"max_attempts": 3, "base_seconds": 30, "multiplier": 2, "jitter": 0}
    )
    for _ in range(4):
        engine.drain()
        engine.make_due(acme)
    assert len(engine.agent.calls) == 3
    assert engine.status(acme, activity_id) == "failed"


def test_workers_send_a_heartbeat_every_five_seconds_and_delays_are_checked_every_second() -> None:
    assert settings.ORCHESTRATOR_HEARTBEAT_SECONDS == 5.0
    delays = next(job for job in system_jobs.table() if job.name == "delays")
    assert delays.every == settings.ORCHESTRATOR_TICK_SECONDS == 1.0
