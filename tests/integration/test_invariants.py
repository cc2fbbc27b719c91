"""The checker, checked: sound data breaks no invariant, and each kind of damage breaks exactly its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from activities import leases, outputs, relay
from activities.admission import Exchange, exchange, rebuilding
from activities.admission.exchange import Release
from activities.human_tasks import approvals
from activities.maintenance import invariants
from activities.models import Activity, ActivityRun, Wake, WorkerProcess
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import RetryableAgentError
from pipelines import submission, versions
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests.damage import damaged, past_all_guards
from tests.engine import Engine

pytestmark = pytest.mark.long

TWO_STEPS = {
    "key": "two-steps",
    "name": "Two steps",
    "steps": [
        {"id": "draft", "agent_role": "seo"},
        {"id": "sign-off", "human_role": "editor", "is_approval_gate": True, "depends_on": ["draft"]},
    ],
}


@dataclass(frozen=True)
class Work:
    """Some of everything, sound: done, tried twice, accepted by an agent, awaiting approval, waiting for nobody, in a pipeline."""

    tenant: Tenant
    other: Tenant
    twice: UUID
    accepted: UUID


def _behave(request: AgentRequest) -> AgentResult:
    if request.params.get("first_try") == "fails" and request.attempt == 1:
        raise RetryableAgentError("not yet")
    if request.params.get("calls_back"):
        return Accepted()
    return Completed(Output(content=f"{request.name} done"))


@pytest.fixture
def work(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> Work:
    engine.agent.behaviour = _behave
    engine.serve(tenant, max_concurrency=1)
    engine.submit(tenant, "dev", count=2)
    engine.submit(tenant, "dev", requires_approval=True)
    (twice,) = engine.submit(tenant, "qa", params={"first_try": "fails"}, retry={"base_seconds": 0.0})
    versions.save(tenant.pk, TWO_STEPS, actor="test")
    submission.start_run(tenant.pk, "two-steps", submission.NewRun(), actor="test")
    relay.flush()
    engine.drain()
    engine.make_due(tenant)
    engine.drain()
    (accepted,) = engine.submit(tenant, "seo", params={"calls_back": True})
    engine.drain()
    engine.submit(other_tenant, "blog-writer")
    return Work(tenant, other_tenant, twice, accepted)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is at work, so `recover` need not wait for what others have under way."""
    monkeypatch.setattr(rebuilding, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def mongodb_away(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(outputs, "TIMEOUT_MS", 50)
    settings.MONGODB_URI = "mongodb://127.0.0.1:1/none?appname=away"
    yield
    outputs.collection().database.client.close()


def _since() -> datetime:
    return datetime.now(UTC) - timedelta(hours=1)


def _broken(*, quiesced: bool = True, since: datetime | None = None) -> list[str]:
    return [violation.invariant for violation in invariants.check(quiesced=quiesced, since=since)]


def test_sound_work_breaks_nothing(work: Work) -> None:
    report = invariants.examine(quiesced=True, since=_since())

    assert report.violations == []
    assert set(report.held) == invariants.SAFETY.keys() | invariants.LIVENESS.keys()
    assert report.not_checked == {}


#: What is done to the rows, by the invariant that it breaks. `%s` is the activity that was tried twice, or the other tenant.
DAMAGE: dict[str, list[str]] = {
    "I01": [
        "UPDATE activities_wake SET state = 'pending', run_id = NULL"
        " WHERE run_id IN (SELECT id FROM activities_activityrun WHERE status = 'running')",
        "UPDATE activities_activityrun SET status = 'stalled', ended_at = clock_timestamp() WHERE status = 'running'",
    ],
    "I02": [
        "UPDATE activities_activityrun SET ended_at = ended_at + interval '1 hour'"
        " WHERE activity_id = %(twice)s AND status = 'failed'"
    ],
    "I03": ["UPDATE activities_activityevent SET verb = 'start' WHERE verb = 'complete'"],
    "I04": ["DELETE FROM activities_activityevent WHERE verb = 'start'"],
    "I05": ["UPDATE activities_wake SET run_id = NULL WHERE state = 'taken'"],
    "I06": ["UPDATE activities_activityrun SET fence = 5 WHERE activity_id = %(twice)s AND fence = 1"],
    "I07": [
        "UPDATE activities_activityrun SET accepted_at = accepted_at - interval '1 day' WHERE status = 'running'"
    ],
    "I08": ["UPDATE activities_wake SET state = 'consumed' WHERE state = 'pending'"],
    "I09": ["UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE link_kind = 'gate'"],
    "I10": ["UPDATE pipelines_steprun SET status = 'pending', activity_id = NULL WHERE step = 'sign-off'"],
    "I11": [
        "UPDATE activities_activityrun SET started_at = now() - interval '3 s', ended_at = now() WHERE activity_id IN"
        " (SELECT id FROM activities_activity WHERE agent_role = 'dev')"
    ],
    "I18": ["UPDATE activities_wake SET tenant_id = %(other)s WHERE activity_id = %(twice)s"],
    "I19": [
        "UPDATE activities_workerprocess SET roles = ARRAY['blog-writer']",
        "UPDATE activities_wake SET created_at = created_at - interval '5 minutes' WHERE state = 'pending'",
    ],
    "I22": ["DELETE FROM activities_outputspool WHERE activity_id = %(twice)s"],
    "I29": ["UPDATE pipelines_pipelinerun SET unsettled = unsettled + 1"],
}


def test_damage_breaks_exactly_its_own_invariant(work: Work) -> None:
    found = {}
    for invariant, statements in DAMAGE.items():
        ids = {"twice": f"'{work.twice}'", "other": f"'{work.other.pk}'"}
        with damaged(*(statement % ids for statement in statements)) as changed:
            assert all(changed), f"the damage must be done for the test to mean anything: {invariant}"
            # A run that is gone left its slot behind, and runs that overlap exceed a cap: further checks would rightly say so as well.
            since = _since() if invariant == "I11" else None
            found[invariant] = _broken(quiesced=invariant in invariants.LIVENESS, since=since)

    assert found == {invariant: [invariant] for invariant in DAMAGE}
    assert _broken(since=_since()) == [], "what was damaged is as it was"


#: Further ways to break the same invariants.
MORE_DAMAGE = {
    "a run that was handed back has kept a wake": (
        "I05",
        "INSERT INTO activities_wake SELECT (jsonb_populate_record(w, jsonb_build_object("
        "'id', gen_random_uuid(), 'state', 'taken', 'run_id', r.id))).* FROM activities_wake w"
        " JOIN activities_activityrun r ON r.activity_id = w.activity_id AND r.fence = 1 WHERE w.activity_id = %(twice)s",
    ),
    "a run goes on though its activity has ended": (
        "I01",
        "UPDATE activities_activityrun SET status = 'running', ended_at = NULL, accepted_at = now()"
        " WHERE activity_id = %(twice)s AND status = 'completed'",
    ),
    "a result of a superseded run was accepted": (
        "I05",
        "UPDATE activities_activityrun SET status = 'completed' WHERE activity_id = %(twice)s AND fence = 1",
    ),
    "the worker of a run is gone": (
        "I07",
        "UPDATE activities_activityrun SET accepted_at = NULL, worker_id = gen_random_uuid() WHERE status = 'running'",
    ),
    "a gate stays open though nothing waits for it": (
        "I09",
        "UPDATE activities_activity SET parent_id = %(twice)s, link_kind = 'gate' WHERE step = 'sign-off'",
    ),
    "a step is under way though its activity has ended": (
        "I10",
        "UPDATE pipelines_steprun SET activity_id = %(twice)s WHERE step = 'sign-off'",
    ),
    "a step has branches that nobody made": (
        "I29",
        "UPDATE pipelines_steprun SET branches = 1, unsettled_branches = 1, activity_id = NULL WHERE step = 'sign-off'",
    ),
    "a branch belongs to a step that counts none": (
        "I29",
        "INSERT INTO pipelines_steprun (tenant_id, run_id, step, branch, position, status, round)"
        " SELECT tenant_id, run_id, step, 1, position, 'active', 1 FROM pipelines_steprun WHERE step = 'sign-off'",
    ),
    "a run says that it has ended while steps are open": (
        "I29",
        "UPDATE pipelines_pipelinerun SET status = 'completed', finished_at = now()",
    ),
}


def test_other_damage_is_found_as_well(work: Work) -> None:
    for what, (invariant, statement) in MORE_DAMAGE.items():
        with damaged(statement % {"twice": f"'{work.twice}'"}) as changed:
            assert all(changed), what
            assert invariant in _broken(), what


def test_a_table_without_forced_row_security_breaks_its_invariant(work: Work) -> None:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("ALTER TABLE activities_wake NO FORCE ROW LEVEL SECURITY")
        try:
            (violation,) = invariants.check()
        finally:
            cursor.execute("ALTER TABLE activities_wake FORCE ROW LEVEL SECURITY")

    assert (violation.invariant, violation.sample_ids) == ("I20", ("activities_wake",))


def test_a_slot_that_redis_lost_breaks_its_invariant(work: Work) -> None:
    with system_scope():
        live = ActivityRun.objects.get(status="running")

    exchange(Exchange(releases=[Release(live.activity_id, live.grant)]))

    assert _broken() == ["I23"]


def test_what_is_stuck_is_no_fault_while_work_goes_on(work: Work) -> None:
    with past_all_guards() as run:
        for invariant in ("I07", "I19"):
            for statement in DAMAGE[invariant]:
                run(statement)

    assert invariants.check() == []


def test_a_violation_says_how_often_and_names_the_rows(work: Work) -> None:
    with past_all_guards() as run:
        damaged = run("UPDATE activities_activity SET version = version + 1 WHERE agent_role IS NOT NULL")

    (violation,) = invariants.check()

    assert violation.invariant == "I04"
    assert violation.count == damaged
    assert UUID(violation.sample_ids[0])
    assert violation.description == invariants.SAFETY["I04"]


def test_the_check_can_change_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    from activities.maintenance import invariants

    settings_of_the_transaction = []

    def spy(*arguments: Any) -> tuple[int, tuple[str, ...]]:
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('transaction_read_only'), current_setting('transaction_isolation')"
            )
            settings_of_the_transaction.append(cursor.fetchone())
        return (0, ())

    monkeypatch.setattr(invariants, "_count_violations", spy)
    invariants.check()

    assert set(settings_of_the_transaction) == {("on", "repeatable read")}


def test_outputs_are_not_checked_while_mongodb_is_away(work: Work, mongodb_away: None) -> None:
    with past_all_guards() as run:
        run("DELETE FROM activities_outputspool")

    report = invariants.examine()

    assert report.violations == []
    assert "MongoDB does not answer" in report.not_checked["I22"]


def test_the_command_says_ok_for_each_and_exits_with_0(work: Work) -> None:
    said = StringIO()

    call_command("check_invariants", "--quiesced", "--since", "1h", stdout=said)

    lines = said.getvalue().splitlines()
    assert len(lines) == len(invariants.SAFETY) + len(invariants.LIVENESS) + 1
    assert all("  ok  " in line for line in lines[:-1])
    assert lines[-1].startswith("All 26 invariants hold")


def test_the_command_names_what_is_broken_and_exits_with_1(work: Work) -> None:
    said = StringIO()
    with past_all_guards() as run:
        run("DELETE FROM activities_activityevent WHERE activity_id = %s AND verb = 'start'", work.twice)

    with pytest.raises(SystemExit) as ended:
        call_command("check_invariants", stdout=said)

    assert ended.value.code == 1
    assert "I04  BROKEN" in said.getvalue()
    assert f"1: {work.twice}" in said.getvalue()
    assert "BROKEN: 1 of 21 invariants do not hold (I04)" in said.getvalue()


def test_the_command_speaks_json(work: Work) -> None:
    said = StringIO()
    with past_all_guards() as run:
        run("UPDATE pipelines_pipelinerun SET unsettled = 7")

    with pytest.raises(SystemExit):
        call_command("check_invariants", "--json", stdout=said)

    told = json.loads(said.getvalue())
    assert told["ok"] is False
    assert [violation["invariant"] for violation in told["violations"]] == ["I29"]
    assert "I04" in told["held"]


@pytest.mark.parametrize("text", ["yesterday", "5 h", "2026-13-01T00:00:00Z", ""])
def test_a_moment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="neither a duration"):
        call_command("check_invariants", f"--since={text}")


