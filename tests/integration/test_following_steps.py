"""The step that follows a run takes its slot at once, in the transaction that ends the run: only while nobody is kept waiting by that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis
from django.db import DatabaseError, connections
from psycopg import errors

from activities import cancellation, dispatch, relay, submission, worker
from activities.admission import limits, rebuilding, scripts
from activities.execution import results
from activities.maintenance import invariants, recovery
from activities.models import ActivityRun
from activities.signals import activity_settled
from activities.submission import NewActivity
from agents import adapters
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.models import Agent
from pipelines import progression
from pipelines.models import Pipeline
from tenants import pausing
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tenants.models.base import PauseKind
from tenants.redis import SentCommand, client
from tests.engine import Engine, elsewhere
from tests.flows import Flow, step
from tests.integration.recovery.losses import Died, lose
from tests.integration.test_outages import lost_answer
from tests.spending import capped

CHAIN = (step("one"), step("two", "one"), step("three", "two"))


@pytest.fixture
def acme(engine: Engine, tenant: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenant]:
    """A message goes on as long as there is work."""
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 600.0
    monkeypatch.setattr(dispatch, "CLAIM_SECONDS", 1e6)
    engine.serve(tenant)
    yield tenant
    relay.flush()
    assert invariants.check() == []
    assert scripts.audit(withdraw_orphans=False) == []
    assert not engine.lease.runs


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each slot that admission was asked for whether a step has followed on it."""
    found: list[bool] = []
    take_up = dispatch._Following.take_up

    def noted(self: Any) -> Any:
        run = take_up(self)
        if self._slot is not None:
            found.append(run is not None)
        return run

    monkeypatch.setattr(dispatch._Following, "take_up", noted)
    return found


def transaction_of(tenant: Tenant, flow: Flow, name: str, verb: str) -> int:
    """The number of the transaction that has written this event of a step."""
    with tenant_scope(tenant.pk), connections[APP].cursor() as cursor:
        cursor.execute(
            "SELECT e.xmin::text::bigint FROM activities_activityevent e JOIN activities_activity a ON a.id = e.activity_id"
            " WHERE a.pipeline_run_id = %s AND a.step = %s AND e.verb = %s",
            [flow.id, name, verb],
        )
        (found,) = cursor.fetchall()
    return int(found[0])


