"""What there is to judge: the question, outputs, inputs, and how an output differs from that of the round before.

Outputs may lie in MongoDB, which may take its time or be away. So what is to be read is found out inside the tenant's transaction, and
read after it; an output that cannot be read says so, and the rest is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

from django.utils.safestring import SafeString

from activities import outputs
from activities.exceptions import OutputUnavailable
from activities.outputs import StoredOutput
from activities.states import LinkKind, Status
from console import markdown
from console.differences import Difference, difference

MOST_OUTPUTS = 6  # of the steps that an item joins
LONGEST_PLAIN = 300_000  # characters of one text; the rest is in the API
LONGEST_DATA = 50_000
MARKDOWN = ("text/markdown", "text/x-markdown")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a text is: here, or in an output that is to be read."""

    title: str
    content: str | None = None
    data: Any = None
    content_type: str = "text/markdown"
    output_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """One text as the page shows it: as safe HTML, or plainly, or what keeps it from being shown."""

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
    """Reads for one page. After the first output that cannot be read no other is waited for."""

    tenant_id: UUID
    markdown_left: int = markdown.LONGEST  # over all texts of the page
    unavailable: bool = False
    _read: dict[UUID, StoredOutput | None] = field(default_factory=dict)

    def texts(self, sources: Sequence[Source]) -> list[Text]:
        """What there is to show of these, in their order. Not inside a transaction."""
        shown = [self._text(source) for source in sources]
        return [text for text in shown if not text.is_empty]

    def changes(self, before: UUID | None, after: UUID | None) -> Difference | None:
        """How the second output differs from the first; None when either is missing."""
        old, new = self.output(before), self.output(after)
        if old is None or new is None:
            return None
        return difference(_whole(old), _whole(new))

    def _text(self, source: Source) -> Text:
        if source.output_id is None:
            return self._shown(source.title, source.content, source.data, source.content_type)
        found = self.output(source.output_id)
        if found is None:
            why = "The store of outputs does not answer." if self.unavailable else "The output is not there."
            return Text(source.title, remark=f"{why} Load the page again in a moment.")
        return self._shown(source.title, found.content, found.data, found.content_type)

    def _shown(self, title: str, content: str | None, data: Any, content_type: str) -> Text:
        written = content or ""
        more = "" if data is None else _as_json(data)
        if content_type.partition(";")[0].strip().lower() in MARKDOWN and len(written) <= self.markdown_left:
            self.markdown_left -= len(written)
            return Text(title, html=markdown.rendered(written), data=more)
        cut = len(written) - LONGEST_PLAIN
        remark = f"{cut} further characters are in the API." if cut > 0 else ""
        return Text(title, plain=written[:LONGEST_PLAIN], data=more, remark=remark)

    def output(self, output_id: UUID | None) -> StoredOutput | None:
        """Not inside a transaction; None where it cannot be read."""
        if output_id is None or self.unavailable:
            return self._read.get(output_id) if output_id else None
        if output_id not in self._read:
            try:
                self._read[output_id] = outputs.read(self.tenant_id, output_id)
            except OutputUnavailable:
                self.unavailable = True
                return None
        return self._read[output_id]


def sources_of(item: Any, subject: Any | None) -> list[Source]:
    """Everything that an item puts before people."""
    return list(_sources(item, subject))


def _sources(item: Any, subject: Any | None) -> Iterator[Source]:
    if item.description:
        yield Source(_QUESTIONS.get(item.link_kind, "What is asked"), item.description)
    given: Mapping[str, Any] = item.input or {}
    if given.get("content") is not None or given.get("data") is not None:
        yield Source("To look at", given.get("content"), given.get("data"))
    if item.input_ref:
        yield Source(_result_of(subject), output_id=item.input_ref)
    yield from islice(_of_steps(given.get("refs") or {}), MOST_OUTPUTS)
    if item.link_kind == LinkKind.ESCALATION and subject is not None and subject.output_ref:
        yield Source("The result that was sent back", output_id=subject.output_ref)
    if item.params:
        yield Source("Parameters", data=item.params)
    if item.output_ref:
        title = "The text as it was approved" if item.status == Status.APPROVED else "What was handed in"
        yield Source(title, output_id=item.output_ref)


def _of_steps(refs: Mapping[str, Any]) -> Iterator[Source]:
    """The result of each step; of one that was fanned out, those of its branches, counted from 1."""
    for step, kept in refs.items():
        if not isinstance(kept, list):
            yield Source(f"Result of {step}", output_id=UUID(str(kept)))
            continue
        for number, reference in enumerate(kept, start=1):
            if reference is not None:
                yield Source(f"Result of {step}, part {number}", output_id=UUID(str(reference)))


_QUESTIONS = {
    LinkKind.REVIEW: "The question",
    LinkKind.RESOLUTION: "The blocker",
    LinkKind.ESCALATION: "What happened",
}


def _result_of(subject: Any | None) -> str:
    return f"Result of {subject.agent_role}" if subject is not None and subject.agent_role else "To look at"


def _whole(output: StoredOutput) -> str:
    return "\n".join(part for part in (output.content, _as_json(output.data)) if part)


def _as_json(data: Any) -> str:
    if data is None:
        return ""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return (
        text
        if len(text) <= LONGEST_DATA
        else f"{text[:LONGEST_DATA]}\n… {len(text) - LONGEST_DATA} further characters"
    )
