"""The content brief writer: drafts a brief, and revises it after a rejection.

The rejected brief is in the prompt or in the input. Otherwise the writer uses its memory of the session or,
after a restart, drafts a new one from the same keywords.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from uuid import uuid4

from . import brief as briefs
from . import source
from .brief import Brief
from .draft import draft
from .job import Answer, Job
from .review import Change, revise

REMEMBERED_SESSIONS = 1000


class BriefWriter:
    """Writes briefs and remembers the last one of each session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, str], Brief] = OrderedDict()

    def write(self, job: Job) -> Answer:
        """The skill: returns a new brief or, after a rejection, the rejected one with the requested changes."""
        session_id = job.session_id or f"brief-{uuid4()}"
        brief, origin = (self._rejected(job) if job.rejected else None) or (draft(job), "new draft")
        brief, changes = revise(brief, job.reviewer_notes) if job.rejected else (brief, [])
        self._remember(job, session_id, brief)
        data = {
            **brief.as_data(),
            "keywords": source.find(job.data, "keywords") or [],
            "changes": [change.as_data() for change in changes],
            "based_on": origin,
            "source": source.forwarded(job),
        }
        return Answer(brief.as_markdown() + _changes(job, changes), data, session_id)

    def _rejected(self, job: Job) -> tuple[Brief, str] | None:
        if brief := briefs.from_markdown(job.prompt):
            return brief, "rejected brief in the prompt"
        if brief := briefs.from_data(job.data):
            return brief, "rejected brief in the input"
        with self._lock:
            known = self._sessions.get((job.session_id or "", job.job_id))
        return (known, "memory of the session") if known else None

    def _remember(self, job: Job, session_id: str, brief: Brief) -> None:
        # One session may serve several jobs of a role; so the job is part of the key.
        key = (session_id, job.job_id)
        with self._lock:
            self._sessions[key] = brief
            self._sessions.move_to_end(key)
            while len(self._sessions) > REMEMBERED_SESSIONS:
                self._sessions.popitem(last=False)


def _changes(job: Job, changes: list[Change]) -> str:
    if not job.rejected:
        return ""
    lines = [change.as_markdown() for change in changes]
    return "\n".join(["", "## Changes after review", "", *(lines or ["- The reviewer left no notes."]), ""])
