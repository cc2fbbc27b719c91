"""The content brief writer: drafts a brief and, when a reviewer sends it back, mends it by the notes.

The rejected brief is taken from the prompt, where the orchestrator shows it. If it is not there, the writer's
own memory of the session helps, and without that a new draft from the same keywords: after a restart nothing
is needed.
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
        """The skill: a new brief or, on a rejection, the rejected one with the wanted changes."""
        session_id = job.session_id or f"brief-{uuid4()}"
        brief, origin = (self._rejected(job) if job.rejected else None) or (draft(job), "new draft")
        brief, changes = revise(brief, job.reviewer_notes) if job.rejected else (brief, [])
        self._remember(job, session_id, brief)
        data = {
            **brief.as_data(),
            "keywords": source.found(job.data, "keywords") or [],
            "changes": [change.as_data() for change in changes],
            "based_on": origin,
            "source": source.handed_on(job),
        }
        return Answer(brief.as_markdown() + _changes(job, changes), data, session_id)

    def _rejected(self, job: Job) -> tuple[Brief, str] | None:
        if shown := briefs.from_markdown(job.prompt):
            return shown, "rejected brief in the prompt"
        if given := briefs.from_data(job.data):
            return given, "rejected brief in the input"
        with self._lock:
            known = self._sessions.get((job.session_id or "", job.job_id))
        return (known, "memory of the session") if known else None

    def _remember(self, job: Job, session_id: str, brief: Brief) -> None:
        # One session may serve several jobs of a role; their briefs must not be mixed up.
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
