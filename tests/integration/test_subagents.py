"""Subagents started over HTTP: their model and turns, their conversations, and the notifications of their parents."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from rest_framework.test import APIClient

from activities import cancellation, dead_letters, outbox, relay
from activities.models import Activity, ActivityRun, MailboxItem, Wake
from agents.command_line import transcripts
from agents.contracts import Completed, Output, Usage
from agents.exceptions import PermanentAgentError, RetryableAgentError
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine

URL = "/api/v1/subagents/"
PROMPT = "Find out why the build is red.\nThen stop."


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.ORCHESTRATOR_HOME = tmp_path


@pytest.fixture
def client(api: Callable[..., APIClient], acme: Tenant) -> APIClient:
    return api("operator")


def start(client: APIClient, **fields: Any) -> Any:
    answer = client.post(URL, {"subagent_type": "qa", "prompt": PROMPT, **fields}, format="json")
    assert answer.status_code in (200, 201), answer.content
    relay.flush()
    return answer.json()


def fetch(client: APIClient, started: Any) -> Any:
    return client.get(f"{URL}{started['subagent_id']}/").json()


def notices_in(tenant: Tenant, key: str = "parent") -> list[dict[str, Any]]:
    with tenant_scope(tenant.pk):
        return [item.content for item in MailboxItem.objects.filter(mailbox__key=key).order_by("pk")]


def answer_with(text: str = "It is the linter.", **more: Any) -> Callable[[Any], Completed]:
    return lambda request: Completed(Output(content=text), **more)


def test_a_finished_subagent_notifies_its_parent(engine: Engine, client: APIClient, acme: Tenant) -> None:
    engine.agent.behaviour = answer_with(usage=Usage(1200, 300, Decimal("0.01")))

    started = start(client, description="Look at the build", parent_mailbox="parent", tool_call_id="call-1")
    assert started["status"] == "pending"
    engine.drain()

    (call,) = engine.agent.calls
    assert PROMPT in call.prompt
    done = fetch(client, started)
    assert (done["status"], done["total_tokens"], done["error"]) == ("completed", 1500, None)
    assert done["duration_seconds"] >= 0
    (notice,) = notices_in(acme)
    assert notice == {
        "task_id": started["task_id"], "subagent_id": started["subagent_id"], "tool_call_id": "call-1",
        "description": "Look at the build", "status": "completed", "output_file": started["output_file"],
        "result": "It is the linter.", "summary": "The task 'Look at the build' is completed. It is the linter.",
    }  # fmt: skip


def test_a_repeated_tool_call_starts_one_subagent(engine: Engine, client: APIClient) -> None:
    first = start(client, parent_mailbox="parent", tool_call_id="call-1")
    again = start(client, parent_mailbox="parent", tool_call_id="call-1")

    engine.drain()

    assert first["subagent_id"] == again["subagent_id"]
    assert len(engine.agent.calls) == 1


def test_the_model_and_the_limit_of_turns_are_passed_to_the_agent(engine: Engine, client: APIClient) -> None:
    start(client, model="small-1", max_turns=3)
    start(client)

    engine.drain()

    assert {(call.settings.model, call.max_turns) for call in engine.agent.calls} == {
        ("small-1", 3),
        (None, None),
    }


def test_a_failed_subagent_notifies_its_parent_once_with_the_error(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    def fail(request: Any) -> Completed:
        raise PermanentAgentError("The model was not done after 3 turns.", code="max_turns")

    engine.agent.behaviour = fail
    started = start(client, parent_mailbox="parent")
    engine.drain()

    failed = fetch(client, started)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "max_turns")
    (notice,) = notices_in(acme)
    assert (notice["status"], notice["error"]["code"]) == ("failed", "max_turns")
    assert "result" not in notice


def test_the_parent_is_notified_of_each_failure_of_a_subagent_that_people_retry(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    def fail(request: Any) -> Completed:
        raise PermanentAgentError(f"failure {len(engine.agent.calls)}", code="broken")

    engine.agent.behaviour = fail
    started = start(client, parent_mailbox="parent")
    engine.drain()
    dead_letters.handle_waiting()

    cancellation.retry(acme.pk, UUID(started["task_id"]), actor="Ann")
    engine.drain()
    dead_letters.handle_waiting()

    assert [notice["error"]["message"] for notice in notices_in(acme)] == ["failure 1", "failure 2"]


def test_a_retryable_failure_is_retried_before_the_parent_is_notified(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    def fail_once(request: Any) -> Completed:
        if len(engine.agent.calls) == 1:
            raise RetryableAgentError("not now")
        return Completed(Output(content="ok"))

    engine.agent.behaviour = fail_once
    started = start(client, parent_mailbox="parent")
    engine.drain()
    assert fetch(client, started)["status"] == "pending"
    assert notices_in(acme) == []

    engine.make_due(acme)
    engine.drain()

    assert [notice["status"] for notice in notices_in(acme)] == ["completed"]


@pytest.mark.parametrize("quiet", [{"silent": True}, {"run_in_background": False}])
def test_a_silent_or_foreground_subagent_notifies_nobody(
    engine: Engine, client: APIClient, acme: Tenant, quiet: dict[str, bool]
) -> None:
    started = start(client, parent_mailbox="parent", **quiet)

    engine.drain()

    assert fetch(client, started)["status"] == "completed"
    assert notices_in(acme) == []


def test_a_notification_starts_a_run_of_a_parent_that_is_an_agent(engine: Engine, client: APIClient) -> None:
    client.post(
        "/api/v1/mailboxes/parent/items/",
        {"kind": "message", "text": "hello", "agent_role": "dev", "is_coalescable": False},
        format="json",
    )
    start(client, parent_mailbox="parent")

    engine.drain()

    assert [call.agent_role for call in engine.agent.calls].count("dev") == 2
    wakes = [call.wakes[0] for call in engine.agent.calls if call.agent_role == "dev"]
    assert [wake["kind"] for wake in wakes] == ["message", "task_notification"]


def test_a_later_subagent_continues_the_conversation_of_an_earlier_one(
    engine: Engine, client: APIClient
) -> None:
    engine.agent.behaviour = answer_with(session_id="talk-1")
    first = start(client)
    engine.drain()

    second = start(client, existing_agent_id=first["subagent_id"])
    engine.drain()
    third = start(client, existing_conversation_id="talk-1")
    engine.drain()

    assert [call.session_id for call in engine.agent.calls] == [None, "talk-1", "talk-1"]
    assert second["continues"] == first["subagent_id"]
    assert second["mailbox"] == first["mailbox"] != third["mailbox"]


def test_a_message_in_its_mailbox_continues_a_subagent(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    engine.agent.behaviour = answer_with(session_id="talk-1")
    started = start(client)
    engine.drain()

    client.post(
        f"/api/v1/mailboxes/{started['mailbox']}/items/", {"kind": "message", "text": "and?"}, format="json"
    )
    engine.make_due(acme)
    engine.drain()

    assert [call.session_id for call in engine.agent.calls] == [None, "talk-1"]
    assert engine.agent.calls[1].wakes[0]["text"] == "and?"


def test_only_conversations_of_the_same_tenant_and_role_can_be_continued(
    engine: Engine, client: APIClient, api: Callable[..., APIClient], other_tenant: Tenant
) -> None:
    engine.agent.behaviour = answer_with(session_id="talk-1")
    first = start(client)
    engine.drain()
    stranger = api("operator", other_tenant)

    def error_of(requester: APIClient, **fields: Any) -> str:
        answer = requester.post(URL, {"subagent_type": "qa", "prompt": "x", **fields}, format="json")
        assert answer.status_code == 400, answer.content
        return str(answer.json()["errors"][0]["path"])

    assert error_of(stranger, existing_conversation_id="talk-1") == "existing_conversation_id"
    assert (
        error_of(client, subagent_type="dev", existing_conversation_id="talk-1") == "existing_conversation_id"
    )
    assert error_of(stranger, existing_agent_id=first["subagent_id"]) == "existing_agent_id"
    assert (
        error_of(client, subagent_type="dev", existing_agent_id=first["subagent_id"]) == "existing_agent_id"
    )
    assert error_of(client, subagent_type="nobody") == "subagent_type"


def test_cancelling_ends_the_work_and_notifies_the_parent(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    waiting = start(client, parent_mailbox="parent")
    answer = client.post(f"{URL}{waiting['subagent_id']}/cancel/", {"reason": "enough"}, format="json")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")

    def cancel_during_the_run(request: Any) -> Completed:
        client.post(f"{URL}{running['subagent_id']}/cancel/", {}, format="json")
        return Completed(Output(content="too late"))

    engine.agent.behaviour = cancel_during_the_run
    running = start(client, parent_mailbox="parent")
    engine.drain()
    again = client.post(f"{URL}{running['subagent_id']}/cancel/", {}, format="json")

    assert len(engine.agent.calls) == 1
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    notices = notices_in(acme)
    assert [notice["status"] for notice in notices] == ["cancelled", "cancelled"]
    assert notices[0]["summary"].endswith("is cancelled. enough"), "the parent learns why"


def test_the_transcript_is_the_recorded_one_or_else_the_output_or_the_error(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    def write_transcript(request: Any) -> Completed:
        transcript = transcripts.begin(request.tenant_id, request.run_id, secrets=())
        transcript.output(b"step by step\n")
        transcript.close()
        return Completed(Output(content="ok"))

    def read(started: Any) -> bytes:
        answer: Any = client.get(started["output_file"])
        assert answer.status_code == 200
        return b"".join(answer.streaming_content)

    early = start(client)
    assert client.get(early["output_file"]).status_code == 404
    engine.agent.behaviour = write_transcript
    engine.drain()
    engine.agent.behaviour = answer_with("only this")
    plain = start(client)
    engine.drain()
    engine.agent.behaviour = lambda request: (_ for _ in ()).throw(PermanentAgentError("no way"))
    broken = start(client)
    engine.drain()

    assert read(early) == b"step by step\n"
    assert read(plain) == b"only this"
    assert read(broken) == b"no way"


def test_subagents_are_visible_to_their_own_tenant_only(
    client: APIClient, api: Callable[..., APIClient], other_tenant: Tenant
) -> None:
    one = start(client, parent_mailbox="parent")
    start(client)
    stranger = api("operator", other_tenant)

    listed = client.get(f"{URL}?parent_mailbox=parent").json()["results"]

    assert [subagent["subagent_id"] for subagent in listed] == [one["subagent_id"]]
    assert len(client.get(URL).json()["results"]) == 2
    assert stranger.get(URL).json()["results"] == []
    for path in ("", "transcript/"):
        assert stranger.get(f"{URL}{one['subagent_id']}/{path}").status_code == 404
    assert stranger.post(f"{URL}{one['subagent_id']}/cancel/", {}, format="json").status_code == 404
    assert client.get(f"{URL}{uuid4()}/").status_code == 404


# --- Decisions ---


def test_a_decision_about_work_of_a_session_is_posted_to_its_mailbox(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    body = {"name": "Draft", "agent_role": "seo", "requires_approval": True, "mailbox": "talk"}
    activity = client.post("/api/v1/activities/", body, format="json").json()["id"]
    relay.flush()
    engine.drain()

    client.post(f"/api/v1/activities/{activity}/approve/", {"notes": "fine"}, format="json")

    (result,) = notices_in(acme, "talk")
    assert (result["decision"], result["activities"], result["notes"]) == ("approved", [activity], "fine")
    with tenant_scope(acme.pk):
        assert MailboxItem.objects.get().kind == "approval_result"


def test_a_decision_about_several_activities_is_posted_to_each_of_their_mailboxes(
    engine: Engine, client: APIClient, acme: Tenant
) -> None:
    ids = [
        client.post(
            "/api/v1/activities/", {"name": "x", "agent_role": "seo", "mailbox": key}, format="json"
        ).json()["id"]
        for key in ("one", "one", "two")
    ]
    approval = client.post(
        "/api/v1/approvals/", {"type": "direction", "title": "This way?", "activity_ids": ids}, format="json"
    ).json()["id"]

    client.post(
        f"/api/v1/approvals/{approval}/decide/", {"decision": "rejected", "notes": "no"}, format="json"
    )

    assert [result["activities"] for result in notices_in(acme, "one")] == [sorted(ids[:2])]
    assert [(r["decision"], r["activities"]) for r in notices_in(acme, "two")] == [("rejected", ids[2:])]
    with tenant_scope(acme.pk):
        assert Activity.objects.get(pk=UUID(ids[0])).mailbox_id is not None


@pytest.mark.parametrize(
    ("retry_of_role", "waits"),
    [({}, [1, 2, 4]), ({"base_seconds": 7.0}, [7, 14, 28])],
    ids=["as items do", "role"],
)
def test_retries_of_a_subagent_wait_a_second_and_then_twice_as_long_each_time(
    engine: Engine, client: APIClient, acme: Tenant, retry_of_role: dict[str, float], waits: list[float]
) -> None:
    engine.serve(acme, retry={**retry_of_role, "max_attempts": 4})
    started = start(client)

    def fail(request: Any) -> Completed:
        raise RetryableAgentError("busy")

    engine.agent.behaviour, measured = fail, []
    for _ in waits:
        engine.drain()
        with tenant_scope(acme.pk):
            wake = Wake.objects.get(state="pending")
            run = ActivityRun.objects.order_by("-started_at")[0]
        measured.append((wake.due_at - run.ended_at).total_seconds())
        engine.make_due(acme)
        outbox.promote()

    assert measured == [pytest.approx(wait, rel=0.15, abs=0.3) for wait in waits]
    engine.drain()
    assert fetch(client, started)["status"] == "failed"
