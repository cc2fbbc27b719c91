"""Reporting a blocker suspends the work and asks a person."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from activities import cancellation
from activities.states import LinkKind
from tenants import channels
from tenants.context import tenant_scope
from tenants.models import Channel, Tenant
from tests.accepted_work import accept_work, child, count_activities
from tests.answers import problem
from tests.engine import Engine
from tests.integration.blockers.blocked_work import DOWN, block_work

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def create_channel(tenant: Tenant) -> Channel:
    with tenant_scope(tenant.pk):
        channel: Channel = Channel.objects.create(tenant=tenant, kind="instagram", name="Bees")
        return channel


def test_a_blocker_suspends_the_work_and_asks_a_person(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme, priority=10)

    answer = agent.use("report_blocker", **DOWN)

    resolution = child(acme, activity_id, LinkKind.RESOLUTION)
    assert (answer.status_code, answer.json()) == (
        201, {"id": str(resolution.pk), "status": "blocked", "stop": True, "duplicate": False},
    )  # fmt: skip
    waiting, (run,) = engine.get(acme, activity_id), engine.runs(acme, activity_id)
    assert (waiting.status, waiting.blocker_type, waiting.blocker_message) == ("blocked", *DOWN.values())
    assert waiting.blocked_at
    assert (run.status, run.ended_by_tool, waiting.output_ref) == ("completed", "report_blocker", None)
    assert (resolution.assignee_type, resolution.human_role, resolution.status) == (
        "human",
        "operator",
        "created",
    )
    assert (resolution.name, resolution.description) == ("The rank tracker is down.", DOWN["message"])
    assert (resolution.is_approval_gate, resolution.priority) == (False, 5)
    assert resolution.metadata == {
        "blocker_type": "api_outage", "blocked_activity_id": str(activity_id), "channel_id": None,
    }  # fmt: skip


def test_blocked_work_holds_no_slot(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    _, agent = accept_work(engine, acme)
    (waiting,) = engine.submit(acme)
    assert engine.messages() == 0

    agent.create_with("report_blocker", **DOWN)
    engine.drain()

    assert engine.status(acme, waiting) == "in_progress"


@pytest.mark.parametrize(
    ("resolver_role", "expected"), [("devops", "devops"), ("", "operator"), ("x" * 64, "operator"), (7, "operator"), ({}, "operator")]
)  # fmt: skip
def test_metadata_of_the_activity_may_name_the_role_that_resolves_blockers(
    engine: Engine, acme: Tenant, resolver_role: Any, expected: str
) -> None:
    activity_id, _, _ = block_work(engine, acme, metadata={"resolver_role": resolver_role})

    assert child(acme, activity_id).human_role == expected


def test_a_blocker_for_lost_authorisation_expires_the_channel(engine: Engine, acme: Tenant) -> None:
    channel = create_channel(acme)
    activity_id, agent = accept_work(engine, acme)

    agent.create_with(
        "report_blocker", type="channel_auth_expired", message="Log in again.", channel_id=str(channel.pk)
    )

    with tenant_scope(acme.pk):
        assert Channel.objects.get(pk=channel.pk).status == "expired"
    assert child(acme, activity_id).metadata["channel_id"] == str(channel.pk)


def test_another_type_of_blocker_does_not_expire_its_channel(engine: Engine, acme: Tenant) -> None:
    channel = create_channel(acme)
    _, agent = accept_work(engine, acme)

    agent.create_with(
        "report_blocker", type="missing_integration", message="No insights.", channel_id=str(channel.pk)
    )

    with tenant_scope(acme.pk):
        assert Channel.objects.get(pk=channel.pk).status == "active"


def test_a_channel_that_was_reactivated_during_the_run_stays_active(engine: Engine, acme: Tenant) -> None:
    """The agent's knowledge is older."""
    channel = create_channel(acme)
    activity_id, agent = accept_work(engine, acme)
    channels.expire(acme.pk, channel.pk)
    channels.reactivate(acme.pk, channel.pk)

    agent.create_with("report_blocker", type="channel_auth_expired", message="x", channel_id=str(channel.pk))

    with tenant_scope(acme.pk):
        assert Channel.objects.get(pk=channel.pk).status == "active"
    assert engine.status(acme, activity_id) == "blocked"


@pytest.mark.parametrize("whose", ["other", "nobody"])
def test_a_channel_of_another_tenant_is_refused_and_nothing_happens(
    engine: Engine, acme: Tenant, other_tenant: Tenant, whose: str
) -> None:
    channel_id = create_channel(other_tenant).pk if whose == "other" else uuid4()
    activity_id, agent = accept_work(engine, acme)

    answer = agent.use("report_blocker", type="channel_auth_expired", message="x", channel_id=str(channel_id))

    problem(answer, 403, "tool_refused")
    assert (engine.status(acme, activity_id), count_activities(acme)) == ("in_progress", 1)
    if whose == "other":
        with tenant_scope(other_tenant.pk):
            assert Channel.objects.get(pk=channel_id).status == "active"


def test_the_agent_of_blocked_work_that_was_cancelled_is_not_told_that_it_will_be_started_again(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, agent, _ = block_work(engine, acme)
    while_blocked = agent.post("heartbeat").json()["reason"]

    cancellation.cancel(acme.pk, activity_id, actor="test")

    assert "will be started again" in while_blocked
    assert agent.post("heartbeat").json() == {
        "stop": True,
        "reason": "The work was cancelled or reassigned.",
    }
