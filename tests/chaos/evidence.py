"""The evidence of a finished run: the records of clients and agents, and what the API returns afterwards.

It is plain data, so that the checks can be tested with made-up evidence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.chaos.agent import Agent, CallRecord
from tests.chaos.workload import TENANTS, Caller, Decision, Request, Streamed, Workload

#: Activities in these statuses do not change without an action.
ENDED = frozenset({"done", "approved", "rejected", "reassigned", "failed", "needs_review", "cancelled"})
#: People or other work must act first.
WAITING = frozenset({"awaiting_approval", "awaiting_subtask", "awaiting_review", "blocked"})
OUTPUTS_READ = 1_500
REST_SECONDS = 30.0  # for each activity that is still open when everything is read


@dataclass
class Recovery:
    """A wave of faults that ended at `healed`. `seconds`: until an activity that was sent later was done; None: not within the limit."""

    kinds: list[str]
    server: bool
    healed: float
    seconds: float | None


@dataclass
class Evidence:
    requests: list[Request] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    streams: list[Streamed] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    #: From the API, each list with what belongs to the three tenants.
    activities: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by activity
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)  # by activity
    reasons: dict[str, dict[str, Any]] = field(default_factory=dict)  # /why/ of open activities, by activity
    flows: list[dict[str, Any]] = field(default_factory=list)  # pipeline runs
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by tenant
    # Each is {schedule, firings, executions, jobs, until}.
    schedules: list[dict[str, Any]] = field(default_factory=list)
    invariants: dict[str, Any] = field(default_factory=dict)
    #: Caps in force: by (tenant id, role), by role over all tenants, by tenant id. Groups have a cap of one.
    caps: dict[tuple[str, str], int] = field(default_factory=dict)
    role_caps: dict[str, int] = field(default_factory=dict)
    tenant_caps: dict[str, int] = field(default_factory=dict)


class Unreadable(Exception):
    """The API does not answer although every fault is over."""


def moment(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def collect(workload: Workload, agent: Agent, *, tell: Callable[[str], None]) -> Evidence:
    """Read everything from the API, as each tenant's viewer."""
    evidence = Evidence(
        requests=list(workload.requests),
        calls=list(agent.calls),
        decisions=list(workload.decisions),
        streams=list(workload.streams),
    )
    for tenant in TENANTS:
        viewer = workload.viewer(tenant)
        activities = _all(viewer, "/activities/?limit=200&ordering=created_at")
        for activity in activities:
            activity["tenant"] = tenant
        evidence.activities += activities
        agents_own = [each["id"] for each in activities if each["assignee_type"] == "agent"]
        with ThreadPoolExecutor(8) as pool:
            open_ = [each for each in activities if each["status"] not in ENDED | WAITING]
            reasons = pool.map(lambda each, viewer=viewer: _reason(viewer, each), open_)
            evidence.reasons |= zip((each["id"] for each in open_), reasons, strict=True)
            evidence.runs |= zip(
                agents_own,
                pool.map(
                    lambda pk, viewer=viewer: _all(viewer, f"/activities/{pk}/runs/?limit=200"), agents_own
                ),
                strict=True,
            )
            read = [
                each["id"] for each in activities if each["output_ref"] and each["assignee_type"] == "agent"
            ][:OUTPUTS_READ]
            evidence.outputs |= zip(
                read,
                pool.map(lambda pk, viewer=viewer: _one(viewer, f"/activities/{pk}/output/"), read),
                strict=True,
            )
            flows = [flow["id"] for flow in _all(viewer, "/pipeline-runs/?limit=200")]
            evidence.flows += [
                {**flow, "tenant": tenant}
                for flow in pool.map(lambda pk, viewer=viewer: _one(viewer, f"/pipeline-runs/{pk}/"), flows)
            ]
        evidence.events[tenant] = _all_events(viewer)
        for schedule in workload.schedules.get(tenant, []):
            evidence.schedules.append(_schedule(viewer, schedule))
        tell(f"read what {tenant} has: {len(activities)} activities, {len(evidence.events[tenant])} events")
    return evidence


def unsettled(workload: Workload) -> list[str]:
    """Return a line for each activity that has not ended and waits for nothing that only time or people end."""
    lines = []
    for tenant in TENANTS:
        try:
            path = "/activities/?limit=200&status=created,assigned,in_progress,awaiting_subtask"
            open_ = _all(workload.viewer(tenant), path, patience=5)
        except Unreadable as error:
            return [str(error)]
        for each in open_:
            reason = each.get("waiting_for")
            if not is_at_rest(each, reason):
                code = (reason or {}).get("code")
                lines.append(
                    f"{tenant} {each['id']} {each['name']}: {each['status']}, {code}, stalls {each['stalls']}"
                )
    return lines


#: Reasons for which an agent's work waits without needing attention.
PATIENT_REASONS = frozenset(
    {"not_before", "retry_delay", "provider_limit", "paused", "human", "dependency", "budget"}
)


def is_at_rest(activity: dict[str, Any], reason: dict[str, Any] | None) -> bool:
    """Whether the activity has ended, or waits for people, other work or a time that /why/ names."""
    if activity["status"] in ENDED or activity["status"] in WAITING:
        return True
    if activity["assignee_type"] == "human":
        return True
    return bool(reason) and reason is not None and reason.get("code") in PATIENT_REASONS


def _reason(viewer: Caller, activity: dict[str, Any]) -> dict[str, Any]:
    """Return why the activity waits, after waiting for it to come to rest, because a retry may just be due. Update its status."""
    deadline = time.monotonic() + REST_SECONDS
    while True:
        reason: dict[str, Any] = _one(viewer, f"/activities/{activity['id']}/why/")
        if is_at_rest(activity, reason) or time.monotonic() > deadline:
            return reason
        time.sleep(0.5)
        activity["status"] = _one(viewer, f"/activities/{activity['id']}/")["status"]


def _schedule(viewer: Caller, schedule: str) -> dict[str, Any]:
    executions = _all(viewer, f"/schedules/{schedule}/executions/?limit=200")
    return {
        "schedule": _one(viewer, f"/schedules/{schedule}/"),
        "firings": _all(viewer, f"/schedules/{schedule}/firings/?limit=200"),
        "executions": executions,
        "jobs": {
            each["id"]: _all(viewer, f"/schedules/{schedule}/executions/{each['id']}/jobs/?limit=200")
            for each in executions
        },
        "until": time.time(),
    }


def _all_events(viewer: Caller) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    path: str | None = "/events/?after=0&limit=200"
    while path:
        page = _one(viewer, path)
        rows += page["results"]
        path = page.get("next")
    return rows


def _all(viewer: Caller, path: str, patience: float = 30.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    following: str | None = path
    while following:
        page = _one(viewer, following, patience)
        if isinstance(page, list):
            return page
        rows += page["results"]
        following = page["next"]
    return rows


def _one(viewer: Caller, path: str, patience: float = 30.0) -> Any:
    deadline = time.monotonic() + patience
    while True:
        status, body = viewer.send("GET", path)
        if status == 200:
            return body
        if time.monotonic() > deadline:
            raise Unreadable(f"GET {path} was answered {status} for {patience:.0f} s: {str(body)[:300]}")
        time.sleep(0.5)
