"""Each check of fault injection detects its violation, and reports none in a correct run."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.chaos import checks, plan
from tests.chaos.agent import CallRecord, Report
from tests.chaos.evidence import Evidence, Recovery
from tests.chaos.faults import KINDS
from tests.chaos.workload import Decision, Request, Streamed

START = 1_700_000_000.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(START + seconds, UTC).isoformat()


def activity(pk: str = "a1", **changes: Any) -> dict[str, Any]:
    return {
        "id": pk, "tenant": "north", "name": f"work {pk}", "status": "done", "assignee_type": "agent", "agent_role": "blog-writer",
        "parent": None, "link_kind": None, "pipeline_run": None, "step": None, "branch": 0, "round": 1, "dedup_key": None,
        "created_at": at(0), "started_at": at(1), "finished_at": at(2), "attempts": 1, "stalls": 0,
    } | changes  # fmt: skip


def run(pk: str = "r1", **changes: Any) -> dict[str, Any]:
    return {"id": pk, "status": "completed", "started_at": at(1), "ended_at": at(2)} | changes


def call(run_id: str = "r1", **changes: Any) -> CallRecord:
    fields: dict[str, Any] = {
        "activity": "a1", "run": run_id, "wake": "w1", "tenant": "t-north", "role": "blog-writer", "attempt": 1,
        "wake_reason": "new_task", "mark": "m", "manner": "later", "began": START + 1, "ended": START + 2, "content": "text",
    }  # fmt: skip
    return CallRecord(**fields | changes)


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "at": START + 2, "name": "complete", "status": 200, "accepted": True, "stop": False, "duplicate": False, "content": "text",
    }  # fmt: skip
    return Report(**fields | changes)


def request(*ids: str, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "tenant": "north", "what": "submit", "name": "work a1", "key": "k", "began": START, "statuses": [201], "ids": list(ids),
    }  # fmt: skip
    return Request(**fields | changes)


def event(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": number,
        "kind": "activity.completed",
        "activity": "a1",
        "data": {"status": "done"},
    } | changes


def decision(verb: str, status: int = 200, item: str = "g1") -> Decision:
    return Decision("north", item, "gate", verb, "first", START, status)


def fine() -> Evidence:
    """Return the evidence of a run in which everything happened once and in time."""
    return Evidence(
        requests=[request("a1")],
        calls=[call(reports=[report()])],
        decisions=[decision("approve"), decision("reject", 409)],
        streams=[Streamed("north", [1, 2, 3])],
        recoveries=[Recovery(["redis-flushed"], True, START, 3.0)],
        activities=[activity(), activity("g1", status="approved", assignee_type="human", name="gate")],
        runs={"a1": [run()]},
        outputs={"a1": {"content": "text"}},
        events={"north": [event(1, kind="activity.created", data={"status": "created"}), event(2)]},
        caps={("t-north", "blog-writer"): 1},
        role_caps={"blog-writer": 1},
        tenant_caps={"t-north": 1},
        invariants={"ok": True, "violations": []},
    )


def broken(evidence: Evidence) -> set[str]:
    return {violation.check for violation in checks.examine(evidence)}


def test_a_run_without_violations_passes_every_check() -> None:
    assert checks.examine(fine()) == []


def lost(evidence: Evidence) -> None:
    evidence.requests.append(request("a2", name="work a2"))


def doubled(evidence: Evidence) -> None:
    evidence.activities.append(activity("a2", name="work a1"))


def two_live(evidence: Evidence) -> None:
    evidence.activities = [activity("a1", dedup_key="k"), activity("a2", dedup_key="k", name="other")]
    evidence.events["north"] = [
        event(1, kind="activity.created", data={"status": "created"}),
        event(2, kind="activity.created", activity="a2", data={"status": "created"}),
        event(3),
        event(4, activity="a2"),
    ]


def too_early(evidence: Evidence) -> None:
    evidence.requests[0].body["not_before"] = at(1.5)


def two_completed(evidence: Evidence) -> None:
    evidence.runs["a1"].append(run("r2", started_at=at(3), ended_at=at(4)))
    evidence.calls.append(call("r2", began=START + 3, ended=START + 4))


def two_accepted(evidence: Evidence) -> None:
    evidence.calls[0].reports.append(report(content="another"))


def overlapping(evidence: Evidence) -> None:
    evidence.runs["a1"].append(run("r2", status="stalled", started_at=at(1.5), ended_at=at(3)))


def called_twice(evidence: Evidence) -> None:
    evidence.calls.append(call(began=START + 5, ended=START + 6))


def stolen(evidence: Evidence) -> None:
    evidence.calls[0].reports.append(report(honest=False, accepted=False, content="stolen"))


def another_output(evidence: Evidence) -> None:
    evidence.outputs["a1"] = {"content": "of somebody else"}


def crowded(evidence: Evidence) -> None:
    evidence.runs["a2"] = [run("r2")]
    evidence.calls.append(call("r2", activity="a2", wake="w2"))


def both_won(evidence: Evidence) -> None:
    evidence.decisions.append(decision("reject"))


def another_verdict(evidence: Evidence) -> None:
    evidence.activities[1]["status"] = "rejected"


def step_twice(evidence: Evidence) -> None:
    evidence.activities += [activity(pk, name="join", pipeline_run="p1", step="join") for pk in ("j1", "j2")]


def step_open(evidence: Evidence) -> None:
    evidence.flows.append(
        {
            "id": "p1",
            "tenant": "north",
            "status": "completed",
            "steps": [{"step": "join", "status": "running"}],
        }
    )


def schedule(times: list[float], executions: int = 1, jobs: int = 1) -> dict[str, Any]:
    rows = [
        {"id": f"e{number}-{turn}", "nominal_at": at(time), "status": "success"}
        for number, time in enumerate(times)
        for turn in range(executions)
    ]
    return {
        "schedule": {"id": "s1", "interval_ms": 4000, "enabled": False},
        "firings": [{"nominal_at": at(time), "count": 1, "state": "fired"} for time in times],
        "executions": rows,
        "jobs": {row["id"]: [{}] * jobs for row in rows},
        "until": START + 12,
    }


def time_missing(evidence: Evidence) -> None:
    evidence.schedules.append(schedule([0, 4, 12]))


def executed_twice(evidence: Evidence) -> None:
    evidence.schedules.append(schedule([0, 4, 8], executions=2))


def two_jobs(evidence: Evidence) -> None:
    evidence.schedules.append(schedule([0, 4, 8], jobs=2))


def gap_in_log(evidence: Evidence) -> None:
    evidence.events["north"][1]["id"] = 3


def gap_in_stream(evidence: Evidence) -> None:
    evidence.streams[0].ids = [1, 2, 4]


def event_lies(evidence: Evidence) -> None:
    evidence.events["north"][1]["data"]["status"] = "cancelled"


def stuck(evidence: Evidence) -> None:
    evidence.activities.append(activity("a3", name="stuck", status="created", finished_at=None))
    evidence.reasons["a3"] = {"code": "queued", "detail": "It is on its way."}


def slow_recovery(evidence: Evidence) -> None:
    evidence.recoveries.append(Recovery(["postgres-frozen"], True, START, 20.0))


def no_recovery(evidence: Evidence) -> None:
    evidence.recoveries.append(Recovery(["worker-killed"], False, START, None))


def broken_inside(evidence: Evidence) -> None:
    evidence.invariants = {
        "ok": False,
        "violations": [{"invariant": "I01", "count": 2, "sample_ids": ["a1"]}],
    }


PLANTED = [
    (lost, "nothing_acknowledged_is_lost"),
    (doubled, "nothing_is_doubled"),
    (two_live, "a_dedup_key_has_one_live_activity"),
    (too_early, "nothing_begins_before_its_time"),
    (two_completed, "one_result_is_accepted_for_each_wake"),
    (two_accepted, "one_result_is_accepted_for_each_wake"),
    (overlapping, "runs_of_an_activity_do_not_overlap"),
    (called_twice, "each_run_is_called_once"),
    (stolen, "no_wrong_token_is_accepted"),
    (another_output, "what_is_stored_is_what_was_accepted"),
    (crowded, "no_cap_is_passed"),
    (both_won, "a_question_has_one_answer"),
    (another_verdict, "a_question_has_one_answer"),
    (step_twice, "each_step_starts_once"),
    (step_open, "a_finished_flow_has_done_every_step"),
    (time_missing, "a_schedule_fires_each_time_once"),
    (executed_twice, "a_schedule_fires_each_time_once"),
    (two_jobs, "a_schedule_fires_each_time_once"),
    (gap_in_log, "events_have_no_gaps"),
    (gap_in_stream, "events_have_no_gaps"),
    (event_lies, "events_have_no_gaps"),
    (stuck, "everything_comes_to_rest"),
    (slow_recovery, "work_flows_again"),
    (no_recovery, "work_flows_again"),
    (broken_inside, "invariants_hold"),
]


@pytest.mark.parametrize(("spoil", "check"), PLANTED, ids=[spoil.__name__ for spoil, _ in PLANTED])
def test_each_violation_is_found_by_its_own_check(spoil: Any, check: str) -> None:
    evidence = fine()

    spoil(evidence)

    assert check in broken(evidence)


def test_every_check_has_seen_a_violation() -> None:
    assert {check for _, check in PLANTED} == set(checks.CHECKS)


def test_a_request_without_a_key_may_have_as_many_effects_as_it_was_sent() -> None:
    evidence = fine()
    evidence.requests[0].key, evidence.requests[0].statuses = None, [0, 201]
    evidence.activities.append(activity("a2", name="work a1"))

    assert broken(evidence) == set()


def test_a_call_counts_against_caps_until_the_end_of_its_run() -> None:
    """The agent of a run that was declared lost continues, because nobody can stop it."""
    evidence = fine()
    evidence.calls[0].ended = START + 9
    evidence.runs["a2"] = [run("r2", started_at=at(3), ended_at=at(4))]
    evidence.calls.append(call("r2", activity="a2", wake="w2", began=START + 3, ended=START + 4))

    assert broken(evidence) == set()


def test_work_that_waits_for_a_time_or_for_people_is_at_rest() -> None:
    evidence = fine()
    evidence.activities += [
        activity("a3", name="later", status="created"),
        activity("a4", name="asked", status="awaiting_review"),
        activity("a5", name="task", status="created", assignee_type="human"),
    ]
    evidence.reasons["a3"] = {"code": "not_before"}

    assert broken(evidence) == set()


def test_the_same_seed_gives_the_same_plan() -> None:
    first, second, other = (
        list(itertools.islice(plan.waves(seed, list(KINDS), 3), 30)) for seed in (7, 7, 8)
    )

    assert first == second
    assert first != other


def test_every_kind_of_fault_occurs_before_one_is_repeated() -> None:
    kinds = [
        planned.kind for wave in itertools.islice(plan.waves(3, list(KINDS), 3), 200) for planned in wave
    ]

    assert set(kinds[: len(KINDS)]) == set(KINDS)


def test_faults_of_one_wave_do_not_use_the_same_resource() -> None:
    for wave in itertools.islice(plan.waves(5, list(KINDS), 4), 200):
        claims = [name for planned in wave for name in KINDS[planned.kind].claims(planned.target)]

        assert len(claims) == len(set(claims))


def test_a_plan_of_one_kind_never_ends() -> None:
    waves = list(itertools.islice(plan.waves(5, ["redis-flushed"], 3), 20))

    assert [[planned.kind for planned in wave] for wave in waves] == [["redis-flushed"]] * 20
