"""Sessions that the agent no longer knows: the work starts once more without a session."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from django.core import signing

from activities import run_tokens, sessions
from activities.run_tokens import RunToken
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import AgentRateLimited, RetryableAgentError, SessionInvalid
from agents.models import AgentSession, EndReason
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient
from tests.engine import Engine, simultaneously
from tests.integration.sessions.conversations import REPORT, heartbeat, history, live, naming, run

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def forgetful(engine: Engine, known: str = "s-2") -> Callable[[AgentRequest], AgentResult]:
    """Let the agent know only this session."""

    def behave(request: AgentRequest) -> AgentResult:
        if request.session_id not in (None, known):
            raise SessionInvalid("I do not remember that.")
        return Completed(Output("done"), session_id=known)

    return behave


def test_an_invalid_session_leads_to_one_fresh_start_and_uses_no_attempt(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = forgetful(engine)

    request = run(engine, acme, max_attempts=1)

    done = engine.get(acme, request.activity_id)
    assert [call.session_id for call in engine.agent.calls[1:]] == ["s-1", None]
    assert (done.status, done.attempts, done.error) == ("done", 1, None)
    assert history(acme) == [("s-1", "invalid"), ("s-2", "")]
    assert [each.status for each in engine.runs(acme, request.activity_id)] == ["failed", "completed"]


def test_an_invalid_session_reported_by_callback_leads_to_one_fresh_start(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT)
    engine.drain()
    body = {"error": {"message": "unknown thread", "code": "session_invalid"}}

    agent = AgentClient(engine.agent.calls[-1])
    answers = [agent.post("fail", body).json() for _ in range(2)]
    engine.drain()

    assert [answer["duplicate"] for answer in answers] == [False, True]
    assert engine.agent.calls[-1].session_id is None
    assert engine.status(acme, activity_id) == "in_progress"
    assert history(acme) == [("s-1", "invalid")]


def test_the_same_error_without_a_session_is_an_ordinary_failure(engine: Engine, acme: Tenant) -> None:
    def complain(request: AgentRequest) -> AgentResult:
        raise SessionInvalid("I never remember anything.")

    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = complain

    request = run(engine, acme)

    failed = engine.get(acme, request.activity_id)
    assert len(engine.agent.calls) == 1 + 2
    assert (failed.status, failed.error["code"]) == ("failed", "session_invalid")


@pytest.mark.parametrize("retryable", [False, True])
def test_an_agent_that_disowns_its_new_sessions_uses_attempts(
    engine: Engine, acme: Tenant, retryable: bool
) -> None:
    def name_and_disown(request: AgentRequest) -> AgentResult:
        heartbeat(request, session_id=f"s-{len(engine.agent.calls)}")
        if retryable:
            raise RetryableAgentError("Not that one.", code="session_invalid")
        raise SessionInvalid("Not that one.")

    engine.agent.behaviour = name_and_disown
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT, retry={"max_attempts": 3})
    for _ in range(6):
        engine.drain()
        engine.make_due(acme)

    assert engine.status(acme, activity_id) == "failed"
    assert len(engine.agent.calls) == (3 if retryable else 1)


def test_two_runs_that_disown_the_same_session_each_start_again(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()
    agents = [AgentClient(run(engine, acme, max_attempts=1)) for _ in range(2)]
    body = {"error": {"message": "unknown thread", "code": "session_invalid"}}

    answers = simultaneously(*[lambda a=agent: a.post("fail", body) for agent in agents])
    engine.drain()

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [call.session_id for call in engine.agent.calls[1:]] == ["s-1", "s-1", None, None]


def test_another_failure_keeps_the_session(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)

    def limit_once(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 2:
            raise AgentRateLimited("slow down", retry_after=1)
        return Completed(Output("done"))

    engine.agent.behaviour = limit_once
    run(engine, acme)
    engine.make_due(acme)
    engine.drain()

    assert [call.session_id for call in engine.agent.calls] == [None, "s-1", "s-1"]
    assert live(acme) == ["s-1"]


def test_a_session_ends_once(acme: Tenant) -> None:
    def end() -> bool:
        with tenant_scope(acme.pk):
            return sessions.end(acme.pk, REPORT, "qa", "s-1", EndReason.INVALID)

    with tenant_scope(acme.pk):
        sessions.begin(acme.pk, REPORT, "qa", "s-1")

    assert sorted(simultaneously(end, end, end)) == [False, False, True]


def test_the_callback_token_contains_the_session_and_briefing_of_the_run(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = naming("s-1")
    tokens = [run_tokens.read(run(engine, acme).callback.token) for _ in range(2)]

    with tenant_scope(acme.pk):
        session = AgentSession.objects.get()
    assert [(token.session_id, token.briefing) for token in tokens if token] == [
        ("", session.briefing),
        ("s-1", session.briefing),
    ]


def test_a_token_of_an_older_version_without_a_session_is_valid(acme: Tenant) -> None:
    ids = [uuid4() for _ in range(3)]
    older = signing.dumps([*map(str, ids), 7], salt="orchestrator.agent-run")

    assert run_tokens.read(older) == RunToken(ids[0], ids[1], ids[2], 7)
