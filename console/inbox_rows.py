"""One item of the inbox as a row of its list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from activities.decision_rules import DecisionRules
from activities.states import Status
from console.deeds import DECIDED, why_not_decide
from console.waiting_times import Timing
from console.wording import KINDS, band, named
from tenants.principals import Principal


@dataclass(frozen=True, slots=True)
class Row:
    """One item of the list."""

    id: UUID
    version: int
    kind: str
    name: str
    asked_by: str
    human_role: str
    priority: str
    timing: Timing
    under_way: str
    together: bool  # may be approved together with others
    aside_until: datetime | None  # while this person has put it aside

    @property
    def kind_in_words(self) -> str:
        return KINDS[self.kind][0]


def row_of(item: Any, principal: Principal, pipelines: Mapping[UUID, str]) -> Row:
    rules = DecisionRules.read(item.decision_rules)
    return Row(
        id=item.pk,
        version=item.version,
        kind=item.kind,
        name=item.name,
        asked_by=who_asks(item, item.asked_by, pipelines.get(item.pipeline_run_id)),
        human_role=item.human_role or "",
        priority=band(item.priority),
        timing=Timing.of(item),
        under_way=_under_way(item, rules),
        together=_together(item, principal, rules),
        aside_until=item.aside_until,
    )


def who_asks(item: Any, actor: str | None, pipeline: str | None) -> str:
    """The agent whose work it is about, or the pipeline, or whoever submitted it."""
    if item.parent is not None and item.parent.agent_role:
        return str(item.parent.agent_role)
    return f"pipeline {pipeline}" if pipeline else named(actor)


def _under_way(item: Any, rules: DecisionRules) -> str:
    return "" if item.status != Status.IN_PROGRESS else "being voted on" if rules.is_voted_on else "taken up"


def _together(item: Any, principal: Principal, rules: DecisionRules) -> bool:
    """Whether a yes needs nothing but the word: no option to choose, no note, and it is this person's to say."""
    return item.kind in DECIDED and not rules.options and why_not_decide(principal, item, rules) == ""
