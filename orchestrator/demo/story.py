"""What happens in the demonstration.

Two agencies run the same pipeline at once: keywords, a brief that an editor must approve, then an outline and an audit side by side. The
editor of the first sends the brief back with a note and approves the revision; the editor of the second approves at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from orchestrator.demo.client import ApiClient

NOTE = 'Add a section about what it costs. Mention "city council". Max 700 words.'
APPROVAL_NOTE = "Good. Go on."
POLL_SECONDS = 0.15
PATIENCE_SECONDS = 120.0
_SAID = {"approve": "approved", "reject": "rejected"}


class DemoFailed(Exception):
    """The demonstration did not go as told; the message says where."""


@dataclass(slots=True)
class Agency:
    """One tenant, its people, and the run that it waits for."""

    name: str
    operator: ApiClient
    editor: ApiClient
    note: str | None
    run: dict[str, Any] = field(default_factory=dict)
    activities: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    decisions: dict[tuple[str, int], str] = field(default_factory=dict)  # by step and round
    rejected: bool = False

    @property
    def ended(self) -> bool:
        return self.run.get("status") in ("completed", "failed", "cancelled")


def begin(agency: Agency, definition: dict[str, Any], text: str) -> None:
    """Save the pipeline and start a run on the text."""
    address = f"/pipelines/{definition['key']}/"
    agency.operator.put(address, definition)
    agency.run = agency.operator.post(f"{address}runs/", {"input": {"content": text}})


def follow(
    agencies: list[Agency], show: Callable[[], None], *, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Poll until every run has ended, deciding what waits for an editor."""
    deadline = time.monotonic() + patience_seconds
    while not all(agency.ended for agency in agencies):
        if time.monotonic() > deadline:
            raise DemoFailed(
                "; ".join(
                    f"{agency.name} is {agency.run.get('status')}: {agency.log[-1:]}" for agency in agencies
                )
            )
        for agency in agencies:
            _look(agency)
            _decide(agency)
        show()
        time.sleep(POLL_SECONDS)
    for agency in agencies:
        if agency.run["status"] != "completed":
            raise DemoFailed(f"The run of {agency.name} {agency.run['status']}: {_faults(agency)}")


def _look(agency: Agency) -> None:
    if agency.ended:
        return
    agency.run = agency.operator.get(f"/pipeline-runs/{agency.run['id']}/")
    for activity in agency.operator.get("/activities/", pipeline_run=agency.run["id"], limit=50)["results"]:
        agency.activities[activity["id"]] = activity


def _decide(agency: Agency) -> None:
    for item in agency.editor.get("/inbox/")["results"]:
        if item.get("status") not in (None, "created", "in_progress"):
            continue
        verdict, notes = "approve", APPROVAL_NOTE
        if agency.note and not agency.rejected:
            agency.rejected = True
            verdict, notes = "reject", agency.note
        agency.editor.post(f"/activities/{item['id']}/{verdict}/", {"notes": notes})
        agency.log.append(f"editor {_SAID[verdict]}: {notes}")
        judged = [*work_of(agency)][-1]  # the brief: what follows it begins when it is approved
        agency.decisions[judged["step"], judged["round"]] = agency.log[-1]


def _faults(agency: Agency) -> str:
    failed = [
        activity
        for activity in agency.activities.values()
        if activity["status"] in ("failed", "needs_review")
    ]
    return (
        "; ".join(f"{activity['name']}: {activity.get('error') or activity['status']}" for activity in failed)
        or "see the logs"
    )


def work_of(agency: Agency) -> Iterator[dict[str, Any]]:
    """The agents' activities in the order in which they began; gates are left out."""
    mine = [activity for activity in agency.activities.values() if activity["assignee_type"] == "agent"]
    yield from sorted(mine, key=lambda activity: activity["created_at"])
