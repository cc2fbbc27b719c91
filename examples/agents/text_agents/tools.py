"""Shared functions of the agents that use the orchestrator's tools.

Such an agent is started several times for one job and remembers nothing in between. `wake_reason` says why it was started, the wakes carry
the answers, and the prompt contains what it needs from before.
"""

from __future__ import annotations

from typing import Any

from .callbacks import Reporter
from .job import Answer, Job
from .problem import malformed


def reporter_of(job: Job) -> Reporter:
    """Return the reporter of the job's callback. Raises a 400 `Problem` if the job has no callback."""
    if job.callback is None:
        raise malformed("callback", "is needed to use the orchestrator's tools")
    return Reporter(job.callback)


def waiting(answer: dict[str, Any]) -> Answer:
    """Return the answer of a run that a tool has suspended. The orchestrator does not keep its output."""
    return Answer(f"Waiting: {answer.get('status')}.", {"waits_for": answer.get("id")})


def chosen_direction(job: Job) -> str | None:
    """Return the option that people chose last, or None. Several answers may arrive together, and not all of them choose an option."""
    approvals = (wake for wake in reversed(job.wakes) if wake.get("reason") == "review_approved")
    return next((wake["chosen_option"] for wake in approvals if wake.get("chosen_option")), None)
