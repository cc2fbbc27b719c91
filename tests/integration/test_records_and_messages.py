"""What is kept and shown of a run and of an item, and what travels to a worker: ids, and nothing that could have changed meanwhile."""

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
from agents.governor.limits import TIERS
from agents.routing import queue_of
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")

BOX = "/api/v1/mailboxes/session-1/"


def test_a_run_says_whose_it_was_why_it_began_what_became_of_it_and_which_conversation_it_had(
    engine: Engine, acme: Tenant, api: Any
) -> None:
    def answers(request: AgentRequest) -> AgentResult:
        if request.params:
            raise PermanentAgentError("No.", code="refused_it")
        return Completed(Output(content="done"), session_id="s-1")

    engine.agent.behaviour = answers
    (well,), (ill,) = engine.submit(acme), engine.submit(acme, params={"fail": True})
    engine.drain()

    client = api("viewer")
    (good,), (bad,) = (client.get(f"/api/v1/activities/{one}/runs/").json()["results"] for one in (well, ill))
    assert (good["activity"], good["wake_reason"], good["status"], good["session_id"], good["error"]) == (
        str(well), "new_task", "completed", "s-1", None,
    )  # fmt: skip
    assert (bad["activity"], bad["status"], bad["error"]["code"]) == (str(ill), "failed", "refused_it")
    assert good["worker"] == bad["worker"] == str(engine.lease.worker_id)
    for run in (good, bad):
        assert run["id"]
        assert run["started_at"] < run["ended_at"]
        assert client.get(f"/api/v1/activities/{run['activity']}/").json()["id"] == run["activity"]


def said(client: APIClient, **body: Any) -> dict[str, Any]:
    answer = client.post(f"{BOX}items/", {"kind": "message", **body}, format="json")
    assert answer.status_code == 201, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_an_item_has_the_defaults_of_the_document_and_tells_how_it_stands(acme: Tenant, api: Any) -> None:
    client = api("operator")

    item = said(client, text="hello", client_message_id="m-1")

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
def test_items_of_every_kind_and_source_are_kept_as_they_were_said(
    acme: Tenant, api: Any, kind: str, source: str
) -> None:
    client = api("operator")

    said(client, kind=kind, source=source, content={"button": "publish"})
    batch = client.post(f"{BOX}take/", {"consumer": "c1", "window_ms": 0}, format="json").json()

    (item,) = batch["items"]
    assert (item["kind"], item["source"], item["content"]) == (kind, source, {"button": "publish"})


def test_eleven_messages_are_told_ten_at_a_time(acme: Tenant, api: Any) -> None:
    client = api("operator")
    for number in range(11):
        said(client, text=f"{number}")

    sizes = [
        len(client.post(f"{BOX}take/", {"consumer": "c1", "window_ms": 0}, format="json").json()["items"])
        for _ in range(2)
    ]

    assert sizes == [10, 1]


def test_an_item_that_an_agent_hears_of_shows_the_tries_of_its_agent(
    engine: Engine, acme: Tenant, api: Any, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0

    def breaks(request: AgentRequest) -> AgentResult:
        raise RetryableAgentError("down", code="down")

    engine.agent.behaviour = breaks
    with tenant_scope(acme.pk):
        producer.post(acme.pk, "session-1", NewItem(text="hello", agent_role="qa"), actor="user:test")
    engine.make_due(acme)
    engine.drain()
    engine.make_due(acme)
    engine.drain()

    (item,) = api("viewer").get(f"{BOX}items/").json()["results"]
    with tenant_scope(acme.pk):
        assert (item["attempts"], Activity.objects.get(pk=item["activity"]).attempts) == (2, 2)


def test_a_message_to_a_worker_holds_ids_alone_and_what_changed_since_holds(
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
        told: Any = client.info()

    assert int(told["redis_version"].split(".")[0]) >= 7
    assert told["cluster_enabled"] == 0


def test_the_tiers_of_the_document_are_there_by_name() -> None:
    assert {
        name: (tier.requests_per_minute, tier.input_tokens_per_minute, tier.tokens_per_day)
        for name, tier in TIERS.items()
    } == {
        "free": (5, 40_000, 300_000),
        "build": (50, 100_000, 5_000_000),
        "scale": (1_000, 2_000_000, 100_000_000),
    }


def test_long_work_may_wait_thirty_seconds_and_then_twice_as_long_each_time(
    engine: Engine, acme: Tenant
) -> None:
    policy = RetryPolicy.of({"max_attempts": 3, "base_seconds": 30, "multiplier": 2, "jitter": 0})
    assert [policy.delay(failures).total_seconds() for failures in (1, 2)] == [30, 60]

    def breaks(request: AgentRequest) -> AgentResult:
        raise RetryableAgentError("down", code="down")

    engine.agent.behaviour = breaks
    (activity_id,) = engine.submit(
        acme, retry={"max_attempts": 3, "base_seconds": 30, "multiplier": 2, "jitter": 0}
    )
    for _ in range(4):
        engine.drain()
        engine.make_due(acme)
    assert len(engine.agent.calls) == 3
    assert engine.status(acme, activity_id) == "failed"


def test_workers_beat_every_five_seconds_and_delays_are_looked_at_every_second() -> None:
    assert settings.ORCHESTRATOR_HEARTBEAT_SECONDS == 5.0
    delays = next(job for job in system_jobs.table() if job.name == "delays")
    assert delays.every == settings.ORCHESTRATOR_TICK_SECONDS == 1.0
