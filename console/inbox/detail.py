"""One item of the inbox with everything that a person needs to answer it.

What PostgreSQL knows is read in one transaction; outputs are read after it, since they may lie in MongoDB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from difflib import SequenceMatcher
from itertools import islice, pairwise
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.http import Http404
from django.utils.safestring import SafeString

from activities import activity_tree, outputs, selectors
from activities.activity_tree import COUNTERPARTS, SUCCESSORS, Origin
from activities.decision_rules import DecisionRules
from activities.exceptions import OutputUnavailable
from activities.models import Activity, ActivityEvent, ActivityRun, Approval, ApprovalLink, DeadLetter, Vote
from activities.models.decision import LinkState
from activities.outputs import StoredOutput
from activities.selectors import PersonClaim
from activities.states import LinkKind, Status
from console import markdown
from console.inbox import effects
from console.inbox.actions import OPEN, Draft, Offer, draft_of, offer_actions
from console.inbox.effects import About, Consequence, Place
from console.inbox.listing import Timing, who_asks
from console.inbox.snooze import snooze_times
from console.labels import (
    KINDS,
    cost_in,
    dollars,
    name_actor,
    outcome_label,
    past_tense,
    text_of_event,
    tokens_in,
)  # fmt: skip
from pipelines.models import PipelineRun
from tenants.context import tenant_scope
from tenants.principals import Principal


@dataclass(frozen=True, slots=True)
class Item:
    """An item as its page displays it. `row` is its activity, `subject` the activity that it is about."""

    row: Any
    subject: Any | None
    asked_by: str
    timing: Timing
    place: Place | None
    facts: Sequence[tuple[str, str]]
    before: Round | None
    expense: Expense | None
    rules: DecisionRules
    votes: Sequence[Vote]
    linked: Sequence[Any]
    history: Sequence[HistoryEntry]
    consequences: Sequence[Consequence]
    offer: Offer
    claim: PersonClaim | None = None
    texts: Sequence[Text] = ()
    changes: Difference | None = None
    edits: Difference | None = None  # from the agent's text to the approved one, if somebody edited it
    draft: Draft | None = None

    @property
    def kind(self) -> str:
        return str(self.row.kind)

    @property
    def approvals(self) -> int:
        return sum(vote.decision == "approve" for vote in self.votes)

    @property
    def kind_in_words(self) -> str:
        return KINDS[self.kind][0]

    @property
    def is_open(self) -> bool:
        return self.row.status in OPEN

    @property
    def outcome(self) -> str:
        return outcome_label(self.row.status) + (" as edited" if self.was_edited else "")

    @property
    def was_edited(self) -> bool:
        """Whether the approved text differs from the agent's text."""
        row = self.row
        return row.status == Status.APPROVED and None not in (row.output_ref, row.input_ref)

    @property
    def last(self) -> HistoryEntry | None:
        """The last entry about the item itself."""
        return next((entry for entry in reversed(self.history) if not entry.about), None)

    @property
    def claimed_by(self) -> str:
        return name_actor(self.claim.actor) if self.claim else ""


def item(principal: Principal, item_id: UUID) -> Item:
    """Return the item for one person. Raises `Http404` if the tenant has no such item. Not inside a transaction."""
    with tenant_scope(principal.tenant_id):
        bare = _read_facts(principal, item_id)
        sources = list(sources_of(bare.row, bare.subject))
    reader = Reader(principal.tenant_id)
    texts = reader.texts(sources)
    before, row = bare.before.output_ref if bare.before else None, bare.row
    return replace(
        bare,
        texts=texts,
        changes=reader.changes(before, row.input_ref) if before else None,
        edits=reader.changes(row.input_ref, row.output_ref) if bare.was_edited else None,
        draft=draft_of(reader.output(row.input_ref)) if bare.offer.editing else None,
    )