def test_a_step_begins_in_the_transaction_that_ends_the_one_before(
    engine: Engine, acme: Tenant, passed: list[bool]
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
    assert passed == [True, True, False]
    for before, after in (("one", "two"), ("two", "three")):
        ended = transaction_of(acme, flow, before, "complete")
        assert {transaction_of(acme, flow, after, verb) for verb in ("submit", "start")} == {ended}


#: Columns that differ between two equal runs: ids, times and what is derived from them.
OWN = re.compile(r"(?!session_id)(.*_)?(id|ref|at|grant|provenance|input)$")


def rows_of(tenant: Tenant, flow: Flow) -> dict[str, list[dict[str, Any]]]:
    """All rows that the claims of these steps have written, without what differs between two equal runs."""
    found = {}
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
            found[table] = [
                {name: value if not OWN.match(name) else value is not None for name, value in row.items()}
                for row in rows
            ]
    return found


@pytest.mark.parametrize("has_session", [False, True])
def test_a_step_that_is_claimed_as_it_is_created_leaves_the_rows_of_one_that_is_claimed_later(
    engine: Engine, acme: Tenant, passed: list[bool], monkeypatch: pytest.MonkeyPatch, has_session: bool
) -> None:
    """The third step has its input at hand, the last one must fetch the outputs of two steps before it starts."""
    engine.agent.behaviour = lambda request: Completed(
        Output(content=f"{request.pipeline_step}: done"),
        session_id="s-1" if has_session and request.pipeline_step == "one" else None,
    )
    steps = (*CHAIN, step("four", "two", "three"))
    claim, claimed = submission.Reservation.claim, list[bool]()

    def noted(self: submission.Reservation, parameters: Any) -> Any:
        rows = claim(self, parameters)
        claimed.append(rows is not None)
        return rows

    monkeypatch.setattr(submission.Reservation, "claim", noted)
    together = Flow(engine, acme, *steps, deliverable_id=uuid4())
    engine.drain()
    monkeypatch.setattr(submission.Reservation, "claim", lambda self, parameters: None)
    apart = Flow(engine, acme, *steps, deliverable_id=uuid4())
    engine.drain()

    assert together.outcome == apart.outcome == ("completed", 0)
    # What records the session of the first step sends the statement that creates the second one before that can claim.
    assert claimed == [not has_session, True, True]
    assert passed == [True, True, True, False] * 2
    rows, expected = rows_of(acme, together), rows_of(acme, apart)
    assert [row["verb"] for row in rows["activities_activityevent"] if row["step"] == "two"] == [
        "submit",
        "start",
        "complete",
    ]
    assert len(rows["activities_activityrun"]) == len(rows["activities_wake"]) == 4
    assert [row["session_id"] for row in rows["activities_activityrun"]] == (
        ["s-1" if has_session else ""] * 4
    )
    assert rows == expected


def calls(engine: Engine) -> list[str | None]:
    return [call.pipeline_step for call in engine.agent.calls]


def during(name: str, happen: Callable[[], object]) -> Callable[[AgentRequest], AgentResult]:
    """An agent during whose call for this step something happens elsewhere."""

    def behave(request: AgentRequest) -> AgentResult:
        if request.pipeline_step == name:
            elsewhere(happen)
        return Completed(Output(content=f"{request.pipeline_step}: done"))

    return behave


def runs_of(engine: Engine, acme: Tenant, flow: Flow, name: str) -> list[ActivityRun]:
    return engine.runs(acme, flow.row(name).activity_id)


def test_whoever_waits_goes_first(engine: Engine, acme: Tenant, passed: list[bool]) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    flow = Flow(engine, acme, *CHAIN[:2])
    engine.submit(acme)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert [call.name for call in engine.agent.calls] == ["one", "work 0", "two"]
    assert passed == [False, False], "of the first step, and of the last one"


def test_while_others_wait_admission_is_not_even_asked(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    flows = [Flow(engine, acme, *CHAIN) for _ in range(3)]

    engine.drain()

    assert {flow.outcome for flow in flows} == {("completed", 0)}
    assert calls(engine)[:6] == ["one"] * 3 + ["two"] * 3
    assert passed[:1] == [False]
    assert len(passed) < 5, "asked in vain once, and where nobody waited any more"


@pytest.mark.parametrize(
    "steps",
    [
        (step("one"), step("two", "one", agent_role="dev")),
        (step("one"), step("two", "one"), step("also", "one")),
        (step("one"), step("two", "one", priority=3)),
        (step("one"), step("two", "one", human_role="editor")),
    ],
    ids=["of another role", "beside another one", "more urgent", "of a person"],
)
def test_a_step_that_is_not_just_the_same_work_is_offered_as_usual(
    engine: Engine, acme: Tenant, passed: list[bool], steps: tuple[dict[str, Any], ...]
) -> None:
    flow = Flow(engine, acme, *steps)

    engine.drain()

    assert not any(passed)
    assert flow.row("two").status == ("active" if "human_role" in steps[1] else "done")


def test_what_costs_money_asks_its_budget_first(engine: Engine, acme: Tenant, passed: list[bool]) -> None:
    capped(acme)
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert passed == []


def test_a_budget_that_comes_during_the_call_is_asked(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    engine.agent.behaviour = during("one", lambda: capped(acme))
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert passed == [False]


def test_work_whose_group_is_known_only_when_it_is_created_is_offered_as_usual(
    engine: Engine, acme: Tenant, passed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    inline, find = adapters.get("inline"), adapters.get
    monkeypatch.setattr(adapters, "get", lambda name: inline if name == "cli" else find(name))
    Agent.objects.filter(role="qa").update(options={"repositories": {"site": "https://git.example/site"}})
    engine.serve(acme, "qa", adapter="cli")
    flow = Flow(engine, acme, step("one"), step("two", "one", params={"repository": "site"}))

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert engine.get(acme, flow.row("two").activity_id).group_key == "repository:site"
    assert passed == []


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
def test_a_pause_during_the_call_holds_the_step_that_follows(
    engine: Engine, acme: Tenant, passed: list[bool], pause: Callable[[Engine, Tenant, bool], None]
) -> None:
    engine.agent.behaviour = during("one", lambda: pause(engine, acme, True))
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()

    assert (calls(engine), passed) == (["one"], [False])
    pause(engine, acme, False)
    relay.grant_waiting()
    engine.drain()
    assert flow.outcome == ("completed", 0)


def test_a_worker_that_drains_takes_no_step_that_follows(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    engine.agent.behaviour = during("one", engine.lease.drain)
    flow = Flow(engine, acme, *CHAIN)

    engine.deliver()

    assert (calls(engine), passed) == (["one"], [])
    engine.replace_worker()
    relay.grant_waiting()
    engine.drain()
    assert flow.outcome == ("completed", 0)


def test_nobody_waits_for_a_redis_that_has_not_answered_yet(
    engine: Engine, acme: Tenant, passed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SentCommand, "is_answered", lambda self: False)
    flow = Flow(engine, acme, *CHAIN)

    assert engine.drain() == 1

    assert flow.outcome == ("completed", 0)
    assert passed == [False] * 3


def test_a_slot_that_was_passed_on_too_long_ago_is_not_used(
    engine: Engine, acme: Tenant, passed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit of slots may have taken it back."""
    monkeypatch.setattr(dispatch, "CLAIM_SECONDS", 0.0)
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert passed == [False] * 3


def is_away(*arguments: object) -> None:
    raise redis.ConnectionError("away")


READ = SentCommand.read


def answers_too_late(self: SentCommand) -> None:
    """The command is carried out."""
    READ(self)
    raise redis.TimeoutError("too late")


@pytest.mark.parametrize(("method", "fails"), [("__init__", is_away), ("read", answers_too_late)])
def test_without_an_answer_of_redis_the_step_is_offered_as_usual(
    engine: Engine,
    acme: Tenant,
    passed: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    fails: Callable[..., None],
) -> None:
    monkeypatch.setattr(SentCommand, method, fails)
    flow = Flow(engine, acme, *CHAIN)

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert calls(engine) == ["one", "two", "three"]
    assert not any(passed)


@contextmanager
def failing_commit(error: psycopg.Error) -> Iterator[list[bool]]:
    """The first commit that begins a step that follows fails, after all before it was answered: it is undone."""
    connection, seen, done = connections[APP], list[bool](), list[bool]()
    commit = connection._commit

    def note(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        if "pipelines_steprun s SET status = 'active'" in sql:
            seen.append(True)
        return execute(sql, parameters, many, context)

    def fail() -> None:
        if seen and not done:
            connection.connection.send_kept()
            done.append(True)
            raise DatabaseError from error
        commit()

    connection._commit = fail
    try:
        with connection.execute_wrapper(note):
            yield done
    finally:
        del connection._commit


DEADLOCK = errors.DeadlockDetected("another transaction met this one")


def test_a_transaction_that_is_tried_again_claims_the_step_again(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    flow = Flow(engine, acme, *CHAIN)
    with failing_commit(DEADLOCK) as failed:
        engine.drain()

    assert failed == [True]
    assert flow.outcome == ("completed", 0)
    assert calls(engine) == ["one", "two", "three"]
    assert [len(runs_of(engine, acme, flow, name)) for name in ("one", "two", "three")] == [1, 1, 1]
    assert passed == [True, True, False]


def test_what_was_claimed_before_a_transaction_was_undone_does_not_count(
    engine: Engine, acme: Tenant, passed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try comes so late that it claims nothing."""
    flow = Flow(engine, acme, *CHAIN[:2])
    with failing_commit(DEADLOCK) as failed:
        expected = dispatch._Following._is_expected
        monkeypatch.setattr(
            dispatch._Following, "_is_expected", lambda self, begun: not failed and expected(self, begun)
        )
        engine.drain()

    assert flow.outcome == ("completed", 0)
    assert calls(engine) == ["one", "two"]
    assert [len(runs_of(engine, acme, flow, name)) for name in ("one", "two")] == [1, 1]
    assert passed == [False, False]


def test_a_result_that_is_refused_leaves_nothing_of_the_step_that_was_to_follow(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    flow = Flow(engine, acme, *CHAIN)
    first = flow.row("one").activity_id
    with failing_commit(errors.CheckViolation("a mistake of ours")):
        engine.drain()

    assert calls(engine) == ["one"]
    assert engine.status(acme, first) == "failed"
    assert flow.row("two").activity_id is None
    assert passed == [False]


def test_a_run_that_cannot_be_recorded_keeps_no_connection_to_redis(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(action: Callable[[], object]) -> object:
        return action()  # once, and then the server is away for longer than the lease

    flow = Flow(engine, acme, *CHAIN)
    in_use = len(client().connection_pool._in_use_connections)
    with monkeypatch.context() as patched:
        patched.setattr(SentCommand, "is_answered", lambda self: False)
        patched.setattr(results, "persistently", fails)
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


def test_a_step_whose_commit_was_never_answered_is_handed_back_and_runs_once(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    flow = Flow(engine, acme, *CHAIN)
    with lost_answer("pipelines_steprun s SET status = 'active'") as lost:
        engine.drain()
    engine.make_due(acme)
    engine.drain()

    assert lost == [1]
    assert flow.outcome == ("completed", 0)
    assert calls(engine) == ["one", "two", "three"]
    assert [run.status for run in runs_of(engine, acme, flow, "two")] == ["failed", "completed"]


def test_the_slot_of_a_step_whose_worker_died_before_the_commit_is_found_and_given_back(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = dispatch._begin_claims

    def dies(held: Any, created: Any = None) -> Any:
        claims = begin(held, created)
        if held[0].grant.activity_id != first:
            raise Died
        return claims

    flow = Flow(engine, acme, *CHAIN)
    first = flow.row("one").activity_id
    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "_begin_claims", dies)
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
    assert calls(engine) == ["one", "one", "two", "three"]


def test_what_else_the_end_of_a_run_has_left_does_not_wait_for_the_step_that_follows(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    seen: list[int] = []

    def leave_something(sender: Any, *, activity: Any, **kwargs: Any) -> None:
        if activity.step == "one":
            submission.submit([NewActivity(name="aside", agent_role="seo")], actor="test")

    engine.agent.behaviour = during("two", lambda: seen.append(engine.messages()))
    activity_settled.connect(leave_something, dispatch_uid="test.leave_something")
    try:
        Flow(engine, acme, *CHAIN[:2])
        engine.drain()
    finally:
        activity_settled.disconnect(dispatch_uid="test.leave_something")

    assert seen == [1]
    assert passed == [True, False]


def test_the_slot_is_for_the_step_and_for_nothing_else_that_was_created_before_it(
    engine: Engine, acme: Tenant, passed: list[bool], monkeypatch: pytest.MonkeyPatch
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
    assert not any(passed)


def test_a_step_that_follows_can_be_cancelled_like_any_other(
    engine: Engine, acme: Tenant, passed: list[bool]
) -> None:
    def cancel() -> None:
        cancellation.cancel(acme.pk, flow.row("two").activity_id, actor="test")

    flow = Flow(engine, acme, *CHAIN)
    engine.agent.behaviour = during("two", cancel)
    engine.drain()

    assert calls(engine) == ["one", "two"]
    assert passed == [True, False]
    assert flow.row("two").status == "failed"


def test_a_step_whose_slot_was_taken_back_before_its_agent_is_called_runs_later(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, late = dispatch._Claims.fetch, []

    def comes_late(self: Any) -> Any:
        if self.held[0].grant.activity_id == flow.row("two").activity_id and not late:
            late.append(self)
            with monkeypatch.context() as patched:
                patched.setattr(dispatch, "CLAIM_SECONDS", -1.0)
                patched.setattr(dispatch, "_slot_is_held", lambda grant: False)
                return fetch(self)
        return fetch(self)

    monkeypatch.setattr(dispatch._Claims, "fetch", comes_late)
    flow = Flow(engine, acme, *CHAIN)
    engine.drain()
    engine.make_due(acme)
    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert calls(engine) == ["one", "two", "three"]
    assert len(late) == 1
    assert len(runs_of(engine, acme, flow, "two")) == 2
