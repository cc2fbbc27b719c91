"""The next step takes the slot of the ended run in the same transaction, unless other work is waiting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import redis
from django.db import DatabaseError, connections
from psycopg import errors

from activities import cancellation, dispatch, outbox, relay, selectors, submission, suspension, worker
from activities.admission import limits, rebuilding, scripts
from activities.execution import claims, following_step, results
from activities.maintenance import invariants, recovery
from activities.models import ActivityRun
from activities.models.run import Wake
from activities.signals import activity_settled
from activities.states import WakeReason
from activities.submission import NewActivity
from agents import adapters
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import ConfigurationError, RetryableAgentError
from agents.models import Agent
from pipelines import progression, starting
from pipelines.models import Pipeline
from pipelines.submission import NewRun, start_run
from tenants import pausing, request_context
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tenants.models.base import PauseKind
from tenants.redis import SentCommand, client
from tests.accepted_work import AgentClient
from tests.engine import Engine, in_another_thread
from tests.flows import BROKEN, Flow, step
from tests.integration.recovery.losses import Died, lose
from tests.integration.test_outages import lost_answer
from tests.spending import make_budget
from tests.tracing import collect_spans

CHAIN = (step("one"), step("two", "one"), step("three", "two"))


@pytest.fixture
def acme(engine: Engine, tenant: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenant]:
    """The tenant, for which a message continues as long as there is work."""
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 600.0
    monkeypatch.setattr(claims, "CLAIM_SECONDS", 1e6)
    monkeypatch.setattr(following_step, "LAST_STEPS", set())
    engine.serve(tenant)
    yield tenant
    relay.flush()
    assert invariants.check() == []
    assert scripts.audit(withdraw_orphans=False) == []
    assert not engine.lease.runs


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each slot that was requested for a following step, whether the step took it."""
    results_of_take_up: list[bool] = []
    take_up = following_step.FollowingStep.take_up

    def take_up_and_record(self: Any) -> Any:
        run = take_up(self)
        if self._slot is not None:
            results_of_take_up.append(run is not None)
        return run

    monkeypatch.setattr(following_step.FollowingStep, "take_up", take_up_and_record)
    return results_of_take_up


def transaction_of(tenant: Tenant, flow: Flow, name: str, verb: str) -> int:
    """The id of the transaction that wrote this event of a step."""
    with tenant_scope(tenant.pk), connections[APP].cursor() as cursor:
        cursor.execute(
            "SELECT e.xmin::text::bigint FROM activities_activityevent e JOIN activities_activity a ON a.id = e.activity_id"
            " WHERE a.pipeline_run_id = %s AND a.step = %s AND e.verb = %s",
            [flow.id, name, verb],
        )
        ((transaction,),) = cursor.fetchall()
    return int(transaction)