def _read_facts(principal: Principal, item_id: UUID) -> Item:
    """Return the item without its texts."""
    tenant_id = principal.tenant_id
    rows = Activity.objects.for_tenant(tenant_id).filter(assignee_type="human").select_related("parent")
    row = (
        rows.filter(pk=item_id)
        .annotate(kind=selectors.KIND_OF_ITEM, aside_until=snooze_times(principal))
        .first_or_raise(Http404())
    )
    subject, origin = subject_of(row), activity_tree.origin_of(tenant_id, row)
    line = line_of(subject)
    place = effects.place_of(row, subject)
    approval = Approval.objects.for_tenant(tenant_id).filter(pk=item_id).first()
    links = list_links(tenant_id, item_id) if approval else []
    votes = list(Vote.objects.for_tenant(tenant_id).filter(activity_id=item_id))
    is_open = row.status in OPEN
    voted = any(vote.voter == principal.identity for vote in votes)
    about = About(
        item=row,
        relation=origin.kind,
        subject=subject,
        waits=waiting_for(row, origin),
        place=place,
        linked=sum(link.state == LinkState.WAITING for link in links),
    )
    return Item(
        row=row,
        subject=subject,
        asked_by=who_asks(row, _asking_actor(row, approval), place.pipeline if place else None),
        timing=Timing.of(row),
        place=place,
        facts=_facts_of(row, approval, _letter_of(row)),
        before=round_before(line),
        expense=expense_of(line),
        rules=DecisionRules.read(row.decision_rules),
        votes=votes,
        linked=links,
        history=history_of(row, subject),
        consequences=effects.consequences(about) if is_open else (),
        offer=offer_actions(principal, row, approval=approval, voted=voted) if is_open else Offer(),
        claim=selectors.claims_of(tenant_id, [row]).get(row.pk),
    )


MOST_LINKED = 100


def list_links(tenant_id: UUID, approval_id: UUID) -> list[Any]:
    """Return the links to the activities that wait for an approval, or did, each with the name of its activity's `pipeline`."""
    rows = ApprovalLink.objects.for_tenant(tenant_id).filter(approval_id=approval_id)
    links: list[Any] = list(rows.select_related("activity").order_by("activity_id")[:MOST_LINKED])
    run_ids = {link.activity.pipeline_run_id for link in links} - {None}
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(pk__in=run_ids)
    pipelines = dict(runs.values_list("pk", "version__pipeline__name"))
    for link in links:
        link.pipeline = pipelines.get(link.activity.pipeline_run_id, "")
    return links


# The recent history of an item and of the activity that it is about.


HISTORY = 12
LONGEST_WORDS = 300  # characters of one entry's text
_INTERNAL = ("claim", "start", "release")  # transitions of the engine that do not interest a person
_TEXT_FIELDS = ("notes", "note", "reason", "message", "question")  # fields of an event that may hold its text


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of the history. `about` names the activity if it is not the item itself."""

    at: datetime
    verb: str
    who: str
    did: str
    words: str
    about: str


def history_of(row: Any, subject: Any | None) -> list[HistoryEntry]:
    """Return the last events of the item and of its subject, oldest first."""
    names = {row.pk: ""} | ({} if subject is None else {subject.pk: subject.name})
    hidden = Q(verb__in=_INTERNAL)
    if row.link_kind == LinkKind.GATE:
        # An answer moves the gate and the work behind it; list it only once.
        hidden |= Q(activity_id=row.parent_id, verb__in=("approve", "reject"))
    events = ActivityEvent.objects.for_tenant(row.tenant_id).filter(activity_id__in=names).exclude(hidden)
    newest = list(events.order_by("-at", "-seq", "-pk")[:HISTORY])
    return [_entry(event, names[event.activity_id]) for event in reversed(newest)]


def _entry(event: Any, about: str) -> HistoryEntry:
    detail: Mapping[str, Any] = event.detail or {}
    words = text_of_event(detail, _TEXT_FIELDS)
    did = past_tense(event.verb) + (" as edited" if detail.get("edited") else "")
    return HistoryEntry(event.at, event.verb, name_actor(event.actor), did, words[:LONGEST_WORDS], about)


# The work that an item is about: its rounds and reassignments, their cost, and the notes on the previous round.
#
# Reads only, in the caller's `tenant_scope`.


MOST_ROUNDS = 30  # previous rounds that are read; more than any setting allows


@dataclass(frozen=True, slots=True)
class Round:
    """A round for which changes were requested."""

    number: int
    output_ref: UUID | None
    notes: str
    decided_by: str


@dataclass(frozen=True, slots=True)
class Expense:
    """Runs, tokens and cost of all rounds so far."""

    runs: int
    failed: int
    tokens: int
    dollars: str


def subject_of(item: Any) -> Any | None:
    """Return the activity that an item is about: its parent, or the one whose output is its input."""
    if item.parent is not None or item.input_ref is None:
        return item.parent
    runs = ActivityRun.objects.for_tenant(item.tenant_id).filter(pk=item.input_ref)
    run = runs.select_related("activity").first()
    return run.activity if run else _subject_of_edited(item)


def _subject_of_edited(item: Any) -> Any | None:
    """Return the subject of an item whose input was edited by a person before it was approved."""
    rows = Activity.objects.for_tenant(item.tenant_id).filter(
        pipeline_run_id=item.pipeline_run_id, output_ref=item.input_ref, status=Status.APPROVED
    )
    approved = rows.select_related("parent").first() if item.pipeline_run_id else None
    return approved if approved is None or approved.assignee_type == "agent" else subject_of(approved)


def waiting_for(item: Any, origin: Origin) -> Any | None:
    """Return the activity that waits for the answer to an item. `origin` is where the item's chain of successors began."""
    if origin.parent_id is None or origin.kind not in COUNTERPARTS:
        return None
    if item.parent is not None and item.parent_id == origin.parent_id:
        return item.parent
    return Activity.objects.for_tenant(item.tenant_id).filter(pk=origin.parent_id).first()


