"""The checks of a run: each is a function from evidence to violations.

A violation names its ids, times and records. A request without an answer may have had one effect or none.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.agent import CallRecord
from tests.chaos.evidence import ENDED, Evidence, is_at_rest, moment

CLOCK_SECONDS = 0.05  # the tolerance for times that two programs of one machine wrote
FLOW_SECONDS = 15.0  # after a server is back
ENDED_RUN = ("completed", "failed", "cancelled", "stalled")


@dataclass(frozen=True)
class Violation:
    """`check` names the function; `evidence` has the ids and records that prove the violation."""

    check: str
    what: str
    evidence: dict[str, Any]


Check = Callable[[Evidence], Iterable[Violation]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def examine(evidence: Evidence) -> list[Violation]:
    """Return the violations of all checks, in the order of the checks."""
    return [violation for function in CHECKS.values() for violation in function(evidence)]


# Requests.


@check
def nothing_acknowledged_is_lost(evidence: Evidence) -> Iterator[Violation]:
    """Everything that was acknowledged to a client exists."""
    there = {each["id"] for each in evidence.activities} | {each["id"] for each in evidence.flows}
    for request in evidence.requests:
        if request.what in ("submit", "dedup", "flow"):
            for pk in request.ids:
                if pk not in there:
                    yield _violation(
                        "nothing_acknowledged_is_lost",
                        f"{request.name} was acknowledged and does not exist",
                        request=_short(request),
                    )


@check
def nothing_is_doubled(evidence: Evidence) -> Iterator[Violation]:
    """A request with a key has one effect; one without has at most one for each time it was sent."""
    roots = defaultdict(list)
    for each in evidence.activities:
        if not each["parent"] and not each["pipeline_run"] and each["round"] == 1 and not each["link_kind"]:
            roots[each["tenant"], each["name"]].append(each["id"])
    flows = defaultdict(list)
    for each in evidence.flows:
        flows[each["tenant"], (each.get("params") or {}).get("chaos", {}).get("mark")].append(each["id"])
    for request in evidence.requests:
        if request.what == "submit":
            there = roots[request.tenant, request.name]
        elif request.what == "flow":
            there = flows[request.tenant, request.name.removeprefix("flow ")]
        else:
            continue
        most = 1 if request.key else len(request.statuses)
        if len(there) > most:
            yield _violation(
                "nothing_is_doubled",
                f"{request.name} exists {len(there)} times",
                ids=there,
                request=_short(request),
            )


@check
def a_dedup_key_has_one_live_activity(evidence: Evidence) -> Iterator[Violation]:
    """By the order of events, no activity of a key is created before the previous one has first ended."""
    by_key = defaultdict(list)
    for each in evidence.activities:
        if each["dedup_key"]:
            by_key[each["tenant"], each["dedup_key"]].append(each)
    for (tenant, key), group in by_key.items():
        created, ended = {}, {}
        of_group = {each["id"] for each in group}
        for event in evidence.events.get(tenant, []):
            if event["activity"] in of_group:
                if event["kind"] == "activity.created":
                    created.setdefault(event["activity"], event["id"])
                elif event["data"].get("status") in ENDED:
                    ended.setdefault(event["activity"], event["id"])
        group.sort(key=lambda each: created.get(each["id"], 0))
        for earlier, later in itertools.pairwise(group):
            if created.get(later["id"], 0) < ended.get(earlier["id"], float("inf")):
                yield _violation(
                    "a_dedup_key_has_one_live_activity",
                    f"two of {tenant}'s {key} lived at once",
                    first=_brief(earlier),
                    second=_brief(later),
                )


@check
def nothing_begins_before_its_time(evidence: Evidence) -> Iterator[Violation]:
    """No call comes before `not_before`."""
    times = {
        request.ids[0]: request.body["not_before"]
        for request in evidence.requests
        if request.ids and "not_before" in request.body
    }
    for call in evidence.calls:
        if (begin := moment(times.get(call.activity))) and call.began < begin - CLOCK_SECONDS:
            yield _violation(
                "nothing_begins_before_its_time",
                f"called {begin - call.began:.1f} s too early",
                call=asdict(call),
                not_before=times[call.activity],
            )


# Runs and results.


@check
def one_result_is_accepted_for_each_wake(evidence: Evidence) -> Iterator[Violation]:
    """Each wake has at most one completed run, and each run one accepted result, for any number of calls and reports."""
    wake_of = {call.run: call.wake for call in evidence.calls}
    for activity, runs in evidence.runs.items():
        completed = Counter(
            wake_of[run["id"]] for run in runs if run["status"] == "completed" and run["id"] in wake_of
        )
        for wake, number in completed.items():
            if number > 1:
                yield _violation(
                    "one_result_is_accepted_for_each_wake",
                    f"{number} completed runs of one wake",
                    activity=activity,
                    wake=wake,
                    runs=runs,
                )
    for call in evidence.calls:
        different = {
            report.content for report in call.reports if report.name == "complete" and report.accepted
        }
        if len(different) > 1:
            yield _violation(
                "one_result_is_accepted_for_each_wake",
                "two different results of one run were accepted",
                call=asdict(call),
            )


@check
def runs_of_an_activity_do_not_overlap(evidence: Evidence) -> Iterator[Violation]:
    """Checked by the times that the API returns."""
    for activity, runs in evidence.runs.items():
        spans = sorted(
            (moment(run["started_at"]) or 0, moment(run["ended_at"]) or float("inf"), run["id"])
            for run in runs
        )
        for earlier, later in itertools.pairwise(spans):
            if later[0] < earlier[1] - CLOCK_SECONDS:
                yield _violation(
                    "runs_of_an_activity_do_not_overlap",
                    f"by {earlier[1] - later[0]:.2f} s",
                    activity=activity,
                    runs=[earlier, later],
                )


@check
def each_run_is_called_once(evidence: Evidence) -> Iterator[Violation]:
    """A message that is delivered twice does not call the agent twice for one run."""
    for run, number in Counter(call.run for call in evidence.calls).items():
        if number > 1:
            calls = [asdict(call) for call in evidence.calls if call.run == run]
            yield _violation("each_run_is_called_once", f"{number} calls of one run", calls=calls)


@check
def no_wrong_token_is_accepted(evidence: Evidence) -> Iterator[Violation]:
    """Reports with a token of another run are refused."""
    for call in evidence.calls:
        for report in call.reports:
            if not report.honest and 200 <= report.status < 300:
                yield _violation("no_wrong_token_is_accepted", f"answered {report.status}", call=asdict(call))


@check
def what_is_stored_is_what_was_accepted(evidence: Evidence) -> Iterator[Violation]:
    """The output of an activity is what the agent returned in the last completed run."""
    returned: dict[str, set[str]] = defaultdict(set)
    for call in evidence.calls:
        returned[call.run] |= {
            call.content,
            *(report.content for report in call.reports if report.honest),
        } - {""}
    for activity, output in evidence.outputs.items():
        completed = sorted(
            (run for run in evidence.runs.get(activity, []) if run["status"] == "completed"),
            key=lambda run: run["started_at"],
        )
        if completed and output.get("content") not in returned[completed[-1]["id"]]:
            yield _violation(
                "what_is_stored_is_what_was_accepted", "the output is not that of the last completed run",
                activity=activity, output=output, run=completed[-1], returned=sorted(returned[completed[-1]["id"]]),
            )  # fmt: skip
    accepted = {
        (call.activity, report.content)
        for call in evidence.calls
        for report in call.reports
        if report.name == "complete" and report.accepted and not report.duplicate
    }
    last = {}
    for call in evidence.calls:
        for report in call.reports:
            if (call.activity, report.content) in accepted:
                last[call.activity] = report.content
    for activity, content in last.items():
        stored = evidence.outputs.get(activity)
        runs = evidence.runs.get(activity, [])
        if (
            stored
            and sum(run["status"] == "completed" for run in runs) == 1
            and stored.get("content") != content
        ):
            yield _violation(
                "what_is_stored_is_what_was_accepted",
                "the only accepted report is not what is stored",
                activity=activity,
                stored=stored,
                accepted=content,
            )


# Limits.


@check
def no_cap_is_passed(evidence: Evidence) -> Iterator[Violation]:
    """By the agent's clock, no tenant's role, role, tenant or group has more open calls than its cap.

    A call whose run has ended (lost, overdue, cancelled) counts until the end of the run, because nobody can stop its agent.
    """
    ends = {run["id"]: moment(run["ended_at"]) for runs in evidence.runs.values() for run in runs}
    spans = [
        (call.began, min(call.ended or float("inf"), ends.get(call.run) or float("inf")), call)
        for call in evidence.calls
        if call.run in ends  # the others belong to canaries, which have no caps
    ]
    scopes: list[tuple[str, Callable[[CallRecord], Any], Callable[[Any], int | None]]] = [
        ("role of a tenant", lambda call: (call.tenant, call.role), evidence.caps.get),
        ("role", lambda call: call.role, evidence.role_caps.get),
        ("tenant", lambda call: call.tenant, evidence.tenant_caps.get),
        (
            "group",
            lambda call: (call.tenant, call.role, call.group) if call.group else None,
            lambda key: 1 if key else None,
        ),
    ]
    for scope, key_of, cap_of in scopes:
        by_key = defaultdict(list)
        for began, ended, call in spans:
            if cap_of(key_of(call)) is not None and ended - began > CLOCK_SECONDS:
                by_key[key_of(call)].append((began, ended - CLOCK_SECONDS, call))
        for key, group in by_key.items():
            most, at, open_calls = most_at_once(group)
            if most > (cap_of(key) or 0):
                yield _violation(
                    "no_cap_is_passed", f"{most} at once in the {scope} {key}, where {cap_of(key)} may be",
                    at=at, calls=[asdict(call) for call in open_calls],
                )  # fmt: skip


def most_at_once(spans: list[tuple[float, float, CallRecord]]) -> tuple[int, float, list[CallRecord]]:
    """Return the largest number of simultaneous calls, its time, and these calls."""
    moments = sorted(
        [(began, 1, index) for index, (began, _, _) in enumerate(spans)]
        + [(ended, -1, index) for index, (_, ended, _) in enumerate(spans)]
    )
    most, at, now, best = 0, 0.0, set[int](), set[int]()
    for when, change, index in moments:
        now = now | {index} if change > 0 else now - {index}
        if len(now) > most:
            most, at, best = len(now), when, now
    return most, at, [spans[index][2] for index in sorted(best)]


# Decisions.


@check
def a_question_has_one_answer(evidence: Evidence) -> Iterator[Violation]:
    """Of contrary answers one succeeds, and the status is that of this answer."""
    verdicts = {"approve": "approved", "reject": "rejected"}
    items = {each["id"]: each for each in evidence.activities}
    by_item = defaultdict(list)
    for decision in evidence.decisions:
        if 200 <= decision.status < 300 and decision.verb in verdicts:
            by_item[decision.item].append(decision)
    for item, won in by_item.items():
        if len({decision.verb for decision in won}) > 1:
            yield _violation(
                "a_question_has_one_answer",
                "contrary answers both succeeded",
                item=item,
                decisions=[asdict(each) for each in won],
            )
            continue
        if (
            (stored := items.get(item))
            and stored["status"] in ("approved", "rejected")
            and stored["status"] != verdicts[won[0].verb]
        ):
            yield _violation(
                "a_question_has_one_answer",
                f"it was answered {won[0].verb} and is {stored['status']}",
                item=_brief(stored),
                decisions=[asdict(each) for each in won],
            )


# Pipelines, schedules, events.


@check
def each_step_starts_once(evidence: Evidence) -> Iterator[Violation]:
    """Each step, branch and round of a pipeline run has one activity."""
    starts = defaultdict(list)
    for each in evidence.activities:
        if each["pipeline_run"] and each["step"] and not each["link_kind"]:
            starts[each["pipeline_run"], each["step"], each["branch"], each["round"]].append(each["id"])
    for (run, step, branch, round_), ids in starts.items():
        if len(ids) > 1:
            yield _violation(
                "each_step_starts_once",
                f"{step} (branch {branch}, round {round_}) has {len(ids)} activities",
                pipeline_run=run,
                ids=ids,
            )


@check
def a_finished_flow_has_done_every_step(evidence: Evidence) -> Iterator[Violation]:
    """A completed pipeline run has no open step."""
    for flow in evidence.flows:
        if flow["status"] == "completed":
            open_ = [
                step["step"]
                for step in flow["steps"]
                if step["status"] not in ("done", "approved", "completed", "skipped")
            ]
            if open_:
                yield _violation(
                    "a_finished_flow_has_done_every_step",
                    f"{open_} of a completed run are not done",
                    flow=flow,
                )


@check
def a_schedule_fires_each_time_once(evidence: Evidence) -> Iterator[Violation]:
    """Every nominal time is recorded once, and each fired one has one execution with one job and one activity."""
    for seen in evidence.schedules:
        schedule, interval = seen["schedule"], seen["schedule"]["interval_ms"] / 1000
        times = sorted(
            (moment(firing["nominal_at"]) or 0) + step * interval
            for firing in seen["firings"]
            for step in range(firing["count"])
        )
        for earlier, later in itertools.pairwise(times):
            steps = (later - earlier) / interval
            if round(steps, 3) != 1:
                yield _violation(
                    "a_schedule_fires_each_time_once",
                    f"{steps:.1f} intervals between two recorded times",
                    schedule=schedule["id"],
                    first=earlier,
                    second=later,
                )
        if times and seen["until"] - times[-1] > interval + 30 and schedule["enabled"]:
            yield _violation(
                "a_schedule_fires_each_time_once",
                f"nothing for {seen['until'] - times[-1]:.0f} s",
                schedule=schedule["id"],
            )
        fired = {firing["nominal_at"] for firing in seen["firings"] if firing["state"] == "fired"}
        executed = Counter(each["nominal_at"] for each in seen["executions"] if each["nominal_at"])
        for nominal, number in executed.items():
            if number > 1:
                yield _violation(
                    "a_schedule_fires_each_time_once",
                    f"{number} executions of {nominal}",
                    schedule=schedule["id"],
                )
        for nominal in fired - set(executed):
            yield _violation(
                "a_schedule_fires_each_time_once",
                f"{nominal} fired and has no execution",
                schedule=schedule["id"],
            )
        for execution in seen["executions"]:
            jobs = seen["jobs"].get(execution["id"], [])
            if len(jobs) > 1 or (not jobs and execution["status"] in ("completed", "success")):
                yield _violation(
                    "a_schedule_fires_each_time_once",
                    f"{len(jobs)} jobs of one execution",
                    execution=execution,
                )


@check
def events_have_no_gaps(evidence: Evidence) -> Iterator[Violation]:
    """Event ids of each log and stream increase by one, and the last event of an activity has its status."""
    statuses = {each["id"]: each["status"] for each in evidence.activities}
    for tenant, events in evidence.events.items():
        ids = [event["id"] for event in events]
        if ids != list(range(1, len(ids) + 1)):
            gap = next(
                (pair for pair in itertools.pairwise(ids) if pair[1] != pair[0] + 1),
                (0, ids[0] if ids else 0),
            )
            yield _violation(
                "events_have_no_gaps", f"the log of {tenant} goes from {gap[0]} to {gap[1]}", tenant=tenant
            )
        last: dict[str, Any] = {}
        for event in events:
            if event["kind"].startswith("activity.") and event["activity"]:
                last[event["activity"]] = event
        for activity, event in last.items():
            if statuses.get(activity) in ENDED and event["data"].get("status") != statuses[activity]:
                yield _violation(
                    "events_have_no_gaps",
                    f"the last event says {event['data'].get('status')}, the activity {statuses[activity]}",
                    event=event,
                )
    for stream in evidence.streams:
        for earlier, later in zip(stream.ids, stream.ids[1:], strict=False):
            if later != earlier + 1:
                yield _violation(
                    "events_have_no_gaps",
                    f"a stream of {stream.tenant} goes from {earlier} to {later}",
                    connections=stream.connections,
                )
                break


# The end.


@check
def everything_comes_to_rest(evidence: Evidence) -> Iterator[Violation]:
    """After the last fault everything ends, or waits for a reason that /why/ names and that time or people end."""
    for each in evidence.activities:
        reason = evidence.reasons.get(each["id"])
        if not is_at_rest(each, reason):
            yield _violation(
                "everything_comes_to_rest",
                f"{each['name']} is {each['status']}",
                activity=_brief(each),
                why=reason,
                runs=evidence.runs.get(each["id"]),
            )


@check
def work_flows_again(evidence: Evidence) -> Iterator[Violation]:
    """Within 15 s after a server is back a new activity is done."""
    for recovery in evidence.recoveries:
        if recovery.server and (recovery.seconds is None or recovery.seconds > FLOW_SECONDS):
            took = "not within the limit" if recovery.seconds is None else f"after {recovery.seconds:.1f} s"
            yield _violation(
                "work_flows_again", f"after {', '.join(recovery.kinds)}: {took}", recovery=asdict(recovery)
            )
        elif recovery.seconds is None:
            yield _violation(
                "work_flows_again",
                f"after {', '.join(recovery.kinds)}: not within the limit",
                recovery=asdict(recovery),
            )


@check
def invariants_hold(evidence: Evidence) -> Iterator[Violation]:
    """`manage.py check_invariants --quiesced` finds nothing."""
    for broken in evidence.invariants.get("violations", []):
        yield _violation(
            "invariants_hold",
            f"{broken['invariant']}: {broken.get('description', '')} ({broken['count']})",
            found=broken,
        )


def _violation(name: str, what: str, **evidence: Any) -> Violation:
    return Violation(name, what, evidence)


def _short(request: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(request).items() if name != "body"}


def _brief(activity: dict[str, Any]) -> dict[str, Any]:
    names = (
        "id",
        "name",
        "status",
        "assignee_type",
        "agent_role",
        "created_at",
        "started_at",
        "finished_at",
        "attempts",
        "stalls",
        "wake_reason",
        "not_before",
    )
    return {name: activity.get(name) for name in names}
