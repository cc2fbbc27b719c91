"""One item of the inbox with everything that a person needs to answer it.

What PostgreSQL knows is read in one transaction; outputs are read after it, since they may lie in MongoDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.http import Http404

from activities import families
from activities.decision_rules import DecisionRules
from activities.models import Activity, Approval, Vote
from activities.models.decision import LinkState
from activities.states import Status
from console import consequences, deeds, editing, evidence, rounds
from console.consequences import About, Consequence, Place
from console.deeds import Offer
from console.differences import Difference
from console.editing import Draft
from console.evidence import Reader, Text
from console.facts import OPEN, asking_actor, facts_of, letter_of
from console.history import Moment, history_of
from console.inbox_rows import who_asks
from console.linked import Linked, linked_to
from console.put_aside import aside_until
from console.rounds import Expense, Round
from console.votes import Votes, votes_of
from console.waiting_times import Timing
from console.wording import KINDS, band, kind_of, outcome
from tenants.context import tenant_scope
from tenants.principals import Principal


@dataclass(frozen=True, slots=True)
class Item:
    """What the page of an item shows. `row` is its activity, `subject` the one that it is about."""

    row: Any
    subject: Any | None
    asked_by: str
    timing: Timing
    place: Place | None
    facts: Sequence[tuple[str, str]]
    before: Round | None
    expense: Expense | None
    votes: Votes | None
    linked: Sequence[Linked]
    history: Sequence[Moment]
    consequences: Sequence[Consequence]
    offer: Offer
    texts: Sequence[Text] = ()
    changes: Difference | None = None
    edits: Difference | None = None  # from the agent's text to the approved one, where somebody has edited it
    draft: Draft | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.row.link_kind, is_approval_gate=self.row.is_approval_gate)

    @property
    def kind_in_words(self) -> str:
        return KINDS[self.kind][0]

    @property
    def priority(self) -> str:
        return f"{band(self.row.priority)} ({self.row.priority})"

    @property
    def is_open(self) -> bool:
        return self.row.status in OPEN

    @property
    def outcome(self) -> str:
        return outcome(self.row.status) + (" as edited" if self.was_edited else "")

    @property
    def was_edited(self) -> bool:
        """Whether another text was approved than the one that was asked about."""
        row = self.row
        return row.status == Status.APPROVED and None not in (row.output_ref, row.input_ref)

    @property
    def last(self) -> Moment | None:
        """What happened last to the item itself."""
        return next((moment for moment in reversed(self.history) if not moment.about), None)

    @property
    def taken_up_by(self) -> str:
        """Who is at work on it. Of what is voted on nobody is: each vote stands for itself."""
        found = (moment.who for moment in self.history if moment.verb == "take_up" and not moment.about)
        return next(found, "") if self.is_open and self.votes is None else ""


def item(principal: Principal, item_id: UUID) -> Item:
    """For one person. Raises `Http404` when the tenant asks people for no such thing. Not inside a transaction."""
    with tenant_scope(principal.tenant_id):
        found = _known(principal, item_id)
        sources = evidence.sources_of(found.row, found.subject)
    reader = Reader(principal.tenant_id)
    texts = reader.texts(sources)
    before, row = found.before.output_ref if found.before else None, found.row
    return replace(
        found,
        texts=texts,
        changes=reader.changes(before, row.input_ref) if before else None,
        edits=reader.changes(row.input_ref, row.output_ref) if found.was_edited else None,
        draft=editing.draft_of(reader.output(row.input_ref)) if found.offer.editing else None,
    )


def _known(principal: Principal, item_id: UUID) -> Item:
    """All but the texts."""
    tenant_id = principal.tenant_id
    rows = Activity.objects.for_tenant(tenant_id).filter(assignee_type="human").select_related("parent")
    row = rows.filter(pk=item_id).annotate(aside_until=aside_until(principal)).first()
    if row is None:
        raise Http404
    subject, origin = rounds.subject_of(row), families.origin_of(tenant_id, row)
    line = rounds.line_of(subject)
    place = consequences.place_of(row, subject)
    approval = Approval.objects.for_tenant(tenant_id).filter(pk=item_id).first()
    links = linked_to(tenant_id, item_id) if approval else []
    votes = list(Vote.objects.for_tenant(tenant_id).filter(activity_id=item_id))
    is_open = row.status in OPEN
    voted = any(vote.voter == principal.identity for vote in votes)
    about = About(
        item=row,
        relation=origin.kind,
        subject=subject,
        waits=rounds.waiting_for(row, origin),
        place=place,
        linked=sum(link.state == LinkState.WAITING for link in links),
    )
    return Item(
        row=row,
        subject=subject,
        asked_by=who_asks(row, asking_actor(row, approval), place.pipeline if place else None),
        timing=Timing.of(row),
        place=place,
        facts=facts_of(row, approval, letter_of(row)),
        before=rounds.round_before(line),
        expense=rounds.expense_of(line),
        votes=votes_of(DecisionRules.read(row.decision_rules), votes),
        linked=links,
        history=history_of(row, subject),
        consequences=consequences.consequences(about) if is_open else (),
        offer=deeds.offered(principal, row, approval=approval, voted=voted) if is_open else Offer(),
    )