def test_the_outcome_is_remembered_for_the_metrics(work: Work) -> None:
    call_command("check_invariants", stdout=StringIO())

    at, violations = invariants.last_known() or (0.0, {})

    assert abs(at - datetime.now(UTC).timestamp()) < 60
    assert violations["I04"] == 0


def test_recover_finds_nothing_where_nothing_was_lost(work: Work) -> None:
    said = StringIO()

    call_command("recover", stdout=StringIO())  # copies the outputs
    call_command("recover", stdout=said)

    assert said.getvalue().splitlines()[-1] == "Nothing was lost."


def test_recover_rebuilds_a_wiped_redis_and_runs_what_a_dead_worker_had(
    engine: Engine, tenant: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    engine.serve(tenant)
    (waiting,) = engine.submit(tenant, "blog-writer")
    (running,) = engine.submit(tenant, "qa")
    engine.drain()
    with system_scope():
        # A process of this machine whose pid is another process's by now.
        worker = WorkerProcess.objects.create(
            host="here",
            boot=leases.boot_identity(),
            pid=os.getpid(),
            pid_started=1,
            roles=["qa"],
            concurrency=1,
        )
        ActivityRun.objects.filter(activity_id=running).update(accepted_at=None, worker_id=worker.pk)
    client().flushdb()
    said = StringIO()

    call_command("recover", stdout=said)

    assert "1  workers declared lost" in said.getvalue()
    assert "1  runs of ended workers reclaimed" in said.getvalue()
    assert "admission (its order and slots in Redis) rebuilt" in said.getvalue()
    assert engine.status(tenant, running) == "created"
    with tenant_scope(tenant.pk):
        assert Wake.objects.filter(activity_id__in=(waiting, running), state="pending").count() == 2
    assert invariants.check(quiesced=True) == []


def test_recover_says_what_it_had_to_leave(work: Work, mongodb_away: None) -> None:
    complaints = StringIO()

    with pytest.raises(CommandError, match="need a server"):
        call_command("recover", stdout=StringIO(), stderr=complaints)

    assert "outputs copied to MongoDB: MongoDB does not answer" in complaints.getvalue()


def test_deciding_keeps_every_invariant(work: Work) -> None:
    with tenant_scope(work.tenant.pk):
        waiting = Activity.objects.get(status="awaiting_approval")
        gate = Activity.objects.get(step="sign-off")

    approvals.reject(work.tenant.pk, waiting.pk, actor="user:mia", notes="shorter")
    approvals.approve(work.tenant.pk, gate.pk, actor="user:mia")

    assert invariants.check() == []
