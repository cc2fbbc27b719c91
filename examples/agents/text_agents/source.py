"""The source: the user's text, which the agents forward to each other.

The orchestrator gives each step the output of the step before. So the first agent puts the text into the data
of its output, and every later one forwards it, cut to a size that the orchestrator accepts.
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
    """The text to work on. `truncated`: its end is missing."""

    title: str
    text: str
    truncated: bool

    def document(self) -> markdown.Document:
        """The text in blocks."""
        return markdown.read(self.text)

    def as_data(self) -> dict[str, Any]:
        """Return the source as the data of an output, cut to the largest size."""
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
    """Return the source that an earlier agent forwarded, else the job's own text. Raises a 422 `Problem` if there is neither."""
    source = find(job.data, "source")
    if isinstance(source, Mapping) and isinstance(source.get("text"), str) and source["text"].strip():
        title = str(source.get("title") or "") or read_document(source["text"]).title
        return Source(title=title, text=source["text"], truncated=bool(source.get("truncated")))
    return Source(title=read_document(job.text).title, text=job.text, truncated=False)


def forwarded(job: Job) -> dict[str, Any] | None:
    """Return the job's source as the data of an output, or None if the job has none."""
    try:
        return of_job(job).as_data()
    except Problem:
        return None


def find(data: Any, name: str) -> Any:
    """Return the named part of the input's data, or None. With several inputs it is one level deeper."""
    if not isinstance(data, Mapping):
        return None
    if name in data:
        return data[name]
    deeper = (part[name] for part in data.values() if isinstance(part, Mapping) and name in part)
    return next(deeper, None)


def _cut(text: str) -> str:
    """Return the start of a text, up to the end of a paragraph if there is one nearby."""
    raw = text.encode("utf-8")
    if len(raw) <= LONGEST_BYTES:
        return text
    kept = raw[:LONGEST_BYTES].decode("utf-8", "ignore")
    last_paragraph = kept.rfind("\n\n")
    return kept[:last_paragraph] if last_paragraph > len(kept) // 2 else kept
