"""The check of invariants: intact data breaks none, each damage breaks its own, and the commands report and repair."""

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
from activities.human_tasks import decisions
from activities.maintenance import invariants
from activities.models import Activity, ActivityRun, Wake, WorkerProcess
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import RetryableAgentError
from pipelines import submission, versions
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests.damage import temporary_damage, without_guards
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
    """Intact work: done, retried, accepted by an agent, awaiting approval, waiting for a worker, and in a pipeline."""

    tenant: Tenant
    other: Tenant
    retried: UUID
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
    (retried,) = engine.submit(tenant, "qa", params={"first_try": "fails"}, retry={"base_seconds": 0.0})
    versions.save(tenant.pk, TWO_STEPS, actor="test")
    submission.start_run(tenant.pk, "two-steps", submission.NewRun(), actor="test")
    relay.flush()
    engine.drain()
    engine.make_due(tenant)
    engine.drain()
    (accepted,) = engine.submit(tenant, "seo", params={"calls_back": True})
    engine.drain()
    engine.submit(other_tenant, "blog-writer")
    return Work(tenant, other_tenant, retried, accepted)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Lets `recover` continue at once, because no other process is working."""
    monkeypatch.setattr(rebuilding, "SETTLE_SECONDS", 0.0)
    settings.ORCHESTRATOR_TICK_SECONDS = 0.0


@pytest.fixture
def no_mongodb(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(outputs, "TIMEOUT_MS", 50)
    settings.MONGODB_URI = "mongodb://127.0.0.1:1/none?appname=away"
    yield
    outputs.collection().database.client.close()


def _since() -> datetime:
    return datetime.now(UTC) - timedelta(hours=1)


def _broken(*, quiesced: bool = True, since: datetime | None = None) -> list[str]:
    return [violation.invariant for violation in invariants.check(quiesced=quiesced, since=since)]


def test_intact_work_breaks_no_invariant(work: Work) -> None:
    report = invariants.examine(quiesced=True, since=_since())

    assert report.violations == []
    assert set(report.held) == invariants.SAFETY.keys() | invariants.LIVENESS.keys()
    assert report.not_checked == {}


#: Statements by the invariant that they break. They refer to the retried activity and to the other tenant.
DAMAGE: dict[str, list[str]] = {
    "I01": [
        "UPDATE activities_wake SET state = 'pending', run_id = NULL"
        " WHERE run_id IN (SELECT id FROM activities_activityrun WHERE status = 'running')",
        "UPDATE activities_activityrun SET status = 'stalled', ended_at = clock_timestamp() WHERE status = 'running'",
    ],
    "I02": [
        "UPDATE activities_activityrun SET ended_at = ended_at + interval '1 hour'"
        " WHERE activity_id = %(retried)s AND status = 'failed'"
    ],
    "I03": ["UPDATE activities_activityevent SET verb = 'start' WHERE verb = 'complete'"],
    "I04": ["DELETE FROM activities_activityevent WHERE verb = 'start'"],
    "I05": ["UPDATE activities_wake SET run_id = NULL WHERE state = 'taken'"],
    "I06": ["UPDATE activities_activityrun SET fence = 5 WHERE activity_id = %(retried)s AND fence = 1"],
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
    "I18": ["UPDATE activities_wake SET tenant_id = %(other)s WHERE activity_id = %(retried)s"],
    "I19": [
        "UPDATE activities_workerprocess SET roles = ARRAY['blog-writer']",
        "UPDATE activities_wake SET created_at = created_at - interval '5 minutes' WHERE state = 'pending'",
    ],
    "I22": ["DELETE FROM activities_outputspool WHERE activity_id = %(retried)s"],
    "I29": ["UPDATE pipelines_pipelinerun SET unsettled = unsettled + 1"],
}


def test_damage_breaks_exactly_its_own_invariant(work: Work) -> None:
    broken_by = {}
    for invariant, statements in DAMAGE.items():
        ids = {"retried": f"'{work.retried}'", "other": f"'{work.other.pk}'"}
        with temporary_damage(*(statement % ids for statement in statements)) as changed:
            assert all(changed), f"the damage must be done for the test to mean anything: {invariant}"
            # Only what is meant is checked: a missing run also leaves its slot, and overlapping runs also exceed a cap.
            since = _since() if invariant == "I11" else None
            broken_by[invariant] = _broken(quiesced=invariant in invariants.LIVENESS, since=since)

    assert broken_by == {invariant: [invariant] for invariant in DAMAGE}
    assert _broken(since=_since()) == [], "all damage was rolled back"


#: Further ways to break the same invariants.
MORE_DAMAGE = {
    "a released run has kept a wake": (
        "I05",
        "INSERT INTO activities_wake SELECT (jsonb_populate_record(w, jsonb_build_object("
        "'id', gen_random_uuid(), 'state', 'taken', 'run_id', r.id))).* FROM activities_wake w"
        " JOIN activities_activityrun r ON r.activity_id = w.activity_id AND r.fence = 1 WHERE w.activity_id = %(retried)s",
    ),
    "a run is active although its activity has ended": (
        "I01",
        "UPDATE activities_activityrun SET status = 'running', ended_at = NULL, accepted_at = now()"
        " WHERE activity_id = %(retried)s AND status = 'completed'",
    ),
    "a result of a superseded run was accepted": (
        "I05",
        "UPDATE activities_activityrun SET status = 'completed' WHERE activity_id = %(retried)s AND fence = 1",
    ),
    "the worker of a run is missing": (
        "I07",
        "UPDATE activities_activityrun SET accepted_at = NULL, worker_id = gen_random_uuid() WHERE status = 'running'",
    ),
    "a gate is open although nothing waits for it": (
        "I09",
        "UPDATE activities_activity SET parent_id = %(retried)s, link_kind = 'gate' WHERE step = 'sign-off'",
    ),
    "a step is active although its activity has ended": (
        "I10",
        "UPDATE pipelines_steprun SET activity_id = %(retried)s WHERE step = 'sign-off'",
    ),
    "a step counts branches that do not exist": (
        "I29",
        "UPDATE pipelines_steprun SET branches = 1, unsettled_branches = 1, activity_id = NULL WHERE step = 'sign-off'",
    ),
    "a branch belongs to a step without branches": (
        "I29",
        "INSERT INTO pipelines_steprun (tenant_id, run_id, step, branch, position, status, round)"
        " SELECT tenant_id, run_id, step, 1, position, 'active', 1 FROM pipelines_steprun WHERE step = 'sign-off'",
    ),
    "a run has ended while steps are open": (
        "I29",
        "UPDATE pipelines_pipelinerun SET status = 'completed', finished_at = now()",
    ),
}


def test_other_damage_breaks_the_same_invariants(work: Work) -> None:
    for damage, (invariant, statement) in MORE_DAMAGE.items():
        with temporary_damage(statement % {"retried": f"'{work.retried}'"}) as changed:
            assert all(changed), damage
            assert invariant in _broken(), damage


def test_a_table_without_forced_row_level_security_breaks_its_invariant(work: Work) -> None:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("ALTER TABLE activities_wake NO FORCE ROW LEVEL SECURITY")
        try:
            (violation,) = invariants.check()
        finally:
            cursor.execute("ALTER TABLE activities_wake FORCE ROW LEVEL SECURITY")

    assert (violation.invariant, violation.sample_ids) == ("I20", ("activities_wake",))


def test_a_slot_missing_in_redis_breaks_its_invariant(work: Work) -> None:
    with system_scope():
        live = ActivityRun.objects.get(status="running")

    exchange(Exchange(releases=[Release(live.activity_id, live.grant)]))

    assert _broken() == ["I23"]


def test_liveness_is_not_checked_while_work_continues(work: Work) -> None:
    with without_guards() as run:
        for invariant in ("I07", "I19"):
            for statement in DAMAGE[invariant]:
                run(statement)

    assert invariants.check() == []


def test_a_violation_has_a_count_and_sample_rows(work: Work) -> None:
    with without_guards() as run:
        changed = run("UPDATE activities_activity SET version = version + 1 WHERE agent_role IS NOT NULL")

    (violation,) = invariants.check()

    assert violation.invariant == "I04"
    assert violation.count == changed
    assert UUID(violation.sample_ids[0])
    assert violation.description == invariants.SAFETY["I04"]


def test_the_check_runs_in_a_read_only_snapshot(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_outputs_are_not_checked_during_an_outage_of_mongodb(work: Work, no_mongodb: None) -> None:
    with without_guards() as run:
        run("DELETE FROM activities_outputspool")

    report = invariants.examine()

    assert report.violations == []
    assert "MongoDB does not answer" in report.not_checked["I22"]


def test_the_command_lists_every_invariant_as_ok(work: Work) -> None:
    output = StringIO()

    call_command("check_invariants", "--quiesced", "--since", "1h", stdout=output)

    lines = output.getvalue().splitlines()
    assert len(lines) == len(invariants.SAFETY) + len(invariants.LIVENESS) + 1
    assert all("  ok  " in line for line in lines[:-1])
    assert lines[-1].startswith("All 26 invariants hold")


def test_the_command_names_broken_invariants_and_exits_with_status_1(work: Work) -> None:
    output = StringIO()
    with without_guards() as run:
        run("DELETE FROM activities_activityevent WHERE activity_id = %s AND verb = 'start'", work.retried)

    with pytest.raises(SystemExit) as ended:
        call_command("check_invariants", stdout=output)

    assert ended.value.code == 1
    assert "I04  BROKEN" in output.getvalue()
    assert f"1: {work.retried}" in output.getvalue()
    assert "BROKEN: 1 of 21 invariants do not hold (I04)" in output.getvalue()


def test_the_command_can_print_json(work: Work) -> None:
    output = StringIO()
    with without_guards() as run:
        run("UPDATE pipelines_pipelinerun SET unsettled = 7")

    with pytest.raises(SystemExit):
        call_command("check_invariants", "--json", stdout=output)

    report = json.loads(output.getvalue())
    assert report["ok"] is False
    assert [violation["invariant"] for violation in report["violations"]] == ["I29"]
    assert "I04" in report["held"]


@pytest.mark.parametrize("text", ["yesterday", "5 h", "999999d", "2026-13-01T00:00:00Z", ""])
def test_the_command_refuses_an_invalid_start_time(text: str) -> None:
    with pytest.raises(CommandError, match="neither a duration"):
        call_command("check_invariants", f"--since={text}")


def test_the_outcome_is_stored_for_the_metrics(work: Work) -> None:
    call_command("check_invariants", stdout=StringIO())

    at, violations = invariants.last_known() or (0.0, {})

    assert abs(at - datetime.now(UTC).timestamp()) < 60
    assert violations["I04"] == 0


def test_recover_says_that_nothing_was_lost(work: Work) -> None:
    output = StringIO()

    call_command("recover", stdout=StringIO())  # copies the outputs
    call_command("recover", stdout=output)

    assert output.getvalue().splitlines()[-1] == "Nothing was lost."


def test_recover_rebuilds_a_wiped_redis_and_reclaims_runs_of_a_dead_worker(
    engine: Engine, tenant: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    engine.serve(tenant)
    (waiting,) = engine.submit(tenant, "blog-writer")
    (running,) = engine.submit(tenant, "qa")
    engine.drain()
    with system_scope():
        # A process of this machine whose pid now belongs to another process.
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
    output = StringIO()

    call_command("recover", stdout=output)

    assert "1  workers declared lost" in output.getvalue()
    assert "1  runs of ended workers reclaimed" in output.getvalue()
    assert "admission (its order and slots in Redis) rebuilt" in output.getvalue()
    assert engine.status(tenant, running) == "created"
    with tenant_scope(tenant.pk):
        assert Wake.objects.filter(activity_id__in=(waiting, running), state="pending").count() == 2
    assert invariants.check(quiesced=True) == []


def test_recover_names_what_it_could_not_repair(work: Work, no_mongodb: None) -> None:
    complaints = StringIO()

    with pytest.raises(CommandError, match="need a server"):
        call_command("recover", stdout=StringIO(), stderr=complaints)

    assert "outputs copied to MongoDB: MongoDB does not answer" in complaints.getvalue()


def test_decisions_break_no_invariant(work: Work) -> None:
    with tenant_scope(work.tenant.pk):
        waiting = Activity.objects.get(status="awaiting_approval")
        gate = Activity.objects.get(step="sign-off")

    decisions.reject(work.tenant.pk, waiting.pk, actor="user:mia", notes="shorter")
    decisions.approve(work.tenant.pk, gate.pk, actor="user:mia")

    assert invariants.check() == []
