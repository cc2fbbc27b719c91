"""The third act: a schedule whose parameters come from a table.

The sections of the text are the rows of a dataset. A schedule is to look up the keywords of each active one every Monday. What it would do
is shown first, then it is run by hand, and every row has become a job of its own, a few at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.demo.client import ApiClient
from orchestrator.demo.story import PATIENCE_SECONDS, POLL_SECONDS, DemoFailed

DATASET, SCHEDULE = "section", "Keywords of every section"
BATCH, STAGGER_MS = 2, 500
SOURCE = f"db:{DATASET}:all:text?active=true&batchSize={BATCH}&staggerDelay={STAGGER_MS}"
FEWEST_WORDS = 20  # of a section; keywords of less say nothing
_FIELDS = {"id": "string", "title": "string", "text": "string", "active": "boolean"}


@dataclass(slots=True)
class Weekly:
    """The schedule, what it would do, and what came of running it."""

    operator: ApiClient
    schedule: str = ""
    rows: int = 0
    preview: dict[str, Any] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.execution.get("status") in ("success", "partial", "failed", "cancelled")


def begin(weekly: Weekly, text: str) -> None:
    """Fill the table, save the schedule, ask what it would do, and run it now."""
    rows = sections_of(text)
    weekly.rows = len(rows)
    _fill(weekly.operator, rows)
    weekly.schedule = _schedule(weekly.operator)["id"]
    weekly.preview = weekly.operator.get(f"/schedules/{weekly.schedule}/preview/", count=3)
    if weekly.preview["errors"]:
        raise DemoFailed(f"The schedule would not work: {weekly.preview['errors']}")
    weekly.execution = weekly.operator.post(f"/schedules/{weekly.schedule}/run/")


def sections_of(text: str) -> list[dict[str, Any]]:
    """A row for each section of a Markdown text, or for each paragraph of a text without sections. Short ones are not active."""
    parts = [part.strip() for part in f"\n{text}".split("\n## ") if part.strip()]
    if len(parts) == 1:
        parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return [
        {
            "id": str(number),
            "title": part.partition("\n")[0].lstrip("# ")[:80],
            "text": part[:20_000],
            "active": len(part.split()) >= FEWEST_WORDS,
        }
        for number, part in enumerate(parts[:12], 1)
    ]


def _fill(operator: ApiClient, rows: list[dict[str, Any]]) -> None:
    """The table, from an earlier demonstration or new, with these rows and no others."""
    known = [found["name"] for found in operator.get("/datasets/", limit=100)["results"]]
    if DATASET not in known:
        operator.post("/datasets/", {"name": DATASET, "fields": _FIELDS, "rows": rows})
    else:
        operator.post(f"/datasets/{DATASET}/rows/?replace=true", {"rows": rows})


def _schedule(operator: ApiClient) -> Any:
    known = operator.get("/schedules/", search=SCHEDULE)["results"]
    if known:
        return known[0]
    return operator.post(
        "/schedules/",
        {
            "name": SCHEDULE,
            "repeat": "repeating",
            "cron": "0 8 * * MON",
            "timezone": "Europe/Berlin",
            "target_type": "agent",
            "agent_role": "keyword-researcher",
            "params": {"text": SOURCE},
            "enabled": True,
        },
    )


def follow(weekly: Weekly, show: Callable[[], None]) -> None:
    """Poll until the execution has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not weekly.ended:
        if time.monotonic() > deadline:
            raise DemoFailed(f"The schedule's execution is {weekly.execution.get('status')}.")
        executions = weekly.operator.get(f"/schedules/{weekly.schedule}/executions/")["results"]
        weekly.execution = next(each for each in executions if each["id"] == weekly.execution["id"])
        weekly.jobs = _jobs(weekly)
        show()
        time.sleep(POLL_SECONDS)
    if weekly.execution["status"] != "success":
        raise DemoFailed(
            f"The schedule's execution is {weekly.execution['status']}: {weekly.execution['errors']}"
        )


def _jobs(weekly: Weekly) -> list[dict[str, Any]]:
    """Its activities in the order of the rows."""
    found = weekly.operator.get(
        "/activities/", schedule=weekly.schedule, created_after=weekly.execution["started_at"], limit=50
    )["results"]
    return sorted(
        found, key=lambda activity: (activity["not_before"] or "", activity["created_at"], activity["id"])
    )
