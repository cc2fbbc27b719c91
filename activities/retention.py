"""How long work is kept once it is over: whole trees go together, and their outputs after them.

A tree goes in one transaction: every member is locked and looked at again, so none of it can be taken up meanwhile. Its outputs are noted
in the same transaction and deleted from MongoDB afterwards by `forget_outputs`, so a crash in between loses neither the note nor the
output. What another holds is left for the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from activities import states
from tenants.retention.kinds import Kind, register
from tenants.retention.rows import Rows, RowsInTurn
from tenants.sql import Statement

_FOLDER = Path(__file__).parent / "sql" / "retention"
_TREES, _HOLD, _FORGET, _CHILDREN, _EMPTY = (
    Statement.load(_FOLDER, name) for name in ("trees", "hold", "forget", "born_since", "empty_tool_calls")
)
_ALERTS = Rows("activities_alert", _FOLDER, "alerts")
_DEAD_LETTERS = Rows("activities_deadletter", _FOLDER, "dead_letters")
_TOOL_CALLS = Rows("activities_toolcall", _FOLDER, "tool_calls")
_PROVIDER_BATCHES = Rows("activities_providerbatch", _FOLDER, "provider_batches")
_BULK_JOBS = RowsInTurn(
    (
        Rows("activities_bulkitem", _FOLDER, "bulk_items"),
        Rows("activities_bulkjob", _FOLDER, "bulk_jobs"),
    )
)
_MAILBOXES = RowsInTurn(
    (
        Rows("activities_mailboxitem", _FOLDER, "mailbox_items"),
        Rows("activities_mailboxbatch", _FOLDER, "mailbox_batches"),
        Rows("activities_mailbox", _FOLDER, "mailboxes_of_subagents"),
    )
)

ENDED = sorted(states.SETTLED)  # An open dead letter keeps what has failed, as somebody may try it again.
FAMILIES = 25  # in one transaction; a tree has some tens of members at most
MANY = 1_000_000_000


def connect() -> None:
    register(
        Kind(
            "activities",
            "Work outside of pipelines, with its history and outputs",
            _forget_trees,
            _count_trees,
        ),
        Kind("alerts", "Alerts and their deliveries", _ALERTS.portion, _ALERTS.count),
        Kind("bulk_jobs", "Bulk jobs and what became of each activity", _BULK_JOBS.portion, _BULK_JOBS.count),
        Kind("dead_letters", "Dead letters", _DEAD_LETTERS.portion, _DEAD_LETTERS.count),
        Kind(
            "mailboxes", "What was said in mailboxes, and batches of it", _MAILBOXES.portion, _MAILBOXES.count
        ),
        Kind(
            "provider_batches",
            "Batches of model providers",
            _PROVIDER_BATCHES.portion,
            _PROVIDER_BATCHES.count,
        ),
        Kind(
            "tool_calls",
            "Arguments of agents' tool calls; that they were made stays",
            _empty,
            _TOOL_CALLS.count,
        ),
    )


def forget_families(
    tenant_id: UUID,
    rows: Iterable[Any],
    before: datetime,
    *,
    hold: Callable[[list[UUID]], set[UUID]] | None = None,
) -> tuple[set[UUID], int]:
    """Delete families that were found as (family, member) if all of them are still over; which families went, and how many activities.

    `hold` locks the families themselves where they are rows of their own, and says which of them are ours. In a `tenant_scope`.
    """
    families: dict[UUID, set[UUID]] = {}
    for row in rows:
        families.setdefault(row.family, set()).update([row.member] if row.member else [])
    everybody = [member for members in families.values() for member in members]
    common = {"tenant": tenant_id, "members": everybody}
    held = {row.id for row in _HOLD.run({**common, "before": before, "ended": ENDED})}
    disturbed = {row.parent_id for row in _CHILDREN.run(common)}
    whole = {family: members for family, members in families.items() if members <= held - disturbed}
    if hold is not None:
        ours = hold(sorted(whole))
        whole = {family: members for family, members in whole.items() if family in ours}
    gone = [member for members in whole.values() for member in members]
    return set(whole), len(_FORGET.run({"tenant": tenant_id, "members": gone})) if gone else 0


def _forget_trees(tenant_id: UUID, before: datetime, most: int) -> int:
    return forget_families(tenant_id, _trees(tenant_id, before, min(most, FAMILIES)), before)[1]


def _count_trees(tenant_id: UUID, before: datetime) -> int:
    return len(_trees(tenant_id, before, MANY))


def _trees(tenant_id: UUID, before: datetime, most: int) -> list[Any]:
    return _TREES.run({"tenant": tenant_id, "before": before, "ended": ENDED, "most": most})


def _empty(tenant_id: UUID, before: datetime, most: int) -> int:
    return len(_EMPTY.run({"tenant": tenant_id, "before": before, "most": most}))
