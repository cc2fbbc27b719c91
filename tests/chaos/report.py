"""The report of a run: as JSON for programs, and as text for people."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.checks import CHECKS, Violation
from tests.chaos.evidence import Evidence
from tests.chaos.workload import Workload

PRINTED = 12  # violations in the text; the file has all


@dataclass
class Outcome:
    """The outcome of a run. `verdict`: held, broken, or inconclusive if the harness itself failed."""

    seed: int
    repeat: str
    minutes: float
    kinds: list[str]
    times: str
    faults: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    violations: list[Violation] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    recovery: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    logs: str = ""

    @property
    def verdict(self) -> str:
        return "broken" if self.violations else "inconclusive" if self.troubles else "held"

    @property
    def exit_code(self) -> int:
        return {"held": 0, "broken": 1, "inconclusive": 2}[self.verdict]


def write(outcome: Outcome, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"verdict": outcome.verdict, **asdict(outcome)}
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")


def figures(workload: Workload, evidence: Evidence, restarts: list[Any]) -> dict[str, Any]:
    """Return how much was done, which shows whether the run proves anything."""
    manners = Counter(call.manner for call in evidence.calls)
    overlapping = Counter(call.wake for call in evidence.calls)
    return {
        "requests": len(evidence.requests),
        "acknowledged": sum(bool(request.ids) for request in evidence.requests),
        "repeated_under_their_key": sum(len(request.statuses) > 1 for request in evidence.requests),
        "activities": len(evidence.activities),
        "activities_by_status": dict(Counter(each["status"] for each in evidence.activities)),
        "pipeline_runs": dict(Counter(each["status"] for each in evidence.flows)),
        "agent_calls": len(evidence.calls),
        "agent_calls_by_manner": dict(manners),
        "wakes_called_more_than_once": sum(number > 1 for number in overlapping.values()),
        "reports_with_wrong_tokens": sum(
            not report.honest for call in evidence.calls for report in call.reports
        ),
        "decisions": dict(Counter(decision.status for decision in evidence.decisions)),
        "contested_decisions": sum(decision.contested for decision in evidence.decisions),
        "cancelled": dict(workload.cancelled),
        "events": {tenant: len(events) for tenant, events in evidence.events.items()},
        "events_over_streams": sum(len(stream.ids) for stream in evidence.streams),
        "stream_connections": sum(stream.connections for stream in evidence.streams),
        "schedule_times": sum(firing["count"] for each in evidence.schedules for firing in each["firings"]),
        "outputs_compared": len(evidence.outputs),
        "answers_by_status": dict(sorted(workload.counted.items())),
        "ended_by_themselves": [f"{name} ({code})" for _, name, code in restarts],
    }


def recovery_by_kind(evidence: Evidence) -> dict[str, Any]:
    """Return the seconds from the end of a wave until new work was done, by kind, for waves of one kind and of several."""
    by_kind: dict[str, dict[str, Any]] = {}
    for recovery in evidence.recoveries:
        for kind in recovery.kinds:
            entry = by_kind.setdefault(kind, {"alone": [], "with_others": []})
            seconds = None if recovery.seconds is None else round(recovery.seconds, 1)
            entry["alone" if len(recovery.kinds) == 1 else "with_others"].append(seconds)
    return dict(sorted(by_kind.items()))


def text(outcome: Outcome) -> str:
    """Return the summary for people."""
    lines = ["", f"{len(outcome.faults)} faults of {len({fault['kind'] for fault in outcome.faults})} kinds"]
    names = (
        "acknowledged", "repeated_under_their_key", "activities", "agent_calls", "wakes_called_more_than_once",
        "reports_with_wrong_tokens", "contested_decisions", "events_over_streams", "schedule_times", "outputs_compared",
    )  # fmt: skip
    for name in names:
        if name in outcome.figures:
            lines.append(f"  {name.replace('_', ' '):32}{outcome.figures[name]:>8}")
    if outcome.recovery:
        lines.append("seconds until work flowed again, after the kinds that came (alone | with others)")
        for kind, entry in outcome.recovery.items():
            alone, others = (
                " ".join("-" if each is None else f"{each}" for each in entry[name])
                for name in ("alone", "with_others")
            )
            lines.append(f"  {kind:32}{alone or '.':>14} | {others or '.'}")
    for remark in outcome.remarks:
        lines.append(f"remark: {remark}")
    broken = Counter(violation.check for violation in outcome.violations)
    lines.append("checks")
    for name in CHECKS:
        lines.append(
            f"  {'BROKEN' if broken[name] else 'ok':8}{name.replace('_', ' ')}"
            + (f" ({broken[name]})" if broken[name] else "")
        )
    for violation in outcome.violations[:PRINTED]:
        details = json.dumps(violation.evidence, default=str)
        lines.append(f"BROKEN {violation.check}: {violation.what}\n       {details[:600]}")
    if len(outcome.violations) > PRINTED:
        lines.append(f"... and {len(outcome.violations) - PRINTED} more in the report")
    for trouble in outcome.troubles:
        lines.append(f"TROUBLE of the harness: {trouble}")
    lines.append(
        {
            "held": "Everything held.",
            "broken": f"{len(outcome.violations)} violations.",
            "inconclusive": "Inconclusive: see the troubles.",
        }[outcome.verdict]
    )
    if outcome.logs:
        lines.append(f"logs: {outcome.logs}")
    return "\n".join(lines)