def line_of(subject: Any | None) -> list[Any]:
    """Return the activity and all its predecessors, newest first."""
    line = [subject] if subject is not None else []
    while line and line[-1].link_kind in SUCCESSORS and line[-1].parent_id and len(line) < MOST_ROUNDS:
        before = Activity.objects.for_tenant(line[-1].tenant_id).filter(pk=line[-1].parent_id).first()
        if before is None:
            break
        line.append(before)
    return line


def round_before(line: Sequence[Any]) -> Round | None:
    """Return the previous round, for which changes were requested; None in the first round."""
    for newer, older in pairwise(line):
        if newer.link_kind == LinkKind.REVISION_OF:
            # An activity's own gate stores its notes on the work; a gate in a later step stores them on the new round, and somebody else
            # may have approved the work before.
            notes = older.reviewer_notes if older.status == Status.REJECTED else newer.reviewer_notes
            by = _asking_actor(newer, None)
            return Round(older.round, older.output_ref, notes or "", name_actor(by) if by else "")
    return None


def expense_of(line: Sequence[Any]) -> Expense | None:
    """Return the expense as the agents reported it; None if no agent has run."""
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
        tokens=sum(sum(tokens_in(usage)) for _, usage in runs),
        dollars=dollars(cost) if cost else "",
    )


# The texts to judge: the question, inputs, outputs, and the diff to the previous round's output.
#
# Outputs may lie in MongoDB, which may be slow or unavailable. So the tenant's transaction only collects their ids, and they are read after
# it. For an output that cannot be read the page has a remark instead.


MOST_OUTPUTS = 6  # of an item that joins several steps
LONGEST_PLAIN = 300_000  # characters of one text; the rest is available through the API
LONGEST_DATA = 50_000
MARKDOWN = ("text/markdown", "text/x-markdown")


