"""A server that goes away in the middle of healthy work costs time and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import InterfaceError, connections
from django.test import Client
from psycopg import errors

from activities import dispatch, leases, outbox, provider_batches, relay, transitions
from activities.execution import request as execution_request
from activities.execution import results
from activities.maintenance import recovery
from activities.models import Activity
from activities.states import WakeReason
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output, Parked
from agents.exceptions import ServerAway
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import APP, OWNER, tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, eventually
from tests.integration.recovery.losses import Died
from tests.spending import token_of


@pytest.fixture(autouse=True)
def _connections_anew() -> Iterator[None]:
    yield
    connections.close_all()


@contextmanager
def before(statement: str, happen: Callable[[Any], None], *, times: int = 1) -> Iterator[list[int]]:
    """Let something happen to the connection just before a statement of this text is sent; how often it did."""
    done: list[int] = []

    def wrapper(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        if sql == statement and len(done) < times:
            done.append(1)
            happen(context["connection"].connection)
        return execute(sql, parameters, many, context)

    with connections[APP].execute_wrapper(wrapper):
        yield done


@contextmanager
def lost_answer(statement: str) -> Iterator[list[int]]:
    """The transaction of a statement with this text is committed, and the answer to the commit never arrives."""
    done: list[int] = []
    connection = connections[APP]
    seen: list[int] = []

    def wrapper(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        if statement in sql:
            seen.append(1)
        return execute(sql, parameters, many, context)

    commit = connection._commit

    def committed() -> None:
        commit()
        if seen and not done:
            done.append(1)
            connection.connection.close()
            raise InterfaceError("the connection is closed")

    connection._commit = committed
    try:
        with connection.execute_wrapper(wrapper):
            yield done
    finally:
        del connection._commit


def silent_for_too_long(connection: Any) -> None:
    """PostgreSQL ends the session, as it does when a client falls silent inside a transaction."""
    pid = connection.info.backend_pid
    connection.execute("SET idle_in_transaction_session_timeout = 1")
    eventually(lambda: not _is_there(pid))


def ended_by_an_administrator(connection: Any) -> None:
    pid = connection.info.backend_pid
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    eventually(lambda: not _is_there(pid))


def only_to_be_read(connection: Any) -> None:
    """As after a failover, when the old primary is a replica now."""
    connection.execute("SET TRANSACTION READ ONLY")


def _is_there(pid: int) -> bool:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("outage", [silent_for_too_long, ended_by_an_administrator, only_to_be_read])
def test_a_result_is_recorded_after_an_outage_of_any_kind(
    outage: Callable[[Any], None], engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with before(transitions._finish.text, outage, times=3) as happened:
        engine.drain()

    done = engine.get(tenant, activity)
    assert (done.status, done.attempts, done.stalls, done.error, len(engine.agent.calls), len(happened)) == (
        "done", 1, 0, None, 1, 3,
    )  # fmt: skip


@pytest.mark.parametrize("outage", [silent_for_too_long, ended_by_an_administrator, only_to_be_read])
def test_a_claim_is_made_after_an_outage_of_any_kind(
    outage: Callable[[Any], None], engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with before(transitions._CLAIM.text, outage):
        engine.drain()

    assert (engine.status(tenant, activity), len(engine.agent.calls)) == ("done", 1)


def test_a_result_whose_answer_was_lost_counts_once(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with lost_answer(transitions._finish.text) as lost:
        engine.drain()

    assert lost
    assert [run.status for run in engine.runs(tenant, activity)] == ["completed"]
    assert engine.status(tenant, activity) == "done"


def test_an_acceptance_whose_answer_was_lost_keeps_its_slot(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant, "qa", max_concurrency=1)
    engine.agent.behaviour = lambda request: Accepted()
    first, second = engine.submit(tenant, count=2)

    with lost_answer('SET "accepted_at"') as lost:
        engine.drain()

    assert lost
    assert [engine.status(tenant, each) for each in (first, second)] == ["in_progress", "created"]


def test_work_whose_parking_was_not_answered_waits_for_its_batch(engine: Engine, tenant: Tenant) -> None:
    def is_being_done(request: object) -> AgentResult:
        raise Died

    engine.serve(tenant, "qa")
    engine.agent.behaviour = is_being_done
    (activity,) = engine.submit(tenant)
    with pytest.raises(Died):
        engine.deliver()
    run, row = token_of(tenant, activity), engine.get(tenant, activity)
    parked = Parked(provider="p", model="m", body={}, leave_at=datetime.now(UTC) + timedelta(hours=5))

    with lost_answer('INSERT INTO "activities_batchitem"') as lost:
        results.persistently(lambda: provider_batches.park(run, parked, row))

    assert lost
    assert [item.run_id for item in batching.items(tenant)] == [run.run_id]
    assert engine.status(tenant, activity) == "in_progress"


@pytest.fixture
def chain(engine: Engine, tenant: Tenant) -> PipelineRun:
    """The run of two steps, one after the other, of which none has begun."""
    engine.serve(tenant, "qa")
    steps = [{"id": "first", "agent_role": "qa"}, {"id": "second", "agent_role": "qa"}]
    versions.save(tenant.pk, {"key": "chain", "name": "Chain", "steps": steps}, actor="test")
    run = start_run(tenant.pk, "chain", NewRun(), actor="test")
    relay.flush()
    return run


def _outcome(run: PipelineRun) -> tuple[str, int, list[tuple[str, str]]]:
    with tenant_scope(run.tenant_id):
        run.refresh_from_db()
        steps = StepRun.objects.filter(run=run).order_by("step").values_list("step", "status")
        return run.status, run.unsettled, list(steps)


DONE = ("completed", 0, [("first", "done"), ("second", "done")])


def test_a_step_whose_end_was_recorded_and_its_answer_lost_settles_once(
    engine: Engine, chain: PipelineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As while others wait. What becomes of a step that follows at once is in `test_following_steps`.
    monkeypatch.setattr(dispatch._Following, "may_begin", lambda self: False)
    with lost_answer(transitions._finish_of_step.text) as lost:
        engine.drain()
    settled = _outcome(chain)
    # What was to be offered after the commit was lost with its answer.
    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)
    recovery.offer_forgotten()
    relay.flush()
    engine.drain()

    assert lost
    assert settled == ("running", 1, [("first", "done"), ("second", "active")])
    assert _outcome(chain) == DONE
    assert len(engine.agent.calls) == 2


@pytest.mark.parametrize("outage", [silent_for_too_long, ended_by_an_administrator, only_to_be_read])
def test_steps_go_on_after_an_outage_of_any_kind(
    outage: Callable[[Any], None], engine: Engine, chain: PipelineRun
) -> None:
    with before(transitions._finish_of_step.text, outage, times=3) as happened:
        engine.drain()

    assert (len(happened), len(engine.agent.calls)) == (3, 2)
    assert _outcome(chain) == DONE


def test_a_step_that_is_woken_during_its_call_settles_with_the_run_that_follows(
    engine: Engine, tenant: Tenant, chain: PipelineRun
) -> None:
    seen: list[tuple[str, int, list[tuple[str, str]]]] = []

    def woken_once(request: AgentRequest) -> AgentResult:
        seen.append(_outcome(chain))
        if len(seen) == 1:
            with tenant_scope(tenant.pk):
                activity = Activity.objects.select_for_update().get(pk=request.activity_id)
                outbox.deliver_answer([activity], WakeReason.UNBLOCKED, payload={}, actor="test")
        return Completed(Output(content="x"))

    engine.agent.behaviour = woken_once
    engine.drain()

    waits = ("running", 2, [("first", "active"), ("second", "pending")])
    assert seen == [waits, waits, ("running", 1, [("first", "done"), ("second", "active")])]
    assert _outcome(chain) == DONE


def test_a_claim_whose_answer_was_lost_is_handed_back_at_once_and_is_nobodys_failure(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with lost_answer(transitions._CLAIM.text) as lost:
        engine.drain()

    given_back = engine.get(tenant, activity)
    assert lost
    assert (given_back.status, given_back.attempts, given_back.stalls) == ("created", 0, 0)
    assert not engine.agent.calls

    engine.make_due(tenant)
    engine.drain()

    assert (engine.status(tenant, activity), len(engine.agent.calls)) == ("done", 1)


def test_an_outage_between_claim_and_call_is_no_failure_of_the_agent(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant, max_attempts=1)

    with monkeypatch.context() as broken:
        broken.setattr(execution_request, "build", _ended)
        engine.drain()

    waiting = engine.get(tenant, activity)
    assert (waiting.status, waiting.attempts, waiting.stalls) == ("created", 0, 0)
    assert waiting.error["code"] == ServerAway.code

    engine.make_due(tenant)
    engine.drain()

    assert engine.status(tenant, activity) == "done"


def test_a_mistake_of_ours_is_still_shown_to_people(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    def broken(*arguments: Any) -> Any:
        with connections[APP].wrap_database_errors:
            raise errors.InternalError_("cache lookup failed")

    monkeypatch.setattr(execution_request, "build", broken)
    engine.drain()

    assert engine.get(tenant, activity).error["code"] == "internal_error"


def test_a_tool_that_cannot_be_served_for_an_outage_is_no_crash_of_the_agent(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents import adapters, runner
    from agents.adapters import UNLINKED
    from agents.contracts import ToolCall

    class AsksForATool:
        def run(self, request: AgentRequest, *, link: Any) -> AgentResult:
            link.call_tool(ToolCall("request_review", {}, "1"))
            return Completed(Output(content="never"))

    class Cut:
        def __getattr__(self, name: str) -> Any:
            return getattr(UNLINKED, name)

        def call_tool(self, call: ToolCall) -> Any:
            raise redis.ConnectionError("cut")

    engine.serve(tenant, "qa")
    engine.submit(tenant)
    asked: list[AgentRequest] = []
    run_agent = runner.run_agent

    def with_a_tool(request: AgentRequest, *, link: Any) -> AgentResult:
        asked.append(request)
        return run_agent(request, link=Cut())  # type: ignore[arg-type]

    monkeypatch.setattr(adapters, "get", lambda name: AsksForATool())
    with pytest.raises(ServerAway):
        with_a_tool(_request_of(engine, monkeypatch), link=None)


def _ended(*arguments: Any) -> Any:
    with connections[APP].wrap_database_errors:
        raise errors.IdleInTransactionSessionTimeout("terminating connection")


def test_programs_are_told_when_to_come_back(
    api: Callable[..., Any], database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api("admin")
    monkeypatch.setattr("tenants.tokens._look_up", _ended)

    answer = client.get("/api/v1/activities/")

    assert (answer.status_code, answer["Retry-After"], answer.json()["code"]) == (503, "5", "unavailable")


@pytest.mark.parametrize(
    ("accept", "content"), [("text/html", b"The database does not answer"), ("*/*", b'"code":"unavailable"')]
)
def test_so_is_everybody_else_wherever_the_outage_is_noticed(
    accept: str, content: bytes, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(raise_request_exception=False)
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", _ended)
    client.cookies["sessionid"] = "x" * 32

    answer = client.get("/admin/", headers={"Accept": accept})

    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert content in answer.content


def _request_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AgentRequest:
    """What a real run would ask of its agent."""
    found: list[AgentRequest] = []

    def note(request: AgentRequest, *, link: Any) -> AgentResult:
        found.append(request)
        return Completed(Output(content="noted"))

    with monkeypatch.context() as noting:
        noting.setattr(dispatch.runner, "run_agent", note)
        engine.drain()
    return found[0]


def test_a_result_is_kept_for_as_long_as_the_lease_and_no_longer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    def away() -> None:
        nonlocal tried
        tried += 1
        if tried == 3:
            engine.lease.last_beat -= 1_000
        raise InterfaceError("connection already closed")

    monkeypatch.setattr(results, "CONTENTION_SECONDS", 0.0)
    monkeypatch.setattr(results.time, "sleep", lambda seconds: None)

    with pytest.raises(InterfaceError):
        results.persistently(away)

    assert tried == 3
    assert leases.is_over()
