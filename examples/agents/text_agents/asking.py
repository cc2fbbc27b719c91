"""Asking: what the agents that use the orchestrator's tools have in common.

Such an agent is started several times for one job. It remembers nothing between the times: `wake_reason` tells it why it was started,
the wakes carry the answer, and whatever it needs from before stands in the prompt.
"""

from __future__ import annotations

from typing import Any

from .callbacks import Reporter
from .job import Answer, Job
from .problem import malformed


def reporter_of(job: Job) -> Reporter:
    """The way back to the orchestrator. Raises a 400 `Problem` when the job names none."""
    if job.callback is None:
        raise malformed("callback", "is needed to ask for something")
    return Reporter(job.callback)


def waiting(answer: dict[str, Any]) -> Answer:
    """What to return after a tool has put the work aside. The orchestrator keeps no output of such a run."""
    return Answer(f"Waiting: {answer.get('status')}.", {"waits_for": answer.get("id")})


def chosen_direction(job: Job) -> str | None:
    """What people have chosen last, if they have said yes to something. Several answers may come together, and not each has a choice."""
    yes = (wake for wake in reversed(job.wakes) if wake.get("reason") == "review_approved")
    return next((wake["chosen_option"] for wake in yes if wake.get("chosen_option")), None)