@dataclass(frozen=True, slots=True)
class Source:
    """A text, or the id of the output to read it from."""

    title: str
    content: str | None = None
    data: Any = None
    content_type: str = "text/markdown"
    output_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A text as the page displays it: safe HTML or plain text. `remark` explains why it is missing or cut."""

    title: str
    html: SafeString | None = None
    plain: str = ""
    data: str = ""
    remark: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.html or self.plain or self.data or self.remark)


@dataclass(slots=True)
class Reader:
    """Reads the outputs of one page. After the first one that cannot be read, it tries no other."""

    tenant_id: UUID
    markdown_left: int = markdown.LONGEST  # characters, for all texts of the page together
    unavailable: bool = False
    _read: dict[UUID, StoredOutput | None] = field(default_factory=dict)

    def texts(self, sources: Sequence[Source]) -> list[Text]:
        """Return the texts of the sources that are not empty, in order. Not inside a transaction."""
        texts = [self._text(source) for source in sources]
        return [text for text in texts if not text.is_empty]

    def changes(self, before: UUID | None, after: UUID | None) -> Difference | None:
        """Return the diff from the first output to the second; None if either is missing."""
        old, new = self.output(before), self.output(after)
        if old is None or new is None:
            return None
        return difference(_full_text(old), _full_text(new))

    def _text(self, source: Source) -> Text:
        if source.output_id is None:
            return self._render(source.title, source.content, source.data, source.content_type)
        output = self.output(source.output_id)
        if output is None:
            why = "The output store does not answer." if self.unavailable else "The output does not exist."
            return Text(source.title, remark=f"{why} Reload the page in a moment.")
        return self._render(source.title, output.content, output.data, output.content_type)

    def _render(self, title: str, content: str | None, data: Any, content_type: str) -> Text:
        written = content or ""
        more = "" if data is None else _as_json(data)
        if content_type.partition(";")[0].strip().lower() in MARKDOWN and len(written) <= self.markdown_left:
            self.markdown_left -= len(written)
            return Text(title, html=markdown.render(written), data=more)
        cut = len(written) - LONGEST_PLAIN
        remark = f"{cut} more characters are available through the API." if cut > 0 else ""
        return Text(title, plain=written[:LONGEST_PLAIN], data=more, remark=remark)

    def output(self, output_id: UUID | None) -> StoredOutput | None:
        """Return an output, or None if it cannot be read. Not inside a transaction."""
        if output_id is None or self.unavailable:
            return self._read.get(output_id) if output_id else None
        if output_id not in self._read:
            try:
                self._read[output_id] = outputs.read(self.tenant_id, output_id)
            except OutputUnavailable:
                self.unavailable = True
                return None
        return self._read[output_id]


def sources_of(item: Any, subject: Any | None) -> Iterator[Source]:
    """Yield the sources of all texts of an item."""
    if item.description:
        yield Source(_QUESTIONS.get(item.link_kind, "Description"), item.description)
    input_: Mapping[str, Any] = item.input or {}
    if input_.get("content") is not None or input_.get("data") is not None:
        yield Source("Input", input_.get("content"), input_.get("data"))
    if item.input_ref:
        role = subject.agent_role if subject is not None else ""
        yield Source(f"Result of {role}" if role else "Input", output_id=item.input_ref)
    yield from islice(_results_of_steps(input_.get("refs") or {}), MOST_OUTPUTS)
    if item.link_kind == LinkKind.ESCALATION and subject is not None and subject.output_ref:
        yield Source("The rejected result", output_id=subject.output_ref)
    if item.params:
        yield Source("Parameters", data=item.params)
    if item.output_ref:
        title = "Approved text" if item.status == Status.APPROVED else "Submitted result"
        yield Source(title, output_id=item.output_ref)


def _results_of_steps(refs: Mapping[str, Any]) -> Iterator[Source]:
    """Yield the result of each step. The branches of a fan-out are numbered from 1."""
    for step, kept in refs.items():
        if not isinstance(kept, list):
            yield Source(f"Result of {step}", output_id=UUID(str(kept)))
            continue
        for number, reference in enumerate(kept, start=1):
            if reference is not None:
                yield Source(f"Result of {step}, part {number}", output_id=UUID(str(reference)))


_QUESTIONS = {
    LinkKind.REVIEW: "Question",
    LinkKind.RESOLUTION: "Blocker",
    LinkKind.ESCALATION: "What happened",
}


def _full_text(output: StoredOutput) -> str:
    return "\n".join(part for part in (output.content, _as_json(output.data)) if part)


def _as_json(data: Any) -> str:
    if data is None:
        return ""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return (
        text
        if len(text) <= LONGEST_DATA
        else f"{text[:LONGEST_DATA]}\n… {len(text) - LONGEST_DATA} more characters"
    )


# The diff between two versions of a text, by lines and words.
#
# Comparing takes quadratic time: a second at worst within these limits. Longer texts are not compared.

MOST_LINES = 800  # of each version
MOST_CHARACTERS = 200_000
MOST_WORDS = 2_000  # compared word by word, over all lines; the rest is compared by lines only
CONTEXT = 2  # unchanged lines around a change
ALIKE = 0.5  # from this similarity on, a line counts as changed instead of replaced

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")

Parts = tuple[tuple[str, bool], ...]  # pieces of a line, each with whether it changed


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `same`, `added`, `removed`, or `gap` for omitted unchanged lines."""

    kind: str
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A diff. `too_long` means that the texts were not compared; no lines means that they are equal."""

    lines: tuple[Line, ...] = ()
    too_long: bool = False

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines)


def difference(before: str, after: str) -> Difference:
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MOST_LINES or max(len(before), len(after)) > MOST_CHARACTERS:
        return Difference(too_long=True)
    return Difference(tuple(_lines(old, new)))


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    words = _Words(MOST_WORDS)
    end = 0
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        if group[0][1] > end:
            yield Line("gap")
        for tag, start, stop, new_start, new_stop in group:
            if tag == "equal":
                yield from (Line("same", ((text, False),)) for text in old[start:stop])
            else:
                yield from _compare_lines(old[start:stop], new[new_start:new_stop], words)
        end = group[-1][2]
    if 0 < end < len(old):
        yield Line("gap")


def _compare_lines(old: Sequence[str], new: Sequence[str], words: _Words) -> Iterator[Line]:
    pairs = [words.compare(*pair) for pair in zip(old, new, strict=False)]
    yield from (Line("removed", removed) for removed, _ in pairs)
    yield from (Line("removed", ((text, False),)) for text in old[len(pairs) :])
    yield from (Line("added", added) for _, added in pairs)
    yield from (Line("added", ((text, False),)) for text in new[len(pairs) :])


class _Words:
    """Compares lines word by word, up to a limit of words."""

    def __init__(self, limit: int) -> None:
        self.remaining = limit

    def compare(self, old: str, new: str) -> tuple[Parts, Parts]:
        """Return the parts of both lines; whole lines if they have little in common."""
        before, after = _WORDS.findall(old), _WORDS.findall(new)
        self.remaining -= max(len(before), len(after))
        if self.remaining < 0:
            return ((old, False),), ((new, False),)
        matcher = SequenceMatcher(None, before, after)
        if matcher.ratio() < ALIKE:
            return ((old, False),), ((new, False),)
        steps = matcher.get_opcodes()
        return (
            tuple(("".join(before[i:j]), tag != "equal") for tag, i, j, _, _ in steps if j > i),
            tuple(("".join(after[i:j]), tag != "equal") for tag, _, _, i, j in steps if j > i),
        )


# Further facts about an item: who requested it, and values by their labels.


def _asking_actor(row: Any, approval: Any | None) -> str | None:
    if approval is not None:
        return str(approval.requested_by)
    events = ActivityEvent.objects.for_tenant(row.tenant_id).filter(activity_id=row.pk, seq=1)
    return events.values_list("actor", flat=True).first()


def _letter_of(row: Any) -> Any | None:
    if row.link_kind != LinkKind.ESCALATION or row.parent_id is None:
        return None
    letters = DeadLetter.objects.for_tenant(row.tenant_id).filter(
        activity_id=row.parent_id, escalation_id=row.pk
    )
    return letters.order_by("-pk").first()


def _facts_of(row: Any, approval: Any | None, letter: Any | None) -> list[tuple[str, str]]:
    metadata = row.metadata or {}
    facts = {
        "Type": approval.type if approval else metadata.get("blocker_type"),
        "Reason for reassignment": metadata.get("reassign_reason"),
        "Error": letter.error.get("code") if letter else None,
        "Workers lost": letter.stalls if letter and letter.stalls else None,
        "Cost so far": dollars(letter.cost_usd) if letter and letter.cost_usd else None,
        "Reviewer notes": row.reviewer_notes if row.status in OPEN else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]
