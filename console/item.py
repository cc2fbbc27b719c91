"""One item of the inbox with everything that a person needs to answer it.

What PostgreSQL knows is read in one transaction; outputs are read after it, since they may lie in MongoDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.http import Http404

from activities import families
from activities.decision_rules import DecisionRules
from activities.models import Activity, ActivityEvent, Approval, ApprovalLink, DeadLetter, Vote
from activities.models.decision import LinkState
from activities.states import LinkKind
from console import consequences, deeds, evidence, rounds
from console.consequences import About, Consequence, Place
from console.deeds import Offer
from console.differences import Difference
from console.evidence import Reader, Text
from console.inbox_rows import who_asks
from console.rounds import Expense, Round
from console.waiting_times import Timing
from console.wording import KINDS, band, did, dollars, kind_of, named, outcome
from pipelines.models import PipelineRun
from tenants.context import tenant_scope
from tenants.principals import Principal

MOST_LINKED = 100
HISTORY = 12
LONGEST_WORDS = 300  # of one entry of the history
OPEN = ("created", "in_progress")
_INNER = ("claim", "start", "release")  # the engine's own moves, which tell a person nothing
_SAID = ("notes", "note", "reason", "message", "question")  # where an event keeps what was said


@dataclass(frozen=True, slots=True)
class Linked:
    """An activity that waits for an approval, or did."""

    id: UUID
    name: str
    role: str
    pipeline: str
    status: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ballot:
    """One person's word."""

    who: str
    yes: bool
    option: str
    notes: str


@dataclass(frozen=True, slots=True)
class Votes:
    """What has been said so far where several must agree."""

    needed: int
    of: int | None
    approvals: int
    given: Sequence[Ballot]


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of the history. `about` names the work, when it did not happen to the item itself."""

    at: datetime
    verb: str
    who: str
    did: str
    words: str
    about: str


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
        return outcome(self.row.status)

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
    before = found.before.output_ref if found.before else None
    return replace(
        found, texts=texts, changes=reader.changes(before, found.row.input_ref) if before else None
    )


def _known(principal: Principal, item_id: UUID) -> Item:
    """All but the texts."""
    tenant_id = principal.tenant_id
    rows = Activity.objects.for_tenant(tenant_id).filter(assignee_type="human").select_related("parent")
    row = rows.filter(pk=item_id).first()
    if row is None:
        raise Http404
    subject, origin = rounds.subject_of(row), families.origin_of(tenant_id, row)
    line = rounds.line_of(subject)
    place = consequences.place_of(row, subject)
    approval = Approval.objects.for_tenant(tenant_id).filter(pk=item_id).first()
    links = _links(tenant_id, item_id) if approval else []
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
        asked_by=who_asks(row, _asking_actor(row, approval), place.pipeline if place else None),
        timing=Timing.of(row),
        place=place,
        facts=_facts(row, approval, _letter(row)),
        before=rounds.round_before(line),
        expense=rounds.expense_of(line),
        votes=_votes(DecisionRules.read(row.decision_rules), votes),
        linked=links,
        history=_history(row, subject),
        consequences=consequences.consequences(about) if is_open else (),
        offer=deeds.offered(principal, row, approval=approval, voted=voted) if is_open else Offer(),
    )


def _asking_actor(row: Any, approval: Any | None) -> str | None:
    if approval is not None:
        return str(approval.requested_by)
    events = ActivityEvent.objects.for_tenant(row.tenant_id).filter(activity_id=row.pk, seq=1)
    actor: str | None = events.values_list("actor", flat=True).first()
    return actor


def _letter(row: Any) -> Any | None:
    if row.link_kind != LinkKind.ESCALATION or row.parent_id is None:
        return None
    letters = DeadLetter.objects.for_tenant(row.tenant_id).filter(
        activity_id=row.parent_id, escalation_id=row.pk
    )
    return letters.order_by("-pk").first()


def _links(tenant_id: UUID, approval_id: UUID) -> list[Linked]:
    rows = ApprovalLink.objects.for_tenant(tenant_id).filter(approval_id=approval_id)
    links = list(rows.select_related("activity").order_by("activity_id")[:MOST_LINKED])
    run_ids = {link.activity.pipeline_run_id for link in links if link.activity.pipeline_run_id}
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(pk__in=run_ids)
    pipelines = dict(runs.values_list("pk", "version__pipeline__name"))
    return [
        Linked(
            id=link.activity_id,
            name=link.activity.name,
            role=link.activity.agent_role or link.activity.human_role or "",
            pipeline=pipelines.get(link.activity.pipeline_run_id or tenant_id, ""),
            status=link.activity.status.replace("_", " "),
            state=link.state,
            reason=link.reason,
        )
        for link in links
    ]


def _history(row: Any, subject: Any | None) -> list[Moment]:
    """The last things that happened to the item and to what it is about, oldest first."""
    names = {row.pk: ""} | ({} if subject is None else {subject.pk: subject.name})
    hidden = Q(verb__in=_INNER)
    if (
        row.link_kind == LinkKind.GATE
    ):  # Its answer moves the gate and the work behind it; once is enough to tell.
        hidden |= Q(activity_id=row.parent_id, verb__in=("approve", "reject"))
    events = ActivityEvent.objects.for_tenant(row.tenant_id).filter(activity_id__in=names).exclude(hidden)
    newest = list(events.order_by("-at", "-seq", "-pk")[:HISTORY])
    return [_moment(event, names[event.activity_id]) for event in reversed(newest)]


def _moment(event: Any, about: str) -> Moment:
    detail: Mapping[str, Any] = event.detail or {}
    words = next((detail[name] for name in _SAID if isinstance(detail.get(name), str) and detail[name]), "")
    what = "submitted" if event.verb == "submit" and about else did(event.verb)
    return Moment(event.at, event.verb, named(event.actor), what, words[:LONGEST_WORDS], about)


def _votes(rules: DecisionRules, given: Sequence[Any]) -> Votes | None:
    if not rules.is_voted_on:
        return None
    ballots = [
        Ballot(named(vote.actor), vote.decision == "approve", vote.chosen_option or "", vote.notes)
        for vote in given
    ]
    return Votes(rules.quorum, rules.voters, sum(ballot.yes for ballot in ballots), ballots)


def _facts(row: Any, approval: Any | None, letter: Any | None) -> list[tuple[str, str]]:
    """What is known beside the texts, by its name."""
    metadata = row.metadata or {}
    facts = {
        "Type": approval.type if approval else metadata.get("blocker_type"),
        "Handed over because": metadata.get("reassign_reason"),
        "Error": letter.error.get("code") if letter else None,
        "Workers lost": letter.stalls if letter and letter.stalls else None,
        "Cost until then": dollars(letter.cost_usd) if letter and letter.cost_usd else None,
        "Sent back with": row.reviewer_notes if row.status in OPEN else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]
