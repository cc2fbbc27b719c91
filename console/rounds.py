"""The work that an item is about: its rounds and handovers, what they have cost, and what was wrong with the round before.

Reads only, in the caller's `tenant_scope`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

from activities.families import COUNTERPARTS, SUCCESSORS, Origin
from activities.models import Activity, ActivityRun
from activities.states import LinkKind, Status
from console.wording import cost_in, dollars, named

MOST_ROUNDS = 30  # that are looked back; more than any setting allows


@dataclass(frozen=True, slots=True)
class Round:
    """A round that was sent back."""

    number: int
    output_ref: UUID | None
    notes: str
    decided_by: str


@dataclass(frozen=True, slots=True)
class Expense:
    """What all rounds so far have taken."""

    runs: int
    failed: int
    tokens: int
    dollars: str


def subject_of(item: Any) -> Any | None:
    """The activity that an item is about: its parent, or the one whose output it works on."""
    if item.parent is not None or item.input_ref is None:
        return item.parent
    runs = ActivityRun.objects.for_tenant(item.tenant_id).filter(pk=item.input_ref)
    run = runs.select_related("activity").first()
    return run.activity if run else _of_edited(item)


def _of_edited(item: Any) -> Any | None:
    """As `subject_of`, where a person has edited the output before it was approved."""
    rows = Activity.objects.for_tenant(item.tenant_id).filter(
        pipeline_run_id=item.pipeline_run_id, output_ref=item.input_ref, status=Status.APPROVED
    )
    approved = rows.select_related("parent").first() if item.pipeline_run_id else None
    return approved if approved is None or approved.assignee_type == "agent" else subject_of(approved)


def waiting_for(item: Any, origin: Origin) -> Any | None:
    """The activity that waits for the answer to an item; `origin` is where the item's line began."""
    if origin.parent_id is None or origin.kind not in COUNTERPARTS:
        return None
    if item.parent is not None and item.parent_id == origin.parent_id:
        return item.parent
    return Activity.objects.for_tenant(item.tenant_id).filter(pk=origin.parent_id).first()


def line_of(subject: Any | None) -> list[Any]:
    """The work and everything that it takes the place of, newest first."""
    line = [subject] if subject is not None else []
    while line and line[-1].link_kind in SUCCESSORS and line[-1].parent_id and len(line) < MOST_ROUNDS:
        before = Activity.objects.for_tenant(line[-1].tenant_id).filter(pk=line[-1].parent_id).first()
        if before is None:
            break
        line.append(before)
    return line


def round_before(line: Sequence[Any]) -> Round | None:
    """The round that was sent back last, if this is not the first one."""
    for newer, older in pairwise(line):
        if newer.link_kind == LinkKind.REVISION_OF:
            by = named(older.decided_by) if older.decided_by else ""
            # A gate of its own left its notes with the work; one that stands in a later step of the pipeline, with the new round.
            notes = older.reviewer_notes if older.status == Status.REJECTED else newer.reviewer_notes
            return Round(older.round, older.output_ref, notes or "", by)
    return None


def expense_of(line: Sequence[Any]) -> Expense | None:
    """By the agents' own account; None when no agent has run."""
    if not line:
        return None
    runs = list(
        ActivityRun.objects.for_tenant(line[0].tenant_id)
        .filter(activity_id__in=[activity.pk for activity in line])
        .values_list("status", "usage")
    )
    if not runs:
        return None
    cost = sum((cost_in(usage) for _, usage in runs), Decimal(0))
    return Expense(
        runs=len(runs),
        failed=sum(status in ("failed", "stalled") for status, _ in runs),
        tokens=sum(_tokens(usage) for _, usage in runs),
        dollars=dollars(cost) if cost else "",
    )


def _tokens(usage: Any) -> int:
    counts = [(usage or {}).get(name) for name in ("input_tokens", "output_tokens")]
    return sum(count for count in counts if isinstance(count, int))
