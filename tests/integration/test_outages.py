"""An outage of PostgreSQL or Redis during healthy work delays it and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.db import InterfaceError, connections
from django.test import Client
from psycopg import errors

from activities import dispatch, leases, outbox, provider_batches, relay, transitions
from activities.execution import following_step, results
from activities.execution import request as execution_request
from activities.maintenance import recovery
from activities.models import Activity
from activities.states import WakeReason
from agents import adapters, runner
from agents.adapters import UNLINKED
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output, Parked, ToolCall
from agents.exceptions import ServerAway
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import APP, OWNER, tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, eventually
from tests.integration.recovery.losses import Died
from tests.spending import run_token_of


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    connections.close_all()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is recorded again at once, instead of after pauses of up to two seconds."""
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=monotonic, sleep=lambda seconds: None))


@contextmanager
def before(statement: str, happen: Callable[[Any], None], *, times: int = 1) -> Iterator[list[int]]:
    """Call `happen` with the connection just before this statement is sent; yields a list with an element per call."""
    calls: list[int] = []

    def wrapper(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        if sql == statement and len(calls) < times:
            calls.append(1)
            happen(context["connection"].connection)
        return execute(sql, parameters, many, context)

    with connections[APP].execute_wrapper(wrapper):
        yield calls


@contextmanager
def lost_answer(statement: str) -> Iterator[list[int]]:
    """Commit the transaction of this statement, but lose the answer to the commit."""
    calls: list[int] = []
    connection = connections[APP]
    statements_seen: list[int] = []

    def wrapper(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        if statement in sql:
            statements_seen.append(1)
        return execute(sql, parameters, many, context)

    commit = connection._commit

    def commit_and_lose_the_answer() -> None:
        commit()
        if statements_seen and not calls:
            calls.append(1)
            connection.connection.close()
            raise InterfaceError("the connection is closed")

    connection._commit = commit_and_lose_the_answer
    try:
        with connection.execute_wrapper(wrapper):
            yield calls
    finally:
        del connection._commit


def end_idle_session(connection: Any) -> None:
    """Let PostgreSQL end the session, as when a client is silent inside a transaction."""
    pid = connection.info.backend_pid
    connection.execute("SET idle_in_transaction_session_timeout = 1")
    eventually(lambda: not _session_exists(pid))


def terminate_session(connection: Any) -> None:
    pid = connection.info.backend_pid
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    eventually(lambda: not _session_exists(pid))


def make_read_only(connection: Any) -> None:
    """Make the transaction read-only, as after a failover to another primary."""
    connection.execute("SET TRANSACTION READ ONLY")


def _session_exists(pid: int) -> bool:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("outage", [end_idle_session, terminate_session, make_read_only])
def test_a_result_is_recorded_after_an_outage(
    outage: Callable[[Any], None], engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with before(transitions._finish.text, outage, times=3) as happened:
        engine.drain()

    row = engine.get(tenant, activity)
    assert (row.status, row.attempts, row.stalls, row.error, len(engine.agent.calls), len(happened)) == (
        "done", 1, 0, None, 1, 3,
    )  # fmt: skip


@pytest.mark.parametrize("outage", [end_idle_session, terminate_session, make_read_only])
def test_an_activity_is_claimed_after_an_outage(
    outage: Callable[[Any], None], engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with before(transitions._CLAIM.text, outage):
        engine.drain()

    assert (engine.status(tenant, activity), len(engine.agent.calls)) == ("done", 1)


def test_a_result_is_recorded_once_although_the_answer_to_its_commit_was_lost(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with lost_answer(transitions._finish.text) as lost:
        engine.drain()

    assert lost
    assert [run.status for run in engine.runs(tenant, activity)] == ["completed"]
    assert engine.status(tenant, activity) == "done"


def test_an_accepted_run_keeps_its_slot_although_the_answer_to_its_commit_was_lost(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa", max_concurrency=1)
    engine.agent.behaviour = lambda request: Accepted()
    first, second = engine.submit(tenant, count=2)

    with lost_answer('SET "accepted_at"') as lost:
        engine.drain()

    assert lost
    assert [engine.status(tenant, each) for each in (first, second)] == ["in_progress", "created"]


def test_a_parked_run_waits_for_its_batch_although_the_answer_to_its_commit_was_lost(
    engine: Engine, tenant: Tenant
) -> None:
    def die(request: object) -> AgentResult:
        raise Died

    engine.serve(tenant, "qa")
    engine.agent.behaviour = die
    (activity,) = engine.submit(tenant)
    with pytest.raises(Died):
        engine.deliver()
    run, row = run_token_of(tenant, activity), engine.get(tenant, activity)
    parked = Parked(provider="p", model="m", body={}, leave_at=datetime.now(UTC) + timedelta(hours=5))

    with lost_answer('INSERT INTO "activities_batchitem"') as lost:
        results.persistently(lambda: provider_batches.park(run, parked, row))

    assert lost
    assert [item.run_id for item in batching.items(tenant)] == [run.run_id]
    assert engine.status(tenant, activity) == "in_progress"


@pytest.fixture
def chain(engine: Engine, tenant: Tenant) -> PipelineRun:
    """A run of two consecutive steps, neither of which has started."""
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


def test_a_step_settles_once_although_the_answer_to_its_commit_was_lost(
    engine: Engine, chain: PipelineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As while others wait. Steps that follow at once are tested in `test_following_steps`.
    monkeypatch.setattr(following_step.FollowingStep, "may_begin", lambda self: False)
    with lost_answer(transitions._finish_of_step.text) as lost:
        engine.drain()
    settled = _outcome(chain)
    # The offers that follow the commit were lost as well.
    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)
    recovery.offer_forgotten()
    relay.flush()
    engine.drain()

    assert lost
    assert settled == ("running", 1, [("first", "done"), ("second", "active")])
    assert _outcome(chain) == DONE
    assert len(engine.agent.calls) == 2


@pytest.mark.parametrize("outage", [end_idle_session, terminate_session, make_read_only])
def test_the_next_step_starts_after_an_outage(
    outage: Callable[[Any], None], engine: Engine, chain: PipelineRun
) -> None:
    with before(transitions._finish_of_step.text, outage, times=3) as happened:
        engine.drain()

    assert (len(happened), len(engine.agent.calls)) == (3, 2)
    assert _outcome(chain) == DONE


def test_a_step_that_is_woken_during_its_call_settles_after_its_next_run(
    engine: Engine, tenant: Tenant, chain: PipelineRun
) -> None:
    outcomes: list[tuple[str, int, list[tuple[str, str]]]] = []

    def wake_during_first_call(request: AgentRequest) -> AgentResult:
        outcomes.append(_outcome(chain))
        if len(outcomes) == 1:
            with tenant_scope(tenant.pk):
                activity = Activity.objects.select_for_update().get(pk=request.activity_id)
                outbox.deliver_answer([activity], WakeReason.UNBLOCKED, payload={}, actor="test")
        return Completed(Output(content="x"))

    engine.agent.behaviour = wake_during_first_call
    engine.drain()

    first_is_active = ("running", 2, [("first", "active"), ("second", "pending")])
    assert outcomes == [
        first_is_active,
        first_is_active,
        ("running", 1, [("first", "done"), ("second", "active")]),
    ]
    assert _outcome(chain) == DONE


def test_a_claim_whose_answer_was_lost_is_released_without_counting_as_a_failure(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    with lost_answer(transitions._CLAIM.text) as lost:
        engine.drain()

    released = engine.get(tenant, activity)
    assert lost
    assert (released.status, released.attempts, released.stalls) == ("created", 0, 0)
    assert not engine.agent.calls

    engine.make_due(tenant)
    engine.drain()

    assert (engine.status(tenant, activity), len(engine.agent.calls)) == ("done", 1)


def test_an_outage_between_claim_and_call_does_not_count_as_an_attempt(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant, max_attempts=1)

    with monkeypatch.context() as fail:
        fail.setattr(execution_request, "build", _ended)
        engine.drain()

    waiting = engine.get(tenant, activity)
    assert (waiting.status, waiting.attempts, waiting.stalls) == ("created", 0, 0)
    assert waiting.error["code"] == ServerAway.code

    engine.make_due(tenant)
    engine.drain()

    assert engine.status(tenant, activity) == "done"


def test_an_internal_error_of_postgresql_fails_the_activity(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(tenant, "qa")
    (activity,) = engine.submit(tenant)

    def fail(*arguments: Any) -> Any:
        with connections[APP].wrap_database_errors:
            raise errors.InternalError_("cache lookup failed")

    monkeypatch.setattr(execution_request, "build", fail)
    engine.drain()

    assert engine.get(tenant, activity).error["code"] == "internal_error"


def test_an_outage_during_a_tool_call_does_not_count_as_a_crash_of_the_agent(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(adapters, "get", lambda name: AsksForATool())
    request = _request_of(engine, monkeypatch)

    with pytest.raises(ServerAway):
        runner.run_agent(request, link=Cut())  # type: ignore[arg-type]


def _ended(*arguments: Any) -> Any:
    with connections[APP].wrap_database_errors:
        raise errors.IdleInTransactionSessionTimeout("terminating connection")


def test_the_api_answers_503_with_retry_after_during_an_outage(
    api: Callable[..., Any], database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api("admin")
    monkeypatch.setattr("tenants.tokens._look_up", _ended)

    answer = client.get("/api/v1/activities/")

    assert (answer.status_code, answer["Retry-After"], answer.json()["code"]) == (503, "5", "unavailable")


@pytest.mark.parametrize(
    ("accept", "content"), [("text/html", b"The database does not answer"), ("*/*", b'"code":"unavailable"')]
)
def test_pages_answer_503_with_retry_after_during_an_outage(
    accept: str, content: bytes, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(raise_request_exception=False)
    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", _ended)
    client.cookies["sessionid"] = "x" * 32

    answer = client.get("/admin/", headers={"Accept": accept})

    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert content in answer.content


def _request_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AgentRequest:
    """The request of a real run to its agent."""
    requests: list[AgentRequest] = []

    def record_request(request: AgentRequest, *, link: Any) -> AgentResult:
        requests.append(request)
        return Completed(Output(content="noted"))

    with monkeypatch.context() as patched:
        patched.setattr(dispatch.runner, "run_agent", record_request)
        engine.drain()
    return requests[0]


def test_recording_a_result_is_retried_until_the_lease_is_over(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def fail_until_the_lease_is_over() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            engine.lease.last_beat -= 1_000
        raise InterfaceError("connection already closed")

    monkeypatch.setattr(results, "CONTENTION_SECONDS", 0.0)

    with pytest.raises(InterfaceError):
        results.persistently(fail_until_the_lease_is_over)

    assert attempts == 3
    assert leases.is_over()
