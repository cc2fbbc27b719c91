"""The source: the user's text, as the agents hand it on to each other.

An orchestrator gives each step the output of the step before. So the first agent puts the text into its
output's data, and every later one passes it on, cut to a size that any store and any door accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import markdown
from .job import Job
from .problem import Problem, nothing_to_read

LONGEST_BYTES = 150_000


@dataclass(frozen=True, slots=True)
class Source:
    """The text that everything is about. `truncated` tells that its end is missing."""

    title: str
    text: str
    truncated: bool

    def document(self) -> markdown.Document:
        """The text in blocks."""
        return markdown.read(self.text)

    def as_data(self) -> dict[str, Any]:
        """The source for an output's data, short enough to be handed on."""
        text = _cut(self.text)
        return {"title": self.title, "text": text, "truncated": self.truncated or len(text) < len(self.text)}


def read_document(text: str) -> markdown.Document:
    """The text in blocks. Raises a 422 `Problem` when it holds no word."""
    document = markdown.read(text)
    if document.blocks:
        return document
    if text.strip():
        raise nothing_to_read(
            "The text holds no readable word outside of code; plain text or Markdown is needed"
        )
    raise nothing_to_read("There is no text to work on: put it into input.content or params.text")


def of_job(job: Job) -> Source:
    """The source that an earlier agent handed on, else the job's own text; else a 422 `Problem`."""
    given = found(job.data, "source")
    if isinstance(given, Mapping) and isinstance(given.get("text"), str) and given["text"].strip():
        title = str(given.get("title") or "") or read_document(given["text"]).title
        return Source(title=title, text=given["text"], truncated=bool(given.get("truncated")))
    return Source(title=read_document(job.text).title, text=job.text, truncated=False)


def handed_on(job: Job) -> dict[str, Any] | None:
    """The job's source for its output's data, or None when the job brings none and did not need it."""
    try:
        return of_job(job).as_data()
    except Problem:
        return None


def found(data: Any, name: str) -> Any:
    """The named part of an input's data. With several inputs they stand side by side, one level deeper."""
    if not isinstance(data, Mapping):
        return None
    if name in data:
        return data[name]
    deeper = (part[name] for part in data.values() if isinstance(part, Mapping) and name in part)
    return next(deeper, None)


def _cut(text: str) -> str:
    """The start of a text, up to a paragraph's end if there is one near."""
    raw = text.encode("utf-8")
    if len(raw) <= LONGEST_BYTES:
        return text
    kept = raw[:LONGEST_BYTES].decode("utf-8", "ignore")
    last_paragraph = kept.rfind("\n\n")
    return kept[:last_paragraph] if last_paragraph > len(kept) // 2 else kept
