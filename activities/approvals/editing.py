"""Approving as edited: a person edits the result that a gate asks about, and approves the edited one in the same step.

The edited output is an output of its own. From the decision on it is that of the gate, and of the agent's activity that waits behind the
gate, so whatever follows works with it. The agent's own stays on record: it is its run's, and the gate's `input_ref`. The history says
what took whose place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from activities import families, outputs
from activities.decision_rules import DecisionRules
from activities.exceptions import SubmissionInvalid
from activities.models import Activity
from activities.states import LinkKind

_OF_SEVERAL = "cannot be given where several people decide: nobody would know what the others have agreed to"
_NOTHING = "cannot be given here: there is no single result that it could take the place of"
_TAKEN_OVER = "cannot be given here: this work is yours to do; complete it with your output instead"
_EMPTY = "needs content or data"


@dataclass(frozen=True, slots=True)
class Edited:
    """The output that takes the place of another."""

    before: UUID
    after: UUID

    @property
    def changes(self) -> dict[str, Any]:
        """Of the columns of what is approved."""
        return {"output_ref": self.after}

    @property
    def detail(self) -> dict[str, Any]:
        """For the history."""
        return {"edited": {"from": str(self.before), "to": str(self.after)}}


def why_not_edit(item: Activity | None) -> str:
    """What keeps the result that an item asks about from being edited with the approval; empty when nothing does."""
    if item is None or item.input_ref is None or not item.is_approval_gate:
        return _NOTHING
    if item.link_kind in (LinkKind.REVIEW, LinkKind.APPROVAL):
        return _NOTHING
    if families.was_taken_over(item):
        return _TAKEN_OVER
    return _OF_SEVERAL if DecisionRules.read(item.decision_rules).is_voted_on else ""


def keep(waiting: Activity | None, item: Activity | None, output: Mapping[str, Any]) -> Edited:
    """Keep the edited output, in the caller's transaction. Both activities are locked and open; `waiting` is what waits behind the gate.

    Raises `SubmissionInvalid` for an empty output, and where there is no result whose place it could take.
    """
    is_empty = output.get("data") is None and not (output.get("content") or "").strip()
    fault = why_not_edit(item) or (_EMPTY if is_empty else "")
    if fault or item is None or item.input_ref is None:
        raise SubmissionInvalid([{"path": "output", "message": fault}])
    return Edited(item.input_ref, outputs.keep(item.tenant_id, (waiting or item).pk, output))