def test_a_step_starts_in_the_transaction_that_ends_the_step_before(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    active: list[int] = []

    def behave(request: AgentRequest) -> AgentResult:
        active.append(engine.lease.active)
        return Completed(Output(content=f"{request.pipeline_step}: done"))

    engine.agent.behaviour = behave
    flow = Flow(engine, acme, *CHAIN)

    assert engine.drain() == 1

    assert flow.outcome == ("completed", 0)
    assert active == [1, 1, 1]
    assert [call.pipeline_step for call in engine.agent.calls] == ["one", "two", "three"]
    assert engine.agent.calls[2].input["content"] == "two: done"
    assert followed == [True, True, False]
    for before, after in (("one", "two"), ("two", "three")):
        ended = transaction_of(acme, flow, before, "complete")
        assert {transaction_of(acme, flow, after, verb) for verb in ("submit", "start")} == {ended}


#: Columns that differ between equal runs: ids, times and values derived from them.
DIFFERING = re.compile(r"(?!session_id)(.*_)?(id|ref|at|grant|provenance|input)$")


def rows_of(tenant: Tenant, flow: Flow) -> dict[str, list[dict[str, Any]]]:
    """All rows of these steps, without the values that differ between equal runs."""
    rows_by_table = {}
    with tenant_scope(tenant.pk), connections[APP].cursor() as cursor:
        for table, key in (
            ("activities_activity", "id"), ("activities_activityrun", "activity_id"), ("activities_wake", "activity_id"),
            ("activities_activityevent", "activity_id"), ("tenants_usageentry", "activity_id"),
        ):  # fmt: skip
            cursor.execute(
                f"SELECT a.step, t.* FROM {table} t JOIN activities_activity a ON a.id = t.{key}"
                " WHERE a.pipeline_run_id = %s ORDER BY a.created_at, t.id",
                [flow.id],
            )
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            rows_by_table[table] = [
                {
                    name: value if not DIFFERING.match(name) else value is not None
                    for name, value in row.items()
                }
                for row in rows
            ]
    return rows_by_table


@pytest.mark.parametrize("has_session", [False, True])
def test_a_step_claimed_at_its_creation_leaves_the_same_rows_as_one_claimed_later(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch, has_session: bool
) -> None:
    """The third step has its input already; the last one must first fetch the outputs of two steps."""
    engine.agent.behaviour = lambda request: Completed(
        Output(content=f"{request.pipeline_step}: done"),
        session_id="s-1" if has_session and request.pipeline_step == "one" else None,
    )
    steps = (*CHAIN, step("four", "two", "three"))
    claim, claimed = submission.Reservation.claim, list[bool]()

    def claim_and_record(self: submission.Reservation, parameters: Any) -> Any:
        rows = claim(self, parameters)
        claimed.append(rows is not None)
        return rows

    monkeypatch.setattr(submission.Reservation, "claim", claim_and_record)
    together = Flow(engine, acme, *steps, deliverable_id=uuid4())
    engine.drain()
    monkeypatch.setattr(submission.Reservation, "claim", lambda self, parameters: None)
    separately = Flow(engine, acme, *steps, deliverable_id=uuid4())
    engine.drain()

    assert together.outcome == separately.outcome == ("completed", 0)
    # What records the session of the first step sends the statement that creates the second one before that can claim.
    assert claimed == [not has_session, True, True]
    assert followed == [True, True, True, False, True, True, True]
    rows, expected = rows_of(acme, together), rows_of(acme, separately)
    runs, expected_runs = rows["activities_activityrun"], expected["activities_activityrun"]
    # Nothing waited, so no wake was recorded.
    own_wakes = [run.pop("own_wake") for run in runs]
    own_wake = '{"payload": {}, "provenance": null}'
    assert own_wakes == [None, *(own_wake if each else None for each in claimed)]
    assert [run.pop("own_wake") for run in expected_runs] == [None] * 4
    wakes, expected_wakes = rows.pop("activities_wake"), expected.pop("activities_wake")
    assert wakes == [wake for wake, own in zip(expected_wakes, own_wakes, strict=True) if own is None]
    assert [row["verb"] for row in rows["activities_activityevent"] if row["step"] == "two"] == [
        "submit",
        "start",
        "complete",
    ]
    assert [row["session_id"] for row in runs] == ["s-1" if has_session else ""] * 4
    assert rows == expected


def wakes_of(tenant: Tenant, activity_id: UUID) -> list[tuple[str, str, UUID]]:
    """The reason, state and id of each wake in the history of an activity."""
    with tenant_scope(tenant.pk):
        facts = [
            moment.facts for moment in selectors.timeline(tenant.pk, activity_id) if moment.kind == "wake"
        ]
    return [(wake["reason"], wake["state"], wake["id"]) for wake in facts]


def test_the_wake_of_a_following_step_is_in_its_history_and_in_the_job_that_its_agent_reads_again(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    during_the_call: list[Any] = []

    def behave(request: AgentRequest) -> AgentResult:
        if request.pipeline_step == "two":
            job = in_another_thread(AgentClient(request).get_job).json()
            wakes = in_another_thread(lambda: wakes_of(acme, request.activity_id))
            during_the_call.extend((job["wakes"], *wakes))
        return Completed(Output(content=f"{request.pipeline_step}: done"))

    engine.agent.behaviour = behave
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    activity_id = flow.row("two").activity_id
    assert followed[0]
    assert during_the_call == [[{"reason": "new_task"}], ("new_task", "taken", activity_id)]
    assert wakes_of(acme, activity_id) == [("new_task", "consumed", activity_id)]
    with tenant_scope(acme.pk):
        kinds = [moment.kind for moment in selectors.timeline(acme.pk, activity_id)]
    assert kinds[:3] == ["transition", "wake", "run"], "it begins with its submission"


@pytest.mark.parametrize("end", ["fails", "is lost"])
def test_the_wake_of_a_following_step_whose_first_run_has_no_result_is_pending(
    engine: Engine, acme: Tenant, followed: list[bool], end: str
) -> None:
    def behave(request: AgentRequest) -> AgentResult:
        if request.pipeline_step == "two" and len(steps_called(engine)) == 2:
            if end == "is lost":
                raise Died
            raise RetryableAgentError("not now")
        return Completed(Output(content=f"{request.pipeline_step}: done"))

    engine.agent.behaviour = behave
    with request_context.of_request("r-1"):
        flow = Flow(engine, acme, *CHAIN)
    if end == "fails":
        engine.drain()
    else:
        with pytest.raises(Died):
            engine.deliver()
        engine.lease.runs.clear()
        lose(engine)
        recovery.reclaim_runs_of_ended_workers()
    activity_id = flow.row("two").activity_id
    assert followed[0]
    with tenant_scope(acme.pk):
        (wake,) = Wake.objects.filter(activity_id=activity_id)
    assert (wake.pk, wake.reason, wake.state, wake.run_id) == (activity_id, "new_task", "pending", None)
    assert (wake.payload, wake.provenance) == ({}, {"request": "r-1"})
    assert (wake.due_at is not None) == (end == "fails")
    engine.make_due(acme)
    relay.flush()
    engine.drain()

    assert flow.outcome == ("completed", 0)
    first, second = (call for call in engine.agent.calls if call.pipeline_step == "two")
    assert first.idempotency_key == second.idempotency_key == str(activity_id)
    assert first.wakes == second.wakes == ({"reason": "new_task"},)
    assert wakes_of(acme, activity_id) == [("new_task", "consumed", activity_id)]


def wake_with_message(engine: Engine, tenant: Tenant, request: AgentRequest) -> None:
    with tenant_scope(tenant.pk):
        activity = engine.get(tenant, request.activity_id)
        outbox.record(activity, WakeReason.MESSAGE, payload={"text": "hurry"})


def test_a_following_step_that_failed_is_retried_with_all_that_it_has_not_been_told(
    engine: Engine, acme: Tenant
) -> None:
    def behave(request: AgentRequest) -> AgentResult:
        if request.pipeline_step == "two" and len(steps_called(engine)) == 2:
            in_another_thread(lambda: wake_with_message(engine, acme, request))
            raise BROKEN
        return Completed(Output(content=f"{request.pipeline_step}: done"))

    engine.agent.behaviour = behave
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()
    cancellation.retry(acme.pk, flow.row("two").activity_id, actor="Ann")
    engine.drain()

    assert flow.outcome == ("completed", 0)
    second = flow.calls_of_step("two")[1]
    assert second.wakes == ({"reason": "new_task"}, {"reason": "message", "text": "hurry"})


def test_a_step_that_was_woken_during_its_run_ends_with_the_result_of_its_next_run(
    engine: Engine, acme: Tenant
) -> None:
    def behave(request: AgentRequest) -> AgentResult:
        if not steps_called(engine)[1:]:
            in_another_thread(lambda: wake_with_message(engine, acme, request))
        return Completed(Output(content=f"{request.pipeline_step}: {len(steps_called(engine))}"))

    engine.agent.behaviour = behave
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()

    assert steps_called(engine)[:3] == ["one", "one", "two"]
    assert flow.calls_of_step("two")[0].input["content"] == "one: 2"
    assert flow.outcome == ("completed", 0)


def test_a_following_step_whose_agent_was_told_its_task_before_it_suspended_the_work_is_not_told_again(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 1
    blocker = {"type": "credentials", "message": "expired"}

    def behave(request: AgentRequest) -> AgentResult:
        if request.pipeline_step == "two" and len(steps_called(engine)) == 2:
            in_another_thread(lambda: AgentClient(request).create_with("report_blocker", **blocker))
        return Completed(Output(content=f"{request.pipeline_step}: done"))

    engine.agent.behaviour = behave
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()
    activity_id = flow.row("two").activity_id
    suspension.resolve_blocker(acme.pk, activity_id, actor="Ann", note="renewed")
    assert engine.status(acme, activity_id) == "needs_review"
    cancellation.retry(acme.pk, activity_id, actor="Ann")
    engine.drain()

    assert flow.outcome == ("completed", 0)
    _, second = flow.calls_of_step("two")
    assert [wake["reason"] for wake in second.wakes] == ["unblocked"]


def steps_called(engine: Engine) -> list[str | None]:
    return [call.pipeline_step for call in engine.agent.calls]


def during(name: str, happen: Callable[[], object]) -> Callable[[AgentRequest], AgentResult]:
    """An agent during whose call for this step `happen` is called in another thread."""

    def behave(request: AgentRequest) -> AgentResult:
        if request.pipeline_step == name:
            in_another_thread(happen)
        return Completed(Output(content=f"{request.pipeline_step}: done"))

    return behave


def runs_of(engine: Engine, acme: Tenant, flow: Flow, name: str) -> list[ActivityRun]:
    return engine.runs(acme, flow.row(name).activity_id)


def test_waiting_work_precedes_the_following_step(engine: Engine, acme: Tenant, followed: list[bool]) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    flow = Flow(engine, acme, *CHAIN[:2])
    engine.submit(acme)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert [call.name for call in engine.agent.calls] == ["one", "work 0", "two"]
    assert followed == [False, False], "one for the first step and one for the last"


def test_no_slot_is_requested_while_others_wait(engine: Engine, acme: Tenant, followed: list[bool]) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    flows = [Flow(engine, acme, *CHAIN) for _ in range(3)]

    engine.drain()

    assert {flow.outcome for flow in flows} == {("completed", 0)}
    assert steps_called(engine)[:6] == ["one"] * 3 + ["two"] * 3
    assert followed[:1] == [False]
    assert len(followed) < 5, "only once in vain, and after nobody waited any more"


@pytest.mark.parametrize(
    "steps",
    [
        (step("one"), step("two", "one", agent_role="dev")),
        (step("one"), step("two", "one"), step("also", "one")),
        (step("one"), step("two", "one"), step("also", "one", when="true")),
        (step("one"), step("two", "one", priority=3)),
        (step("one"), step("two", "one", human_role="editor")),
    ],
    ids=["of another role", "beside another one", "beside a conditional one", "more urgent", "of a person"],
)
def test_a_step_with_other_requirements_is_offered_as_usual(
    engine: Engine, acme: Tenant, followed: list[bool], steps: tuple[dict[str, Any], ...]
) -> None:
    flow = Flow(engine, acme, *steps)

    engine.drain()

    assert not any(followed)
    assert flow.row("two").status == ("active" if "human_role" in steps[1] else "done")


def test_a_step_under_a_budget_is_offered_as_usual(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    make_budget(acme)
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert followed == []


def test_a_budget_created_during_the_call_applies_to_the_next_step(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    engine.agent.behaviour = during("one", lambda: make_budget(acme))
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert followed == [False]


def test_a_step_whose_group_is_set_at_its_creation_is_offered_as_usual(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    inline, find = adapters.get("inline"), adapters.get
    monkeypatch.setattr(adapters, "get", lambda name: inline if name == "cli" else find(name))
    Agent.objects.filter(role="qa").update(options={"repositories": {"site": "https://git.example/site"}})
    engine.serve(acme, "qa", adapter="cli")
    flow = Flow(engine, acme, step("one"), step("two", "one", params={"repository": "site"}))

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert engine.get(acme, flow.row("two").activity_id).group_key == "repository:site"
    assert followed == []


def pause_role(engine: Engine, acme: Tenant, is_paused: bool) -> None:
    engine.serve(acme, "qa", paused=is_paused)


def pause_pipeline(engine: Engine, acme: Tenant, is_paused: bool) -> None:
    with tenant_scope(acme.pk):
        pipeline = Pipeline.objects.get(key="flow").pk
        pausing.switch_part(
            acme.pk, PauseKind.PIPELINE, pipeline, name="Flow", paused=is_paused, actor="test"
        )
    limits.refresh()


@pytest.mark.parametrize("pause", [pause_role, pause_pipeline])
def test_a_pause_during_the_call_holds_the_next_step(
    engine: Engine, acme: Tenant, followed: list[bool], pause: Callable[[Engine, Tenant, bool], None]
) -> None:
    engine.agent.behaviour = during("one", lambda: pause(engine, acme, True))
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()

    assert (steps_called(engine), followed) == (["one"], [False])
    pause(engine, acme, False)
    relay.grant_waiting()
    engine.drain()
    assert flow.outcome == ("completed", 0)


def test_a_draining_worker_does_not_start_the_next_step(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    engine.agent.behaviour = during("one", engine.lease.drain)
    flow = Flow(engine, acme, *CHAIN)

    engine.deliver()

    assert (steps_called(engine), followed) == (["one"], [])
    engine.replace_worker()
    relay.grant_waiting()
    engine.drain()
    assert flow.outcome == ("completed", 0)


def test_a_worker_does_not_wait_for_a_slow_answer_of_redis(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SentCommand, "is_answered", lambda self: False)
    flow = Flow(engine, acme, *CHAIN)

    assert engine.drain() == 1

    assert flow.outcome == ("completed", 0)
    assert followed == [False] * 3


def test_a_slot_that_was_passed_on_too_long_ago_is_not_used(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit of slots may have withdrawn it."""
    monkeypatch.setattr(claims, "CLAIM_SECONDS", 0.0)
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert followed == [False] * 3


def raise_connection_error(*arguments: object) -> None:
    raise redis.ConnectionError("away")


READ = SentCommand.read


def read_then_time_out(self: SentCommand) -> None:
    """Time out after Redis has run the command."""
    READ(self)
    raise redis.TimeoutError("too late")


@pytest.mark.parametrize(
    ("method", "failing_method"), [("__init__", raise_connection_error), ("read", read_then_time_out)]
)
def test_without_an_answer_of_redis_the_next_step_is_offered_as_usual(
    engine: Engine,
    acme: Tenant,
    followed: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    failing_method: Callable[..., None],
) -> None:
    monkeypatch.setattr(SentCommand, method, failing_method)
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert steps_called(engine) == ["one", "two", "three"]
    assert not any(followed)


@contextmanager
def failing_commit(error: psycopg.Error) -> Iterator[list[bool]]:
    """Let the first commit that starts a following step fail, so that it is rolled back."""
    connection, statements, done = connections[APP], list[bool](), list[bool]()
    commit = connection._commit

    def record_statement(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        if "pipelines_steprun s SET status = 'active'" in sql:
            statements.append(True)
        return execute(sql, parameters, many, context)

    def fail() -> None:
        if statements and not done:
            connection.connection.send_kept()
            done.append(True)
            raise DatabaseError from error
        commit()

    connection._commit = fail
    try:
        with connection.execute_wrapper(record_statement):
            yield done
    finally:
        del connection._commit


DEADLOCK = errors.DeadlockDetected("another transaction met this one")


def test_a_retried_transaction_claims_the_step_again(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    flow = Flow(engine, acme, *CHAIN)
    with failing_commit(DEADLOCK) as failed:
        engine.drain()

    assert failed == [True]
    assert flow.outcome == ("completed", 0)
    assert steps_called(engine) == ["one", "two", "three"]
    assert [len(runs_of(engine, acme, flow, name)) for name in ("one", "two", "three")] == [1, 1, 1]
    assert followed == [True, True, False]


def test_a_claim_in_a_rolled_back_transaction_does_not_count(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt is so late that it claims nothing."""
    flow = Flow(engine, acme, *CHAIN[:2])
    with failing_commit(DEADLOCK) as failed:
        expected = following_step.FollowingStep._is_expected
        monkeypatch.setattr(
            following_step.FollowingStep, "_is_expected", lambda self, run: not failed and expected(self, run)
        )
        engine.drain()

    assert flow.outcome == ("completed", 0)
    assert steps_called(engine) == ["one", "two"]
    assert [len(runs_of(engine, acme, flow, name)) for name in ("one", "two")] == [1, 1]
    assert followed == [False, False]


def test_a_refused_result_leaves_no_trace_of_the_next_step(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    flow = Flow(engine, acme, *CHAIN)
    first = flow.row("one").activity_id
    with failing_commit(errors.CheckViolation("a mistake of ours")):
        engine.drain()

    assert steps_called(engine) == ["one"]
    assert engine.status(acme, first) == "failed"
    assert flow.row("two").activity_id is None
    assert followed == [False]


@pytest.mark.parametrize("is_answered", [False, True], ids=["without a claim", "with a claim"])
def test_a_run_that_cannot_be_recorded_releases_its_redis_connection_and_the_next_step(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    def run_once(action: Callable[[], object]) -> object:
        return action()  # no retries, as if the outage outlasted the lease

    flow = Flow(engine, acme, *CHAIN)
    in_use = len(client().connection_pool._in_use_connections)
    with monkeypatch.context() as patched:
        patched.setattr(SentCommand, "is_answered", lambda self: is_answered)
        patched.setattr(results, "persistently", run_once)
        with failing_commit(DEADLOCK), pytest.raises(DatabaseError):
            dispatch.receive(**(engine.take() or {}))

    assert len(client().connection_pool._in_use_connections) == in_use
    assert not engine.lease.runs
    engine.lease.doubtful = {run.pk for run in runs_of(engine, acme, flow, "one")}
    worker.hand_back_unattended(engine.lease)
    slots = rebuilding.SlotAudit()
    for _ in range(2):
        release, _ = slots.compare()
        relay.release_and_acquire(release)
    engine.make_due(acme)
    engine.drain()
    assert flow.outcome == ("completed", 0)


def test_a_step_whose_commit_was_not_answered_is_released_and_runs_once(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    flow = Flow(engine, acme, *CHAIN)
    with lost_answer("pipelines_steprun s SET status = 'active'") as lost:
        engine.drain()
    engine.make_due(acme)
    engine.drain()

    assert lost == [1]
    assert flow.outcome == ("completed", 0)
    assert steps_called(engine) == ["one", "two", "three"]
    assert [run.status for run in runs_of(engine, acme, flow, "two")] == ["failed", "completed"]


def test_the_slot_of_a_step_whose_worker_died_before_the_commit_is_freed(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = claims.begin_claims

    def die_at_the_second_claim(held: Any, created: Any = None) -> Any:
        claims = begin(held, created)
        if held[0].grant.activity_id != first:
            raise Died
        return claims

    flow = Flow(engine, acme, *CHAIN)
    first = flow.row("one").activity_id
    with monkeypatch.context() as patched:
        patched.setattr(claims, "begin_claims", die_at_the_second_claim)
        with pytest.raises(Died):
            engine.deliver()
    (orphan,) = scripts.audit(withdraw_orphans=False)
    assert orphan.activity_id != first
    connections.close_all()
    engine.lease.runs.clear()
    lose(engine)
    recovery.reclaim_runs_of_ended_workers()
    relay.flush()
    slots = rebuilding.SlotAudit()
    for _ in range(2):
        release, _ = slots.compare()
        relay.release_and_acquire(release)
    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert steps_called(engine) == ["one", "one", "two", "three"]


def test_other_work_created_at_the_end_of_a_run_is_offered_before_the_next_step_ends(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    messages_seen: list[int] = []

    def submit_aside(sender: Any, *, activity: Any, **kwargs: Any) -> None:
        if activity.step == "one":
            submission.submit([NewActivity(name="aside", agent_role="seo")], actor="test")

    engine.agent.behaviour = during("two", lambda: messages_seen.append(engine.messages()))
    activity_settled.connect(submit_aside, dispatch_uid="test.leave_something")
    try:
        Flow(engine, acme, *CHAIN[:2])
        engine.drain()
    finally:
        activity_settled.disconnect(dispatch_uid="test.leave_something")

    assert messages_seen == [1]
    assert followed == [True, False]


def test_the_slot_is_not_passed_to_other_work_created_before_the_step(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = progression.advance

    def advance_after_another(activity: Any) -> None:
        if activity.step == "one":
            submission.submit([NewActivity(name="aside", agent_role="qa")], actor="test")
        advance(activity)

    monkeypatch.setattr(progression, "advance", advance_after_another)
    flow = Flow(engine, acme, *CHAIN[:2])
    engine.drain()

    assert sorted(call.name for call in engine.agent.calls) == ["aside", "one", "two"]
    assert flow.outcome == ("completed", 0)
    assert not any(followed)


def test_a_following_step_can_be_cancelled_during_its_call(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    def cancel() -> None:
        cancellation.cancel(acme.pk, flow.row("two").activity_id, actor="test")

    flow = Flow(engine, acme, *CHAIN)
    engine.agent.behaviour = during("two", cancel)
    engine.drain()

    assert steps_called(engine) == ["one", "two"]
    assert followed == [True, False]
    assert flow.row("two").status == "failed"


def test_a_step_whose_slot_was_withdrawn_before_the_call_runs_later(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, late = claims.Claims.fetch, []

    def fetch_late_once(self: Any) -> Any:
        if self.held[0].grant.activity_id == flow.row("two").activity_id and not late:
            late.append(self)
            with monkeypatch.context() as patched:
                patched.setattr(claims, "CLAIM_SECONDS", -1.0)
                patched.setattr(claims, "slot_is_held", lambda grant: False)
                return fetch(self)
        return fetch(self)

    monkeypatch.setattr(claims.Claims, "fetch", fetch_late_once)
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()
    engine.make_due(acme)
    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert steps_called(engine) == ["one", "two", "three"]
    assert len(late) == 1
    assert len(runs_of(engine, acme, flow, "two")) == 2


def before_claims(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object], *, most: int = 1) -> None:
    """Let `then` happen in another thread before each step that follows is claimed, when it holds the slot already."""
    begin, happened = claims.begin_claims, list[Any]()

    def begin_afterwards(held: Any, created: Any = None) -> Any:
        if created is not None and len(happened) < most:
            happened.append(in_another_thread(then))
        return begin(held, created)

    monkeypatch.setattr(claims, "begin_claims", begin_afterwards)


def test_audits_before_the_commits_take_no_slot_from_the_next_steps(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see each run that is about to end without a slot. Before, they saw the slot of the second one without a run."""
    before_claims(monkeypatch, rebuilding.SlotAudit().compare, most=2)
    engine.serve(acme, "qa", max_concurrency=1)
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()

    assert followed == [True, True, False]
    assert flow.outcome == ("completed", 0)


def test_two_audits_while_the_transaction_waits_leave_no_slot_without_a_run(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They release the slot of the step, and hold one again for the run that is about to end."""

    def audit_twice() -> None:
        slots = rebuilding.SlotAudit()
        releases = [slots.compare()[0] for _ in range(2)]
        relay.release_and_acquire(releases[1])
        monkeypatch.setattr(claims, "CLAIM_SECONDS", -1.0)
        assert [slot.activity_id for slot in scripts.audit(withdraw_orphans=False)] == [first]

    before_claims(monkeypatch, audit_twice)
    flow = Flow(engine, acme, *CHAIN)
    first = flow.row("one").activity_id
    engine.drain()
    engine.make_due(acme)
    engine.drain()

    assert followed == [False] * 3
    assert flow.outcome == ("completed", 0)
    assert steps_called(engine) == ["one", "two", "three"]


def test_a_step_that_was_the_last_one_before_is_asked_about_again_after_another_step_has_followed_it(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    """In a new version of the pipeline the step is not the last one any more."""
    for steps in (CHAIN[:1], CHAIN[:1], CHAIN[:2], CHAIN[:2]):
        flow = Flow(engine, acme, *steps)
        engine.drain()
        assert flow.outcome == ("completed", 0)

    # The second end of "one" asks for no slot; neither does the third, but it shows that a step follows. "two" is the last one.
    assert followed == [False, False, True]


def test_only_so_many_last_steps_are_remembered(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_step, "MOST_LAST_STEPS", 0)
    for _ in range(2):
        Flow(engine, acme, *CHAIN[:1])
        engine.drain()

    assert followed == [False, False]


@pytest.mark.parametrize(
    "change",
    [{"group_key": "one at a time"}, {"files": ("docs/",)}, {"not_before": datetime(2100, 1, 1, tzinfo=UTC)}],
)
def test_a_step_that_needs_more_than_the_slot_is_offered_as_usual(
    engine: Engine,
    acme: Tenant,
    followed: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    """No step of a pipeline does so yet."""
    Flow(engine, acme, *CHAIN[:2])
    build = starting._activity
    monkeypatch.setattr(starting, "_activity", lambda *arguments: replace(build(*arguments), **change))
    engine.drain()

    assert steps_called(engine) == ["one", "two"][: 1 if "not_before" in change else 2]
    assert not any(followed)


def test_a_step_whose_input_is_not_in_postgresql_is_claimed_but_not_started(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is looked up elsewhere before the agent is called. A pipeline names only outputs that were just recorded."""
    flow = Flow(engine, acme, *CHAIN[:2])
    build = starting._activity
    monkeypatch.setattr(
        starting, "_activity", lambda *arguments: replace(build(*arguments), input_ref=uuid4())
    )
    engine.drain()

    assert followed == [True]
    assert steps_called(engine) == ["one"]
    assert (engine.get(acme, flow.row("two").activity_id).error or {})["code"] == "input_missing"


def test_the_first_step_of_another_run_does_not_take_the_slot(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    """Its pipeline may be paused, which admission has not checked."""

    def start_another(sender: Any, *, activity: Any, **kwargs: Any) -> None:
        if activity.step == "one" and activity.pipeline_run_id == flow.id:
            start_run(acme.pk, "flow", NewRun(), actor="test")

    flow = Flow(engine, acme, *CHAIN[:1])
    activity_settled.connect(start_another, dispatch_uid="test.start_another")
    try:
        engine.drain()
    finally:
        activity_settled.disconnect(dispatch_uid="test.start_another")

    assert steps_called(engine) == ["one", "one"]
    assert followed == [False, False]


def test_a_slot_that_no_step_takes_uses_up_no_rate_limit(
    engine: Engine, acme: Tenant, followed: list[bool]
) -> None:
    engine.serve(acme, "qa", rate={"per_second": 0.001, "capacity": 2})
    Flow(engine, acme, *CHAIN[:1])
    engine.drain()
    engine.submit(acme)
    engine.drain()

    assert followed == [False]
    assert [call.name for call in engine.agent.calls] == ["one", "work 0"]


def test_no_step_follows_when_the_message_is_too_old(
    engine: Engine, acme: Tenant, followed: list[bool], settings: Any
) -> None:
    settings.ORCHESTRATOR_CONTINUE_SECONDS = -1.0
    flow = Flow(engine, acme, *CHAIN)

    assert engine.drain() == 3

    assert flow.outcome == ("completed", 0)
    assert followed == []


def test_no_step_follows_while_tracing_is_on(engine: Engine, acme: Tenant, followed: list[bool]) -> None:
    with collect_spans() as spans:
        flow = Flow(engine, acme, *CHAIN)
        engine.drain()

    assert flow.outcome == ("completed", 0)
    assert followed == []
    assert len(spans.named("run qa")) == 3


def test_an_agent_whose_settings_cannot_be_read_any_more_loses_no_result(
    engine: Engine, acme: Tenant, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next step is created, and its own claim says what is wrong."""

    def refuse() -> None:
        raise ConfigurationError("The key cannot be read.")

    before_claims(monkeypatch, refuse)
    flow = Flow(engine, acme, *CHAIN[:2])
    engine.drain()

    assert followed == [False, False]
    assert [len(runs_of(engine, acme, flow, name)) for name in ("one", "two")] == [1, 1]
    assert flow.outcome == ("completed", 0)
