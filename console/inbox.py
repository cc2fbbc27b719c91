"""The inbox: everything that people of a tenant are asked for, most urgent first, narrowed by kind, human role and words.

A view of it is an address, so it can be kept and shared. Looking changes nothing, and costs the same number of queries however much
there is to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from console.asked_for import (
    SHOWN,
    asking_actor,
    counts_of,
    names_of_pipelines,
    narrowed,
    ordered,
    roles_looked_for,
    searched,
)
from console.held.holding import Held, held_by
from console.inbox_rows import Row, row_of
from console.inbox_view import View
from console.put_aside import aside_until
from console.wording import KINDS
from tenants.context import tenant_scope
from tenants.principals import Principal

PAGE = 50


@dataclass(frozen=True, slots=True)
class Tab:
    """A kind that the list can be narrowed to."""

    words: str
    count: int
    view: View
    chosen: bool


@dataclass(frozen=True, slots=True)
class Inbox:
    """What the list shows."""

    view: View
    rows: Sequence[Row]
    tabs: Sequence[Tab]
    roles: Sequence[str]
    total: int
    has_more: bool
    held: Sequence[Held]  # what the person has answered a moment ago

    def is_answered(self, item_id: UUID) -> bool:
        """Whether the person's answer to it is on its way."""
        return any(one.item_id == item_id and not one.refusal for one in self.held)

    @property
    def is_narrowed(self) -> bool:
        return bool(self.view.kind or self.view.role or self.view.search or self.view.aside)

    @property
    def before(self) -> str:
        return replace(self.view, page=self.view.page - 1).address if self.view.page > 1 else ""

    @property
    def after(self) -> str:
        return replace(self.view, page=self.view.page + 1).address if self.has_more else ""

    @property
    def together(self) -> bool:
        return any(row.together for row in self.rows)

    def next_after(self, item_id: UUID) -> UUID | None:
        """What follows an item in the list, or comes before the last one."""
        ids = [row.id for row in self.rows]
        others = [other for other in ids if other != item_id]
        if item_id not in ids or not others:
            return others[0] if others else None
        return others[min(ids.index(item_id), len(others) - 1)]


def inbox(principal: Principal, view: View) -> Inbox:
    """The list, for one person."""
    with tenant_scope(principal.tenant_id):
        counts = counts_of(searched(principal, view))
        rows = narrowed(searched(principal, view), principal, view).annotate(
            asked_by=asking_actor(), aside_until=aside_until(principal)
        )
        start = (view.page - 1) * PAGE
        page = list(ordered(rows).select_related("parent").only(*SHOWN)[start : start + PAGE + 1])
        pipelines = names_of_pipelines(principal.tenant_id, page)
        held = held_by(principal)
    mine = roles_looked_for(principal, view.role)
    kinds, aside = Counter(dict.fromkeys(KINDS, 0)), Counter(dict.fromkeys(KINDS, 0))
    for (kind, role, is_aside), count in counts.items():
        (aside if is_aside else kinds)[kind] += count if mine is None or role in mine else 0
    listed = aside if view.aside else kinds
    return Inbox(
        view=view,
        rows=[row_of(item, principal, pipelines) for item in page[:PAGE]],
        tabs=_tabs(view, kinds, aside.total()),
        roles=sorted({role for _, role, _ in counts}),
        total=listed[view.kind] if view.kind else listed.total(),
        has_more=len(page) > PAGE,
        held=held,
    )


def _tabs(view: View, kinds: Mapping[str, int], aside: int) -> list[Tab]:
    chosen = None if view.aside else view.kind
    tabs = [Tab("All", sum(kinds.values()), view.of_kind(""), chosen == "")]
    shown = [kind for kind in KINDS if kinds[kind] or kind == chosen]
    tabs += [Tab(KINDS[kind][1], kinds[kind], view.of_kind(kind), kind == chosen) for kind in shown]
    return tabs + ([Tab("Put aside", aside, view.of_aside(), view.aside)] if aside or view.aside else [])
